"""The ledger: an append-only database of all runs of `tune`, `optimize` and `agent`."""
