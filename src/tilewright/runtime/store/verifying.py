"""Races stored winners again, on this machine and with this toolkit: to run after a driver or a compiler has changed.

For each entry the launches of the winner, its runner-up and the shipped configuration are made again from their stored
descriptions, on equal drawn data. The outputs of the winner are compared with those of the shipped one. Then all are
timed in interleaved rounds; a ratio counts with its interval.

    holds     the same outputs, and neither of the others is certainly faster by more than the tie band
    drifted   one of the others is
    wrong     other outputs, or it no longer runs
    cannot    not known on this machine: other board, changed source, no description, no GPU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from tilewright.errors import RequestError, in_one_line
from tilewright.progress import Progress, silent
from tilewright.race import stats
from tilewright.race.protocol import Budget, CandidateCrashed, Rounds, interleaved
from tilewright.race.rules import Policy
from tilewright.race.stats import Interval
from tilewright.records import Json
from tilewright.runtime.arrays import CallerArray, CallValue, LiveArray
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.rebuilding import loaded_kernel, rebuilt
from tilewright.runtime.key import board_of, toolkit
from tilewright.runtime.search.comparing_outputs import Expected, difference
from tilewright.runtime.search.device import CudaDevice, Device, Shot
from tilewright.runtime.search.scratch import DeviceLost, Kept, NoRoom, arrays_of, tensor_of
from tilewright.runtime.search.trials import Trial, label
from tilewright.runtime.store import evidence
from tilewright.runtime.store.winners import Winner

Verdict: TypeAlias = Literal["holds", "drifted", "wrong", "cannot"]
Name: TypeAlias = Literal["winner", "runner_up", "shipped"]
SECONDS = 2.0
FEWEST = 24
"""Rounds; more than the fewest that bound a median at this confidence on both sides."""
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Here:
    """This machine, by the names that keys have. ``board`` is None without a GPU."""

    board: str | None
    toolkit: str


def this_machine() -> tuple[Here, Device | None]:
    """Where this process runs; no device without a GPU that torch can use."""
    with suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            here = Here(board_of(torch.cuda.current_device()), toolkit())
            return here, CudaDevice(torch.cuda.current_stream())
    return Here(None, toolkit()), None


@dataclass(frozen=True)
class Against:
    """The winner against another configuration on equal data."""

    name: Name
    label: str
    ratio: Interval
    """Its time over the winner's, of the same round: above 1 the winner is faster."""

    def __str__(self) -> str:
        return f"{self.name.replace('_', '-')} takes {self.ratio.centre:.3f}× as long ({self.ratio})"

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "label": self.label, "ratio": self.ratio.to_json()}


@dataclass(frozen=True)
class Verified:
    """Whether one stored winner still holds, and the races that show it."""

    winner: Winner
    verdict: Verdict
    reason: str
    against: tuple[Against, ...] = ()
    us: float | None = None
    """The winner's time now."""
    tuned_with: str | None = None
    """The toolkit that it was tuned with, if that is another one."""

    def to_json(self) -> dict[str, Json]:
        return {
            "key": self.winner.key, "kernel": self.winner.kernel, "module": evidence.module(self.winner),
            "shapes": evidence.shapes(self.winner),
            "label": self.winner.label, "verdict": self.verdict, "reason": self.reason,
            "against": [other.to_json() for other in self.against], "us": self.us,
            "us_when_tuned": evidence.winner_us(self.winner), "tuned_with": self.tuned_with,
        }  # fmt: skip


class _Cannot(Exception):
    """Why an entry cannot be raced here."""


class _NoRoom(_Cannot):
    """There is not enough memory on the GPU."""


class _WrongWinner(Exception):
    """What is wrong with an entry's winner."""


