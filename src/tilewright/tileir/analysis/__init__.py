"""Analyses Tile IR without running it: accesses, token chains, differences between versions."""
