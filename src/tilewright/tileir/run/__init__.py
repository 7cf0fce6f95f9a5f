"""The interpreter: runs the blocks of a kernel on NumPy, many at a time, and counts their work."""
