"""Winners for the tests of the store, and a user who may not write."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tilewright.runtime.store.winners import Winner

NOBODY = 65534


def winner(key: str = "k1", **changes: object) -> Winner:
    made = Winner(
        key=key,
        kernel="softmax",
        parts={"kernel": "softmax", "flags": {"causal": True, "n": 1}, "arrays": {"x": {"shape": [4, 8]}}},
        config={"TILE": 128, "causal": True, "scale": 1.0, "mode": "fast", "hint": None},
        index=1,
        label="TILE=128",
        shipped={"TILE": 64},
        runner_up=None,
        outcomes=(
            {"label": "TILE=64", "status": "timed", "us": 12.5},
            {"label": "TILE=128", "status": "timed", "us": 10.0, "worst": math.inf},
        ),
        launches=None,
        origin="wrapper",
        machine={"gpu": "NVIDIA H200"},
        created="2026-01-02T03:04:05.000000+00:00",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@contextmanager
def as_another_user() -> Iterator[Path]:
    """A folder of somebody else's: root may write everywhere, so it becomes nobody for a while."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        me = os.geteuid()
        try:
            yield folder
        finally:
            os.seteuid(me)
            folder.chmod(0o755)


def lose_rights(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
