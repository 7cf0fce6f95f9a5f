"""Finds problems of a program in what it does: in the record of the operations of one run."""
