"""Stored winners raced again, here and with this toolkit: the check to run after a driver or a compiler changed.

For each entry the winner, its runner-up and the shipped configuration are made again from their stored
descriptions, on equal drawn data. What the winner writes is compared with what the shipped one writes, and
then all are timed in interleaved rounds; a ratio counts with its interval.

    holds     it computes the same, and neither of the others is faster by more than the tie band, with confidence
    drifted   one of the others is
    wrong     it writes something else, or no longer runs
    cannot    this machine cannot say: other board, changed source, no description, no GPU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tilewright.errors import RequestError, in_one_line
from tilewright.progress import Progress, silent
from tilewright.race import stats
from tilewright.race.protocol import Budget, CandidateCrashed, Rounds, interleaved
from tilewright.race.rules import Policy
from tilewright.race.stats import Interval
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.rebuilding import loaded_kernel, rebuilt
from tilewright.runtime.key import board_of, toolkit
from tilewright.runtime.search.comparing_outputs import Expected, difference
from tilewright.runtime.search.device import CudaDevice, Device, Shot
from tilewright.runtime.search.scratch import DeviceLost, Kept, NoRoom, arrays_of, tensor_of
from tilewright.runtime.search.trials import Trial, label
from tilewright.runtime.store import evidence
from tilewright.runtime.store.winners import Winner

Verdict = Literal["holds", "drifted", "wrong", "cannot"]

WINNER, RUNNER_UP, SHIPPED = "winner", "runner_up", "shipped"
SECONDS = 2.0
ROUNDS = 400
FEWEST = 24
"""More than the fewest rounds that bound a median at this confidence on both sides."""
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Here:
    """This machine, as the keys name it. ``board`` is None without a GPU."""

    board: str | None
    toolkit: str


def this_machine() -> tuple[Here, Device | None]:
    """Where this process runs; no device without a GPU that torch can use."""
    try:
        import torch
    except ImportError:
        return Here(None, toolkit()), None
    if not torch.cuda.is_available():
        return Here(None, toolkit()), None
    here = Here(board_of(torch.cuda.current_device()), toolkit())
    return here, CudaDevice(torch.cuda.current_stream())


@dataclass(frozen=True)
class Against:
    """The winner against another configuration on equal data."""

    name: Literal["runner_up", "shipped"]
    label: str
    ratio: Interval
    """Its time over the winner's, of the same round: above 1 the winner is faster."""

    def __str__(self) -> str:
        return f"{self.name.replace('_', '-')} takes {self.ratio.centre:.3f}× as long ({self.ratio})"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "label": self.label, "ratio": self.ratio.to_json()}


@dataclass(frozen=True)
class Verified:
    """What came of one stored winner: whether it still holds, and the races behind that."""

    winner: Winner
    verdict: Verdict
    reason: str
    against: tuple[Against, ...] = ()
    us: float | None = None
    """The winner's time now."""
    tuned_with: str | None = None
    """The toolkit that it was tuned with, where that is another one."""

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.winner.key, "kernel": self.winner.kernel, "module": evidence.module(self.winner),
            "shapes": evidence.shapes(self.winner),
            "label": self.winner.label, "verdict": self.verdict, "reason": self.reason,
            "against": [one.to_json() for one in self.against], "us": self.us,
            "us_when_tuned": evidence.winner_us(self.winner), "tuned_with": self.tuned_with,
        }  # fmt: skip


