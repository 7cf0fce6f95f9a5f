"""Analyses and rewrites of a kernel's source. Several entries share them."""
