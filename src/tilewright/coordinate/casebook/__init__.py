"""The casebook: what was slow before, what helped, and how that was verified."""
