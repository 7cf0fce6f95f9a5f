"""Calls a tuned task from a program: the config file that `tilewright tune --into` writes, and the `Dispatcher`."""
