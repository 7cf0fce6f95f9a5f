"""Finds known mistakes in cuTile and Triton code by reading its text: nothing is imported and nothing runs."""