def verify(
    winners: Sequence[Winner],
    here: Here,
    device: Device | None,
    *,
    seconds: float = SECONDS,
    seed: int = 0,
    memory: str = "cuda",
    on_progress: Progress = silent,
) -> Iterator[Verified]:
    """One verdict for each winner, in their order. ``device`` None: what is known without a GPU.

    seconds: of the race of one entry. seed: of the data and of the rounds. memory: where torch keeps the arrays.
    """
    lost = ""
    for done, winner in enumerate(winners):
        on_progress("verify", done, len(winners), winner.kernel)
        tuned_with = evidence.toolkit(winner)
        try:
            if lost:
                raise _Cannot(f"an entry before it broke the GPU's context: {lost}")
            launches = _launches(winner, here)
            if device is None:
                raise _Cannot("there is no GPU here to race it on; its source is unchanged")
            with device.active():
                verified = _WinnerRace(winner, launches, device, seconds, seed, memory).verdict()
        except (_WrongWinner, DeviceLost) as error:
            lost = str(error) if isinstance(error, DeviceLost) else ""
            verified = Verified(winner, "wrong", str(error))
        except (_Cannot, RuntimeError) as error:  # torch's: the GPU may lack memory for copies and the L2 flush
            reason = str(error) if isinstance(error, _Cannot) else in_one_line(error)
            verified = Verified(winner, "cannot", reason)
        yield replace(verified, tuned_with=tuned_with if tuned_with not in ("", here.toolkit) else None)


def _launches(winner: Winner, here: Here) -> dict[str, DescribedLaunch]:
    """The stored launches, if they fit this machine and the sources as they are now."""
    board = evidence.board(winner)
    if problem := source_problem(winner):
        raise _Cannot(problem)
    if here.board is not None and board and board != here.board:
        raise _Cannot(f"it was tuned on another board: {board}, here {here.board}")
    if not winner.launches or "winner" not in winner.launches:
        raise _Cannot("no launch was stored with it" + (": it was imported" * (winner.origin == "import")))
    return {name: DescribedLaunch.from_json(launch) for name, launch in winner.launches.items()}


def source_problem(winner: Winner) -> str:
    """Why the kernel as it is now is not the one that was tuned: it is gone, or changed. Empty if it is the same, or if
    no launch was stored. Imports the kernel's module."""
    try:
        for launch in (winner.launches or {}).values():
            loaded_kernel(DescribedLaunch.from_json(launch))
    except RequestError as error:
        return str(error)
    except Exception as error:  # what the user's module raises, or a bad description
        return in_one_line(error)
    return ""


@dataclass(frozen=True)
class _Prepared:
    """One launch made again, and what it wrote."""

    shot: Shot
    outputs: Mapping[str, LiveArray]


