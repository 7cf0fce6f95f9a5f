"""Versions of a task's editable files, and the git worktree that they are made in."""
