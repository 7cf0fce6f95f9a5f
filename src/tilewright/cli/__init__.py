"""The command line: one module for each command, and one for the table that it prints."""
