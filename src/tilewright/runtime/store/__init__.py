"""What was found, kept: the store of winners, tables to ship, and their verification."""
