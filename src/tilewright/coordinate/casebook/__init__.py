"""The casebook: documented performance problems, their remedies, and how these were verified."""
