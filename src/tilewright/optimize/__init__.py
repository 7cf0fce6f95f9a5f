"""The optimisation loop: `loop.py` is the main path, `setup.py` prepares it."""
