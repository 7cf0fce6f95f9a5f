"""Runs edited code in a process of its own and hands back data: code, grid, arguments and hints."""
