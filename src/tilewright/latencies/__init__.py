"""Latencies that a project's own tests record: read, stored over runs, compared."""
