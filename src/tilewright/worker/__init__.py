"""Measuring: the clocks, the protocol of a race, and the statistics that judge it."""
