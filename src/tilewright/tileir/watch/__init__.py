"""The sanitizer: finds accesses of an interpreted kernel that are out of bounds, uninitialised or racing."""
