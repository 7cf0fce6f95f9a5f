"""Tells whether an outcome can be that of a step. A machine that was broken into may send any other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tilewright.race.protocol import RaceOutcome
from tilewright.worker.messages import FieldRaced, RaceField, RoundsTimed, Step, TimeRounds


def mistake_in(step: Step[Any], answer: object, *indices: int | None) -> str | None:
    """Returns why neither the answer nor the indices of candidates can be of the step; None if they can."""
    count = candidates_of(step)
    if any(index is not None and not 0 <= index < max(count, 1) for index in indices):
        return f"a candidate that is none of {count}"
    if isinstance(answer, FieldRaced):
        return _mistake_in_race(answer.race, count)
    if isinstance(step, TimeRounds) and isinstance(answer, RoundsTimed):
        wanted = count + (step.copied is not None)
        if len(answer.samples_us) != wanted:
            return f"times of {len(answer.samples_us)} candidates, not of {wanted}"
        if not answer.samples_us[0] and not answer.disturbances:
            return "no times, and no reason"
        return _mistake_in_times(answer.samples_us)
    return None


def candidates_of(step: Step[Any]) -> int:
    return len(step.sources) if isinstance(step, RaceField | TimeRounds) else 1


def _mistake_in_race(race: RaceOutcome, count: int) -> str | None:
    if [each.index for each in race.candidates] != list(range(count)):
        return f"a race of {len(race.candidates)} candidates, not of {count}"
    if any(index is not None and not 0 <= index < count for index in (race.winner, race.leader)):
        return "a winner that did not take part"
    if any(len(each.rounds) != len(each.samples_us) for each in race.candidates):
        return "times without their rounds"
    return _mistake_in_times(each.samples_us for each in race.candidates)


def _mistake_in_times(samples_us: Iterable[tuple[float, ...]]) -> str | None:
    odd = [us for each in samples_us for us in each if not 0 < us < math.inf]
    return f"a time of {odd[0]} µs" if odd else None
