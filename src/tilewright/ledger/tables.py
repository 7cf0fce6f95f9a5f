"""The tables of ``ledger.db``, and the triggers that make them append-only.

The triggers refuse UPDATE, DELETE and INSERT OR REPLACE, also from other programs. The iterations of a run have the
numbers 0, 1, 2 … without a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.ledger.agent_records import STEPS
from tilewright.ledger.file import Schema

_RUNS = {
    "runs": (
        """number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL, task TEXT NOT NULL,
        kernel TEXT NOT NULL, measured INTEGER NOT NULL, arch TEXT NOT NULL, gpu TEXT, kind TEXT NOT NULL,
        started TEXT NOT NULL, record TEXT NOT NULL""",
        "id = NEW.id OR number = NEW.number",
    ),
    "run_events": (
        """number INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs (id),
        event TEXT NOT NULL CHECK (event IN ('started', 'resumed', 'finished')),
        at TEXT NOT NULL, stop_reason TEXT, final TEXT, patch TEXT""",
        "number = NEW.number OR (run = NEW.run AND event = 'finished')",
    ),
    "iterations": (
        """run TEXT NOT NULL REFERENCES runs (id), n INTEGER NOT NULL, entry TEXT NOT NULL,
        optimization TEXT NOT NULL, site TEXT NOT NULL, value TEXT NOT NULL, correctness TEXT NOT NULL,
        status TEXT NOT NULL, risk TEXT NOT NULL, latency_ms REAL, predicted_ms REAL, gain REAL,
        reason TEXT NOT NULL, at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run, n)""",
        "run = NEW.run AND n = NEW.n",
    ),
    "attempts": (
        """run TEXT NOT NULL, n INTEGER NOT NULL, position INTEGER NOT NULL, value TEXT NOT NULL,
        status TEXT NOT NULL, reason TEXT NOT NULL, code_hash TEXT, record TEXT NOT NULL,
        PRIMARY KEY (run, n, position), FOREIGN KEY (run, n) REFERENCES iterations (run, n)""",
        "run = NEW.run AND n = NEW.n AND position = NEW.position",
    ),
    "samples": (
        """run TEXT NOT NULL, n INTEGER NOT NULL, version TEXT NOT NULL, workload TEXT NOT NULL,
        us TEXT NOT NULL, PRIMARY KEY (run, n, version, workload),
        FOREIGN KEY (run, n) REFERENCES iterations (run, n)""",
        "run = NEW.run AND n = NEW.n AND version = NEW.version AND workload = NEW.workload",
    ),
}
"""Maps the name of a table to its columns in SQL, and to a condition in SQL. The condition finds the rows that the new
row ``NEW`` would replace. If there is such a row, a trigger refuses the new row.

``samples.version`` is candidate, incumbent, baseline or ``attempt 0``, ``attempt 1`` and so on. ``samples.us`` are the
times in microseconds in the order of the rounds. A ``record`` has no data that is in other tables.
"""

_TUNING = {
    "workloads": (
        """number INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs (id), name TEXT NOT NULL,
        dims TEXT NOT NULL, bound TEXT NOT NULL, best INTEGER, tied TEXT NOT NULL, shipped TEXT NOT NULL,
        reason TEXT NOT NULL, race TEXT""",
        "number = NEW.number",
    ),
    "candidates": (
        """workload INTEGER NOT NULL REFERENCES workloads (number), position INTEGER NOT NULL,
        configuration TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, code_hash TEXT, code TEXT,
        compile_seconds REAL, predicted_us REAL, predicted TEXT, median_us REAL, measured TEXT, samples TEXT,
        checked TEXT, PRIMARY KEY (workload, position)""",
        "workload = NEW.workload AND position = NEW.position",
    ),
}
"""The tables of `tune`, added in schema 2. If ``workloads`` has several rows with the same run and name, the newest one
counts. ``best`` is the ``position`` of the best candidate; ``samples`` are microseconds."""

_AGENT = {
    "agent_measurements": (
        """run TEXT NOT NULL REFERENCES runs (id), n INTEGER NOT NULL, kind TEXT NOT NULL, about TEXT NOT NULL,
        change TEXT NOT NULL, verdict TEXT NOT NULL, ratio REAL, at TEXT NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (run, n)""",
        "run = NEW.run AND n = NEW.n",
    ),
    "agent_findings": (
        """run TEXT NOT NULL REFERENCES runs (id), id TEXT NOT NULL, item TEXT NOT NULL, dismissed TEXT NOT NULL,
        at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run, id), CHECK ((item = '') <> (dismissed = ''))""",
        "run = NEW.run AND id = NEW.id",
    ),
    "agent_items": (
        """run TEXT NOT NULL REFERENCES runs (id), id TEXT NOT NULL, text TEXT NOT NULL, at TEXT NOT NULL,
        record TEXT NOT NULL, PRIMARY KEY (run, id)""",
        "run = NEW.run AND id = NEW.id",
    ),
    "agent_changes": (
        """run TEXT NOT NULL REFERENCES runs (id), id TEXT NOT NULL, item TEXT NOT NULL, name TEXT NOT NULL,
        site TEXT NOT NULL, at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run, id),
        FOREIGN KEY (run, item) REFERENCES agent_items (run, id)""",
        "run = NEW.run AND id = NEW.id",
    ),
    "agent_steps": (
        f"""run TEXT NOT NULL, change TEXT NOT NULL, n INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
        evidence TEXT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (run, change, n), FOREIGN KEY (run, change) REFERENCES agent_changes (run, id),
        CHECK ({" OR ".join(f"(n = {n} AND name = '{name}')" for n, name in enumerate(STEPS))}),
        CHECK (state IN ('failed', 'left out') OR (state = 'done' AND evidence <> ''))""",
        "run = NEW.run AND change = NEW.change AND n = NEW.n",
    ),
    "agent_ends": (
        """run TEXT NOT NULL, item TEXT NOT NULL, status TEXT NOT NULL, why TEXT NOT NULL, reason TEXT NOT NULL,
        evidence TEXT NOT NULL, at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run, item),
        FOREIGN KEY (run, item) REFERENCES agent_items (run, id)""",
        "run = NEW.run AND item = NEW.item",
    ),
}
"""The tables of `agent`, added in schema 3. Measurement ``n`` of a run has the id ``RUN/mN``. The steps of a change are
stored one after the other, in the order of the plan."""

_LOADS = {
    "loads": (
        """number INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs (id), version TEXT NOT NULL,
        event TEXT NOT NULL CHECK (event IN ('loading', 'ended')), at TEXT NOT NULL""",
        "number = NEW.number",
    )
}
"""The versions that `optimize` loads, added in schema 4. ``version`` is a digest of the version's code. If a
version's last row is ``loading``, the process was killed while it loaded the version. ``together``, added in schema 7:
whether other versions may have been loaded at the same time."""


_MERGED = {
    "merged": ("run TEXT PRIMARY KEY REFERENCES runs (id), ledger TEXT NOT NULL, at TEXT NOT NULL", "run = NEW.run")
}
"""The runs that were copied from other ledgers (`merging`), added in schema 6."""


def _tables(tables: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for table, (columns, same) in tables.items():
        yield f"CREATE TABLE {table} ({columns})"
        for change in ("UPDATE", "DELETE"):
            yield f"""CREATE TRIGGER {table}_refuse_{change} BEFORE {change} ON {table}
                BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: no {change} of {table}'); END"""
        # Without this trigger, INSERT OR REPLACE would delete the old row.
        yield f"""CREATE TRIGGER {table}_refuse_again BEFORE INSERT ON {table}
            WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})
            BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: that row of {table} exists'); END"""


