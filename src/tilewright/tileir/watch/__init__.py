"""The sanitizer: which accesses of an interpreted kernel are out of bounds, uninitialised or racing."""
