"""Fits the coefficients of the predictor, and says how far it is off on kernels that the fit never saw.

    python bench/fit_predictions.py [--steps 150] [--folds-only] [--set-aside] [RECORDING.json.gz …]

For each recorded kernel the coefficients are fitted on the other kernels, by a random descent in their logarithms. The
table shows what these predict for the kernel left out:

    error factor   exp(mean |log(predicted / measured)|), the geometric mean over its workloads
    regret         time of the configuration predicted fastest over the fastest time, of each workload

and below it the margin of each kind of change: the predicted difference beyond which the predicted order of two
configurations is right in 9 of 10 pairs, workloads of all kernels weighing alike. Then come the coefficients
that a fit on all kernels gives. They are copied into `hardware/prediction.py`, and the errors into
`hardware/prediction_error.py`, by hand.

The kernels named in bench/fit_set_aside.txt, _2.txt and _3.txt are left out of all this. With --set-aside
the predictor as it stands is tried on those of the recordings given, once, at the end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from common import file_of, lines_of

from tilewright.compile.screen import work_of
from tilewright.hardware import prediction
from tilewright.hardware.architectures import board
from tilewright.hardware.boards import Board
from tilewright.hardware.executions import Work
from tilewright.hardware.prediction import Launched
from tilewright.ledger.codec import from_json
from tilewright.records import MachineCode
from tilewright.source.cutile import HINTS
from tilewright.task.loading import load_task

HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "h200-2026-11-21.json.gz"
NAIVE = HERE / "recorded" / "h200-naive-2026-11-21-codes.json.gz"
SET_ASIDE = tuple(HERE / f"fit_set_aside{which}.txt" for which in ("", "_2", "_3"))
COEFFICIENTS = (
    "LAUNCH_US", "START_US", "CLOCKS_PER_INSTRUCTION", "ITERATION_US", "WAIT_US", "TURN_US", "TURNS_OF_WARPS",
    "ISSUED_SHARE", "NARROW", "TOGETHER", "ONE_AFTER_OTHER", "ALONE", "CACHE_RATE", "SPILLED_L1", "SPILLED_L2",
    "OVERLAP", "OVERLAP_STRAIGHT",
)  # fmt: skip
"""The fitted numbers of `hardware/prediction.py`."""
PRIOR = {
    "LAUNCH_US": 4.5, "START_US": 1.0, "CLOCKS_PER_INSTRUCTION": 5.0, "ITERATION_US": 0.15, "WAIT_US": 1.0,
    "TURN_US": 1.0, "TURNS_OF_WARPS": 0.3, "ISSUED_SHARE": 1.0, "NARROW": 2.0, "TOGETHER": 4.0, "ONE_AFTER_OTHER": 0.5,
    "ALONE": 1.0, "CACHE_RATE": 5.3, "SPILLED_L1": 0.4, "SPILLED_L2": 1.0, "OVERLAP": 3.0, "OVERLAP_STRAIGHT": 1.5,
}  # fmt: skip
"""Where a descent starts, and what it is drawn to, so that a kernel left out leaves no number without a bound."""
DRAWN = 0.04
"""Weight of the mean squared logarithm of coefficient over prior."""
LARGEST = {"TOGETHER": 8.0, "OVERLAP": 6.0, "OVERLAP_STRAIGHT": 6.0}
KINDS = ("hints", "tiles", "form")
RACED = 8
RIGHT = 0.9
"""Share of the pairs that a margin orders rightly."""


@dataclass(frozen=True)
class Row:
    """One machine code under one grid, with the median of all its samples, and the configurations that gave it."""

    code: MachineCode
    grid: tuple[int, ...]
    us: float
    configurations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Case:
    """One workload of one kernel, with all its distinct codes."""

    kernel: str
    workload: str
    work: Work
    board: Board
    rows: tuple[Row, ...]

    @cached_property
    def launches(self) -> list[Launched]:
        return [Launched(row.code, row.grid, self.work, self.board) for row in self.rows]

    def predicted(self) -> np.ndarray:
        return np.array([launch.us() for launch in self.launches])

    @property
    def measured(self) -> np.ndarray:
        return np.array([row.us for row in self.rows])

    def score(self) -> tuple[float, float, float]:
        """Mean of |log(predicted / measured)|; the time of the row predicted fastest over the fastest, minus 1; and the
        same for the best of the `RACED` rows predicted fastest."""
        predicted, measured = self.predicted(), self.measured
        error = float(np.mean(np.abs(np.log(predicted / measured))))
        behind = measured[np.argsort(predicted)] / measured.min() - 1
        return error, float(behind[0]), float(behind[:RACED].min())


def set_aside() -> set[str]:
    return {line for path in SET_ASIDE for line in lines_of(path)}


def cases_of(path: Path) -> Iterator[Case]:
    """The workloads of a recording. A kernel is named as below examples/: ``matmul``, ``naive/matmul``."""
    with gzip.open(path, "rt") as file:
        recording = json.load(file)
    for recorded in recording["tasks"]:
        name = recorded.get("kernel", recorded["task"])
        task = load_task(str(file_of(name)))
        on = board(recorded["machine"]["name"].removeprefix("NVIDIA "))
        for workload in recorded["workloads"]:
            dims = workload["dims"]
            work = work_of(task, dims)
            if rows := tuple(_rows(workload["rows"])):
                yield Case(name, workload["workload"], work, on, rows)


def _rows(recorded: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    same: dict[tuple[str, tuple[int, ...]], list[Mapping[str, Any]]] = {}
    for row in recorded:
        if "samples_us" in row or "us" in row:
            same.setdefault((row["code"]["code_hash"], tuple(row["grid"])), []).append(row)
    for (_, grid), rows in same.items():
        us = statistics.median([us for row in rows for us in row.get("samples_us", [row.get("us")])])
        yield Row(
            from_json(MachineCode, rows[0]["code"], defaults=True), grid, us, tuple(row["config"] for row in rows)
        )


Coefficients = Mapping[str, float]


def coefficients() -> dict[str, float]:
    return {name: getattr(prediction, name) for name in COEFFICIENTS}


def use(values: Coefficients) -> None:
    for name, value in values.items():
        setattr(prediction, name, value)


def per_kernel(cases: Sequence[Case]) -> dict[str, list[Case]]:
    kernels: dict[str, list[Case]] = {}
    for case in cases:
        kernels.setdefault(case.kernel, []).append(case)
    return kernels


def loss(cases: Sequence[Case], values: Coefficients) -> float:
    """The mean over kernels of the error and, weighed less, of the regret; and the distance from the prior."""
    use(values)
    far = statistics.fmean(math.log(value / PRIOR[name]) ** 2 for name, value in values.items())
    scores: dict[str, list[float]] = {}
    for case in cases:
        error, regret, raced = case.score()
        scores.setdefault(case.kernel, []).append(error + 0.5 * min(regret, 0.5) + 2 * raced)
    return DRAWN * far + statistics.fmean(map(statistics.fmean, scores.values()))


def fitted(cases: Sequence[Case], steps: int, seed: int = 1) -> dict[str, float]:
    """Coefficients after a random descent from the prior. Leaves the predictor as it was."""
    before, rng = coefficients(), np.random.default_rng(seed)
    if not steps:
        return before
    best, least, width = dict(PRIOR), loss(cases, PRIOR), 0.4
    try:
        for step in range(1, steps + 1):
            moved = dict(best)
            for name in map(str, rng.choice(COEFFICIENTS, size=int(rng.integers(1, 4)), replace=False)):
                value = best[name] * math.exp(rng.normal(0, width))
                moved[name] = min(max(value, 1.0), LARGEST[name]) if name in LARGEST else value
            if (now := loss(cases, moved)) < least:
                best, least = moved, now
            if step % (steps // 4) == 0:
                width *= 0.7
    finally:
        use(before)
    return best


def kind_of(a: Row, b: Row) -> str:
    """The smallest kind of change between two rows: ``hints`` if they differ in hints alone, ``form`` if in the version
    of the code, else ``tiles``."""
    if "version" in a.configurations[0]:
        return "form"
    for one in a.configurations:
        for other in b.configurations:
            if all(one[knob] == other[knob] for knob in one if knob not in HINTS):
                return "hints"
    return "tiles"


@dataclass(frozen=True)
class Pair:
    """Two rows of a workload. ``predicted``: how many times the first takes the other's time, at least 1."""

    kind: str
    predicted: float
    measured: float
    weight: float


