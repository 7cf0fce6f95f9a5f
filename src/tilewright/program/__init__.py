"""A user's program as it is run: its command, a copy of its tree with changed texts, observed runs, and their races."""
