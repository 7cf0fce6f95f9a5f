"""Measures training steps of a small model on the GPUs of one host: how much communication is hidden behind
computation, and what buckets and prefetch gain.

A perceptron trains under DistributedDataParallel or FSDP. What is compared takes turns in the same processes. The
overlap has three parts: the step, the same step without communication, and the communication alone. The hidden share is
1 - (step - compute) / communication.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import ToolFailed
from tilewright.program.distributed.ranks import Ranks
from tilewright.race.stats import Interval, median_interval, paired_bounds

SIZES: Mapping[str, Mapping[str, int]] = {
    "nccl": {"width": 4096, "layers": 8, "batch": 2048}, "gloo": {"width": 128, "layers": 4, "batch": 32},
}  # fmt: skip
"""Backend → the model. That of NCCL has 256 MiB of gradients in bfloat16."""
ROUNDS = 16
DEFAULT_MB = 25.0
"""The bucket size of DistributedDataParallel in MiB."""
BUCKETS_MB = (0.0, 10.0, 50.0, 100.0)
"""Bucket sizes that are raced; 0 is what torch does without an argument: 25 MiB after a first bucket of 1 MiB."""
TAIL = 0.025


@dataclass(frozen=True)
class MeasuredOverlap:
    """The times of the step in µs: medians over the rounds. ``hidden``: the share of the communication that costs no
    time; below 0 if the step takes longer than computing and communicating one after the other."""

    bucket_mb: float
    bytes: int
    messages: int
    step_us: float
    compute_us: float
    communication_us: float
    hidden: Interval
    digest: str


@dataclass(frozen=True)
class RacedStep:
    """A training step against the one before it. ``ratio``: its time over the other's, by the rounds."""

    name: str
    against: str
    before_us: float
    after_us: float
    ratio: Interval
    samples_us: tuple[float, ...] = field(repr=False)


def measure_overlap(
    job: Ranks, *, bucket_mb: float = DEFAULT_MB, rounds: int = ROUNDS, seconds: float = 60.0
) -> MeasuredOverlap:
    """Measures the overlap by a job that has begun. Raises ToolFailed if a rank fails."""
    first, us = _asked(job, "overlap", seconds, bucket_mb=bucket_mb, rounds=rounds)
    return overlap_of(us["step"], us["compute"], us["communication"], bucket_mb, first["bytes"], first["messages"])


def race_buckets(
    job: Ranks, megabytes: Sequence[float] = BUCKETS_MB, *, rounds: int = ROUNDS, seconds: float = 60.0
) -> tuple[RacedStep, ...]:
    """Races bucket sizes of DDP, and gradients that are views of buckets, against the first size. Raises ToolFailed."""
    _, us = _asked(job, "buckets", seconds, megabytes=list(megabytes), rounds=rounds)
    names = {"view": "gradient_as_bucket_view", "0.0": "torch's default"}
    names |= {name: f"buckets of {float(name):g} MiB" for name in us if name not in names}
    return _raced(us, names, str(megabytes[0]))


def race_prefetch(job: Ranks, *, rounds: int = ROUNDS, seconds: float = 60.0) -> tuple[RacedStep, ...]:
    """Races the explicit forward prefetch of FSDP 2 against the implicit one. Raises ToolFailed."""
    _, us = _asked(job, "prefetch", seconds, rounds=rounds)
    return _raced(us, {name: f"{name} prefetch" for name in us}, "implicit")


def _asked(job: Ranks, do: str, seconds: float, **order: object) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Returns the first rank's answer, and the times of the slowest rank in each round."""
    answers = job.ask(do, seconds, **SIZES[job.facts.backend], **order)
    if failed := next((each["failed"] for each in answers if "failed" in each), ""):
        raise ToolFailed(f"the training step of a small model failed ({do}): {failed}")
    us = {
        name: [max(each) for each in zip(*(answer["us"][name] for answer in answers), strict=True)]
        for name in answers[0]["us"]
    }
    return answers[0], us


def _raced(us: Mapping[str, list[float]], names: Mapping[str, str], against: str) -> tuple[RacedStep, ...]:
    before, tail = us[against], TAIL / max(1, len(us) - 1)
    found = []
    for name, after in us.items():
        if name != against:
            ratios = [one / other for one, other in zip(after, before, strict=True)]
            low, high = paired_bounds(ratios, tail)
            ratio = Interval(low, statistics.median(ratios), high, 1.0 - 2.0 * tail, len(ratios))
            times = statistics.median(before), statistics.median(after)
            found.append(RacedStep(names[name], names[against], *times, ratio, tuple(after)))
    return tuple(found)


def overlap_of(
    step: list[float], compute: list[float], communication: list[float], bucket_mb: float, size: int, messages: int
) -> MeasuredOverlap:
    """Returns the overlap that the times of the rounds show. The interval is that of the median over the rounds."""
    shares = [1.0 - (s - c) / m for s, c, m in zip(step, compute, communication, strict=True)]
    shift = 1.0 - min(shares)  # the interval is made for positive numbers
    found = median_interval([each + shift for each in shares])
    hidden = Interval(found.low - shift, found.centre - shift, found.high - shift, found.confidence, found.n)
    digest = hashlib.sha256(json.dumps([step, compute, communication]).encode()).hexdigest()[:8]
    whole, alone, wire = (statistics.median(each) for each in (step, compute, communication))
    return MeasuredOverlap(bucket_mb, size, messages, whole, alone, wire, hidden, digest)
