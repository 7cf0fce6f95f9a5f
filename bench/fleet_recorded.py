"""The workloads that bench/fleet.py replays, and the recorded runs with which it is compared.

Recorded, for each configuration of a workload: the seconds of its compiler, its machine code and its samples on the
GPU. What is verified and raced follows by `compile.screen`, and the launches of a race by `race.protocol` on the
samples. The seconds around these are not recorded for each configuration. They are the numbers below, fitted with
`python bench/fleet.py --fit` on the runs in `RUNS`; the runs in bench/fleet_set_aside.txt are left out of the fit.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from strategies import HERE, Recorded, recorded

from tilewright.compile.accumulators import LEAST_STACK, SMALLEST
from tilewright.compile.compile import effort
from tilewright.compile.screen import RACED, ranking, screen
from tilewright.race.protocol import race
from tilewright.race.rules import Policy, cost_of
from tilewright.records import Configuration
from tilewright.testing.simulated import ReplayedClock

SETS = ("h200-2026-11-23.json.gz", "h200-2026-11-24.json.gz")
"""The recordings whose workloads a fleet tunes."""
RUNS = {
    "h200-time-to-tune-2026-11-21.json": "h200-2026-11-21.json.gz",
    "h200-time-to-tune-2026-11-22.json": "h200-2026-11-23.json.gz",
    "h200-time-to-tune-2026-11-22-evening.json": "h200-2026-11-23.json.gz",
    "h200-time-to-tune-2026-11-23.json": "h200-2026-11-23.json.gz",
    "h200-time-to-tune-2026-11-24.json": "h200-2026-11-23.json.gz",
    "h200-time-to-tune-2026-11-24-evening.json": "h200-2026-11-23.json.gz",
}
"""Recorded runs of `tune` on one GPU and 16 cores with the seconds of their stages, each with the recording that has
the compile times of its kernels."""
SAME_HOST = {
    "h200-2026-11-21.json.gz": "h200-time-to-tune-2026-11-21.json",
    "h200-2026-11-23.json.gz": "h200-time-to-tune-2026-11-23.json",
}
"""Each recording with the run that was made on its host, on the same day."""
CORES = 15
"""The compilers of these runs: one core of 16 is left for the worker process."""
TWO_CORES = "2-cores-compile-in-parallel-2026-11-21.json"

FRONT_END = 0.015
"""Seconds of the front end for one configuration. They pass one after the other in the client's thread. Processor time
on a machine of two cores, 2026-11-28: 11 ms for matmul, 18 for fmha, 2 for rms_norm; large tiles are read besides."""
READ = 0.27
"""Seconds of a core to read one cubin with nvdisasm (`compile.pool`: 0.25 to start it, 0.02 for a cubin)."""
START = 2.15
"""Seconds until a worker process can verify: it imports torch and opens the GPU."""
VERIFY, VERIFY_LAUNCHES = 0.031, 64.0
"""Seconds to verify a candidate, and how many of its launches take as long as the rest of its check."""
RACE = 0.17
"""Seconds of a race without its launches."""
LAUNCH_US = 50.0
"""µs around each timed launch, in which the L2 is flushed and the outputs are poisoned (`simulated.NoiseModel`)."""


@dataclass(frozen=True)
class Unit:
    """A configuration to compile. ``rank``: its place among those to race; None if it is never raced.

    configurations: how many configurations have this bytecode, and so are compiled at once.
    """

    seconds: float
    us: float
    rank: int | None
    shipped: bool
    configurations: int


@dataclass(frozen=True)
class Job:
    """A workload as the simulation tunes it. ``units``: in the order in which they are compiled.

    asked: the number of configurations, with those that are left out because their accumulators cannot fit.
    """

    name: str
    units: tuple[Unit, ...]
    asked: int
    verify_seconds: float
    """Of each candidate."""
    race_seconds: float
    launches: int
    """Timed launches of the race of all chosen candidates."""
    race_us: float
    """The sum of their times in µs."""

    def on(self, host: float) -> Job:
        """Returns the job on a host that takes ``host`` times as long. The launches of a race take the same time."""
        units = tuple(replace(unit, seconds=host * unit.seconds) for unit in self.units)
        return replace(self, units=units, verify_seconds=host * self.verify_seconds,
                       race_seconds=self.race_seconds + (host - 1.0) * RACE)  # fmt: skip

    @property
    def core_seconds(self) -> float:
        return sum(unit.seconds + READ for unit in self.units)

    @property
    def gpu_seconds(self) -> float:
        return RACED * self.verify_seconds + self.race_seconds


def job_of(one: Recorded) -> Job:
    """Makes the job of a recorded workload."""
    shipped = one.space.shipped
    verdicts = dict(
        zip(one.rows, screen(list(one.rows.values()), one.work, one.board, one.bound, shipped=shipped), strict=True)
    )
    ranks = {config: place for place, config in enumerate(ranking(verdicts))}
    units = []
    left = [config for config in one.rows if config == shipped or not _unfit(one, config)]
    for same in _by_bytecode(one, left):
        rank = min((ranks[config] for config in same if config in ranks), default=None)
        unit = Unit(one.compile_seconds[same[0]], one.us[same[0]], rank, shipped in same, len(same))
        units.append((max(effort(config.items()) for config in same), unit))
    chosen = [config for config, rank in ranks.items() if rank < RACED or config == shipped]
    launches, race_us = _race(one, chosen)
    us = statistics.median(one.us[config] for config in chosen)
    return Job(
        f"{one.kernel} {one.workload}", tuple(unit for _, unit in sorted(units, key=lambda each: -each[0])),
        len(one.rows), VERIFY + VERIFY_LAUNCHES * us * 1e-6, RACE + (race_us + launches * LAUNCH_US) * 1e-6,
        launches, race_us,
    )  # fmt: skip


def _unfit(one: Recorded, config: Configuration) -> bool:
    """Returns whether the accumulators of a configuration do not fit, so that it is not compiled. Its Tile IR is not
    recorded: its stack and its two largest constants tell, as `compile.accumulators` describes."""
    code = one.rows[config].code
    sizes = sorted(value for name, value in config.items() if type(value) is int and name in one.space.constants)
    large = math.prod(sizes[-2:]) >= SMALLEST and len(sizes) > 1
    return code.tensor_path.endswith("GMMA") and code.stack_bytes >= LEAST_STACK and large


def _by_bytecode(one: Recorded, configs: Sequence[Configuration]) -> list[list[Configuration]]:
    """Groups configurations that were compiled once: their machine code and the seconds of their compiler are equal."""
    groups: dict[object, list[Configuration]] = {}
    for config in configs:
        groups.setdefault((one.rows[config].code.code_hash, one.compile_seconds[config]), []).append(config)
    return list(groups.values())


class _Counted(ReplayedClock):
    """Counts the launches of a race, and adds their times."""

    launches, us = 0, 0.0

    def round(self, order: Sequence[int]) -> Sequence[float]:
        times = super().round(order)
        self.launches += len(times)
        self.us += sum(times)
        return times


def _race(one: Recorded, chosen: Sequence[Configuration]) -> tuple[int, float]:
    clock = _Counted([one.samples_us[config] for config in chosen])
    shipped = chosen.index(one.space.shipped) if one.space.shipped in chosen else None
    race(len(chosen), clock, Policy(), cost=[cost_of(one.rows[config].code) for config in chosen], shipped=shipped,
         now=lambda: clock.us * 1e-6)  # fmt: skip
    return clock.launches, clock.us


@cache
def jobs_of(recording: str) -> tuple[Job, ...]:
    return tuple(map(job_of, recorded(HERE / "recorded" / recording)))


# The runs to compare with ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A recorded run of `tune` for one workload, with the wall seconds of its stages.

    host: how many times as long its host takes as that of the recording. Hosts differ by up to 2.5 times. It is the
        ratio of what cuda-tile's own search took on both, which each run recorded besides.
    """

    file: str
    job: Job
    stages: dict[str, float]
    host: float


