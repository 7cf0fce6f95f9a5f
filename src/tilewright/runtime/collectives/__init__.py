"""Runs in the processes that measure communication between the GPUs of one host."""