def pairs(case: Case) -> Iterator[Pair]:
    predicted, found = case.predicted(), []
    for i, j in combinations(range(len(case.rows)), 2):
        slow, fast = (i, j) if predicted[i] >= predicted[j] else (j, i)
        a, b = case.rows[slow], case.rows[fast]
        found.append(Pair(kind_of(a, b), float(predicted[slow] / predicted[fast]), a.us / b.us, 1.0))
    for kind in KINDS:
        mine = [pair for pair in found if pair.kind == kind]
        yield from (replace(pair, weight=1 / len(mine)) for pair in mine)


def margin(found: Sequence[Pair]) -> float:
    """The smallest predicted difference so that of the pairs beyond each larger one `RIGHT` are ordered rightly."""
    ordered = sorted(found, key=lambda pair: -pair.predicted)
    right = total = 0.0
    best = math.inf
    for pair in ordered:
        total += pair.weight
        right += pair.weight * (pair.measured > 1)
        if right < RIGHT * total and total > 0.02 * sum(one.weight for one in found):
            break
        best = pair.predicted
    return best - 1


def ratio_error(found: Sequence[Pair]) -> float:
    """exp(mean |log(predicted ratio / measured ratio)|)."""
    weights = [pair.weight for pair in found]
    return math.exp(np.average([abs(math.log(pair.predicted / pair.measured)) for pair in found], weights=weights))