class _Cannot(Exception):
    """Why an entry cannot be raced here."""


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
    """One verdict for each winner, in their order. ``device`` None: what can be said without a GPU.

    seconds: of the race of one entry. seed: of the data and of the rounds. memory: where torch keeps the arrays.
    """
    lost = ""
    for done, winner in enumerate(winners):
        on_progress("verify", done, len(winners), winner.kernel)
        with_other = evidence.toolkit(winner)
        try:
            if lost:
                raise _Cannot(f"an entry before it broke the GPU's context: {lost}")
            launches = _launches(winner, here)
            if device is None:
                raise _Cannot("there is no GPU here to race it on; its source is unchanged")
            with device.active():
                found = _WinnerRace(winner, launches, device, seconds, seed, memory).verdict()
        except _Cannot as cannot:
            found = Verified(winner, "cannot", str(cannot))
        except _WrongWinner as wrong:
            found = Verified(winner, "wrong", str(wrong))
        except DeviceLost as error:
            lost = str(error)
            found = Verified(winner, "wrong", lost)
        except RuntimeError as error:  # torch's, such as a GPU without room for copies and the L2 flush
            found = Verified(winner, "cannot", in_one_line(error))
        yield replace(found, tuned_with=with_other if with_other not in ("", here.toolkit) else None)


def _launches(winner: Winner, here: Here) -> dict[str, DescribedLaunch]:
    """What was stored of the launches, checked against this machine and the sources as they are now."""
    board = evidence.board(winner)
    if gone := source_problem(winner):
        raise _Cannot(gone)
    if here.board is not None and board and board != here.board:
        raise _Cannot(f"it was tuned on another board: {board}, here {here.board}")
    if not winner.launches or WINNER not in winner.launches:
        raise _Cannot("no launch was stored with it" + (": it was imported" * (winner.origin == "import")))
    return {name: DescribedLaunch.from_json(one) for name, one in winner.launches.items()}


def source_problem(winner: Winner) -> str:
    """Why the kernel as it is now is not what was tuned: gone, or changed; empty where it is, or where no launch
    was stored that could tell. Imports the kernel's module."""
    try:
        for one in (winner.launches or {}).values():
            loaded_kernel(DescribedLaunch.from_json(one))
    except RequestError as error:
        return str(error)
    except Exception as error:  # what the user's module raises, or a description that is not one
        return in_one_line(error)
    return ""


@dataclass(frozen=True)
class _Prepared:
    """One launch made again, and what it wrote."""

    shot: Shot
    outputs: Mapping[str, Any]


