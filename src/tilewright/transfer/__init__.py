"""Configurations from one tile language to another."""
