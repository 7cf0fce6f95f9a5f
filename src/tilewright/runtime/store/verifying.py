"""Races stored winners again on this machine with this toolkit, for use after a driver or compiler has changed.

Up to three launches are made again from their stored descriptions: winner, runner-up and shipped configuration. All run
on equal random data. The outputs of winner and shipped configuration are compared. Then all launches are timed in
interleaved rounds. Ratios of times are judged by their 99 % intervals.

    holds     equal outputs, and no other configuration is certainly faster by more than the tie band
    drifted   another configuration is certainly faster
    wrong     other outputs, or the winner no longer runs
    cannot    no verdict on this machine: another GPU, changed source, no description, no GPU
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from tilewright.errors import RequestError, in_one_line
from tilewright.hardware import gpu
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
from tilewright.runtime.search.cutile_trials import CuTileTrial
from tilewright.runtime.search.device import CudaDevice, Device, Shot
from tilewright.runtime.search.scratch import DeviceLost, Kept, NoRoom, arrays_of, tensor_of
from tilewright.runtime.search.trials import Trial, label
from tilewright.runtime.store import evidence
from tilewright.runtime.store.unchanged import unchanged_launches
from tilewright.runtime.store.winners import Winner

Verdict: TypeAlias = Literal["holds", "drifted", "wrong", "cannot"]
Name: TypeAlias = Literal["winner", "runner_up", "shipped"]
SECONDS = 2.0
CONFIDENCE = 0.99
FEWEST = 24
"""The fewest rounds. It is more than an interval of the median needs with this confidence."""


@dataclass(frozen=True)
class Here:
    """The GPU and toolkit of this machine, in the format of keys. ``board``: the GPU; None without a GPU."""

    board: str | None
    toolkit: str


def this_machine() -> tuple[Here, Device | None]:
    """Returns this machine and its GPU. The GPU is None if the driver or torch finds none."""
    with suppress(ImportError):
        if gpu.detect() is None:  # importing torch takes a second
            return Here(None, toolkit()), None
        import torch

        if torch.cuda.is_available():
            board = board_of(torch.cuda.current_device())
            return Here(board, toolkit()), CudaDevice(torch.cuda.current_stream())
    return Here(None, toolkit()), None


@dataclass(frozen=True)
class Against:
    """A configuration compared with the winner. ``ratio``: its time divided by the winner's time in the same round."""

    name: Name
    label: str
    ratio: Interval

    def __str__(self) -> str:
        return f"{self.name.replace('_', '-')} takes {self.ratio.centre:.3f}× as long ({self.ratio})"

    def to_json(self) -> dict[str, Json]:
        return {"name": self.name, "label": self.label, "ratio": self.ratio.to_json()}


@dataclass(frozen=True)
class Verified:
    """The verdict on a stored winner, with the facts about the winner that are shown. ``us``: its present time in µs.
    ``us_when_tuned``: its stored time. ``tuned_with``: its toolkit, if this is not the present toolkit."""

    key: str
    kernel: str
    module: str
    shapes: str
    label: str
    verdict: Verdict
    reason: str
    against: tuple[Against, ...] = ()
    us: float | None = None
    us_when_tuned: float | None = None
    tuned_with: str | None = None

    @classmethod
    def of(
        cls, winner: Winner, verdict: Verdict, reason: str, against: tuple[Against, ...] = (), us: float | None = None
    ) -> Verified:
        return cls(winner.key, winner.kernel, evidence.module(winner), evidence.shapes(winner), winner.label, verdict,
                   reason, against, us, evidence.winner_us(winner))  # fmt: skip

    def to_json(self) -> dict[str, Json]:
        return {**vars(self), "against": [other.to_json() for other in self.against]}


class _Cannot(Exception):
    """The winner cannot be raced on this machine."""


class _NoRoom(_Cannot):
    """The GPU has too little memory."""


class _WrongWinner(Exception):
    """The winner has other outputs, or no longer runs."""


@dataclass(frozen=True)
class VerifyingPlan:
    """What `verify` is going to do, found without executing anything.

    entries: in order, the verdict on each winner that cannot be raced, and the key of each other winner.
    files: what loading the others executes. The modules that these files import are executed, too.
    """

    entries: tuple[Verified | str, ...]
    files: tuple[Path, ...]


