"""Runs a program once to try whether its model can be captured: with fake tensors, and on a GPU by a capture.

The program's process does the trial (`runtime.graphs`), after some calls of its model, and then ends.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.program.copies import ProgramCopy
from tilewright.program.graphs.hazards import CaptureHazard, HazardKind
from tilewright.program.run import ENDLESS, PLAIN, ProgramFailed, started_program
from tilewright.race.stats import Interval, paired_bounds
from tilewright.runtime.graphs.watching import VARIABLE

TAIL = 0.025


@dataclass(frozen=True)
class GraphTrial:
    """The result of a trial. Times are in µs for one call of the model, with its backward pass if it trains.

    hazards: what the run with fake tensors, the waits of the host and the capture showed. captured: whether the capture
    succeeded; None without a GPU. note: what limits the result, in one line; "" if nothing does.
    """

    model: str
    hazards: tuple[CaptureHazard, ...]
    captured: bool | None = None
    trains: bool = False
    shapes: int = 0
    """How many different shapes the inputs had in the calls that were seen."""
    replays: int = 0
    equal: int = 0
    """How many replays gave the outputs and gradients of an eager call to the bit."""
    within: int = 0
    """How many gave them up to the rounding of another order of summation."""
    eager_us: tuple[float, ...] = field(default=(), repr=False)
    replay_us: tuple[float, ...] = field(default=(), repr=False)
    """Times of the same rounds, in which both took turns."""
    note: str = ""
    digest: str = ""
    """A hash of the record, which is the evidence of its numbers."""

    @property
    def right(self) -> bool:
        """Whether the capture succeeded and every replay was right."""
        return bool(self.captured) and self.within == self.replays > 0

    @property
    def ratio(self) -> Interval:
        """Median and interval of the time of a replay / that of an eager call."""
        ratios = np.asarray(self.replay_us) / np.asarray(self.eager_us)
        low, high = paired_bounds(ratios, TAIL) if len(ratios) else (0.0, math.inf)
        return Interval(low, float(np.median(ratios)) if len(ratios) else math.nan, high, 1.0 - 2.0 * TAIL, len(ratios))

    def __str__(self) -> str:
        if self.captured is None:
            places = len(self.hazards)
            need = f"{places} places need" if places > 1 else f"{places or 'no'} place needs"
            return f"{self.model} ran with fake tensors: {need} values on the host"
        if not self.captured:
            return f"{self.model} cannot be captured"
        same = f"{self.equal} of {self.replays} replays with changing inputs equal eager to the bit"
        return f"{same}, {self.within} up to rounding; a call takes {self.ratio} × the time of eager"


def tried(copy: ProgramCopy, warm_up: int, seconds: float) -> GraphTrial | ProgramFailed:
    """Runs a copy of a program, and tries its model.

    warm_up: the calls before a capture. seconds: the time limit of the run.
    """
    wanted = {**PLAIN, "steps": ENDLESS, "seconds": 0.5 * seconds}
    settings = json.dumps({"root": str(copy.root), "warm_up": warm_up})
    variables = {VARIABLE: settings, "TORCHDYNAMO_DISABLE": "1"}  # the model is tried as it is written
    with started_program(copy, wanted, variables) as started:
        if isinstance(started, ProgramFailed):
            return started
        ended = started.result(seconds)
        if isinstance(ended, ProgramFailed):
            return ended
        files = sorted(started.folder.glob("graphs*.json"), key=os.path.getsize)
        if not files:
            return ProgramFailed("exit", "the program ended before a model of it was tried")
        text = files[-1].read_text()
    return trial_of(json.loads(text), copy.original.root, hashlib.sha256(text.encode()).hexdigest()[:8])


def trial_of(record: Mapping[str, Any], root: Path, digest: str) -> GraphTrial | ProgramFailed:
    """Returns the trial that a record describes. ``root``: the folder of the program."""
    if not record["module"]:
        return ProgramFailed("exit", "the program called no model with parameters, so none was tried")
    hazards = [_hazard(root, file, line, kind, f"{what} needs values") for file, line, kind, what in record["fake"]]
    for file, line, _ in record.get("waits", ()):
        hazards.append(_hazard(root, file, line, "host-read", "the host waits for the GPU"))
    capture, place = record.get("capture"), record.get("capture_at")
    if capture and place:
        hazards.append(_hazard(root, place[0], place[1], "capture", f"the capture fails: {capture}"))
    unique = {(each.path, each.line): each for each in reversed(hazards)}
    return GraphTrial(
        record["module"], tuple(sorted(unique.values(), key=lambda each: (each.path, each.line))),
        None if capture is None else not capture, bool(record.get("gradients")), record.get("shapes", 0),
        record.get("replays", 0), record.get("equal", 0), record.get("within", 0), tuple(record.get("eager_us", ())),
        tuple(record.get("replay_us", ())), _note(record), digest,
    )  # fmt: skip


def _note(record: Mapping[str, Any]) -> str:
    if record.get("failed"):
        return f"the trial itself failed: {record['failed']}"
    if record.get("capture"):
        return f"the capture fails: {record['capture']}"
    if record.get("numbers"):
        return "numbers of the host among the inputs differ from call to call, so each value needs a graph of its own"
    if record["fake_ended"] and "capture" not in record:
        return f"the run with fake tensors ended early: {record['fake_ended']}"
    if record.get("shapes", 0) > 1:
        return f"the inputs had {record['shapes']} shapes in {record['calls']} calls, and each needs a graph of its own"
    return ""


def _hazard(root: Path, file: str, line: int, kind: HazardKind, what: str) -> CaptureHazard:
    return CaptureHazard(kind, (root / file).resolve(), line, what)