class _WinnerRace:
    """One entry: prepared, compared, timed."""

    def __init__(
        self, winner: Winner, launches: Mapping[str, DescribedLaunch], device: Device, seconds: float, seed: int,
        memory: str,
    ) -> None:  # fmt: skip
        self._winner, self._launches, self._device = winner, launches, device
        self._seconds, self._seed, self._memory = seconds, seed, memory

    def verdict(self) -> Verified:
        shipped = self._other("shipped")
        try:
            ours = self._prepared("winner")
        except _Cannot as failed:
            if shipped is None or isinstance(failed, _NoRoom):
                raise
            raise _WrongWinner(f"the winner no longer runs: {failed}") from failed
        if shipped is not None:
            self._compare(ours, shipped)
        shots = [other.shot for other in (shipped, self._other("runner_up")) if other is not None]
        if not shots:
            return Verified(self._winner, "holds", "it runs, and nothing else was stored to race it against")
        own, *times = self._timed([ours.shot, *shots])
        against = tuple(
            Against(shot.trial.config, shot.trial.label, stats.ratio_interval(samples, own, CONFIDENCE))
            for shot, samples in zip(shots, times, strict=True)
        )
        return _judged(self._winner, against, float(np.median(own)))

    def _other(self, name: Name) -> _Prepared | None:
        """None if it was not stored, if it is raced already, or if a runner-up no longer runs."""
        described = self._launches.get(name)
        raced = ("winner",) if name == "shipped" else ("winner", "shipped")
        if described is None or any(self._launches.get(other) == described for other in raced):
            return None
        try:
            return self._prepared(name)
        except _Cannot as failed:
            if name == "shipped" or isinstance(failed, _NoRoom):
                raise
            return None

    def _rebuilt(self, name: Name) -> tuple[Trial, tuple[CallValue, ...], dict[str, CallerArray]]:
        """The launch, its arguments on equal drawn data, and the arrays among them."""
        described = self._launches[name]
        kernel, grid, args = rebuilt(described, device=self._memory, seed=self._seed)
        winner = self._winner
        config = winner.shipped if name == "shipped" else winner.runner_up
        other = name.replace("_", "-") if config is None else label(config)
        trial = Trial(name, winner.label if name == "winner" else other, kernel, grid, lambda: args, described.hints)
        return trial, args, arrays_of(args, [argument.name for argument in described.arguments])

    def _prepared(self, name: Name) -> _Prepared:
        try:
            trial, args, arrays = self._rebuilt(name)
            kept = Kept(list(arrays.values()))
            first, second = self._written(trial, args, arrays), self._written(trial, args, arrays)
            kept.restore()
        except DeviceLost:
            raise
        except NoRoom as error:
            raise _NoRoom(str(error)) from error
        except Exception as error:
            kind = _NoRoom if type(error).__name__ == "OutOfMemoryError" else _Cannot
            raise kind(f"{name.replace('_', '-')}: {in_one_line(error)}") from error
        # A kernel that reads what it writes gets its input back before each launch.
        again = any(difference(second[array], first[array]).worst for array in first)
        return _Prepared(Shot(trial, args, kept.restore if again else lambda: None), first)

    def _written(
        self, trial: Trial, args: tuple[CallValue, ...], arrays: Mapping[str, CallerArray]
    ) -> dict[str, LiveArray]:
        """All arrays after a launch; those that are only read are equal for every configuration."""
        self._device.run(trial, args)
        return {name: tensor_of(array).clone() for name, array in arrays.items()}

    def _compare(self, ours: _Prepared, shipped: _Prepared) -> None:
        """Raises `_WrongWinner`. The shipped one runs again: its difference from itself is allowed."""
        _, args, arrays = self._rebuilt("shipped")
        itself = self._written(shipped.shot.trial, args, arrays)
        for name, output in shipped.outputs.items():
            if name in ours.outputs:
                expected = Expected(name, output, difference(itself[name], output))
                if reason := expected.wrong(ours.outputs[name]):
                    raise _WrongWinner(reason)

    def _timed(self, shots: Sequence[Shot]) -> list[tuple[float, ...]]:
        l2: Literal["warm", "cold"] = "warm" if self._winner.parts.get("flush_l2") is False else "cold"
        policy = Policy(l2, "graph" if self._winner.parts.get("launch_mode") == "graph" else "eager")
        budget = Budget(400, self._seconds, FEWEST + policy.warmup_rounds)
        try:
            with self._device.clock(shots, policy) as (clock, _):
                timed = interleaved(clock, Rounds(len(shots)), budget, np.random.default_rng(self._seed))
        except CandidateCrashed as crashed:
            raise _WrongWinner(f"{shots[crashed.index].trial.label} no longer runs: {crashed.reason}") from crashed
        return [samples[policy.warmup_rounds :] for samples in timed.samples_us]


def _judged(winner: Winner, against: tuple[Against, ...], us: float) -> Verified:
    band = 1.0 + Policy().tie_band
    faster = [other for other in against if other.ratio.high * band < 1.0]
    if not faster:
        return Verified(winner, "holds", "; ".join(map(str, against)), against, us)
    best = min(faster, key=lambda other: other.ratio.centre)
    low, high = 1.0 / best.ratio.high, 1.0 / best.ratio.low
    reason = (
        f"{best.name.replace('_', '-')} {best.label} is {1.0 / best.ratio.centre:.3f}× ({low:.3f} to {high:.3f}) "
        f"as fast now; fix: `tilewright tuned prune --key {winner.key[:12]}`, and run the program again"
    )
    return Verified(winner, "drifted", reason, against, us)
