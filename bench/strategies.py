"""Replays search strategies on recorded kernels: how good is the best of what they compile?

    python bench/strategies.py [--set-aside] [--seeds 5] [--out OUT.json] [RECORDING.json.gz …]
    python bench/strategies.py --leave-out
    python bench/strategies.py --slow [--set-aside] [RECORDING.json.gz …]

Each workload of a recording has measured times and machine code of all its configurations. A replayed strategy gets the
outcomes that `tune` would give it: a predicted time for each compiled configuration, and a measured time for the ten
that the screen ranks first, and for the shipped one. The regret is the time of the fastest measured one over that of
the fastest of all, minus 1. Each strategy may compile a share of the configurations, from one in eight to all.

    reached   share of the workloads with a regret of at most 1 %
    needed    the smallest of these shares with which a strategy reaches this regret in 95 % of the workloads

``random`` is drawn for comparison, and is no strategy. ``unaided`` is ``halving`` without expected times. For these
figures, each workload is tuned alone: every configuration that a strategy asks for counts as compiled.

``halving together`` tunes the workloads of a task as `tune` does: one after the other, each with what the others have
compiled. Code is the same if the compiler gets the same Tile IR and hints. A configuration counts as compiled for a
workload unless another workload has asked for the same code before. So each workload compiles at most the share of its
own space, and the task at most this share of the sum of its workloads' spaces. But more configurations have an outcome:

    compiled  distinct codes that are compiled, over the sum of the spaces (``of_spaces``), and over the distinct codes
              of all configurations of the task (``of_codes``), which are fewer; means over all tasks together

No strategy is fitted to a kernel, but its few numbers were chosen with these kernels in view. So the kernels in
bench/fit_set_aside_3.txt are replayed only with --set-aside. With --leave-out, the numbers of ``halving`` are chosen on
all families of kernels but one, among those of `CHOICES`, and the family left out is replayed.

``--slow`` replays what `compile.skipped` leaves out of spaces that are compiled as a whole: for several factors between
the expected time of a configuration and the least expected time, the share of the configurations and of the compilers'
time that is saved, and the workloads in which all that is left has a regret of more than 1 %.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from common import BENCH, file_of, lines_of, made_here

from tilewright.compile.screen import RACED, ScreenRow, ranking, screen, work_of
from tilewright.compile.skipped import EXPECTED_SLOWER, expected_slow
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
from tilewright.tune.workload_search import Limits, Searching, TimeLimit

HERE = BENCH
RECORDED = (HERE / "recorded" / "h200-2026-11-23.json.gz", HERE / "recorded" / "h200-2026-11-24.json.gz")
SET_ASIDE = HERE / "fit_set_aside_3.txt"
SHARES = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
NAMES = ("random", "exhaustive", "unaided", "halving", "local", "bayesian")
REGRET, WANTED = 0.01, 0.95
QUARTER = 0.25
FACTORS = (1.25, 1.5, EXPECTED_SLOWER, 2.0, 2.5)
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
class Replay:
    """What a search of one workload found. ``codes``: what it asked for."""

    workload: Recorded
    regret: float
    codes: frozenset[Hashable]


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

    def replay(self, strategy: Strategy, most: int, seed: int) -> Replay:
        """Replays a strategy that compiles at most ``most`` configurations."""
        done: dict[Configuration, Candidate] = {}

        def outcomes(batch: Sequence[Configuration]) -> Outcomes:
            self.judge(batch, done)
            return tuple(done[config] for config in batch)

        space = SearchSpace(self.space, 90, {}, most, seed=seed, expected=self.expected)
        for batch in batches(strategy.search(space), outcomes):
            assert all(config in self.rows for config in batch), "a configuration that was not recorded"
            assert len(done) + len(batch) <= most, "more than may be compiled"
        return Replay(self, self.regret(done), self.codes(done))

    def codes(self, configurations: Iterable[Configuration]) -> frozenset[Hashable]:
        return frozenset(map(self.expected.code, configurations))

    def regret(self, done: Mapping[Configuration, Candidate]) -> float:
        raced = [each.measured.us for each in done.values() if each.measured]
        return min(raced) / min(self.us.values()) - 1

    def judge(self, batch: Batch, done: dict[Configuration, Candidate]) -> None:
        """Screens all that is compiled, and adds the measured times of those that are raced."""
        shipped, compiled = self.space.shipped, (*done, *batch)
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


def alone(workloads: Sequence[Recorded], strategy: Strategy, share: float, number: int) -> list[Replay]:
    """Tunes each workload by itself. ``share``: of its configurations, which may be compiled."""
    return [each.replay(strategy, math.ceil(share * len(each.rows)), each.seed(number)) for each in workloads]


def together(workloads: Sequence[Recorded], strategy: Strategy, share: float, number: int) -> list[Replay]:
    """Tunes the workloads of each task as `tune` does, with the searches and the accounting of `tune`."""
    return [replay for task in tasks(workloads) for replay in one_task(task, strategy.name, share, number)]


def one_task(workloads: Sequence[Recorded], strategy: str, share: float, number: int) -> Iterator[Replay]:
    searches: dict[str, Searching] = {}
    for each in workloads:
        searches[each.workload] = Searching(
            Workload(each.workload, {}), each.space, 90, Limits(candidates=math.ceil(share * len(each.rows))),
            strategy=strategy, seed=number, expected=partial(getattr, each, "expected"), others=searches.values(),
        )  # fmt: skip
    for each in workloads:
        search, done = searches[each.workload], dict[Configuration, Candidate]()
        batch = (*search.batch, *search.take(config for config, other in search.shared().items() if other.why))
        while batch:
            each.judge(batch, done)
            batch = (*search.next(done, TimeLimit(None)), *search.take(search.shared()))
        yield Replay(each, each.regret(done), each.codes(search.asked))


def tasks(workloads: Iterable[Recorded]) -> list[list[Recorded]]:
    found: dict[str, list[Recorded]] = {}
    for each in workloads:
        found.setdefault(each.kernel, []).append(each)
    return list(found.values())


MODES: Mapping[str, Callable[[Sequence[Recorded], Strategy, float, int], list[Replay]]] = {
    "alone": alone, "together": together
}  # fmt: skip


def reached(found: Sequence[Replay]) -> float:
    return sum(replay.regret <= REGRET for replay in found) / len(found)


def mean_regret(found: Sequence[Replay]) -> float:
    return statistics.fmean(replay.regret for replay in found)


def compiled(found: Sequence[Replay]) -> dict[str, float]:
    """Returns the number of distinct codes that one replay of all workloads compiles, as shares."""
    made, possible, spaces = 0, 0, sum(len(each.workload.rows) for each in found)
    for task in tasks(each.workload for each in found):
        made += len(frozenset[Hashable]().union(*(each.codes for each in found if each.workload in task)))
        possible += len(frozenset[Hashable]().union(*(each.codes(each.rows) for each in task)))
    return {"of_spaces": made / spaces, "of_codes": made / possible}


def replayed(workloads: Sequence[Recorded], strategy: Strategy, seeds: int, mode: str) -> dict[str, Any]:
    """The share of the workloads with a small regret, and the mean regret, for each share that may be compiled."""
    runs = {share: [MODES[mode](workloads, strategy, share, number) for number in range(seeds)] for share in SHARES}
    found = {share: [replay for run in each for replay in run] for share, each in runs.items()}
    quarter: dict[str, list[Replay]] = {}
    for replay in found[QUARTER]:
        quarter.setdefault(family(replay.workload.kernel), []).append(replay)
    return {
        "reached": {share: reached(each) for share, each in found.items()},
        "mean_regret": {share: mean_regret(each) for share, each in found.items()},
        "needed": next((share for share in SHARES if reached(found[share]) >= WANTED), None),
        "reached_with_a_quarter": {name: reached(each) for name, each in quarter.items()},
        "compiled": {share: compiled(each[0]) for share, each in runs.items()},
    }


def left_out(workloads: Sequence[Recorded], mode: str) -> dict[str, Any]:
    """For each family, the share of its workloads with a small regret, with numbers chosen on the other families."""
    found: dict[tuple[float, ...], list[Replay]] = {}
    for values in product(*CHOICES.values()):
        informed.OWN, informed.CURIOSITY, halving.FIRST_EXPECTED = values
        found[values] = MODES[mode](workloads, halving.STRATEGY, QUARTER, 0)
    result: dict[str, Any] = {}
    for name in dict.fromkeys(family(each.kernel) for each in workloads):
        others = {
            values: [replay for replay in each if family(replay.workload.kernel) != name]
            for values, each in found.items()
        }
        best = max(others, key=lambda values: (reached(others[values]), -mean_regret(others[values])))
        own = [replay for replay in found[best] if family(replay.workload.kernel) == name]
        result[name] = {**dict(zip(CHOICES, best, strict=True)), "workloads": len(own), "reached": reached(own)}
        print(f"{mode}: {name:12} {reached(own):.0%} of {len(own)}, with {result[name]}", flush=True)
    every = [reached(each) for each in found.values()]
    mean = sum(each["reached"] * each["workloads"] for each in result.values()) / len(workloads)
    print(f"{mode}: all {mean:.0%}; with each of the {len(every)} choices {min(every):.0%} to {max(every):.0%}")
    return {**result, "all": mean, "least": min(every), "median": statistics.median(every), "most": max(every)}


def without_slow(workloads: Sequence[Recorded]) -> dict[float, Any]:
    """For each factor, what is saved without the configurations that are expected to be slow, and what is lost."""
    result: dict[float, Any] = {}
    expected = [dict(zip(each.us, each.expected.us(list(each.us)), strict=True)) for each in workloads]
    for factor in FACTORS:
        saved, every, left, lost = 0.0, 0.0, 0, []
        for each, us in zip(workloads, expected, strict=True):
            known = {config: time for config, time in us.items() if time}
            slow = expected_slow(known, factor).keys() - {each.space.shipped}
            saved += sum(each.compile_seconds[config] for config in slow)
            every += sum(each.compile_seconds.values())
            left += len(slow)
            regret = min(time for config, time in each.us.items() if config not in slow) / min(each.us.values()) - 1
            lost += [f"{each.kernel} {each.workload}: {regret:.1%}"] if regret > REGRET else []
        share = left / sum(map(len, expected))
        result[factor] = {"left_out": share, "compile_seconds": saved / every, "lost": lost}
        print(
            f"{factor:g} ×: {share:.0%} left out, {saved / every:.0%} of the compilers' time; lost: {lost}", flush=True
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recordings", nargs="*", type=Path, default=RECORDED)
    parser.add_argument("--seeds", type=int, default=5, help="how often each workload is replayed")
    parser.add_argument("--set-aside", action="store_true", help="replay only the kernels that are set aside")
    parser.add_argument("--leave-out", action="store_true", help="choose the numbers of halving on other families")
    parser.add_argument("--slow", action="store_true", help="replay what is left out because it is expected to be slow")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    aside = set(lines_of(SET_ASIDE))
    every = (each for path in given.recordings for each in recorded(path))
    workloads = [each for each in every if (each.kernel in aside) == given.set_aside]
    if not workloads:
        parser.error("none of these kernels is in the recordings")
    if given.slow:
        result = without_slow(workloads)
    elif given.leave_out:
        result = {mode: left_out(workloads, mode) for mode in MODES}
    else:
        result = compared(workloads, given.seeds)
    if given.out:
        about = {"workloads": len(workloads), "set_aside": given.set_aside, "seeds": given.seeds}
        given.out.write_text(json.dumps({**made_here(), **about, "strategies": result}, indent=1) + "\n")


def compared(workloads: Sequence[Recorded], seeds: int) -> dict[str, Any]:
    """Replays all strategies, and prints a line for each."""
    result: dict[str, Any] = {}
    print(f"{len(workloads)} workloads; reached (mean regret) for each share that may be compiled")
    for name, mode in (*((name, "alone") for name in NAMES), ("halving", "together")):
        strategy = OWN_STRATEGIES[name]() if name in OWN_STRATEGIES else strategy_of(name)
        title = name if mode == "alone" else f"{name} {mode}"
        try:
            result[title] = one = replayed(workloads, strategy, seeds, mode)
        except MachineError as missing:
            print(f"{title:16} {missing}")
            continue
        cells = [f"{share:.3g}: {one['reached'][share]:.0%} ({one['mean_regret'][share]:.1%})" for share in SHARES]
        families = ", ".join(f"{key} {value:.0%}" for key, value in one["reached_with_a_quarter"].items())
        made = ", ".join(f"{key} {value:.0%}" for key, value in one["compiled"][QUARTER].items())
        print(f"{title:16} {'  '.join(cells)}  needed {one['needed']}; a quarter: {families}; {made}", flush=True)
    return result


OWN_STRATEGIES = {"random": Random, "unaided": Unaided}


if __name__ == "__main__":
    main()