def set_aside() -> frozenset[str]:
    lines = (HERE / "fleet_set_aside.txt").read_text().splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def runs(aside: bool) -> Iterator[Run]:
    for file, recording in RUNS.items():
        if (file in set_aside()) == aside:
            jobs = {job.name: job for job in jobs_of(recording)}
            for row, same in zip(_rows(file), _rows(SAME_HOST[recording]), strict=True):
                host = row["exhaustive"]["search_seconds"] / same["exhaustive"]["search_seconds"]
                job = jobs[f"{row['task']} {row['workload']}"].on(host)
                yield Run(file, job, row["ours"]["stages"], host)


def _rows(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HERE / "recorded" / file).read_text())["rows"]
    return rows


def fitted() -> dict[str, float]:
    """Returns the fitted numbers: least squares on the relative errors of the runs that are not set aside."""
    own = list(runs(aside=False))
    verified = RACED + 1
    us = np.array([(run.job.verify_seconds - VERIFY) / VERIFY_LAUNCHES for run in own])
    verify = np.array([run.stages["verify"] for run in own])
    a, b = _least_squares(np.stack([np.full(len(own), verified), verified * us], 1), verify)
    around = [run.stages["race"] - (run.job.race_us + run.job.launches * LAUNCH_US) * 1e-6 for run in own]
    start = statistics.median(
        run.stages["total"] - run.stages["verify"] - run.stages["race"]
        for run in own
        if run.stages["compile"] < run.stages["total"] - run.stages["race"]
    )
    return {"VERIFY": a, "VERIFY_LAUNCHES": b, "RACE": max(0.0, statistics.median(around)), "START": start}


def _least_squares(columns: Any, wanted: Any) -> tuple[float, float]:
    found, *_ = np.linalg.lstsq(columns / wanted[:, None], np.ones(len(wanted)), rcond=None)
    return float(found[0]), float(found[1])


def two_cores() -> tuple[tuple[float, ...], dict[str, float]]:
    """Returns the seconds of the compilers of the recorded run on two cores, and its recorded wall seconds.

    Its 24 configurations of matmul are compiled for an H200 by another host. So the compile times recorded on the GPU's
    host are scaled: their sum is what cuda-tile's own compiler takes for all 24, one after the other, on two cores.
    """
    run: dict[str, Any] = json.loads((HERE / "recorded" / TWO_CORES).read_text())
    wall = {name: statistics.median(row[name] for row in run["rows"]) for name in run["rows"][0]}
    one = next(each for each in recorded(HERE / "recorded" / "h200-2026-11-21.json.gz") if each.kernel == "matmul")
    seconds = [one.compile_seconds[config] for config in list(one.rows)[:24]]
    scale = (wall["export_kernel"] - 24 * FRONT_END) / sum(seconds)
    order = sorted(zip(list(one.rows)[:24], seconds, strict=True), key=lambda each: -effort(each[0].items()))
    return tuple(scale * each for _, each in order), wall
