"""Races NCCL's algorithms and protocols for the messages of a program, and recommends a setting that is faster.

A setting is environment variables of a job of its own. All jobs run at once and take turns: while one measures, the
others wait for an order. A round measures each job once, in random order, so that ratios of one round are paired.

A setting of a collective that sums may change the order of summation with three or more ranks, and thus bits: it is
lossy. With two ranks each sum has two terms, whose order does not matter. Gathers and broadcasts only copy.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import product
from types import MappingProxyType
from typing import TypeAlias

from tilewright.errors import TilewrightError, ToolFailed
from tilewright.profile.collectives import ProgramMessage
from tilewright.program.distributed.collectives import CollectiveFailed, in_bytes, sampled
from tilewright.program.distributed.ranks import SETTABLE, Backend, RankFacts, Ranks, started_ranks
from tilewright.progress import Progress, silent
from tilewright.race.stats import Interval, fewest, paired_bounds

TAIL = 0.025
"""The probability of any wrong "faster" in one table, divided among its cells."""
GAIN = 0.02
"""A setting is recommended only if it saves more than this share of the time."""
SPARE_ROUNDS = 6
MOST_MESSAGES = 6
SUM_ELEMENTS = 1 << 18
PROTOCOLS = ("LL", "LL128", "Simple")
NEVER_FORCED = "LL128"
"""This protocol is raced, but never recommended: where NCCL does not choose it by itself, the hardware may not keep the
order of stores that it needs, and data are corrupted, now and then (NVIDIA/nccl issues 831, 1261)."""
ALGORITHMS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "all_reduce": ("Ring", "Tree"), "all_gather": ("Ring",), "reduce_scatter": ("Ring",), "broadcast": ("Ring",),
})  # fmt: skip
"""Collective → algorithms that NCCL has for it on one host without NVLink multicast (NCCL, src/graph/tuning.cc).
An all-to-all is made of sends and receives, which have no algorithm."""
SUMS = ("all_reduce", "reduce_scatter")
OF_ONE_COLLECTIVE = (2, 24)
"""Since this version of NCCL a setting can name the collective: ``NCCL_ALGO=allreduce:tree``."""
Message: TypeAlias = tuple[str, int]
"""A collective, and the bytes of its message."""


@dataclass(frozen=True)
class NcclSetting:
    """One algorithm and protocol. Empty: what NCCL chooses."""

    algorithm: str = ""
    protocol: str = ""

    def __str__(self) -> str:
        return f"{self.algorithm} with {self.protocol}" if self.algorithm else "NCCL's choice"

    @property
    def variables(self) -> dict[str, str]:
        return {"NCCL_ALGO": self.algorithm, "NCCL_PROTO": self.protocol} if self.algorithm else {}

    def has(self, collective: str) -> bool:
        """Returns whether NCCL has this algorithm for a collective."""
        return not self.algorithm or self.algorithm in ALGORITHMS.get(collective, ())


DEFAULT = NcclSetting()
SETTINGS = tuple(NcclSetting(*each) for each in product(("Ring", "Tree"), PROTOCOLS))


@dataclass(frozen=True)
class RacedSetting:
    """One setting against NCCL's choice, for one message. ``ratio``: its time over that of NCCL's choice.

    right: whether all its results were right. same_bits: whether sums of random numbers had the same bits; None for a
    collective that only copies.
    """

    collective: str
    bytes: int
    setting: NcclSetting
    default_us: float
    us: float
    ratio: Interval
    right: bool
    same_bits: bool | None
    samples_us: tuple[float, ...] = field(repr=False)

    @property
    def faster(self) -> bool:
        """Whether the setting is right, and faster beyond the noise and by more than `GAIN`."""
        return self.right and self.ratio.high < 1.0 - GAIN

    @property
    def slower(self) -> bool:
        """Whether it was not shown that the setting is no slower."""
        return not self.right or self.ratio.high > 1.0 + GAIN


@dataclass(frozen=True)
class RacedSettings:
    """The race of all settings. ``failed``: setting, or setting and collective → why it has no times."""

    facts: RankFacts
    protected: tuple[str, ...]
    raced: tuple[RacedSetting, ...]
    failed: Mapping[str, str]
    rounds: int
    digest: str


def race_settings(
    backend: Backend, messages: Sequence[Message], *, ranks: int = 2, settings: Sequence[NcclSetting] = SETTINGS,
    seconds: float = 60.0, seed: int = 0, progress: Progress = silent,
) -> RacedSettings:  # fmt: skip
    """Races settings against NCCL's choice for each message. A setting whose ranks fail is left out, and named.

    Raises MachineError without enough GPUs or if the ranks cannot start with NCCL's own choice.
    """
    until, failed = time.monotonic() + seconds, dict[str, str]()
    wanted = [each for each in settings if any(each.has(name) for name, _ in messages)]
    with ExitStack() as stack:
        jobs = {each: stack.enter_context(started_ranks(backend, ranks, each.variables)) for each in (DEFAULT, *wanted)}
        jobs[DEFAULT].begin(max(1.0, until - time.monotonic()))
        for setting in wanted:
            try:
                jobs[setting].begin(max(1.0, until - time.monotonic()))
            except TilewrightError as error:
                failed[str(setting)] = str(error)
                del jobs[setting]
        race = _JobsInTurn(jobs, failed, until, random.Random(seed), progress)
        raced = tuple(race.every(messages))
        facts = jobs[DEFAULT].facts
    text = json.dumps([asdict(each) for each in raced], default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return RacedSettings(facts, facts.protected, raced, failed, race.rounds, digest)


class _JobsInTurn:
    """Races jobs that have begun."""

    def __init__(
        self, jobs: dict[NcclSetting, Ranks], failed: dict[str, str], until: float, draw: random.Random,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.jobs, self.failed, self.until, self.draw, self.progress = jobs, failed, until, draw, progress
        self.rounds = 0

    def every(self, messages: Sequence[Message]) -> Iterator[RacedSetting]:
        """Yields the results of all settings for all messages. Messages for which no time is left are in `failed`."""
        cells = sum(each.has(name) for name, _ in messages for each in self.jobs if each != DEFAULT)
        tail = TAIL / max(1, cells)
        self.rounds = fewest(tail) + SPARE_ROUNDS
        same = self._same_bits()
        for number, (name, size) in enumerate(messages):
            self.progress("settings of NCCL", number, len(messages), f"{name}, {in_bytes(size)}")
            yield from self._message(name, size, tail, same)

    def _same_bits(self) -> Mapping[NcclSetting, bool]:
        """Sums the same random numbers in each job, and compares the bits with those of NCCL's choice."""
        found = {}
        for setting, job in tuple(self.jobs.items()):
            try:
                answers = job.ask("sums", max(5.0, self.until - time.monotonic()), buckets=[SUM_ELEMENTS], seed=1)
                found[setting] = answers[0].get("digest", "")
            except ToolFailed as error:
                self._lost(setting, error)
        return {setting: digest == found.get(DEFAULT) for setting, digest in found.items()}

    def _message(
        self, name: str, size: int, tail: float, same: Mapping[NcclSetting, bool]
    ) -> Iterator[RacedSetting]:  # fmt: skip
        racing = {setting: list[float]() for setting in self.jobs if setting.has(name)}
        right = dict.fromkeys(racing, True)
        for done in range(self.rounds):
            if time.monotonic() > self.until:
                self.failed[f"{name}, {in_bytes(size)}"] = f"the time limit was reached in round {done + 1}"
                return
            for setting in self.draw.sample(tuple(racing), len(racing)):
                try:
                    us, fine = sampled(self.jobs[setting], name, size, 3)
                    racing[setting].append(statistics.median(us))
                    right[setting] &= fine
                except (ToolFailed, CollectiveFailed) as error:
                    self.failed[f"{setting}, {name}"] = str(error)
                    del racing[setting]
                    if isinstance(error, ToolFailed):
                        self._lost(setting, error)
            if DEFAULT not in racing:
                return
        before = racing.pop(DEFAULT)
        for setting, after in racing.items():
            ratios = [one / other for one, other in zip(after, before, strict=True)]
            low, high = paired_bounds(ratios, tail)
            ratio = Interval(low, statistics.median(ratios), high, 1.0 - 2.0 * tail, len(ratios))
            bits = same.get(setting) if name in SUMS else None
            times = statistics.median(before), statistics.median(after)
            yield RacedSetting(name, size, setting, *times, ratio, right[setting], bits, tuple(after))

    def _lost(self, setting: NcclSetting, error: ToolFailed) -> None:
        if setting == DEFAULT:
            raise error
        self.failed[str(setting)] = str(error)
        self.jobs.pop(setting, None)


