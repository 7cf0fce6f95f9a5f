"""Translates configurations from one tile language to another."""
