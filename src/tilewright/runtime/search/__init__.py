"""The search over the caller's tensors, in the caller's process."""
