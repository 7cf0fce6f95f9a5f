"""The command line: one module for each command. A command that prints tables has a second module for its output."""
