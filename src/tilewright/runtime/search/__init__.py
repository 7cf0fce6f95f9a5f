"""Searches for the fastest configuration in the user's process. Candidates run on the tensors of the user's call."""
