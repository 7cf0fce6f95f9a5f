"""Makes and writes the config file of a tuned task: one row for each workload, with its winner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import TaskError
from tilewright.hardware.architectures import Board
from tilewright.ledger.file import text_of, utc_now
from tilewright.records import TuningResult, WorkloadResult
from tilewright.runtime.dispatch.parts import parts_of
from tilewright.runtime.store import config_file, config_folder
from tilewright.runtime.store.config_file import PREDICTED, ConfigData, ConfigRow, MatchRule
from tilewright.runtime.store.exporting import as_json
from tilewright.runtime.store.merging import without_common
from tilewright.task.loading import file_of
from tilewright.task.task import Task

REMOVE = "fix: another folder, or remove the file"


@dataclass(frozen=True)
class WrittenTable:
    """``file``: the path of the config file; None if no workload has a winner. ``lines``: what to tell the user."""

    file: str | None
    lines: tuple[str, ...]


def prepare_table(task: Task, into: Path) -> None:
    """Makes the folder of the config file before the work.

    Raises RequestError if the file could not be written, or would replace another file.
    """
    config_folder.make_folder(into)
    config_folder.earlier_at(config_folder.path_of(into, task.name), task.name, module_of(task), REMOVE)


def write_table(task: Task, result: TuningResult, board: Board, into: Path) -> WrittenTable:
    """Writes the config file of a result of `tune`. A file that is there keeps its other rows."""
    new, path = table_of(task, result, board), config_folder.path_of(into, task.name)
    if new is None:
        return WrittenTable(None, (f"no workload has a winner: {path} is not written",))
    content, kept = config_folder.merged_into(path, new, REMOVE)
    config_folder.write_whole(path, as_json(content))
    lines = [config_folder.written(path, len(content["rows"]), task.name, kept)]
    if predicted := sum(row["label"].endswith(PREDICTED) for row in new["rows"]):
        lines.append(f"{predicted} new rows are predicted, not measured; fix: tune on a GPU of model {board.name}")
    return WrittenTable(str(path), tuple(lines))


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
