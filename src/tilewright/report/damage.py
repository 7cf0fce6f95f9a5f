"""Tells a damaged run from a mistake in a view.

A view of the report may fail on rows that decode, but say what no run says, such as a negative time. Only such a
failure is an error about the ledger. Every other one is a mistake in Tilewright, and is raised as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

from tilewright.errors import StorageError, in_one_line
from tilewright.ledger.file import DAMAGED
from tilewright.race.interval import Interval
from tilewright.records import Bound, Checked, MachineCode, MeasuredTime, PredictedTime

QUANTITIES = (Bound, Checked, Interval, MachineCode, MeasuredTime, PredictedTime)
"""Records whose numbers are never negative."""
TIMES = ("us", "_us", "_ms")
"""Endings of the names of times. A time is never 0."""
LARGEST = 1e30
"""No quantity is larger. Only the upper end of an interval may be infinite."""


@contextmanager
def only_of_damage(run: str, records: object, left_out: int) -> Iterator[None]:
    """Turns an error of the block into a StorageError if the records of a run are damaged.

    left_out: the number of rows that could not be read.
    """
    try:
        yield
    except DAMAGED as error:
        problem = impossible(records)
        if not problem and left_out:
            problem = "rows that belong to the others cannot be read"
        if not problem:
            raise
        raise StorageError(
            f"run {run} cannot be shown ({in_one_line(error)}), because it is damaged: {problem}; "
            f"fix: restore a copy of the ledger, or see what is left with `tilewright report {run} --jsonl -`"
        ) from error


def impossible(value: object) -> str:
    """Returns the first value in records that no run has, with its place; "" if there is none."""
    return next(_impossible(value, "", False), "")


def _impossible(value: object, at: str, quantity: bool) -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, MeasuredTime) and not value.samples_us:
            yield f"{at} has no samples"
        for field in fields(value):
            yield from _impossible(getattr(value, field.name), f"{at}.{field.name}", isinstance(value, QUANTITIES))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _impossible(item, f"{at}.{name}", quantity)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from _impossible(item, f"{at}[{number}]", quantity)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        time, largest = at.endswith(TIMES), math.inf if at.endswith(".high") else LARGEST
        possible = (value > 0 if time else value >= 0) and value <= largest
        if (quantity or time) and not possible:
            yield f"{at.lstrip('.')} is {value:.6g}"
