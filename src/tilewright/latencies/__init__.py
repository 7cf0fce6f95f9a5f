"""Reads, stores and compares the latencies that a project's own tests record."""