@dataclass(frozen=True)
class RecommendedSetting:
    """A setting for the launch of the user's program. Times are means over the messages of the program.

    lossy: whether sums can have other bits.
    """

    collective: str
    setting: NcclSetting
    default_us: float
    us: float
    lossy: bool
    why: str


def main_messages(messages: Iterable[ProgramMessage]) -> tuple[ProgramMessage, ...]:
    """Returns the messages with which a program's settings are raced: those that move most bytes."""
    able = (each for each in messages if each.collective in ALGORITHMS)
    return tuple(sorted(able, key=lambda each: -each.bytes * each.count)[:MOST_MESSAGES])


def recommended(race: RacedSettings, messages: Sequence[ProgramMessage]) -> tuple[RecommendedSetting, ...]:
    """Returns for each collective the setting that saves most time, if one is faster beyond the noise for one of the
    program's `main_messages`, and slower for none of them.

    messages: all messages of the program. Only NCCL 2.24 or newer has settings for one collective; for an older one, a
    program with several collectives gets no recommendation.
    """
    if len({each.collective for each in messages}) > 1 and not _names_collectives(race.facts):
        return ()
    of: dict[str, dict[int, int]] = {each.collective: {} for each in messages}
    for each in main_messages(messages):
        of[each.collective][each.bytes] = each.count
    best = (_best(race, name, sizes) for name, sizes in of.items() if sizes)
    return tuple(each for each in best if each is not None)


