"""What a call of `exhaustive_search` gets while it is patched: the stored winner, or a search of ours, or neither.

The way of a call: the mode (`modes`) → what it would launch, and the key of that (`exhaustive_problem`) → the store →
a search, which is stored. The result is of cuda-tile's own classes (`exhaustive_result`). What Tilewright cannot do
here is one warning, and cuda-tile's own search instead; what the caller did wrong is a ValueError or a TypeError, as
there. A hit imports neither the compiler nor the search.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from tilewright.errors import MachineError, in_one_line
from tilewright.runtime.environment import Environment
from tilewright.runtime.modes import ON, SWITCHES, VARIABLE, Mode, mode
from tilewright.runtime.patch import exhaustive_result
from tilewright.runtime.patch.exhaustive_problem import EmptySpace, NoSequence, Problem, SearchCall, checked, problem_of
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.store.warn_once import warn_once
from tilewright.runtime.store.winners import Winner, Winners
from tilewright.source.launched_hints import launched_hints

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult


def answered(
    request: SearchCall, caller: FrameType | None, original: Callable[..., Any], around: Environment | None = None
) -> Any:
    """The `TuningResult` for one call; see the module's docstring.

    caller: the function that searches; its source says which hints it launches with. original: cuda-tile's search.
    """
    now = mode(Mode.NOW)
    disabled = any(os.environ.get(switch, "").strip().lower() in ON for switch in SWITCHES)
    if now is Mode.OFF and not disabled:
        return request.passed_to(original)
    space = checked(request.search_space)
    if disabled:
        return exhaustive_result.first_of(space)
    around = around or Environment()
    try:
        hints = launched_hints(caller, request.kernel) if request.hints_fn is None else {}
        problem = problem_of(request, space, hints, around.board)
        stored = _stored(problem, around.winners)
        return _searched(request, problem, now, around) if stored is None else stored
    except (EmptySpace, NoSequence, DeviceLost):
        raise
    except Exception as error:  # the user's program goes on as it would without us
        said = str(error) if isinstance(error, MachineError) else in_one_line(error)
        if now is Mode.STORED or around.capturing(request.stream):  # nothing may be searched, by nobody
            warn_once(f"cannot look up what is stored ({said}); the first configuration is used")
            return exhaustive_result.first_of(space)
        warn_once(f"cannot search here ({said}); cuda-tile's own search does")
    return request.passed_to(original)  # outside the handler: what it raises is not "during" our error


def _searched(request: SearchCall, problem: Problem, now: Mode, around: Environment) -> Any:
    """Searches and stores, where that is allowed here and nobody else does it."""
    capturing = around.capturing(request.stream)
    if now is Mode.STORED or capturing:
        why = "a CUDA graph is being captured" if capturing else f"{VARIABLE}=stored"
        return _first(problem, f"{why}, and no winner is stored for this search")
    with around.search_lock(problem.key, wait=True) as mine:
        if (stored := _stored(problem, around.winners)) is not None:
            return stored  # another process found it meanwhile
        if not mine:
            return _first(problem, "another process has been tuning this for long")
        found = _found(request, problem, around)
        if found.outcomes[found.best].us is None:  # no room to try anything in; perhaps another time
            return _first(problem, found.note)
        winner = exhaustive_result.winner_of(problem, found)
        stands = around.winners.put(winner)
    result = _result(problem, stands) or _result(problem, winner)
    if not request.quiet:
        print("\n".join((str(result), *_notes(problem, found))), flush=True)
    return result


def _notes(problem: Problem, found: SearchResult) -> Iterator[str]:
    if hints := problem.parts.get("launched_hints"):
        said = ", ".join(f"{name}={value}" for name, value in hints.items())
        yield f"  timed with {said}, as the caller launches it"
    if found.note:
        yield f"  {found.note}"


def _found(request: SearchCall, problem: Problem, around: Environment) -> SearchResult:
    from tilewright.runtime.search.searching import Nothing

    try:
        found: SearchResult = around.search(problem.trials, stream=request.stream, shipped=0, flush_l2=request.flush_l2)
        return found
    except Nothing as nothing:
        raise EmptySpace(f"No valid config found in search space.\n{nothing}") from nothing


def _first(problem: Problem, why: str) -> Any:
    warn_once(
        f"{why}: {problem.kernel} runs with its first configuration, which is not measured "
        f"(key {problem.key[:12]}); run the same once with {VARIABLE}=now",
        about=problem.key,
    )
    return exhaustive_result.first_of(problem.space)


def _stored(problem: Problem, winners: Winners) -> Any:
    winner = winners.get(problem.key)
    return None if winner is None else _result(problem, winner)


def _result(problem: Problem, winner: Winner) -> Any:
    """None where the winner is not of this space: its place and how all are shown must agree."""
    place = winner.index
    if place is None or not 0 <= place < len(problem.labels) or winner.label != problem.labels[place]:
        return None
    if [one.get("label") for one in winner.outcomes] != list(problem.labels):
        return None
    return exhaustive_result.result_of(problem.space, winner.outcomes, place)
