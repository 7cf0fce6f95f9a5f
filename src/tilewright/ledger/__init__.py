"""The append-only record of every run of `tune` and `optimize`, and the views of it."""
