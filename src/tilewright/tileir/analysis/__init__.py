"""Analyses of Tile IR that do not run it: accesses, token chains, differences between versions."""
