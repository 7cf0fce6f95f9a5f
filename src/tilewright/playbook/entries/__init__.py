"""The changes that the loop tries, one a file."""
