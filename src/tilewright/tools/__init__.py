"""Child processes: compilers, disassemblers and compute-sanitizer."""
