"""The question of a call of the patched `exhaustive_search` (`answering`).

The result has cuda-tile's own classes. If Tilewright cannot search here, cuda-tile's own search runs. A caller's
mistake is a ValueError or a TypeError, as in cuda-tile.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Generic

from tilewright.errors import RequestError
from tilewright.records import Json
from tilewright.runtime.environment import Environment
from tilewright.runtime.modes import Mode, mode, takes_first
from tilewright.runtime.patch import answering
from tilewright.runtime.patch.answering import Problem, Question
from tilewright.runtime.patch.exhaustive_problem import CallProblem, SearchCall, problem_of
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.search.trials import Config, checked_space
from tilewright.runtime.store.winners import Winner
from tilewright.source.launched_hints import launched_hints

if TYPE_CHECKING:
    from cuda.tile.tune import TuningResult

    from tilewright.runtime.search.searching import SearchResult

UNMEASURED_US = sys.float_info.max
"""The time of a configuration that was not timed; its ``num_samples`` is 0. Callers compare the times of several
searches, so this is a finite number above every measured time."""


class EmptySpace(RequestError, ValueError):
    """The space is empty, or none of its configurations works. cuda-tile raises a ValueError, too."""


class NoSequence(RequestError, TypeError):
    """The space is not a sequence. cuda-tile raises a TypeError, too."""


class NotLaunched(RuntimeError):
    """The search left the configuration out: because of its machine code, or because others are predicted faster."""


class WrongResult(RuntimeError):
    """The configuration's output differs from that of the reference configuration, or its time cannot be right."""


def answer(
    call: SearchCall[Config], caller: FrameType, original: Callable[..., TuningResult[Config]]
) -> TuningResult[Config]:
    """Returns the `TuningResult` for one call. ``caller``: the frame that calls the search. Its source shows the hints
    with which the caller launches the kernel afterwards. ``original``: cuda-tile's search."""
    now = mode(Mode.NOW)
    if now is Mode.OFF and not takes_first():
        return call.passed_to(original)
    space = checked(call.search_space)
    if now is Mode.OFF:
        return first_of(space)
    return answering.answer(ExhaustiveQuestion(call, space, caller, original), now, Environment())


class ExhaustiveQuestion(Question["TuningResult[Config]"], Generic[Config]):
    """A call of `exhaustive_search`."""

    owner = "cuda-tile"
    raised = (EmptySpace, NoSequence, DeviceLost)

    def __init__(
        self, call: SearchCall[Config], space: Sequence[Config], caller: FrameType,
        original: Callable[..., TuningResult[Config]],
    ) -> None:  # fmt: skip
        self.call, self.space, self.caller, self.stream = call, space, caller, call.stream
        self._original = original

    def problem(self, environment: Environment) -> CallProblem[Config]:
        hints = {} if self.call.hints_fn is not None else launched_hints(self.caller, self.call.kernel)
        return problem_of(self.call, self.space, hints, environment.board)

    def searched(self, problem: Problem, environment: Environment) -> SearchResult:
        """Searches with the configuration that should be compiled the quickest as the reference. If the outputs of any
        other one differ, searches again with the caller's first as the reference. With neighbours, the first is the
        reference at once."""
        from tilewright.runtime.search.searching import NothingWorks

        trials = problem.trials()
        references = (0,) if len(trials) > len(self.space) else (None, 0)
        try:
            for shipped in references:
                found = environment.search(trials, stream=self.stream, shipped=shipped, flush_l2=self.call.flush_l2)
                if all(outcome.status != "wrong" for outcome in found.outcomes):
                    break
            return found
        except NothingWorks as nothing:
            raise EmptySpace(f"No valid config found in search space.\n{nothing}") from nothing

    def tell(self, problem: Problem, search: SearchResult, result: TuningResult[Config]) -> None:
        if self.call.quiet:
            return
        notes = [str(result), *([f"  {search.note}"] if search.note else [])]
        if isinstance(hints := problem.parts.get("launched_hints"), dict):
            shown = ", ".join(f"{name}={value}" for name, value in hints.items())
            notes.insert(1, f"  timed with {shown}, as the caller launches it")
        print("\n".join(notes), flush=True)

    def first(self) -> TuningResult[Config]:
        return first_of(self.space)

    def original(self) -> TuningResult[Config]:
        return self.call.passed_to(self._original)

    def result(self, problem: Problem, winner: Winner) -> TuningResult[Config]:
        """Returns the winner with what cuda-tile's search reports of every configuration."""
        from cuda.tile.tune import Measurement, TuningResult

        assert isinstance(problem, CallProblem) and winner.index is not None
        successes, failures = {}, []
        for index, (config, outcome) in enumerate(zip(problem.space, winner.outcomes, strict=True)):
            if outcome["status"] not in ("timed", "duplicate"):
                failures.append((config, _error(outcome), outcome["reason"]))
            elif outcome["us"] is not None:
                successes[index] = Measurement(
                    config=config,
                    mean_us=outcome["us"],
                    num_samples=outcome["samples"],
                    error_margin_us=outcome["error_margin_us"] or 0.0,
                )
        best = successes[winner.index]
        return TuningResult(best=best, successes=tuple(successes.values()), failures=tuple(failures))


def first_of(space: Sequence[Config]) -> TuningResult[Config]:
    """Returns a `TuningResult` with the first configuration, not measured, for calls where no search is allowed."""
    from cuda.tile.tune import Measurement, TuningResult

    first = Measurement(config=space[0], mean_us=UNMEASURED_US, num_samples=0, error_margin_us=0.0)
    return TuningResult(best=first, successes=(first,), failures=())


def _error(outcome: Mapping[str, Json]) -> type[Exception]:
    """Returns the recorded error class. If its module is not loaded (in a program that only looks up), returns a class
    of this module, or RuntimeError."""
    module, _, name = str(outcome.get("error") or "").partition(":")
    error = getattr(sys.modules.get(module, builtins), name, None) if name else None
    own = {"pruned": NotLaunched, "wrong": WrongResult}.get(str(outcome["status"]), RuntimeError)
    return error if isinstance(error, type) and issubclass(error, Exception) else own


def checked(space: Sequence[Config]) -> tuple[Config, ...]:
    try:
        return tuple(checked_space(space))
    except RequestError as error:
        empty = hasattr(space, "__len__") and len(space) == 0
        raise (EmptySpace if empty else NoSequence)(str(error)) from None
