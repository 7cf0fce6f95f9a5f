"""Records steps of a test in its own process: the same recorder as in a user's program, without starting one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tilewright.program.findings.finding import findings_in
from tilewright.program.findings.loops import loops_of
from tilewright.program.findings.record import RecordedRun
from tilewright.runtime.operations.recorder import OperationRecorder
from tilewright.runtime.operations.recording import record_of

HERE = Path(__file__).parent
STEPS = 5


def recorded(*steps: Callable[[], object]) -> RecordedRun:
    """Records steps. With several functions, each is a step in turn; with one, it makes `STEPS` steps."""
    recorder = OperationRecorder(str(HERE))
    recorder.start()
    recorder.mark()
    for step in steps if len(steps) > 1 else steps * STEPS:
        step()
        recorder.mark()
    recorder.stop()
    record = record_of(recorder)
    run = RecordedRun.of(record)
    return replace(run, loops=tuple(loops_of(HERE, record["files"])))


def rules_at(run: RecordedRun) -> dict[str, set[int]]:
    """Rule → the lines of its findings."""
    found: dict[str, set[int]] = {}
    for each in findings_in(run):
        found.setdefault(each.rule, set()).update(line.line for line in each.lines)
    return found


def marked(function: Callable[..., object]) -> set[int]:
    """The lines of a function that end with the comment ``here``."""
    lines, first = inspect.getsourcelines(function)
    return {first + n for n, line in enumerate(lines) if line.rstrip().endswith("# here")}
