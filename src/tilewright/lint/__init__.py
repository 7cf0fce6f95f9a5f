"""Finds known mistakes in cuTile code from its text alone: nothing is imported and nothing runs."""
