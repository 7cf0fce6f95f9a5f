"""The search over the caller's tensors, in the user's process."""
