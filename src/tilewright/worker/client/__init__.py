"""The parent's side of a race: contestants, and the client that verifies and times them through an executor."""
