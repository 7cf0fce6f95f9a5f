"""`tilewright.report`: returns the evidence that the ledger stores of a run of `tune`, `optimize` or `agent`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tilewright.errors import RequestError, StorageError, in_one_line
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.file import DAMAGED
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.runs import LATEST, LedgerFile, write_jsonl
from tilewright.ledger.tunings import TuneLedger
from tilewright.report import optimize_views, tune_views
from tilewright.report.agent import views as agent_views
from tilewright.report.agent.evidence import AgentEvidence
from tilewright.report.evidence import OptimizeEvidence, collect
from tilewright.report.tune_evidence import TuneEvidence, collect_tune
from tilewright.task.loading import task_of, where_is
from tilewright.task.task import Task

VIEWS: Mapping[type, tuple[Callable[..., str], Callable[..., str]]] = {
    OptimizeEvidence: (optimize_views.markdown, optimize_views.page),
    TuneEvidence: (tune_views.markdown, tune_views.page),
    AgentEvidence: (agent_views.markdown, agent_views.page),
}
"""Maps the type of a run's evidence to two functions. They return the report as Markdown and as a page."""


@dataclass(frozen=True)
class Evidence:
    """The evidence of one run in the ledger. `markdown` and `html` return a report that needs no other file.

    folder: the folder with the files of the run.
    """

    details: OptimizeEvidence | TuneEvidence | AgentEvidence
    folder: Path

    def __str__(self) -> str:
        return f"run {self.run} of {self.details.run.task}"

    @property
    def run(self) -> str:
        """The complete name of the run."""
        return self.details.run.run

    def markdown(self) -> str:
        """Returns the report as Markdown, for a pull request or a terminal."""
        view, _ = VIEWS[type(self.details)]
        return self._shown(view)

    def html(self) -> str:
        """Returns the report as one HTML page with its charts."""
        _, view = VIEWS[type(self.details)]
        return self._shown(view)

    def _shown(self, view: Callable[..., str]) -> str:
        """Raises StorageError if the rows can be read, but say what no run says, such as a time without samples."""
        try:
            return view(self.details)
        except DAMAGED as error:
            raise StorageError(
                f"run {self.run} cannot be shown ({in_one_line(error)}): its rows are damaged, or this is a mistake in "
                f"Tilewright; fix: `tilewright report {self.run} --jsonl -` prints them"
            ) from error

    @property
    def patch(self) -> str:
        """The diff from the untouched code to the result of `optimize` or `agent`.

        Raises `RequestError` for a run of `tune`.
        """
        if isinstance(self.details, TuneEvidence):
            raise RequestError(f"run {self.run} is of `tune`, which changes no code: it has no patch")
        return self.details.patch

    def export_jsonl(self, stream: TextIO) -> None:
        """Writes every record of the run as JSON, one per line, with all samples."""
        write_jsonl(stream, self.details.lines())


def report(run: str | Task = LATEST, *, ledger: Path | None = None, variable: str = "TILEWRIGHT_HOME") -> Evidence:
    """Returns the evidence of a run of `tune`, `optimize` or `agent`.

    run: the name of a run, the beginning of a name, or ``latest``. A task or ``FILE[:TASK]`` selects its newest run.
    ledger: the ledger's file; by default ``ledger.db`` in ``$TILEWRIGHT_HOME`` or ``.tilewright/``.
    variable: the environment variable that error messages suggest for choosing another ledger.
    Raises `RequestError` if there is no such run, and `StorageError` if the ledger cannot be read.
    """
    with LedgerFile(ledger, variable=variable) as file:
        asked = run if isinstance(run, str) and ".py" not in run else _newest_of(run, file)
        if not file.runs():
            raise RequestError(
                f"no runs in {file.path}; `tilewright tune FILE` makes one, and --home DIR names another folder"
            )
        name, command = file.find(asked)
        folder = file.folder(name)
    if command == "tune":
        with TuneLedger(ledger, variable=variable) as tunings:
            return Evidence(collect_tune(tunings.run(name), tunings.load(name)), folder)
    if command == "agent":
        with AgentLedger(ledger, variable=variable) as agent:
            return Evidence(AgentEvidence(*agent.load(name)), folder)
    with Ledger(ledger, variable=variable) as optimized:
        return Evidence(collect(optimized.run(name), optimized.iterations(name)), folder)


def _newest_of(asked: Task | str, file: LedgerFile) -> str:
    if isinstance(asked, str):  # a run of `agent` has a program, not a task; it is not imported
        program = Path(asked).resolve()
        for run in file.runs():
            if run.command == "agent" and Path(run.where) == program:
                return run.run
    task = task_of(asked)
    where = where_is(task)
    for run in file.runs(task.name):
        if run.where == where:
            return run.run
    raise RequestError(
        f"no run of {where} in {file.path}; `tilewright tune {asked if asked is not task else where}` makes one"
    )
