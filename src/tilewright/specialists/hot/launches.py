"""Captures the launches of a program's kernels on a copy of the program. Without a GPU the launches are only
described."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.capture import DESCRIBE_VARIABLE, VARIABLE
from tilewright.runtime.capture.record import Recorded
from tilewright.specialists.hot.running import ProgramEnd, started
from tilewright.tools.child import workplace

SECONDS = 300.0
"""Most seconds of the captured run."""


def launches_of(
    command: ProgramCommand, *, describe: bool, seconds: float = SECONDS
) -> tuple[tuple[Recorded, ...], ProgramEnd]:
    """Runs a copy of the program, and returns its kinds of launch. The kind with the longest total time is first.

    The launches contain the paths of the user's files, not of the copies.

    describe: describes launches without running them. A program with CPU tensors can then continue without a GPU, but
        its results are wrong.
    """
    with workplace() as folder, program_copy(command, {}) as copy:
        record = Path(folder, "capture.json")
        changes = {VARIABLE: str(record), DESCRIBE_VARIABLE: "1" if describe else ""}
        end = started(copy, changes, seconds, lambda: bool(capture_record.parts_of(record)))
        try:
            launches = capture_record.merged(record).launches()
        except RequestError:  # an incomplete part of a program that was killed
            launches = ()
        return tuple(_original(launches, copy.root, command.root)), end


def _original(launches: tuple[Recorded, ...], copy: Path, root: Path) -> Iterator[Recorded]:
    for each in launches:
        file = Path(each.launch.file)
        if file.is_relative_to(copy):
            file = root / file.relative_to(copy)
        yield replace(each, launch=replace(each.launch, file=str(file)), data={})
