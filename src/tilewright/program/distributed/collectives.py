"""Measures the latency and the bandwidth of five collectives between the GPUs of one host.

Bandwidths are as nccl-tests defines them: the algorithm bandwidth is the size of the message over the time, and the bus
bandwidth multiplies it by the share of the message that each link must carry (`BUS`), so that it can be compared with
the speed of the link for any number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from types import MappingProxyType

from tilewright.errors import ToolFailed
from tilewright.program.distributed.ranks import Backend, RankFacts, Ranks, started_ranks
from tilewright.progress import Progress, silent

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
BUS: Mapping[str, Callable[[int], float]] = MappingProxyType({
    "all_reduce": lambda n: 2.0 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n, "all_to_all": lambda n: (n - 1) / n, "broadcast": lambda n: 1.0,
})  # fmt: skip
"""Collective → the factor from algorithm bandwidth to bus bandwidth for n ranks (nccl-tests, PERFORMANCE.md)."""
SIZES = tuple(1024 * 4**n for n in range(11))
"""Bytes of a message, from 1 KiB to 1 GiB."""
PASSES = 3
"""Each size is measured in so many passes over all sizes, so that the spread includes a slow drift of the machine."""
SAMPLES = 5
"""Samples of a collective in each pass. For large messages there are 3."""
LARGE = 64 << 20
MOST_CALLS = 20
SLOWEST = 60.0
"""A measurement of one collective and size that takes longer than these seconds has hung."""


@dataclass(frozen=True)
class CollectiveTimes:
    """The times of one collective and size. GB is 10⁹ bytes.

    low_us, high_us: the first and third quartile of the samples. right: whether the first result was right.
    """

    collective: str
    bytes: int
    median_us: float
    low_us: float
    high_us: float
    algorithm_gb_s: float
    bus_gb_s: float
    right: bool
    samples_us: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class NotMeasured:
    """A collective and size without a time, and why."""

    collective: str
    bytes: int
    reason: str


@dataclass(frozen=True)
class MeasuredCollectives:
    """The times of the collectives of one job. ``digest``: a hash of all times, the evidence of its numbers."""

    facts: RankFacts
    protected: tuple[str, ...]
    """The variables of multicast and NVLS that the environment sets, which were left alone."""
    times: tuple[CollectiveTimes, ...]
    missing: tuple[NotMeasured, ...]
    digest: str

    def of(self, collective: str) -> tuple[CollectiveTimes, ...]:
        """Returns the times of one collective, the smallest message first."""
        return tuple(each for each in self.times if each.collective == collective)

    def peak(self, collective: str) -> CollectiveTimes | None:
        """Returns the measurement with the highest bus bandwidth."""
        return max(self.of(collective), key=lambda each: each.bus_gb_s, default=None)


def measure_collectives(
    backend: Backend, *, ranks: int = 2, sizes: Sequence[int] = SIZES, collectives: Sequence[str] = COLLECTIVES,
    seconds: float = 60.0, progress: Progress = silent,
) -> MeasuredCollectives:  # fmt: skip
    """Measures collectives of float32 numbers in a job of its own. When ``seconds`` are over, the rest is left out.

    Raises MachineError without enough GPUs or if the ranks cannot start, ToolFailed if a rank dies before anything was
    measured.
    """
    until = time.monotonic() + seconds
    with started_ranks(backend, ranks) as job:
        job.begin(seconds)
        return measured_by(job, sizes, collectives, until, progress)


def measured_by(
    job: Ranks, sizes: Sequence[int], collectives: Sequence[str], until: float, progress: Progress = silent
) -> MeasuredCollectives:
    """Measures collectives by a job that has begun. ``until``: when to stop, by `time.monotonic`."""
    cells, missing = list(product(sorted(sizes), collectives)), dict[tuple[str, int], str]()
    found: dict[tuple[str, int], list[float]] = {}
    right: dict[tuple[str, int], bool] = {}
    for number, (size, name) in enumerate(cells * PASSES):
        progress("collectives", number, len(cells) * PASSES, f"{name}, {in_bytes(size)}")
        key = (name, size)
        if key in missing:
            continue
        if time.monotonic() > until:
            if key not in found:
                missing[key] = "the time limit was reached"
            continue
        try:
            us, fine = sampled(job, name, size)
        except ToolFailed as error:
            if not found:
                raise
            missing |= {(each, at): str(error) for at, each in cells if (each, at) not in found}
            break
        except CollectiveFailed as error:
            missing[key] = str(error)
            found.pop(key, None)
            continue
        found.setdefault(key, []).extend(us)
        right[key] = right.get(key, True) and fine
    times = tuple(_times(*key, found[key], right[key], job.facts.ranks) for key in sorted(found, key=_order))
    left = tuple(NotMeasured(*key, reason) for key, reason in missing.items())
    text = json.dumps([asdict(each) for each in times])
    return MeasuredCollectives(
        job.facts, job.facts.protected, times, left, hashlib.sha256(text.encode()).hexdigest()[:8]
    )


def _order(key: tuple[str, int]) -> tuple[int, int]:
    return COLLECTIVES.index(key[0]), key[1]


class CollectiveFailed(Exception):
    """Raised if a rank could not make a collective. The message is torch's."""


def sampled(job: Ranks, collective: str, size: int, samples: int = 0) -> tuple[list[float], bool]:
    """Returns samples in µs of one call, and whether all ranks got the right result. A sample is that of the slowest
    rank. Raises CollectiveFailed, and ToolFailed if a rank ended.
    """
    samples = samples or (SAMPLES if size < LARGE else 3)
    calls = max(1, min(MOST_CALLS, (4 << 20) // size))
    answers = job.ask("collective", SLOWEST, collective=collective, size=size, samples=samples, calls=calls)
    if failed := next((each["failed"] for each in answers if "failed" in each), ""):
        raise CollectiveFailed(failed)
    us = [max(each) for each in zip(*(answer["us"] for answer in answers), strict=True)]
    return us, all(answer["right"] for answer in answers)


def _times(name: str, size: int, samples: list[float], right: bool, ranks: int) -> CollectiveTimes:
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    speed = size / middle / 1e3
    return CollectiveTimes(name, size, middle, low, high, speed, speed * BUS[name](ranks), right, tuple(samples))


def in_bytes(size: float) -> str:
    """Formats a number of bytes, such as ``64 KiB``."""
    units: Iterator[str] = iter(("B", "KiB", "MiB"))
    for unit in units:
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
