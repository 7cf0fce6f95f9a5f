"""How often is noise kept, and how often a true gain? Decisions on simulated machines, by the rule of `optimize`.

    python bench/decide_simulated.py [--out FILE.json] [--decisions 2000]

Each decision takes the looks of a confirmation on a machine of its own. `by_rounds` has one capture a look and counts
every round as independent, as `optimize` did at first. Cost: launches of one version, with those that warm up.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from common import made_here, write

from tilewright.optimize.decide import LOOKS, Paired, decide
from tilewright.testing.simulated import NoiseModel, SimulatedMachines

INDEPENDENT = NoiseModel(sigma=0.006, outliers=0.0)
STATE = replace(INDEPENDENT, sigma=0.0, state=0.006)
CELLS = {
    "independent 0.6 %": INDEPENDENT,
    "independent 3.5 %": replace(INDEPENDENT, sigma=0.035),
    "offset 0.2 %": replace(INDEPENDENT, offset=0.002),
    "offset 0.5 %": replace(INDEPENDENT, offset=0.005),
    "AR 0.95": replace(STATE, correlation=0.95),
    "AR 0.995": replace(STATE, correlation=0.995),
    "AR 0.95 and independent": replace(STATE, correlation=0.95, sigma=0.006),
    "AR 0.995 and independent": replace(STATE, correlation=0.995, sigma=0.006),
    "drift": replace(INDEPENDENT, drift=0.002),
    "bimodal clock": replace(INDEPENDENT, mode=0.03),
    "heavy tails": replace(INDEPENDENT, tails=2.0, outliers=0.05),
    "timer step": replace(INDEPENDENT, step_us=0.5),
    "order": replace(INDEPENDENT, first_penalty=0.03, first_captured=0.005),
    "all of these": NoiseModel(
        sigma=0.006, tails=2.0, outliers=0.05, drift=0.002, first_penalty=0.03, step_us=0.1, offset=0.005,
        first_captured=0.005, state=0.006, correlation=0.995, mode=0.03,
    ),
}  # fmt: skip
POWERFUL = ("independent 0.6 %", "offset 0.2 %", "AR 0.95")
"""The cells in which true gains have to be kept."""
RATIOS = (1.0, 0.97, 0.9)
SHORT_US = (9.0, 11.0)
"""True times of the incumbents: 20 steps of the coarse timer."""


@dataclass(frozen=True)
class Rule:
    """``looks``: captures and rounds of each capture. ``extra``: launches of each capture that do not count: two
    rounds or one to warm up, and one before the capture."""

    looks: Sequence[tuple[int, int]]
    by_rounds: bool
    extra: int


RULES = {"by_captures": Rule(LOOKS, False, 2), "by_rounds": Rule(((1, 100), (1, 300), (1, 1200)), True, 3)}


@dataclass(frozen=True)
class Cell:
    """The outcomes of one rule under one noise."""

    decisions: int
    kept: int
    undecided: int
    launches: float
    """Of one version, mean over the decisions."""

    @property
    def upper(self) -> float:
        """The upper 95 % bound of the share that is kept (C. J. Clopper and E. S. Pearson 1934)."""
        low, high = self.kept / self.decisions, 1.0
        while high - low > 1e-7:
            middle = (low + high) / 2
            if _at_most(self.kept, self.decisions, middle) > 0.05:
                low = middle
            else:
                high = middle
        return high


def _at_most(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) <= k)."""
    if p >= 1:
        return float(k >= n)
    logs = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    )
    return math.fsum(map(math.exp, logs))


def looks(noise: NoiseModel, ratio: float, rule: Rule, decisions: int, seed: int) -> Iterator[np.ndarray]:
    """Yields, look after look, the times of candidate, incumbent and copy: shape (rounds, decisions, 3)."""
    rng = np.random.default_rng(seed)
    us = rng.uniform(*SHORT_US, decisions)
    machines = SimulatedMachines(np.stack([us * ratio, us, us], axis=1), noise, rng)
    for captures, rounds in rule.looks:
        times = np.empty((captures * rounds, decisions, 3))
        for number, row in enumerate(times):
            if number % rounds == 0:
                machines.capture()
            order = rng.permuted(np.tile(np.arange(3), (decisions, 1)), axis=1)
            np.put_along_axis(row, order, machines.round(order), axis=1)
        yield times


def outcomes(noise: NoiseModel, ratio: float, rule: Rule, decisions: int, seed: int = 0) -> Cell:
    """Decides on ``decisions`` candidates whose true ratio is ``ratio``."""
    open_ = list(range(decisions))
    seen, captures, launches, kept = np.empty((0, decisions, 3)), [], 0, 0
    for (count, rounds), look in zip(rule.looks, looks(noise, ratio, rule, decisions, seed), strict=True):
        seen = np.concatenate([seen, look])
        captures += [1] * (count * rounds) if rule.by_rounds else [rounds] * count
        launches += len(open_) * count * (rounds + rule.extra)
        left = []
        for number in open_:
            candidate, incumbent, copy = seen[:, number].T.tolist()
            decided = decide({"w": Paired(candidate, incumbent, copy, incumbent, captures)})
            kept += decided.keep
            if not decided.decided:
                left.append(number)
        open_ = left
        if not open_:
            break
    return Cell(decisions, kept, len(open_), launches / decisions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--decisions", type=int, default=2000)
    given = parser.parse_args()
    cells = []
    for name, noise in CELLS.items():
        for ratio in RATIOS:
            found = {rule: outcomes(noise, ratio, RULES[rule], given.decisions) for rule in RULES}
            now, before = found["by_captures"], found["by_rounds"]
            cost = now.launches / before.launches
            cells.append({
                "noise": name, "ratio": ratio, "cost": cost,
                **{rule: {**asdict(cell), "upper": cell.upper} for rule, cell in found.items()},
            })  # fmt: skip
            print(f"{name:25} {ratio:4}: kept {now.kept / now.decisions:7.2%} (at most {now.upper:6.2%}), not decided "
                  f"{now.undecided / now.decisions:6.2%}, {now.launches:4.0f} launches, {cost:.2f} × those by rounds, "
                  f"which kept {before.kept / before.decisions:7.2%}", flush=True)  # fmt: skip
    models = {name: repr(noise) for name, noise in CELLS.items()}
    write(given.out, {**made_here(), "looks": LOOKS, "models": models, "cells": cells})


if __name__ == "__main__":
    main()
