"""Runs pairs of programs in slices (blocks of steps): one makes a few steps while the other waits, then they change
roles.

All programs start together and wait after their first step, so the start-up time is spent once. The speed of a host
changes within seconds. The slices of a pair follow each other directly, so a change affects both.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from tilewright.program.copies import Startable
from tilewright.program.early import Meanwhile
from tilewright.program.run import ENDLESS, PLAIN, ProgramFailed, ProgramRun, StartedProgram, StepUnit, started_program
from tilewright.records import Json
from tilewright.runtime import slicing

SLICE_SECONDS, RUN_SECONDS = 0.08, 1.0
"""The approximate time of a slice, and of all slices of a run."""
MOST_STEPS = 20
FEWEST, MOST = 6, 12
"""Slices of one run."""
OUTSIDE = 0.1
"""In each pair, this share of the slices with the smallest ratios is left out, and the same share with the largest:
other processes may have disturbed them.
"""
SETTLED_SECONDS = 0.2
"""The time that worker processes of waiting programs have to load their first batches."""


@dataclass(frozen=True)
class Slicing:
    """How a run is cut into slices. ``steps``: the number of steps in a slice. ``processes``: how many processes of the
    program make steps; all of them get a turn at once, and the slowest counts."""

    steps: int
    slices: int
    processes: int = 1


def slicing_for(step_s: float, most_steps: float = math.inf, processes: int = 1) -> Slicing:
    """Returns how to cut a run into slices (blocks of steps), for a program whose step takes ``step_s`` seconds.
    ``most_steps``: the number of steps that the program makes. ``processes``: how many of its processes make steps.
    """
    steps = max(1, min(MOST_STEPS, math.ceil(SLICE_SECONDS / step_s), int((min(most_steps, 1e9) - 1) / FEWEST)))
    return Slicing(steps, min(MOST, max(FEWEST, math.ceil(RUN_SECONDS / (steps * step_s)))), processes)


def run_in_slices(
    programs: Sequence[Startable], cut: Slicing, seconds: float = 300.0, meanwhile: Meanwhile | None = None
) -> tuple[ProgramRun, ...] | None:  # fmt: skip
    """Runs pairs of programs. Returns a run for each program, whose ``step_us`` are the mean times of its slices.

    programs: the first two are the first pair, and so on. The first of a pair begins; then the order alternates.
    seconds: the limit for starting all of them, and for each slice.
    meanwhile: called while the programs start. Slices begin when it has ended. If it raises, the programs are ended.

    Returns None if a program fails, or has too few steps. Then run each program alone: that works, or shows the reason.
    """
    wanted = {**PLAIN, "steps": ENDLESS, "seconds": math.inf, "slice": cut.steps}
    with ExitStack() as stack:
        all_turns = [stack.enter_context(_turns(program, wanted, cut.processes)) for program in programs]
        if meanwhile is not None:
            meanwhile()
        latest = time.monotonic() + seconds
        begun = [turns.told(latest - time.monotonic()) if turns else None for turns in all_turns]
        ready = [(turns, facts) for turns, facts in zip(all_turns, begun, strict=True) if turns and facts]
        if len(ready) < len(programs):
            return None
        time.sleep(SETTLED_SECONDS)
        runs: list[ProgramRun] = []
        for pair in zip(ready[::2], ready[1::2], strict=True):
            times = _raced([turns for turns, _ in pair], cut.slices, seconds)
            if len(times[0]) < FEWEST // 2:
                return None
            for (turns, facts), us in zip(pair, _steady(*times), strict=True):
                runs.append(_run(turns, us, facts, cut.steps))
                turns.started.kill()
    return tuple(runs)


@dataclass
class _Turns:
    """A started program, and this process's ends of the pipes to it."""

    started: StartedProgram
    _go: int
    _done: int
    _processes: int
    _text: bytes = field(default=b"")

    def told(self, seconds: float) -> Mapping[str, Json] | None:
        """Waits for the next line of each process. Returns that of the slowest; None if the program ends or is too
        late."""
        latest = time.monotonic() + seconds
        while self._text.count(b"\n") < self._processes:
            left = latest - time.monotonic()
            if left <= 0:
                return None
            if select.select([self._done], [], [], min(left, 0.2))[0]:
                self._text += os.read(self._done, 4096)
            elif self.started.process.poll() is not None:
                return None
        *lines, self._text = self._text.split(b"\n", self._processes)
        told: list[Mapping[str, Json]] = [json.loads(line) for line in lines]
        return max(told, key=lambda each: float(str(each.get("us", 0.0))))

    def slice_us(self, seconds: float) -> float | None:
        """Lets the program make a slice. Returns the mean time of a step in µs; None if the program ended."""
        os.write(self._go, b"x" * self._processes)
        told = self.told(seconds)
        return None if told is None else float(str(told["us"]))


@contextmanager
def _turns(program: Startable, wanted: Mapping[str, Json], processes: int) -> Iterator[_Turns | None]:
    with started_program(program, wanted) as started:
        if isinstance(started, ProgramFailed):
            yield None
            return
        # A pipe that is opened for both directions does not wait for the process at the other end.
        go, done = (os.open(started.folder / name, os.O_RDWR) for name in (slicing.GO, slicing.DONE))
        try:
            yield _Turns(started, go, done, processes)
        finally:
            os.close(go)
            os.close(done)


def _raced(pair: Sequence[_Turns], slices: int, seconds: float) -> tuple[list[float], list[float]]:
    """Lets two programs make slices in turn, in the order A B B A. Returns the times of both, equally many."""
    times: tuple[list[float], list[float]] = ([], [])
    limit = seconds
    for number in range(slices):
        us: dict[int, float] = {}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            found = pair[which].slice_us(limit)
            if found is None:  # the program has no more steps
                return times
            us[which] = found
        for which in (0, 1):
            times[which].append(us[which])
        limit = min(
            seconds, 5.0 + 2e-4 * max(us.values())
        )  # longer, because a program may do other work after its last step
    return times


def _steady(one: Sequence[float], other: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Leaves out the slices with the most extreme ratios: the same number at both ends."""
    ratios = np.asarray(one) / np.asarray(other)
    out = round(OUTSIDE * len(ratios))
    kept = sorted(np.argsort(ratios)[out : len(ratios) - out].tolist())
    return tuple(one[at] for at in kept), tuple(other[at] for at in kept)


def _run(turns: _Turns, us: tuple[float, ...], facts: Mapping[str, Json], steps: int) -> ProgramRun:
    unit: StepUnit = "optimizer step" if facts["unit"] == "optimizer step" else "forward call"
    wall = time.perf_counter() - turns.started.began
    return ProgramRun(unit, steps * len(us), "steps", us, wall, str(facts["device"]))
