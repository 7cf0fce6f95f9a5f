"""Verifies and races the variants of an iteration in heats of three, the most promising first.

    order → verify three → race them with incumbent and leader → order again → … → two heats without a new leader

What is not raced cannot be kept, so it is not verified. The *form* of a variant is its first change; variants of one
form differ in their hints. The first heat has the best predicted variant of each form, because the predicted order of
forms is not reliable. Later heats have the fastest forms first. A form that is `SLOWER_FORM` times as slow as the
fastest is left out: in the fields of bench/recorded/h200-captured-gains-2026-11-28.json, hints gain up to 1.41×, but no
slow form becomes the fastest.

Configurations of one code have no forms, and all are raced: a tile size that is slow with one number of warps may be
the fastest with another. TileGym's MLA decoding on an H200 is 1.98 times as fast with TILE_H=32, which was left out as
a form because its first variant spilled.

A heat only ranks. What is kept is measured again on fresh inputs (`arena.confirm`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.ledger.records import Attempt
from tilewright.optimize.attempting import Variant
from tilewright.optimize.gates.base import RacedVariants, RankedVariant

HEAT = 3
"""The number of new variants in a heat."""
MISSES = 2
"""The field ends after so many heats in a row without a new leader."""
NEW_LEADER = 0.99
"""A new leader takes at most this share of the leader's time. The difference is the tie band of a race."""
SLOWER_FORM = 1.25
"""A form is left out if its fastest variant takes more than this many times the fastest form's time."""
LEFT_OUT = "not verified and not raced: the heats before had faster variants"

Raced = tuple[Sequence[RankedVariant], Sequence[Attempt]]


@dataclass
class Heats:
    """Implements `base.Ranking` with measured times.

    failure: verifies a variant. Returns None if it is correct, else the attempt with the reason.
    race_with_incumbent: races correct variants. Returns those that finished, and the attempt of each variant.
    """

    failure: Callable[[Variant], Attempt | None]
    race_with_incumbent: Callable[[Sequence[Variant]], Raced]
    ranked: dict[str, RankedVariant] = field(default_factory=dict)
    """The variants that finished a heat, by the name of their version."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """The outcome of each verified variant, by the name of its version."""
    misses: int = 0
    """Heats in a row without a new leader."""

    @property
    def times(self) -> Mapping[str, float]:
        return {name: each.ratio for name, each in self.ranked.items()}

    def heat(self, variants: Sequence[Variant]) -> bool:
        """Runs one heat with the most promising of ``variants``. Returns whether one was left to verify."""
        correct, verified = list[Variant](), 0
        for variant in self._promising(variants):
            if len(correct) == HEAT:
                break
            verified += 1
            failed = self.failure(variant)
            if failed is None:
                correct.append(variant)
            else:
                self.attempts[variant.version.name] = failed
        if correct:
            self._race(correct)
        return verified > 0

    def race(self, variants: Sequence[Variant]) -> RacedVariants:
        """Runs heats until no variant is left, or until `MISSES` heats in a row had no new leader among forms."""
        forms = any(variant.kind == "form" for variant in variants)
        while (self.misses < MISSES or not forms) and self.heat(variants):
            pass
        left = [variant for variant in variants if variant.version.name not in self.attempts]
        attempts = (*self.attempts.values(), *(variant.attempt("screened", LEFT_OUT) for variant in left))
        correct = any(attempt.status == "raced" for attempt in self.attempts.values())
        return RacedVariants(tuple(variants), tuple(self._fastest_first()), attempts, correct)

    def _race(self, correct: Sequence[Variant]) -> None:
        """Races the leader again, with ``correct`` variants, so that their times are paired."""
        leader = next(iter(self._fastest_first()), None)
        racing = [*([] if leader is None else [leader.variant]), *correct]
        ranked, attempts = self.race_with_incumbent(racing)
        self.attempts |= {each.version.name: attempt for each, attempt in zip(racing, attempts, strict=True)}
        if leader is not None:
            self.ranked.pop(leader.variant.version.name)  # unless it fails now, it is ranked again
        raced = {each.variant.version.name: each for each in ranked}
        self.ranked |= raced
        before = None if leader is None else raced.pop(leader.variant.version.name, None)
        if before is None:
            found = bool(raced)
        else:
            found = any(
                (each.loses, each.ratio) <= (before.loses, NEW_LEADER * before.ratio) for each in raced.values()
            )
        self.misses = 0 if found else self.misses + 1

    def _fastest_first(self) -> list[RankedVariant]:
        return sorted(self.ranked.values(), key=lambda each: (each.loses, each.ratio))

    def _promising(self, variants: Sequence[Variant]) -> list[Variant]:
        """Returns the unverified variants that may be a new leader, the most promising first."""
        untried = by_form([variant for variant in variants if variant.version.name not in self.attempts])
        times = self._form_times()
        if not times:
            return untried
        limit = SLOWER_FORM * min(times.values())
        placed = [(times.get(form_of(variant), 0.0), variant) for variant in untried]
        return [variant for us, variant in sorted(placed, key=lambda each: each[0]) if us <= limit]

    def _form_times(self) -> dict[str, float]:
        """Returns the least time of each form in units of the incumbent's time."""
        times: dict[str, float] = {}
        for each in self.ranked.values():
            form = form_of(each.variant)
            times[form] = min(each.ratio, times.get(form, math.inf))
        return times


def form_of(variant: Variant) -> str:
    """Returns the first change of a variant, or the whole configuration if only that is changed."""
    return str(variant.value).partition(",")[0] if variant.kind == "form" else str(variant.value)


def by_form(variants: Iterable[Variant]) -> list[Variant]:
    """Puts the first variant of each form before all others. The order stays the same otherwise."""
    firsts: dict[str, Variant] = {}
    others = [variant for variant in variants if firsts.setdefault(form_of(variant), variant) is not variant]
    return [*firsts.values(), *others]
