"""Compiles configurations in parallel, and decides from their machine code which of them to race."""
