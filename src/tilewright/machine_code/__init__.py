"""Reads the machine code in cubins, without a GPU."""
