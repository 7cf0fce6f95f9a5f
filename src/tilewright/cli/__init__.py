"""The command line: one command a file, each with its tables."""
