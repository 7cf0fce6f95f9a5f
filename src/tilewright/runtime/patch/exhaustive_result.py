"""From what a search found to cuda-tile's `TuningResult`, and to the winner that is stored; and back from there."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.runtime.patch.widening import named_values
from tilewright.runtime.store import recording
from tilewright.runtime.store.recording import launches_of
from tilewright.runtime.store.winners import Winner

if TYPE_CHECKING:
    from tilewright.runtime.patch.exhaustive_problem import Problem
    from tilewright.runtime.search.searching import SearchResult

TIMED = ("timed", "duplicate")
UNMEASURED_US = sys.float_info.max
"""Time of a configuration that nobody timed: callers compare the times of several searches, so it is a number,
under infinity and over every measured one. ``num_samples`` is 0 and says what it is."""


class NotLaunched(RuntimeError):
    """A configuration that the search left out: its machine code spills."""


class WrongResult(RuntimeError):
    """A configuration whose output differs from the first one's."""


_OWN: Mapping[str, type[Exception]] = {"pruned": NotLaunched, "wrong": WrongResult}


def result_of(space: Sequence[Any], outcomes: Sequence[Mapping[str, Any]], best: int) -> Any:
    """The `TuningResult`: a duplicate has the measurement of the code that it shares."""
    from cuda.tile.tune import Measurement, TuningResult

    timed = {
        place: Measurement(
            config=space[place],
            mean_us=one["us"],
            num_samples=one["samples"],
            error_margin_us=one["error_margin_us"] or 0.0,
        )
        for place, one in enumerate(outcomes)
        if one["status"] in TIMED and one["us"] is not None
    }
    failures = tuple(
        (space[place], _error(one), one["reason"]) for place, one in enumerate(outcomes) if one["status"] not in TIMED
    )
    return TuningResult(best=timed[best], successes=tuple(timed.values()), failures=failures)


def first_of(space: Sequence[Any]) -> Any:
    """The first configuration, not measured: what there is where nothing may be searched."""
    from cuda.tile.tune import Measurement, TuningResult

    first = Measurement(config=space[0], mean_us=UNMEASURED_US, num_samples=0, error_margin_us=0.0)
    return TuningResult(best=first, successes=(first,), failures=())


def _error(outcome: Mapping[str, Any]) -> type[Exception]:
    """The class by its name, where its module is loaded; a program that only looks up has not loaded them all."""
    module, _, name = str(outcome.get("error") or "").partition(":")
    found = getattr(sys.modules.get(module, builtins), name, None) if name else None
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return _OWN.get(str(outcome["status"]), RuntimeError)


def winner_of(problem: Problem, result: SearchResult) -> Winner:
    """What is stored of a search: the winner, its evidence, the launches that `tilewright tuned verify` repeats."""
    try:
        launches = launches_of(problem.trials, result)
    except Exception:  # one of them cannot be written down as data; the winner then cannot be raced again
        launches = None
    return recording.winner_of(
        result,
        key=problem.key,
        kernel=problem.kernel,
        parts=problem.parts,
        labels=problem.labels,
        config=lambda index: named_values(problem.space[index]),
        launches=launches,
        origin="run",
    )
