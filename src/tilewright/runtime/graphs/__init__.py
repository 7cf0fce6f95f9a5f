"""Tries in the user's program whether a model can be captured in a CUDA graph."""
