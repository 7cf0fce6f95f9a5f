"""Describes architectures and GPU models (called boards), predicts times, and finds the GPU of this machine."""
