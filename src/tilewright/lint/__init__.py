"""Finds known mistakes in cuTile code by reading its text: nothing is imported and nothing runs."""
