"""Versions of a task's editable files, and the git worktree in which `optimize` commits them."""
