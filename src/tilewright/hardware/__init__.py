"""Architectures, boards and their peaks, the roofline, predicted times, and the GPU of this machine."""