def table(kernels: Mapping[str, Sequence[Case]], values: Mapping[str, Coefficients]) -> list[Pair]:
    """Prints errors and regrets of each kernel with its own coefficients; returns all pairs."""
    found, errors, regrets = [], [], []
    before = coefficients()
    for kernel, cases in kernels.items():
        use(values[kernel])
        scores = [case.score() for case in cases]
        errors.append(statistics.fmean(error for error, *_ in scores))
        mine = [regret for _, regret, _ in scores]
        ratios = np.concatenate([case.predicted() / case.measured for case in cases])
        listed = ", ".join(f"{case.workload} {regret:.1%}" for case, regret in zip(cases, mine, strict=True))
        print(f"{kernel:18} {len(ratios):4} codes  error factor {math.exp(errors[-1]):.2f}  predicted over measured "
              f"{ratios.min():.2f} to {ratios.max():.2f}  regret {listed}")  # fmt: skip
        regrets += mine
        found += [pair for case in cases for pair in pairs(case)]
    use(before)
    good = sum(regret <= 0.10 for regret in regrets)
    print(f"geometric mean over {len(errors)} kernels: error factor {math.exp(statistics.fmean(errors)):.2f}; "
          f"regret at most 10 % in {good} of {len(regrets)} workloads")  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recordings", nargs="*", type=Path, default=[RECORDED, NAIVE])
    parser.add_argument("--steps", type=int, default=150, help="of each descent; 0 takes the coefficients as they are")
    parser.add_argument("--folds-only", action="store_true", help="do not fit on all kernels at the end")
    parser.add_argument("--set-aside", action="store_true", help="try the predictor on the kernels set aside")
    given = parser.parse_args()
    cases = [case for path in given.recordings for case in cases_of(path)]
    aside = set_aside()
    if given.set_aside:
        kernels = per_kernel([case for case in cases if case.kernel in aside])
        if not kernels:
            sys.exit("no recording has a kernel that is set aside")
        table(kernels, dict.fromkeys(kernels, coefficients()))
        return
    kernels = per_kernel([case for case in cases if case.kernel not in aside])
    values = {}
    for left_out in kernels:
        others = [case for name, mine in kernels.items() if name != left_out for case in mine]
        values[left_out] = fitted(others, given.steps)
    print("each kernel left out of the fit:")
    found = table(kernels, values)
    for kind in KINDS:
        mine = [pair for pair in found if pair.kind == kind]
        if mine:
            print(f"{kind}: {len(mine)} pairs, margin {margin(mine):.1%}, ratios off by {ratio_error(mine):.2f}")
    if not given.folds_only and given.steps:
        print("fitted on all kernels:", {name: float(f"{v:.3g}") for name, v in fitted(
            [case for mine in kernels.values() for case in mine], given.steps).items()})  # fmt: skip


if __name__ == "__main__":
    main()
