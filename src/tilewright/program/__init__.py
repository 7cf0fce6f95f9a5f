"""Runs a user's program: its command, copies of its tree with edited files, observed runs, and races of versions."""
