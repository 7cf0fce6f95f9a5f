"""What a call of `exhaustive_search` returns while it is patched: the stored winner, or that of a search.

    mode → problem and key → store → lock → search → keep

The result has cuda-tile's own classes. If Tilewright cannot search here, one warning says so and cuda-tile's own search
runs. A caller's mistake is a ValueError or a TypeError, as in cuda-tile. A stored winner is returned without importing
the compiler or the search.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from tilewright.errors import MachineError, in_one_line
from tilewright.records import Json
from tilewright.runtime.environment import Environment
from tilewright.runtime.modes import ON, SWITCHES, VARIABLE, Mode, mode
from tilewright.runtime.patch.exhaustive_problem import EmptySpace, NoSequence, Problem, SearchCall, checked, problem_of
from tilewright.runtime.patch.widening import named_values
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.store import evidence
from tilewright.runtime.store.warn_once import warn_once
from tilewright.runtime.store.winners import Winner, Winners
from tilewright.source.launched_hints import launched_hints

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult

TIMED = ("timed", "duplicate")
UNMEASURED_US = sys.float_info.max
"""The time of a configuration that was not timed. Callers compare the times of several searches, so it is a finite
number above every measured one; ``num_samples`` is 0."""


class NotLaunched(RuntimeError):
    """A configuration that the search left out: its machine code spills."""


class WrongResult(RuntimeError):
    """A configuration whose output differs from the first one's."""


_OWN: Mapping[str, type[Exception]] = {"pruned": NotLaunched, "wrong": WrongResult}


def answered(
    call: SearchCall, caller: FrameType | None, original: Callable[..., Any], environment: Environment | None = None
) -> Any:
    """The `TuningResult` for one call; see the module's docstring.

    caller: the function that searches; its source says which hints it launches with. original: cuda-tile's search.
    """
    now = mode(Mode.NOW)
    disabled = any(os.environ.get(switch, "").strip().lower() in ON for switch in SWITCHES)
    if now is Mode.OFF and not disabled:
        return call.passed_to(original)
    space = checked(call.search_space)
    if disabled:
        return first_of(space)
    environment = environment or Environment()
    try:
        hints = launched_hints(caller, call.kernel) if call.hints_fn is None else {}
        problem = problem_of(call, space, hints, environment.board)
        stored = _stored(problem, environment.winners)
        return _searched(call, problem, now, environment) if stored is None else stored
    except (EmptySpace, NoSequence, DeviceLost):
        raise
    except Exception as error:  # the user's program goes on
        reason = str(error) if isinstance(error, MachineError) else in_one_line(error)
        if now is Mode.STORED or environment.capturing(call.stream):  # cuda-tile may not search either
            warn_once(f"cannot look up what is stored ({reason}); the first configuration is used")
            return first_of(space)
        warn_once(f"cannot search here ({reason}); cuda-tile's own search does")
    return call.passed_to(original)  # outside the handler: its errors did not happen "during" ours


def _searched(call: SearchCall, problem: Problem, now: Mode, environment: Environment) -> Any:
    """Searches and stores the winner, if a search is allowed here and no other process searches."""
    capturing = environment.capturing(call.stream)
    if now is Mode.STORED or capturing:
        why = "a CUDA graph is being captured" if capturing else f"{VARIABLE}=stored"
        return _first(problem, f"{why}, and no winner is stored for this search")
    with environment.search_lock(problem.key, wait=True) as mine:
        if (stored := _stored(problem, environment.winners)) is not None:
            return stored  # another process has stored it meanwhile
        if not mine:
            return _first(problem, "another process has been tuning this for long")
        search = _search(call, problem, environment)
        if search.outcomes[search.best].us is None:  # there is no memory to try anything; perhaps another time
            return _first(problem, search.note)
        winner = _winner_of(problem, search)
        result = _result(problem, environment.winners.put(winner)) or _result(problem, winner)
    if not call.quiet:
        print("\n".join((str(result), *_notes(problem, search))), flush=True)
    return result


def _notes(problem: Problem, search: SearchResult) -> Iterator[str]:
    if isinstance(hints := problem.parts.get("launched_hints"), dict):
        shown = ", ".join(f"{name}={value}" for name, value in hints.items())
        yield f"  timed with {shown}, as the caller launches it"
    if search.note:
        yield f"  {search.note}"


def _search(call: SearchCall, problem: Problem, environment: Environment) -> SearchResult:
    from tilewright.runtime.search.searching import Nothing

    try:
        return environment.search(problem.trials, stream=call.stream, shipped=0, flush_l2=call.flush_l2)
    except Nothing as nothing:
        raise EmptySpace(f"No valid config found in search space.\n{nothing}") from nothing


def _first(problem: Problem, why: str) -> Any:
    warn_once(
        f"{why}: {problem.kernel} runs with its first configuration, which is not measured "
        f"(key {problem.key[:12]}); run the same once with {VARIABLE}=now",
        about=problem.key,
    )
    return first_of(problem.space)


def _winner_of(problem: Problem, search: SearchResult) -> Winner:
    try:
        launches = evidence.launches_of(problem.trials, search)
    except Exception:  # one of them cannot be written down as data: the winner cannot be raced again
        launches = None
    return evidence.winner_of(
        search,
        key=problem.key,
        kernel=problem.kernel,
        parts=problem.parts,
        labels=problem.labels,
        config=lambda index: named_values(problem.space[index]),
        launches=launches,
        origin="run",
    )


# cuda-tile's result ----------------------------------------------------------------------------------


def _stored(problem: Problem, winners: Winners) -> Any:
    winner = winners.get(problem.key)
    return None if winner is None else _result(problem, winner)


def _result(problem: Problem, winner: Winner) -> Any:
    """None if the winner is not of this space: its index and all labels must agree."""
    index, labels = winner.index, list(problem.labels)
    if index is None or not 0 <= index < len(labels) or winner.label != labels[index]:
        return None
    if [outcome.get("label") for outcome in winner.outcomes] != labels:
        return None
    return result_of(problem.space, winner.outcomes, index)


def result_of(space: Sequence[Any], outcomes: Sequence[Mapping[str, Json]], best: int) -> Any:
    """The `TuningResult`: a duplicate has the measurement of its representative."""
    from cuda.tile.tune import Measurement, TuningResult

    timed = {
        index: Measurement(
            config=space[index],
            mean_us=outcome["us"],
            num_samples=outcome["samples"],
            error_margin_us=outcome["error_margin_us"] or 0.0,
        )
        for index, outcome in enumerate(outcomes)
        if outcome["status"] in TIMED and outcome["us"] is not None
    }
    failures = tuple(
        (config, _error(outcome), outcome["reason"])
        for config, outcome in zip(space, outcomes, strict=True)
        if outcome["status"] not in TIMED
    )
    return TuningResult(best=timed[best], successes=tuple(timed.values()), failures=failures)


def first_of(space: Sequence[Any]) -> Any:
    """The first configuration, not measured: the result where nothing may be searched."""
    from cuda.tile.tune import Measurement, TuningResult

    first = Measurement(config=space[0], mean_us=UNMEASURED_US, num_samples=0, error_margin_us=0.0)
    return TuningResult(best=first, successes=(first,), failures=())


def _error(outcome: Mapping[str, Json]) -> type[Exception]:
    """The class by its name, if its module is loaded: a program that only looks up has not loaded all."""
    module, _, name = str(outcome.get("error") or "").partition(":")
    error = getattr(sys.modules.get(module, builtins), name, None) if name else None
    if isinstance(error, type) and issubclass(error, Exception):
        return error
    return _OWN.get(str(outcome["status"]), RuntimeError)