class _WinnerRace:
    """One entry: prepared, compared, timed."""

    def __init__(
        self, winner: Winner, launches: Mapping[str, DescribedLaunch], device: Device, seconds: float, seed: int,
        memory: str,
    ) -> None:  # fmt: skip
        self._winner, self._launches, self._device = winner, launches, device
        self._seconds, self._seed, self._memory = seconds, seed, memory

    def verdict(self) -> Verified:
        others: list[tuple[Literal["runner_up", "shipped"], _Prepared]] = []
        shipped = self._other(SHIPPED)
        try:
            ours = self._prepared(WINNER)
        except _Cannot as failed:
            if shipped is None or isinstance(failed, _NoRoom):
                raise
            raise _WrongWinner(f"the winner no longer runs: {failed}") from failed
        if shipped is not None:
            self._compare(ours, shipped)
            others.append(("shipped", shipped))
        runner_up = self._other(RUNNER_UP)
        if runner_up is not None:
            others.append(("runner_up", runner_up))
        if not others:
            return Verified(self._winner, "holds", "it runs, and nothing else was stored to race it against")
        samples = self._timed([ours.shot, *(one.shot for _, one in others)])
        against = tuple(
            Against(name, one.shot.trial.label, stats.ratio_interval(times, samples[0], CONFIDENCE))
            for (name, one), times in zip(others, samples[1:], strict=True)
        )
        return _judged(self._winner, against, float(np.median(samples[0])))

    def _other(self, name: str) -> _Prepared | None:
        """None where it was not stored, where it is what was raced already, or where it no longer runs."""
        described = self._launches.get(name)
        raced = (WINNER,) if name == SHIPPED else (WINNER, SHIPPED)
        if described is None or any(self._launches.get(one) == described for one in raced):
            return None
        try:
            return self._prepared(name)
        except _NoRoom:
            raise
        except _Cannot:
            if name == SHIPPED:
                raise
            return None

    def _prepared(self, name: str) -> _Prepared:
        described = self._launches[name]
        try:
            kernel, grid, args = rebuilt(described, device=self._memory, seed=self._seed)
            trial = Trial(name, _label(self._winner, name), kernel, grid, lambda: args, described.hints)
            arrays = arrays_of(args, [one.name for one in described.arguments])
            kept = Kept(list(arrays.values()))
            first = self._written(trial, args, arrays)
            second = self._written(trial, args, arrays)
            kept.restore()
        except DeviceLost:
            raise
        except NoRoom as error:
            raise _NoRoom(str(error)) from error
        except Exception as error:
            kind = _NoRoom if type(error).__name__ == "OutOfMemoryError" else _Cannot
            raise kind(f"{name.replace('_', '-')}: {in_one_line(error)}") from error
        # A kernel that reads what it writes gets its input back before each launch.
        again = any(difference(second[one], first[one]).worst for one in first)
        return _Prepared(Shot(trial, args, kept.restore if again else _nothing), first)

    def _written(self, trial: Trial, args: tuple[Any, ...], arrays: Mapping[str, Any]) -> dict[str, Any]:
        """All arrays after a launch; those that it only reads are equal for every configuration."""
        self._device.run(trial, args)
        return {name: tensor_of(array).clone() for name, array in arrays.items()}

    def _compare(self, ours: _Prepared, shipped: _Prepared) -> None:
        """Raises `_WrongWinner`. The shipped one runs once more: what it differs by from itself is allowed."""
        described = self._launches[SHIPPED]
        _, _, args = rebuilt(described, device=self._memory, seed=self._seed)
        arrays = arrays_of(args, [one.name for one in described.arguments])
        itself = self._written(shipped.shot.trial, args, arrays)
        for name, output in shipped.outputs.items():
            if name in ours.outputs:
                expected = Expected(name, output, difference(itself[name], output))
                if said := expected.wrong(ours.outputs[name]):
                    raise _WrongWinner(said)

    def _timed(self, shots: Sequence[Shot]) -> list[tuple[float, ...]]:
        parts = self._winner.parts
        policy = Policy(
            l2="warm" if parts.get("flush_l2") is False else "cold",
            launch="graph" if parts.get("launch_mode") == "graph" else "eager",
        )
        budget = Budget(ROUNDS, self._seconds, FEWEST + policy.warmup_rounds)
        try:
            with self._device.clock(shots, policy) as (clock, _):
                timed = interleaved(clock, Rounds(len(shots)), budget, np.random.default_rng(self._seed))
        except CandidateCrashed as crashed:
            raise _WrongWinner(f"{shots[crashed.index].trial.label} no longer runs: {crashed.reason}") from crashed
        return [samples[policy.warmup_rounds :] for samples in timed.samples_us]


class _NoRoom(_Cannot):
    """There is not enough memory on the GPU."""


def _nothing() -> None:
    pass


def _judged(winner: Winner, against: tuple[Against, ...], us: float) -> Verified:
    band = 1.0 + Policy().tie_band
    faster = [one for one in against if one.ratio.high * band < 1.0]
    if not faster:
        return Verified(winner, "holds", "; ".join(map(str, against)), against, us)
    best = min(faster, key=lambda one: one.ratio.centre)
    low, high = 1.0 / best.ratio.high, 1.0 / best.ratio.low
    reason = (
        f"{best.name.replace('_', '-')} {best.label} is {1.0 / best.ratio.centre:.3f}× ({low:.3f} to {high:.3f}) "
        f"as fast now; fix: `tilewright tuned prune --key {winner.key[:12]}`, and run the program again"
    )
    return Verified(winner, "drifted", reason, against, us)


def _label(winner: Winner, name: str) -> str:
    if name == WINNER:
        return winner.label
    config = winner.shipped if name == SHIPPED else winner.runner_up
    return name.replace("_", "-") if config is None else label(config)
