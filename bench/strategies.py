"""Replays search strategies on recorded kernels: how good is the best of what they compile?

    python bench/strategies.py [--set-aside] [--seeds 5] [--out OUT.json] [RECORDING.json.gz …]
    python bench/strategies.py --leave-out

Each workload of a recording has measured times and machine code of all its configurations. A replayed strategy gets the
outcomes that `tune` would give it: a predicted time for each compiled configuration, and a measured time for the ten
that the screen ranks first, and for the shipped one. The regret is the time of the fastest measured one over that of
the fastest of all, minus 1. Each strategy may compile a share of the configurations, from one in eight to all.

    reached   share of the workloads with a regret of at most 1 %
    needed    the smallest of these shares with which a strategy reaches this regret in 95 % of the workloads

``random`` is drawn for comparison, and is no strategy. ``unaided`` is ``halving`` without expected times. Every
configuration that a strategy asks for counts as compiled.

No strategy is fitted to a kernel, but its few numbers were chosen with these kernels in view. So the kernels in
bench/fit_set_aside_3.txt are replayed only with --set-aside. With --leave-out, the numbers of ``halving`` are chosen on
all families of kernels but one, among those of `CHOICES`, and the family left out is replayed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from common import BENCH, file_of, lines_of, made_here

from tilewright.compile.screen import RACED, ScreenRow, ranking, screen, work_of
from tilewright.errors import MachineError
from tilewright.hardware.architectures import board
from tilewright.hardware.boards import Board
from tilewright.hardware.executions import Work
from tilewright.inspect.expected import ExpectedTimes
from tilewright.inspect.work import classify
from tilewright.ledger.codec import from_json
from tilewright.records import Bound, Candidate, Configuration, MachineCode, MeasuredTime, Workload
from tilewright.space.knobs import hints
from tilewright.space.space import Space
from tilewright.strategies import halving, informed, strategy_of
from tilewright.strategies.base import Batch, Outcomes, Search, SearchSpace, Strategy, batches
from tilewright.task.loading import load_task

HERE = BENCH
RECORDED = (HERE / "recorded" / "h200-2026-11-23.json.gz", HERE / "recorded" / "h200-2026-11-24.json.gz")
SET_ASIDE = HERE / "fit_set_aside_3.txt"
SHARES = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
NAMES = ("random", "exhaustive", "unaided", "halving", "local", "bayesian")
REGRET, WANTED = 0.01, 0.95
QUARTER = 0.25
FAMILIES: Mapping[str, Sequence[str]] = {
    "products": ("matmul", "gemm", "linear", "weight_gradient"), "attention": ("attention", "fmha", "mla"),
    "rows": ("norm", "softmax", "cross_entropy"), "elementwise": ("rope", "glu", "transpose", "adam"),
    "reductions": ("sum",),
}  # fmt: skip
"""Parts of the names of each family's kernels."""
CHOICES = {"OWN": (0.2, 0.35, 0.5), "CURIOSITY": (0.4, 0.7, 1.0), "FIRST_EXPECTED": (0.25, 0.34, 0.5)}
"""The values of the numbers of `informed` and `halving` among which --leave-out chooses."""


def family(kernel: str) -> str:
    return next(name for name, parts in FAMILIES.items() if any(part in kernel for part in parts))


class Random(Strategy):
    """Compiles the shipped configuration and random others."""

    name = "random"

    def search(self, space: SearchSpace) -> Search:
        others = [config for config in space.each() if config != space.shipped]
        yield (space.shipped, *random.Random(space.seed).sample(others, space.most - 1))


class Unaided(Strategy):
    """Searches as another strategy does without expected times."""

    name = "unaided"

    def search(self, space: SearchSpace) -> Search:
        return strategy_of("halving").search(replace(space, expected=None))