_VERSION_1 = (
    *_tables(_RUNS),
    """CREATE TRIGGER iterations_without_gaps BEFORE INSERT ON iterations
        WHEN NEW.n NOT BETWEEN 0 AND (SELECT count(*) FROM iterations WHERE run = NEW.run)
        BEGIN SELECT RAISE(ABORT, 'the iterations of a run are numbered from 0 without a gap'); END""",
    "CREATE INDEX runs_by_key ON runs (key)",
    "CREATE INDEX events_by_run ON run_events (run)",
    "CREATE INDEX attempts_by_code ON attempts (code_hash)",
)
_VERSION_2 = (
    "ALTER TABLE runs ADD COLUMN command TEXT NOT NULL DEFAULT 'optimize'",
    "ALTER TABLE run_events ADD COLUMN seconds TEXT",
    *_tables(_TUNING),
    "CREATE INDEX workloads_by_run ON workloads (run)",
    "CREATE INDEX candidates_by_code ON candidates (code_hash)",
)
_VERSION_3 = (
    *_tables(_AGENT),
    """CREATE TRIGGER agent_measurements_without_gaps BEFORE INSERT ON agent_measurements
        WHEN NEW.n <> (SELECT count(*) FROM agent_measurements WHERE run = NEW.run)
        BEGIN SELECT RAISE(ABORT, 'the measurements of a run are numbered from 0 without a gap'); END""",
    """CREATE TRIGGER agent_steps_in_order BEFORE INSERT ON agent_steps
        WHEN NEW.n <> (SELECT count(*) FROM agent_steps WHERE run = NEW.run AND change = NEW.change)
        BEGIN SELECT RAISE(ABORT, 'the steps of a change are stored in their order'); END""",
)
_VERSION_4 = (*_tables(_LOADS), "CREATE INDEX loads_by_run ON loads (run, version)")
_VERSION_5 = ("ALTER TABLE workloads ADD COLUMN searched TEXT",)
_VERSION_6 = tuple(_tables(_MERGED))
_VERSION_7 = ("ALTER TABLE loads ADD COLUMN together INTEGER NOT NULL DEFAULT 0",)

LEDGER = Schema(
    table="tilewright_ledger_schema",
    version=7,
    statements=(*_VERSION_1, *_VERSION_2, *_VERSION_3, *_VERSION_4, *_VERSION_5, *_VERSION_6, *_VERSION_7),
    migrations={1: _VERSION_2, 2: _VERSION_3, 3: _VERSION_4, 4: _VERSION_5, 5: _VERSION_6, 6: _VERSION_7},
    earlier={
        "tilewright_schema": "holds results of an earlier Tilewright; fix: name another file. A results.db beside "
        "ledger.db is imported without a command"
    },
)
