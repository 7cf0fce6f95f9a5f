"""Leaves out candidates that cannot win: before they are compiled, or while they are.

A candidate that waits for a compiler is left out if it is expected to take more than `EXPECTED_SLOWER` times as long as
the one that is expected to be fastest. The factor is large, because expectations are not reliable: on the 65 workloads
of bench/recorded/h200-2026-11-23.json.gz and h200-2026-11-24.json.gz, a candidate within 1 % of the fastest stays in
each, and 37 % of the compilers' time is saved. With a factor of 1.5, 51 % is saved, but two workloads lose more than
1 %.

Once the first candidates of a workload are timed, slow compilers are ended. A kernel that spills takes much longer to
compile than the fastest kernel. A compiler that still runs is ended if it takes `SLOWER` times as long as the compiler
of each candidate near the fastest, and as the median compiler. On the 49 workloads of the first recording, with
15 compilers, this saves a quarter of the time. The fastest candidate that it ends takes 1.33 times as long as the best.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tilewright.records import Failed

Key = TypeVar("Key")
EXPECTED_OF = ("cutile",)
"""The languages of kernels that have expected times. Those of others were never compared with measured times."""
NEAR = 1.1
"""Candidates are near the fastest if they take at most this many times as long."""
SLOWER = 1.5
EXPECTED_SLOWER = 1.75
MAY_WIN = 1.4
"""A candidate that was left out may win nevertheless if it is expected to take at most this many times as long as the
fastest one was expected to: then the expectations were wrong for the fastest one."""
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
class NotStarted(NotCompiled):
    """A candidate whose compiler was not started, for a reason that is known before."""


@dataclass(frozen=True)
class ExpectedSlow(NotStarted):
    """A candidate that is expected to be slow. ``us``: its expected time in µs."""

    us: float = 0.0

    def may_win(self, fastest_us: float | None) -> bool:
        """Whether it has to be compiled after all. ``fastest_us``: the expected time of the fastest candidate, in µs;
        None if none was right."""
        return fastest_us is None or self.us <= MAY_WIN * fastest_us


def expected_slow(expected: Mapping[Key, float], slower: float = EXPECTED_SLOWER) -> dict[Key, ExpectedSlow]:
    """Returns the candidates of one workload to leave out.

    expected: the expected time of each, in µs. slower: as `EXPECTED_SLOWER`.
    """
    least = min(expected.values(), default=0.0)
    why = "not compiled: expected to take {:.2g}× the shortest expected time"
    slow = {key: us for key, us in expected.items() if us > slower * least}
    return {key: ExpectedSlow("compile", why.format(us / least), us=us) for key, us in slow.items()}


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
