"""The tables of ``results.db``, which `store.py` reads and writes."""

from __future__ import annotations

from tilewright.ledger.file import Schema

RESULTS = Schema(
    table="tilewright_schema",
    version=1,
    statements=(
        """CREATE TABLE runs (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task TEXT NOT NULL, key TEXT NOT NULL,
            measured INTEGER NOT NULL, arch TEXT NOT NULL, gpu TEXT, machine TEXT NOT NULL,
            versions TEXT NOT NULL, started TEXT NOT NULL, finished TEXT, seconds TEXT NOT NULL)""",
        """CREATE TABLE workloads (
            run TEXT NOT NULL REFERENCES runs (id), name TEXT NOT NULL, position INTEGER NOT NULL,
            dims TEXT NOT NULL, bound TEXT NOT NULL, best INTEGER, tied TEXT NOT NULL,
            shipped TEXT NOT NULL, reason TEXT NOT NULL, race TEXT, PRIMARY KEY (run, name))""",
        """CREATE TABLE candidates (
            run TEXT NOT NULL, workload TEXT NOT NULL, position INTEGER NOT NULL,
            configuration TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL,
            code_hash TEXT, code TEXT, compile_seconds REAL, predicted_us REAL, predicted TEXT,
            median_us REAL, measured TEXT, samples TEXT, checked TEXT,
            PRIMARY KEY (run, workload, position),
            FOREIGN KEY (run, workload) REFERENCES workloads (run, name))""",
        "CREATE INDEX runs_by_key ON runs (key)",
        "CREATE INDEX candidates_by_code ON candidates (code_hash)",
    ),
)
"""``workloads.best`` is the ``position`` of the best candidate; ``samples`` are microseconds."""
