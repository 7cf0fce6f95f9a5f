"""The question of a call of the patched `exhaustive_search` (`answering`).

The result has cuda-tile's own classes. If Tilewright cannot search here, cuda-tile's own search runs. A caller's
mistake is a ValueError or a TypeError, as in cuda-tile.

The functions of a search may be closures over anything. So the key has their results instead of their sources: the
grid, arguments and hints of every candidate, in order. It has neither the contents of arrays nor the values of floats.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Generic, TypeVar

from tilewright.errors import RequestError
from tilewright.records import Json, Value
from tilewright.runtime.arrays import CallValue, KernelObject, Stream, facts_of, is_array
from tilewright.runtime.environment import Environment, device_of
from tilewright.runtime.key import array_part, flag_part, toolkit
from tilewright.runtime.modes import OFF, ON, Mode, mode, takes_first
from tilewright.runtime.patch import answering
from tilewright.runtime.patch.answering import Problem, Question
from tilewright.runtime.patch.widening import LIMIT, named_values, widened
from tilewright.runtime.search.cutile_trials import trials
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.search.trials import Config, FailedTrial, Trial, checked_space, label
from tilewright.runtime.store.warn_once import warn_once
from tilewright.runtime.store.winners import Winner
from tilewright.source.digest import source_of
from tilewright.source.launched_hints import launched_hints

if TYPE_CHECKING:
    from cuda.tile.tune import TuningResult

    from tilewright.runtime.search.searching import SearchResult

Item = TypeVar("Item")

FORMAT = 1
"""The format of the key. Increase it when the meaning of a part changes: winners of another format are not found."""
WIDEN = "TILEWRIGHT_WIDEN"
NEIGHBOURS_TRIED = 4
"""With `WIDEN`, a search also tries neighbours of the given configurations. A neighbour that does the same work as an
earlier configuration is dropped. So that enough are left, ``NEIGHBOURS_TRIED`` times as many configurations are made as
the search may keep."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
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
    """The configuration's output differs from the first configuration's output, or its time cannot be right."""


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


@dataclass(frozen=True)
class SearchCall(Generic[Config]):
    """The arguments of one call of `exhaustive_search`, under cuda-tile's names."""

    search_space: Sequence[Config]
    stream: Stream
    grid_fn: Callable[[Config], tuple[int, ...]]
    kernel: KernelObject
    args_fn: Callable[[Config], tuple[CallValue, ...]]
    hints_fn: Callable[[Config], Mapping[str, Value]] | None
    quiet: bool
    single_run_timeout_sec: float | None
    flush_l2: bool

    def passed_to(self, search: Callable[..., TuningResult[Config]]) -> TuningResult[Config]:
        return search(**vars(self))


@dataclass(frozen=True)
class CallProblem(Problem, Generic[Config]):
    """``space``: first the caller's configurations, then their neighbours if there are any."""

    space: tuple[Config, ...]


def kernel_name(trials: Sequence[Trial | FailedTrial]) -> str:
    """Returns the name of the first trial's kernel."""
    kernel = next((trial.kernel for trial in trials if isinstance(trial, Trial)), None)
    if kernel is None:
        return "a kernel that cannot be launched"
    function = getattr(kernel, "_pyfunc", kernel)
    return str(getattr(function, "__qualname__", type(function).__name__))


def checked(space: Sequence[Config]) -> tuple[Config, ...]:
    try:
        return tuple(checked_space(space))
    except RequestError as error:
        empty = hasattr(space, "__len__") and len(space) == 0
        raise (EmptySpace if empty else NoSequence)(str(error)) from None


