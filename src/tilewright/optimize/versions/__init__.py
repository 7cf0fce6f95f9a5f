"""Versions of a task's editable files, and the git worktree that `optimize` commits them in."""
