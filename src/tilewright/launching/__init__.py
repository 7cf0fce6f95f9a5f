"""Launches compiled kernels through the CUDA driver, without torch: in the worker process and in the user's program."""
