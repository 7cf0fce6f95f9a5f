"""`tilewright report`: a thin adapter over `ledger` and the views of a run. `cli` registers it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import RequestError

Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, its beginning, or latest.")]
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the page there.")]
Text = Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown there.")]
Patch = Annotated[Path | None, typer.Option("--patch", metavar="FILE", help="Write the patch alone there.")]
Lines = Annotated[Path | None, typer.Option("--jsonl", metavar="FILE", help="Write every record there, one a line.")]
Home = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Of the ledger.  [default: $TILEWRIGHT_HOME or .tilewright]")
]

STDOUT = Path("-")


def report(
    run: Run = "latest",
    html: Page = None,
    markdown: Text = None,
    patch: Patch = None,
    jsonl: Lines = None,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """The evidence of an optimisation run: what was tried, what was kept, and why.

    Prints Markdown, and writes one HTML page beside the run. With options, only what they ask for; FILE may be -.

    Example: `tilewright report latest --patch faster.patch`
    """
    from tilewright.ledger.ledger import Ledger
    from tilewright.optimize import optimized
    from tilewright.report.collected import collect
    from tilewright.report.markdown import markdown as as_markdown
    from tilewright.report.page import page

    with Ledger(home / "ledger.db" if home else None) as ledger:
        record = ledger.run(run)
        found = collect(record, ledger.iterations(record.run))
        lines = io.StringIO()
        if jsonl is not None:
            ledger.export_jsonl(record.run, lines)
        folder = ledger.folder(record.run)
    if html is not None:
        _write(html, page(found))
    if markdown is not None:
        _write(markdown, as_markdown(found))
    if patch is not None:
        _write(patch, found.patch)
    if jsonl is not None:
        _write(jsonl, lines.getvalue())
    if as_json:
        print_json(optimized.to_json(optimized.Optimized(record, found.iterations, found.patch, folder)))
    elif not any((html, markdown, patch, jsonl)):
        print(as_markdown(found), end="")
        _write(folder / "report.html", page(found), make=True)


def _write(path: Path, text: str, *, make: bool = False) -> None:
    """Into a file, which is said, or to stdout."""
    from tilewright.ledger.file import make_private

    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        if make:
            make_private(path.parent)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
    terminal.note(f"wrote {path}")
