"""Reads Python source without running it: kernels, launches, configurations, and the values of names."""
