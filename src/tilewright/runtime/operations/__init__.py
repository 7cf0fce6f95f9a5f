"""Records the torch operations of the user's program: the line of each, its inputs and outputs, and its time."""
