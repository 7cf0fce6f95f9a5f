"""The optimisation loop: `loop.py` is the main path, and `setup.py` prepares a run."""
