"""The optimisation loop: `loop.py` is the main path, `run.py` sets it up."""
