"""Records the launches of a program, describes them as data, and makes tasks of them."""