@dataclass(frozen=True)
class Recorded:
    """One workload, with the median time of each configuration. Equal machine code shares its samples."""

    kernel: str
    workload: str
    space: Space
    rows: Mapping[Configuration, ScreenRow]
    us: Mapping[Configuration, float]
    samples_us: Mapping[Configuration, tuple[float, ...]]
    compile_seconds: Mapping[Configuration, float]
    work: Work
    board: Board
    bound: Bound
    expected: ExpectedTimes

    def seed(self, number: int) -> int:
        """Another seed for each workload, so that a lucky draw does not count for all workloads of a kernel."""
        return zlib.crc32(f"{number} {self.kernel} {self.workload}".encode())

    def regret(self, strategy: Strategy, most: int, seed: int) -> float:
        """Returns the regret of a strategy that compiles at most ``most`` configurations."""
        done: dict[Configuration, Candidate] = {}

        def outcomes(batch: Sequence[Configuration]) -> Outcomes:
            self._judge((*done, *batch), done)
            return tuple(done[config] for config in batch)

        space = SearchSpace(self.space, 90, {}, most, seed=seed, expected=self.expected)
        for batch in batches(strategy.search(space), outcomes):
            assert all(config in self.rows for config in batch), "a configuration that was not recorded"
            assert len(done) + len(batch) <= most, "more than may be compiled"
        raced = [each.measured.us for each in done.values() if each.measured]
        return min(raced) / min(self.us.values()) - 1

    def _judge(self, compiled: Batch, done: dict[Configuration, Candidate]) -> None:
        """Screens all that is compiled, and adds the measured times of those that are raced."""
        shipped = self.space.shipped
        screened = screen([self.rows[each] for each in compiled], self.work, self.board, self.bound, shipped=shipped)
        verdicts = dict(zip(compiled, screened, strict=True))
        raced = {*ranking(verdicts)[:RACED], shipped}
        raced |= {config for config, each in done.items() if each.measured}
        for config, verdict in verdicts.items():
            us = self.us[config]
            measured = MeasuredTime(us, (us, us), (us,)) if config in raced else None
            done[config] = Candidate(
                config, "raced" if measured else "predicted", "", verdict.code, None, verdict.predicted, measured
            )


def recorded(path: Path) -> Iterator[Recorded]:
    with gzip.open(path, "rt") as file:
        tasks = json.load(file)["tasks"]
    for each in tasks:
        kernel = each.get("kernel", each["task"])  # the first recording has only kernels of examples/
        task, on = load_task(str(file_of(kernel))), board(each["machine"]["name"].removeprefix("NVIDIA "))
        for workload in each["workloads"]:
            rows = {row.configuration: row for row in map(_row, workload["rows"])}
            samples: dict[object, list[float]] = {}
            for row, one in zip(rows.values(), workload["rows"], strict=True):
                samples.setdefault((row.code.code_hash, row.grid), []).extend(one["samples_us"])
            equal = {config: tuple(samples[row.code.code_hash, row.grid]) for config, row in rows.items()}
            us = {config: statistics.median(each) for config, each in equal.items()}
            seconds = {config: one["compile_seconds"] for config, one in zip(rows, workload["rows"], strict=True)}
            work = work_of(task, workload["dims"])
            bound = classify(work.flops, work.bytes, work.dtype, on)
            name, space = workload["workload"], _space(list(rows))
            expected = ExpectedTimes(replace(task, space=space), Workload(name, workload["dims"]), on)
            yield Recorded(kernel, name, space, rows, us, equal, seconds, work, on, bound, expected)


def _row(row: Mapping[str, Any]) -> ScreenRow:
    config = Configuration.of(row["config"])
    code = from_json(MachineCode, row["code"], defaults=True)
    return ScreenRow(config, tuple(row["grid"]), code, row["config"].get("occupancy"))


def _space(configurations: list[Configuration]) -> Space:
    """The space of what was recorded. The shipped configuration is recorded first."""
    values = {knob: list(dict.fromkeys(each[knob] for each in configurations)) for knob in configurations[0]}
    own = {knob: listed for knob, listed in values.items() if knob in hints()}
    constants = {knob: listed for knob, listed in values.items() if knob not in own}
    return Space(constants=constants, hints=own, shipped=configurations[0], only=configurations)


def regrets(workloads: Iterable[Recorded], strategy: Strategy, share: float, seeds: int) -> list[float]:
    """Returns the regret of each workload with each seed. ``share``: of the configurations, which may be compiled."""
    return [
        each.regret(strategy, math.ceil(share * len(each.rows)), each.seed(number))
        for each in workloads
        for number in range(seeds)
    ]


def reached(found: Sequence[float]) -> float:
    return sum(regret <= REGRET for regret in found) / len(found)


