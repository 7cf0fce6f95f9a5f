"""`tilewright report`: shows the evidence of a run that the ledger stores."""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.ledger.codec import Encodable
    from tilewright.report.report import Evidence

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of a run or its beginning, latest, FILE[:TASK], or a program.")
]
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the HTML page to this file.")]
Text = Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the Markdown to this file.")]
Patch = Annotated[Path | None, typer.Option("--patch", metavar="FILE", help="Write the patch to this file.")]
Lines = Annotated[Path | None, typer.Option("--jsonl", metavar="FILE", help="Write all records as JSON lines.")]
Home = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the ledger.  [default: $TILEWRIGHT_HOME or .tilewright]")
]

Listed = Annotated[bool, typer.Option("--list", help="List the runs in the ledger, the newest first.")]
_MERGE = "Copy the runs of another ledger (`ledger.db`, its folder) into this one. May be given several times."
Merge = Annotated[list[Path] | None, typer.Option("--merge", metavar="LEDGER", help=_MERGE)]


def report(
    run: Run = "latest", html: Page = None, markdown: Text = None, patch: Patch = None, jsonl: Lines = None,
    as_json: AsJson = False, home: Home = None, listed: Listed = False, merge: Merge = None,
) -> None:  # fmt: skip
    """Shows the evidence of a run of tune, optimize or agent: what was tried, with which outcome, and why.

    Prints Markdown, and writes an HTML page into the folder of the run. With options that name a FILE, writes only
    these files; - means stdout.

    Example: `tilewright report latest --html report.html`
    """
    from tilewright.report.report import report as evidence_of

    ledger = home / "ledger.db" if home else None
    variable = "--home" if home else "TILEWRIGHT_HOME"
    if merge:
        if listed or html or markdown or patch or jsonl:
            raise RequestError(
                "--merge only copies runs; fix: leave the other options out, then give them without --merge"
            )
        _merge(ledger, variable, merge, as_json)
        return
    if listed:
        _list(ledger, variable, as_json)
        return
    evidence = evidence_of(run, ledger=ledger, variable=variable)

    def lines() -> str:
        evidence.export_jsonl(stream := io.StringIO())
        return stream.getvalue()

    views = ((html, evidence.html), (markdown, evidence.markdown), (patch, lambda: evidence.patch), (jsonl, lines))
    for path, view in views:
        if path is not None:
            _write(path, view())
    if as_json:
        with evidence.undamaged():
            shown = _json(evidence)
        print_json(shown)
    elif not any((html, markdown, patch, jsonl)):
        print(evidence.markdown(), end="")
        _write(evidence.folder / "report.html", evidence.html(), make=True)


def _merge(path: Path | None, variable: str, others: list[Path], as_json: bool) -> None:
    """Copies the runs of other ledgers, and says what became of each."""
    from tilewright.ledger.merging import MergedRun, merged
    from tilewright.ledger.runs import LedgerFile

    files = [other / "ledger.db" if other.is_dir() else other for other in others]
    if missing := next((file for file in files if not file.is_file()), None):
        raise RequestError(f"there is no ledger {missing}; name a file, or the folder with ledger.db")
    done: list[MergedRun] = []
    with LedgerFile(path, variable=variable) as ledger:
        for file in files:
            with LedgerFile(file, variable="--merge") as other:
                for run in merged(ledger, other):
                    done.append(run)
                    if not as_json:
                        print(f"{run.outcome}: run {run.run} of {run.ledger}{f': {run.why}' if run.why else ''}")
    if as_json:
        print_json(done)
    elif not done:
        terminal.note(f"no runs in {', '.join(map(str, files))}")


def _list(path: Path | None, variable: str, as_json: bool) -> None:
    from tilewright.ledger.runs import LedgerFile

    with LedgerFile(path, variable=variable) as ledger:
        runs = ledger.runs()
    if as_json:
        print_json(runs)
        return
    if not runs:
        terminal.note(
            f"no runs in {ledger.path}; `tilewright tune FILE` makes one, and --home DIR names another folder"
        )
    for run in runs:
        where = run.gpu or ("this CPU" if run.measured else f"{run.arch}, predicted")
        end = run.stop_reason or ("finished" if run.finished else "not finished")
        origin = f"  from {run.merged_from}" if run.merged_from else ""
        print(f"{run.run}  {run.command:8}  {run.task}  {where}  {end}{origin}")


def _json(evidence: Evidence) -> Encodable:
    """Returns the JSON of this run: the value that `tune` or `optimize` printed with ``--json``, or an `agent` run's
    report.

    For a Triton kernel, ``two_steps`` has the sections about its translation to Tile IR.
    """
    from tilewright.optimize import optimized
    from tilewright.report.agent import views as agent_views
    from tilewright.report.agent.evidence import AgentEvidence
    from tilewright.report.tune_evidence import TuneEvidence
    from tilewright.report.two_steps import to_json_of
    from tilewright.tune.as_json import to_json

    details = evidence.complete()
    if isinstance(details, AgentEvidence):
        return agent_views.to_json_of(details)
    steps = {"two_steps": sections} if (sections := to_json_of(details)) else {}
    if isinstance(details, TuneEvidence):
        return {**to_json(details.result), **steps}
    done = optimized.Optimized(details.run, details.iterations, details.patch, evidence.folder)
    return {**optimized.to_json(done), **steps}


def _write(path: Path, text: str, *, make: bool = False) -> None:
    """Writes ``text`` into a file and prints a note; ``-`` is stdout. ``make``: makes a private folder first."""
    from tilewright.ledger.file import make_private

    if path == Path("-"):
        with nullcontext() if sys.stdout.isatty() else terminal.own_output():  # a pipe gets the patch as it is
            sys.stdout.write(text)
        return
    try:
        if make:
            make_private(path.parent)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
    terminal.note(f"wrote {path}")
