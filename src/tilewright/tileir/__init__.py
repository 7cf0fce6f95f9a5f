"""Reads, runs and checks Tile IR on a CPU, counts the work, and compares two versions of a kernel."""
