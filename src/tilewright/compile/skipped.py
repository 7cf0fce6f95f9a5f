"""Ends the compilers of candidates that cannot win, once the first candidates of a workload are timed.

A kernel that spills takes much longer to compile than the fastest kernel. A compiler that still runs is ended if it
takes `SLOWER` times as long as the compiler of each candidate near the fastest, and as the median compiler. On the 49
workloads of bench/recorded/h200-2026-11-23.json.gz, compiled with 15 compilers, this saves a quarter of the time. The
fastest candidate that it ends takes 1.33 times as long as the best one.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass

from tilewright.records import Failed

NEAR = 1.1
"""Candidates are near the fastest if they take at most this many times as long."""
SLOWER = 1.5
LEAST_SECONDS = 1.0
"""Compilers are never ended before they used this much processor time."""


@dataclass(frozen=True)
class NotCompiled(Failed):
    """A candidate that was left out before its compiler ended.

    limit: the processor time, in seconds, after which its compiler was ended; None if it was not started.
    """

    limit: float | None = None

    def too_early(self, near: float) -> bool:
        """Whether it may win nevertheless: a candidate near the fastest took ``near`` seconds to compile, which is
        longer than this compiler was given. Happens if the fastest candidates were still compiling at that time."""
        return self.limit is not None and self.limit < near


@dataclass(frozen=True)
class CompileLimit:
    """The most processor time, in seconds, that a compiler may use, and why. 0 ends it at once.

    near: the longest processor time of a compiler of a candidate near the fastest, in seconds.
    """

    seconds: float
    why: str
    near: float = 0.0

    @property
    def outcome(self) -> NotCompiled:
        if not self.seconds:
            return NotCompiled("compile", f"not compiled: {self.why}")
        took = f"its compiler took more than {self.seconds:.2g} s"
        return NotCompiled("compile", f"not compiled: {took}, {self.why}", self.seconds)


def compile_limit(timed: Collection[tuple[float, float]], compiled: Collection[float]) -> CompileLimit | None:
    """Returns the limit for the compilers that still run; None if nothing is timed.

    timed: for each timed candidate, its time on the GPU (any unit) and the processor time of its compiler, in seconds.
    compiled: the processor time of each compiler that has ended.
    """
    if not timed:
        return None
    fastest = min(us for us, _ in timed)
    near = max(seconds for us, seconds in timed if us <= NEAR * fastest)
    seconds = max(LEAST_SECONDS, SLOWER * max(near, statistics.median(compiled)))
    why = f"{SLOWER:g} times as long as for each candidate within {NEAR - 1:.0%} of the fastest"
    return CompileLimit(seconds, why, near)
