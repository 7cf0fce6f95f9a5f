"""The confirmation of one candidate: rounds on all workloads, a look, more rounds while nothing is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.optimize.decide import ROUNDS, Decision, decide
from tilewright.optimize.gates.arena import CONFIRM_SECONDS, FEWEST_ROUNDS, Arena, Confirmation
from tilewright.optimize.versions.version import KernelVersion
from tilewright.race.protocol import Budget
from tilewright.worker.client.contestants import Eliminated

SECONDS = (CONFIRM_SECONDS / 6, CONFIRM_SECONDS / 3, CONFIRM_SECONDS / 2)
"""Of the looks: the first is short, because most changes are clear."""


@dataclass(frozen=True)
class Confirmed:
    decision: Decision
    by_workload: Mapping[str, Confirmation]


def confirm(
    arena: Arena, workloads: Sequence[str], candidate: KernelVersion, incumbent: KernelVersion, baseline: KernelVersion,
    seed: int,
) -> Confirmed | Eliminated:  # fmt: skip
    """Decides on ``candidate`` against incumbent and baseline.

    seed: of inputs that this run has not used.
    `Eliminated` where a version was wrong or broke the process on the way.
    """
    seen: dict[str, Confirmation] = {}
    done = 0
    for rounds, seconds in zip(ROUNDS, SECONDS, strict=True):
        budget = Budget(rounds - done, seconds, 0 if done else FEWEST_ROUNDS)
        for name in workloads:
            look = arena.confirm(name, candidate, incumbent, baseline, seed, budget)
            if isinstance(look, Eliminated):
                return look
            seen[name] = seen[name].plus(look) if name in seen else look
        paired = {name: confirmation.paired for name, confirmation in seen.items()}
        decision = decide(paired, last=rounds == ROUNDS[-1])
        if decision.decided:
            break
        done = rounds
    return Confirmed(decision, seen)
