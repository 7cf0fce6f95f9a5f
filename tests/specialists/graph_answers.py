"""The snippets of `graph_snippets`, their known answers, and what the finder and a run with fake tensors say.

The answer stands behind the line: ``#: host-read``. A snippet without such a line can be captured. Ten of the thirty
were set aside (`set_aside.txt`: `random.Random(17).sample` of the sorted names) before the finder was written.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from tilewright.program.graphs.analysis import GraphAnalysis, read_analysis
from tilewright.program.graphs.trial import GraphTrial, trial_of
from tilewright.runtime.graphs.watching import CallWatcher

SNIPPETS = Path(__file__).parent / "graph_snippets"
ASIDE = frozenset((SNIPPETS / "set_aside.txt").read_text().split())
Answer = frozenset[tuple[int, str]]
"""Pairs of a line and a kind."""


class Ended(BaseException):
    """Ends a snippet after its model was tried."""


def snippets(*, aside: bool) -> tuple[Path, ...]:
    """The snippets that were set aside, or the others."""
    return tuple(path for path in sorted(SNIPPETS.glob("*.py")) if (path.stem in ASIDE) is aside)


def known(path: Path) -> Answer:
    marks = ((n, re.search(r"#: ([\w-]+)$", line)) for n, line in enumerate(path.read_text().splitlines(), 1))
    return frozenset((n, found[1]) for n, found in marks if found)


@contextlib.contextmanager
def module_calls() -> Iterator[None]:
    """Restores the call of modules, which a watcher replaces."""
    from torch.nn import Module

    call = Module.__call__
    try:
        yield
    finally:
        Module.__call__ = call


def fake_trial(path: Path) -> GraphTrial | None:
    """Runs a snippet in this process until its model was tried with fake tensors."""
    records: list[dict[str, object]] = []

    def end(record: dict[str, object]) -> None:
        records.append(record)
        raise Ended

    with module_calls(), contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Ended):
        watcher = CallWatcher(str(path.parent), 3, end)
        watcher.begin()
        runpy.run_path(str(path), run_name="__main__")
        watcher.finish()
    trial = trial_of(records[0], path.parent, "")
    return trial if isinstance(trial, GraphTrial) else None


def answered(path: Path) -> Answer:
    """What the source and the run with fake tensors show."""
    read = read_analysis(path)
    found = GraphAnalysis(read.modules, read.has_step, read.source, fake_trial(path))
    return frozenset((each.line, each.kind) for each in found.hazards)
