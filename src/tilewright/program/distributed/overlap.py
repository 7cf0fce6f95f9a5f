"""Measures how much of the communication of a training step is hidden behind its computation.

A perceptron trains under DistributedDataParallel. Each round times three things in turn: the step, the same step
without communication, and the communication alone. The hidden share is 1 - (step - compute) / communication.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import dataclass

from tilewright.errors import ToolFailed
from tilewright.program.distributed.ranks import Ranks
from tilewright.race.stats import Interval, median_interval

WIDTH, LAYERS, BATCH = 4096, 8, 2048
"""A model of 128 Mi parameters in bfloat16: 256 MiB of gradients."""
ON_CPU = (128, 4, 32)
ROUNDS = 12
BUCKET_MB = 25.0
"""The default of DistributedDataParallel."""


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


def measure_overlap(job: Ranks, *, bucket_mb: float = BUCKET_MB, rounds: int = ROUNDS, seconds: float = 60.0) -> (
    MeasuredOverlap
):  # fmt: skip
    """Measures the overlap by a job that has begun. Raises ToolFailed if a rank fails."""
    width, layers, batch = (WIDTH, LAYERS, BATCH) if job.facts.backend == "nccl" else ON_CPU
    answers = job.ask("overlap", seconds, width=width, layers=layers, batch=batch, bucket_cap_mb=bucket_mb,
                      rounds=rounds)  # fmt: skip
    if failed := next((each["failed"] for each in answers if "failed" in each), ""):
        raise ToolFailed(f"the step of a small model failed: {failed}")
    first = answers[0]
    us = {
        name: [max(each) for each in zip(*(answer["us"][name] for answer in answers), strict=True)]
        for name in first["us"]
    }
    return overlap_of(us["step"], us["compute"], us["communication"], bucket_mb, first["bytes"], first["messages"])


def overlap_of(
    step: list[float], compute: list[float], communication: list[float], bucket_mb: float, size: int, messages: int
) -> MeasuredOverlap:
    """Returns the overlap that the times of the rounds show. The interval is that of the median over the rounds."""
    shares = [1.0 - (s - c) / m for s, c, m in zip(step, compute, communication, strict=True)]
    shift = 1.0 - min(shares)  # the interval is by ranks, and wants positive numbers
    found = median_interval([each + shift for each in shares])
    hidden = Interval(found.low - shift, found.centre - shift, found.high - shift, found.confidence, found.n)
    digest = hashlib.sha256(json.dumps([step, compute, communication]).encode()).hexdigest()[:8]
    medians = (statistics.median(each) for each in (step, compute, communication))
    return MeasuredOverlap(bucket_mb, size, messages, *medians, hidden, digest)
