"""The search over live tensors, in the process of the caller."""