def replayed(workloads: Sequence[Recorded], strategy: Strategy, seeds: int) -> dict[str, Any]:
    """The share of the workloads with a small regret, and the mean regret, for each share that may be compiled."""
    found = {share: regrets(workloads, strategy, share, seeds) for share in SHARES}
    quarter: dict[str, list[float]] = {}
    for each in workloads:
        quarter.setdefault(family(each.kernel), []).extend(regrets([each], strategy, QUARTER, seeds))
    return {
        "reached": {share: reached(each) for share, each in found.items()},
        "mean_regret": {share: statistics.fmean(each) for share, each in found.items()},
        "needed": next((share for share in SHARES if reached(found[share]) >= WANTED), None),
        "reached_with_a_quarter": {name: reached(each) for name, each in quarter.items()},
    }


def left_out(workloads: Sequence[Recorded]) -> dict[str, Any]:
    """For each family, the share of its workloads with a small regret, with numbers chosen on the other families."""
    families = [family(each.kernel) for each in workloads]
    found: dict[tuple[float, ...], list[float]] = {}
    for values in product(*CHOICES.values()):
        informed.OWN, informed.CURIOSITY, halving.FIRST_EXPECTED = values
        found[values] = regrets(workloads, halving.STRATEGY, QUARTER, 1)
    result: dict[str, Any] = {}
    for name in dict.fromkeys(families):
        others = {
            values: [regret for regret, its in zip(each, families, strict=True) if its != name]
            for values, each in found.items()
        }
        best = max(others, key=lambda values: (reached(others[values]), -statistics.fmean(others[values])))
        own = [regret for regret, its in zip(found[best], families, strict=True) if its == name]
        result[name] = {**dict(zip(CHOICES, best, strict=True)), "workloads": len(own), "reached": reached(own)}
        print(f"{name:12} {reached(own):.0%} of {len(own)}, with {result[name]}", flush=True)
    every = [reached(each) for each in found.values()]
    mean = sum(each["reached"] * each["workloads"] for each in result.values()) / len(workloads)
    print(f"{'all':12} {mean:.0%}; with each of the {len(every)} choices {min(every):.0%} to {max(every):.0%}")
    return {**result, "all": mean, "least": min(every), "most": max(every)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recordings", nargs="*", type=Path, default=RECORDED)
    parser.add_argument("--seeds", type=int, default=5, help="how often each workload is replayed")
    parser.add_argument("--set-aside", action="store_true", help="replay only the kernels that are set aside")
    parser.add_argument("--leave-out", action="store_true", help="choose the numbers of halving on other families")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    aside = set(lines_of(SET_ASIDE))
    every = (each for path in given.recordings for each in recorded(path))
    workloads = [each for each in every if (each.kernel in aside) == given.set_aside]
    if not workloads:
        parser.error("none of these kernels is in the recordings")
    result = left_out(workloads) if given.leave_out else compared(workloads, given.seeds)
    if given.out:
        about = {"workloads": len(workloads), "set_aside": given.set_aside, "seeds": given.seeds}
        given.out.write_text(json.dumps({**made_here(), **about, "strategies": result}, indent=1) + "\n")


def compared(workloads: Sequence[Recorded], seeds: int) -> dict[str, Any]:
    """Replays all strategies, and prints a line for each."""
    result: dict[str, Any] = {}
    print(f"{len(workloads)} workloads; reached (mean regret) for each share that may be compiled")
    for name in NAMES:
        strategy = OWN_STRATEGIES[name]() if name in OWN_STRATEGIES else strategy_of(name)
        try:
            result[name] = replayed(workloads, strategy, seeds)
        except MachineError as missing:
            print(f"{name:12} {missing}")
            continue
        cells = [
            f"{share:.3g}: {result[name]['reached'][share]:.0%} ({result[name]['mean_regret'][share]:.1%})"
            for share in SHARES
        ]
        families = ", ".join(f"{key} {value:.0%}" for key, value in result[name]["reached_with_a_quarter"].items())
        print(f"{name:12} {'  '.join(cells)}  needed {result[name]['needed']}; a quarter: {families}", flush=True)
    return result


OWN_STRATEGIES = {"random": Random, "unaided": Unaided}


if __name__ == "__main__":
    main()