def planned(winners: Iterable[Winner], here: Here) -> VerifyingPlan:
    """Checks all winners, and keeps none of them: a large store takes little memory."""
    files: dict[Path, None] = {}
    entries: list[Verified | str] = []
    for winner in winners:
        try:
            launches = _launches(winner, here)
        except _Cannot as error:
            entries.append(_with_toolkit(Verified.of(winner, "cannot", str(error)), winner, here))
        else:
            files.update(dict.fromkeys(Path(launch.file) for launch in launches.values()))
            entries.append(winner.key)
    return VerifyingPlan(tuple(entries), tuple(files))


def verify(
    winners: Iterable[Winner | Verified],
    here: Here,
    device: Device | None,
    *,
    seconds: float = SECONDS,
    seed: int = 0,
    memory: str = "cuda",
    total: int | None = None,
    on_progress: Progress = silent,
) -> Iterator[Verified]:
    """Yields the verdict on each winner, in order. With ``device=None``, nothing is raced. ``seconds``: wall time of a
    race. ``seed``: for the data and the order of rounds. ``memory``: torch's device for the arrays. ``total``: the
    number of winners, for the progress. A verdict of a `VerifyingPlan` among the winners is yielded as it is."""
    lost = ""
    for done, winner in enumerate(winners):
        if isinstance(winner, Verified):
            yield winner
            continue
        on_progress("verify", done, total, winner.kernel)
        try:
            if lost:
                raise _Cannot(f"an earlier entry broke the GPU's context: {lost}")
            launches = _launches(winner, here)
            if problem := source_problem(winner):
                raise _Cannot(problem)
            if device is None:
                raise _Cannot("there is no GPU here to race it on, but its source is unchanged")
            with device.active():
                verified = _WinnerRace(winner, launches, device, seconds, seed, memory).verdict()
        except (_WrongWinner, DeviceLost) as error:
            lost = str(error) if isinstance(error, DeviceLost) else ""
            verified = Verified.of(winner, "wrong", str(error))
        except _Cannot as error:
            verified = Verified.of(winner, "cannot", str(error))
        except RuntimeError as error:  # torch's, if memory is short for copies or for the flush of the L2
            verified = Verified.of(winner, "cannot", in_one_line(error))
        yield _with_toolkit(verified, winner, here)


def _with_toolkit(verified: Verified, winner: Winner, here: Here) -> Verified:
    tuned_with = evidence.toolkit(winner)
    return replace(verified, tuned_with=tuned_with) if tuned_with not in ("", here.toolkit) else verified


def _launches(winner: Winner, here: Here) -> dict[str, DescribedLaunch]:
    """Returns the stored launches. Raises `_Cannot` if they do not fit this machine or the present sources. Executes
    nothing."""
    board = evidence.board(winner)
    try:
        launches = unchanged_launches(winner)
    except (RequestError, ValueError) as error:
        raise _Cannot(str(error) if isinstance(error, RequestError) else in_one_line(error)) from error
    if here.board is not None and board and board != here.board:
        raise _Cannot(f"it was tuned on another GPU: {board}, here {here.board}")
    if not winner.launches or "winner" not in winner.launches:
        raise _Cannot("no launch was stored with it" + (": it was imported" * (winner.origin == "import")))
    return launches


def source_problem(winner: Winner) -> str:
    """Returns how the kernel's present source differs from the tuned one: it is missing or changed. Empty if the
    source is the same, or if no launch was stored. Imports the kernel's module, after `unchanged` has compared all
    that can be compared without executing it."""
    try:
        for launch in unchanged_launches(winner).values():
            loaded_kernel(launch)
    except RequestError as error:
        return str(error)
    except Exception as error:  # what the user's module raises, or a bad description
        return in_one_line(error)
    return ""


@dataclass(frozen=True)
class _Prepared:
    """A launch rebuilt from its stored description, and copies of its arrays after one run."""

    shot: Shot
    outputs: Mapping[str, LiveArray]


