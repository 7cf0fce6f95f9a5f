"""Launches of a program, recorded, described as data, and made into tasks."""
