"""Records the launches of a program, describes each launch as data, and makes a task of a launch."""
