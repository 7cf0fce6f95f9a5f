"""Makes the config file of a tuned task: one row for each workload, with its winner."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import TaskError
from tilewright.hardware.architectures import Board
from tilewright.ledger.file import text_of, utc_now
from tilewright.records import TuningResult, WorkloadResult
from tilewright.runtime.dispatch.parts import parts_of
from tilewright.runtime.store import config_file
from tilewright.runtime.store.config_file import PREDICTED, ConfigData, ConfigRow, MatchRule
from tilewright.runtime.store.merging import without_common
from tilewright.task.loading import file_of
from tilewright.task.task import Task


def table_of(task: Task, result: TuningResult, board: Board) -> ConfigData | None:
    """Returns the config file of a result of `tune`; None if no workload has a winner.

    board: the GPU model for which the task was tuned. A row whose winner was predicted, not measured, has no ``us``,
    and its label says so.
    """
    created = text_of(utc_now())
    rows = []
    for workload in result.workloads:
        dims = workload.workload.dims
        if workload.best is not None:
            rows.append((parts_of(task, dims, task.arrays(dims), board), _row(workload, created)))
    if not rows:
        return None
    common, shown = without_common(rows)
    return {
        "format": config_file.FORMAT, "version": config_file.VERSION, "kernel": task.name, "module": module_of(task),
        "rule": MatchRule().to_json(), "common": common, "rows": shown,
    }  # fmt: skip


def _row(result: WorkloadResult, created: str) -> ConfigRow:
    assert result.best is not None, "only workloads with a winner have a row"
    measured = result.best.measured
    shipped = next((each.measured for each in result.candidates if each.configuration == result.shipped), None)
    name = result.workload.name
    return {
        "parts": {}, "config": dict(result.best.configuration), "us": measured.us if measured else None,
        "shipped_us": shipped.us if shipped else None, "shipped": dict(result.shipped), "index": None,
        "label": name if measured else f"{name}: {PREDICTED}", "created": created,
    }  # fmt: skip


def module_of(task: Task) -> str:
    """Returns the name of the task's file, so that tasks of the same name in other files have their own tables."""
    try:
        return Path(file_of(task)).stem
    except TaskError:
        return ""
