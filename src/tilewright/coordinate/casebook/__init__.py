"""The casebook: earlier performance problems, their remedies, and how these were verified."""
