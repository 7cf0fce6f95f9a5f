"""`tilewright.report`: returns the evidence that the ledger stores of a run of `tune`, `optimize` or `agent`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tilewright.errors import RequestError
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.runs import LATEST, LedgerFile, write_jsonl
from tilewright.ledger.tunings import TuneLedger
from tilewright.report import optimize_views, tune_views
from tilewright.report.agent import views as agent_views
from tilewright.report.agent.evidence import AgentEvidence
from tilewright.report.damage import only_of_damage
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

LARGE = 5_000
"""A run of `optimize` with more attempts is large."""
SHOWN = 20
"""The attempts of each iteration of a large run that are shown. The others are counted."""


@dataclass(frozen=True)
class Evidence:
    """The evidence of one run in the ledger. `markdown` and `html` return a report that needs no other file.

    details: of a large run of `optimize`, without most of the attempts.
    folder: the folder with the files of the run.
    left_out: the number of rows of the run that could not be read.
    read_all: reads the details with all attempts.
    """

    details: OptimizeEvidence | TuneEvidence | AgentEvidence
    folder: Path
    left_out: int = 0
    read_all: Callable[[], OptimizeEvidence] | None = None

    def complete(self) -> OptimizeEvidence | TuneEvidence | AgentEvidence:
        """Returns the details with all that is stored."""
        return self.details if self.read_all is None else self.read_all()

    def __str__(self) -> str:
        return f"run {self.run} of {self.details.run.task}"

    @property
    def run(self) -> str:
        """The complete name of the run."""
        return self.details.run.run

    def markdown(self) -> str:
        """Returns the report as Markdown, for a pull request or a terminal."""
        view, _ = VIEWS[type(self.details)]
        with self.undamaged():
            return view(self.details)

    def html(self) -> str:
        """Returns the report as one HTML page with its charts."""
        _, view = VIEWS[type(self.details)]
        with self.undamaged():
            return view(self.details)

    def undamaged(self) -> AbstractContextManager[None]:
        """Raises StorageError for an error of its block that comes from damaged rows; every other error is raised."""
        return only_of_damage(self.run, self.details, self.left_out)

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
        write_jsonl(stream, self.complete().lines())


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
            return Evidence(collect_tune(tunings.run(name), tunings.load(name)), folder, tunings.left_out)
    if command == "agent":
        with AgentLedger(ledger, variable=variable) as agent:
            return Evidence(AgentEvidence(*agent.readable(name)), folder, agent.left_out)
    return _of_optimize(name, folder, ledger, variable)


def _of_optimize(name: str, folder: Path, path: Path | None, variable: str) -> Evidence:
    """Returns the evidence of a run of `optimize`. Of a large run, reads only the first attempts of each iteration, so
    that a report takes little time and memory."""

    def read_all() -> OptimizeEvidence:
        with Ledger(path, variable=variable) as ledger:
            return collect(ledger.run(name), ledger.iterations(name))

    with Ledger(path, variable=variable) as ledger:
        large = sum(sum(counts.values()) for counts in ledger.attempts(name).values()) > LARGE
        most, beyond = (SHOWN, ledger.attempts(name, SHOWN)) if large else (None, {})
        details = collect(ledger.run(name), ledger.iterations(name, most), beyond)
        return Evidence(details, folder, ledger.left_out, read_all if large else None)


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
