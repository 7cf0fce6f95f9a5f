"""`tilewright.report`: the evidence of a run of `tune` or `optimize`, from the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tilewright.errors import RequestError
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.runs import LATEST, LedgerFile, write_jsonl
from tilewright.ledger.tunings import TuneLedger
from tilewright.report import page, tune_views
from tilewright.report.evidence import OptimizeEvidence, TuneEvidence, collect, collect_tune
from tilewright.report.markdown import markdown
from tilewright.task.loading import task_of, where_is
from tilewright.task.task import Task


@dataclass(frozen=True)
class Evidence:
    """What the ledger says of one run. Its views are texts that need nothing else."""

    details: OptimizeEvidence | TuneEvidence
    folder: Path
    """Where the files of the run lie."""

    @property
    def run(self) -> str:
        """The whole name of the run."""
        return self.details.run.run

    def markdown(self) -> str:
        """For a pull request or a terminal."""
        return tune_views.markdown(self.details) if isinstance(self.details, TuneEvidence) else markdown(self.details)

    def html(self) -> str:
        """One page, with its charts in it."""
        return tune_views.page(self.details) if isinstance(self.details, TuneEvidence) else page.page(self.details)

    @property
    def patch(self) -> str:
        """From the untouched code to what `optimize` ended with. Raises `RequestError` for a run of `tune`."""
        if isinstance(self.details, TuneEvidence):
            raise RequestError(f"run {self.run} is of `tune`, which changes no code: it has no patch")
        return self.details.patch

    def export_jsonl(self, stream: TextIO) -> None:
        """Every record of the run, one a line, with all samples."""
        if isinstance(self.details, TuneEvidence):
            write_jsonl(stream, self.details.run, "workload", self.details.result.workloads)
        else:
            write_jsonl(stream, self.details.run, "iteration", self.details.iterations)


def report(run: str | Task = LATEST, *, ledger: Path | None = None) -> Evidence:
    """The evidence of a run of `tune` or `optimize`.

    run: a run's name, its beginning or ``latest``; or a task, or ``FILE[:TASK]``, for its newest run.
    ledger: the file; by default ``ledger.db`` in ``$TILEWRIGHT_HOME`` or ``.tilewright/``.
    Raises `RequestError` where there is no such run, and `StorageError` where the ledger cannot be read.
    """
    with LedgerFile(ledger) as file:
        asked = run if isinstance(run, str) and ".py" not in run else _newest_of(run, file)
        if not file.runs():
            raise RequestError(f"no runs in {file.path}; `tilewright tune FILE` makes one")
        name, command = file.find(asked)
        folder = file.folder(name)
    if command == "tune":
        with TuneLedger(ledger) as tunings:
            return Evidence(collect_tune(tunings.run(name), tunings.load(name)), folder)
    with Ledger(ledger) as optimized:
        return Evidence(collect(optimized.run(name), optimized.iterations(name)), folder)


def _newest_of(asked: Task | str, file: LedgerFile) -> str:
    task = task_of(asked)
    where = where_is(task)
    for one in file.runs(task.name):
        if one.where == where:
            return one.run
    raise RequestError(
        f"no run of {where} in {file.path}; `tilewright tune {asked if asked is not task else where}` makes one"
    )
