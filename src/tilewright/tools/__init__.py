"""Runs compilers, disassemblers and compute-sanitizer as child processes."""