def launch_lines(facts: RankFacts, chosen: Sequence[RecommendedSetting]) -> tuple[str, ...]:
    """Returns the environment variables for the launch of the program, as ``NAME=value``."""
    lines = []
    for variable in SETTABLE:
        values = [
            f"{each.collective.replace('_', '')}:{value}" if _names_collectives(facts) else value
            for each in chosen if (value := each.setting.variables.get(variable))
        ]  # fmt: skip
        lines += [f"{variable}={';'.join(values)}"] if values else []
    return tuple(lines)


def _names_collectives(facts: RankFacts) -> bool:
    version = tuple(int(part) for part in facts.nccl.split(".") if part.isdecimal())
    return version >= OF_ONE_COLLECTIVE


def _best(race: RacedSettings, name: str, sizes: Mapping[int, int]) -> RecommendedSetting | None:
    found = []
    for setting in dict.fromkeys(each.setting for each in race.raced if each.collective == name):
        rows = [each for each in race.raced if (each.collective, each.setting) == (name, setting)]
        rows = [each for each in rows if each.bytes in sizes]
        if setting.protocol == NEVER_FORCED or {each.bytes for each in rows} != set(sizes):
            continue
        if any(each.slower for each in rows) or not any(each.faster for each in rows):
            continue
        before = math.fsum(sizes[each.bytes] * each.default_us for each in rows)
        after = math.fsum(sizes[each.bytes] * each.us for each in rows)
        found.append((before, after, setting, rows))
    if not found:
        return None
    before, after, setting, rows = min(found, key=lambda each: each[1] / each[0])
    count = sum(sizes.values())
    why = "; ".join(f"{in_bytes(each.bytes)}: {each.ratio} of the time of NCCL's choice" for each in rows)
    if name in SUMS:
        why = f"{why}; sums of three or more ranks may have other bits"
    return RecommendedSetting(name, setting, before / count, after / count, name in SUMS, why)
