"""The command line: one module for each command, and one for the output of each command that prints tables."""
