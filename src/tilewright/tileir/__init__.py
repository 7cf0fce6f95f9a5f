"""Reads and runs Tile IR on a CPU, watches the memory, counts the work, and compares two versions of a kernel."""