class _WinnerRace:
    def __init__(
        self, winner: Winner, launches: Mapping[str, DescribedLaunch], device: Device, seconds: float, seed: int,
        memory: str,
    ) -> None:  # fmt: skip
        self._winner, self._launches, self._device = winner, launches, device
        self._seconds, self._seed, self._memory = seconds, seed, memory

    def verdict(self) -> Verified:
        shipped = self._other("shipped")
        try:
            winner = self._prepared("winner")
        except _Cannot as failed:
            if shipped is None or isinstance(failed, _NoRoom):
                raise
            raise _WrongWinner(f"the winner no longer runs: {failed}") from failed
        if shipped is not None:
            self._compare(winner, shipped)
        shots = [other.shot for other in (shipped, self._other("runner_up")) if other is not None]
        if not shots:
            return Verified.of(self._winner, "holds", "it runs, and nothing else was stored to race it against")
        own, *times = self._timed([winner.shot, *shots])
        against = tuple(
            Against(shot.trial.config, shot.trial.label, stats.ratio_interval(samples, own, CONFIDENCE))
            for shot, samples in zip(shots, times, strict=True)
        )
        return _judged(self._winner, against, float(np.median(own)))

    def _other(self, name: Name) -> _Prepared | None:
        """Prepares a launch. Returns None if no launch is stored, if an equal launch is raced, or if the runner-up
        fails.
        """
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
        """Makes a launch again. Returns the trial, its arguments with equal random data, and the arrays among them."""
        described = self._launches[name]
        kernel, grid, args = rebuilt(described, device=self._memory, seed=self._seed)
        winner = self._winner
        config = winner.shipped if name == "shipped" else winner.runner_up
        other = name.replace("_", "-") if config is None else label(config)
        shown = winner.label if name == "winner" else other
        trial = CuTileTrial(name, shown, kernel, grid, lambda: args, described.hints)
        return trial, args, arrays_of(args, [argument.name for argument in described.arguments])

    def _prepared(self, name: Name) -> _Prepared:
        try:
            trial, args, arrays = self._rebuilt(name)
            kept = Kept(list(arrays.values()))
            after = self._written(trial, args, arrays)
            kept.restore()
            changed = Kept([arrays[at] for at in arrays if difference(tensor_of(arrays[at]), after[at]).worst])
        except DeviceLost:
            raise
        except NoRoom as error:
            raise _NoRoom(str(error)) from error
        except Exception as error:
            kind = _NoRoom if type(error).__name__ == "OutOfMemoryError" else _Cannot
            raise kind(f"{name.replace('_', '-')}: {in_one_line(error)}") from error
        # Before each launch the outputs get random numbers again, so that the kernel cannot find its previous answer
        # there.
        return _Prepared(Shot(trial, args, changed.restore), after)

    def _written(
        self, trial: Trial, args: tuple[CallValue, ...], arrays: Mapping[str, CallerArray]
    ) -> dict[str, LiveArray]:
        """Launches the trial, and returns copies of all arrays. Arrays that are only read are equal for all trials."""
        self._device.run(trial, args)
        return {name: tensor_of(array).clone() for name, array in arrays.items()}

    def _compare(self, winner: _Prepared, shipped: _Prepared) -> None:
        """Raises `_WrongWinner` if the winner's outputs are too far from those of the shipped configuration.

        The shipped configuration runs twice. The difference of its two outputs determines how far is allowed.
        """
        _, args, arrays = self._rebuilt("shipped")
        itself = self._written(shipped.shot.trial, args, arrays)
        for name, output in shipped.outputs.items():
            if name in winner.outputs:
                expected = Expected(name, output, difference(itself[name], output))
                if reason := expected.wrong(winner.outputs[name]):
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
        return Verified.of(winner, "holds", "; ".join(map(str, against)), against, us)
    best = min(faster, key=lambda other: other.ratio.centre)
    low, high = 1.0 / best.ratio.high, 1.0 / best.ratio.low
    reason = (
        f"{best.name.replace('_', '-')} {best.label} is {1.0 / best.ratio.centre:.3f}× ({low:.3f} to {high:.3f}) "
        f"as fast now; fix: `tilewright tuned prune --key {winner.key[:12]}`, and run the program again"
    )
    return Verified.of(winner, "drifted", reason, against, us)
