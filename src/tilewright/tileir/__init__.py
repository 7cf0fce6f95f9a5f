"""Tile IR on a CPU: read it, run it, watch its memory, count its work, compare two versions."""
