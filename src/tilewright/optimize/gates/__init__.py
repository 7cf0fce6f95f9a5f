"""The gates that judge a change: with a GPU (`measured.py`) or by the model (`predicted.py`)."""
