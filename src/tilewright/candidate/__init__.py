"""Runs the edited code of a task in a separate process, which returns only data: code, grid, arguments and hints."""
