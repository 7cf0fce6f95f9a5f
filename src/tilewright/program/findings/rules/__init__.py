"""The rules, one kind of problem in each file."""
