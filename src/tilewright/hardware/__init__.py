"""Architectures, GPU models (boards) with their peak rates, the roofline, predicted times, and the GPU of this
machine."""
