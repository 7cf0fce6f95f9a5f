"""Runs edited code of a task in a separate process, which returns only data: bytecode, grid, arguments and hints."""
