"""Analyses of a kernel's source, and rewrites of it, which several entries share."""