def problem_of(
    call: SearchCall[Config], space: Sequence[Config], hints: Mapping[str, int], board: Callable[[int], str]
) -> CallProblem[Config]:
    """Returns the trials and the key of a call. With `TILEWRIGHT_WIDEN`, also tries neighbours, if their work differs
    from that of all earlier trials.

    hints: the hints of the caller's later launch, which every trial gets; may be empty.
    """
    hints_fn = (lambda _: hints) if hints else call.hints_fn
    shared, limit = SharedDescriptions(), max(LIMIT, len(space))
    listed = list(islice(widened(space), NEIGHBOURS_TRIED * limit)) if widening() else list(space)
    made = trials(listed, call.grid_fn, call.kernel, call.args_fn, hints_fn)
    kept: list[tuple[Config, Trial | FailedTrial, str, dict[str, Json]]] = []
    seen = set()
    for index, (config, trial) in enumerate(zip(listed, made, strict=True)):
        try:
            candidate = shared.candidate(trial)
        except Exception:  # `args_fn` raised; the search calls it again and reports the error
            candidate = {"failed": "arguments"}
        work = repr(sorted(candidate.items()))
        if index < len(space) or (len(kept) < limit and work not in seen and "failed" not in candidate):
            kept.append((config, trial, _ADDRESS.sub("", label(config)), candidate))
            seen.add(work)
    configs, launched, labels, candidates = zip(*kept, strict=True)
    device, torch = shared.device, sys.modules.get("torch")
    if device is None:
        device = int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0
    parts: dict[str, Json] = {
        "format": FORMAT,
        "search": "exhaustive_search",
        "board": board(device),
        "toolkit": toolkit(),
        "flush_l2": call.flush_l2,
        "sources": list(shared.sources),
        "arrays": list(shared.arrays),
        "candidates": [{"label": text, **candidate} for text, candidate in zip(labels, candidates, strict=True)],
    }
    if hints:
        parts["launched_hints"] = dict(hints)
    return CallProblem(
        kernel_name(launched), parts, labels, lambda index: named_values(configs[index]), lambda: launched, configs
    )


@dataclass
class SharedDescriptions:
    """The distinct arrays and kernel sources of all candidates. A candidate refers to them by index."""

    arrays: list[dict[str, Json]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    device: int | None = None
    _kept: list[object] = field(default_factory=list)
    """Keeps the described objects alive, so that no new object gets the id of a described object."""
    _places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Maps the id of an array to its index in `arrays`, and to its address."""
    _kernels: dict[int, int] = field(default_factory=dict)

    def candidate(self, trial: Trial | FailedTrial) -> dict[str, Json]:
        """Returns the work of one candidate as data. Of a failed candidate, only the stage is kept: its error message
        may contain a memory address, which differs between runs."""
        if isinstance(trial, FailedTrial):
            return {"failed": trial.stage}
        storages: list[int] = []
        function = getattr(trial.kernel, "_pyfunc", trial.kernel)
        if id(function) not in self._kernels:
            self._kept.append(function)
            self._kernels[id(function)] = _index_in(self.sources, source_of(trial.kernel))
        return {
            "kernel": self._kernels[id(function)],
            "grid": list(trial.grid),
            "arguments": [self._argument(value, storages) for value in trial.arguments()],
            "hints": {name: str(value) for name, value in sorted(trial.hints.items())},
        }

    def _argument(self, value: CallValue, storages: list[int]) -> Json:
        if isinstance(value, (list, tuple)):
            return [self._argument(item, storages) for item in value]
        if not is_array(value):
            return flag_part(value)
        if id(value) not in self._places:
            facts = facts_of(value)
            self._kept.append(value)
            if self.device is None:
                self.device = device_of(value)
            self._places[id(value)] = _index_in(self.arrays, array_part(value)), facts.address if facts else 0
        index, address = self._places[id(value)]
        return f"array {index}, storage {_index_in(storages, address)}"


def _index_in(items: list[Item], item: Item) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


def widening() -> bool:
    value = os.environ.get(WIDEN, "").strip().lower()
    if value not in ON and value not in OFF:
        warn_once(f"{WIDEN}='{value}' is neither 1 nor 0: nothing is widened")
    return value in ON
