"""What was found, kept: the store of winners, config files to ship, and their verification."""
