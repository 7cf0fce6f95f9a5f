"""The append-only ledger of all runs of `tune` and `optimize`."""
