"""The store of winners, the config files that libraries ship, and the verification of both."""
