"""What a call of `exhaustive_search` returns while it is patched: the stored winner, or that of a search.

    mode → problem and key → store → lock → search → keep

The result has cuda-tile's own classes. If Tilewright cannot search here, one warning says so and cuda-tile's own search
runs. A caller's mistake is a ValueError or a TypeError, as in cuda-tile. A stored winner is returned without importing
the compiler or the search.

The functions of a search may be closures over anything. So the key has their results and not their sources: grid,
arguments and hints of every candidate, in order. It has neither the contents of arrays nor the value of a float.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any

from tilewright.errors import MachineError, RequestError, in_one_line
from tilewright.records import Json, Value
from tilewright.runtime.arrays import CallValue, KernelObject, Stream, facts_of, is_array
from tilewright.runtime.environment import Environment, device_of
from tilewright.runtime.key import array_part, board_of, digest, flag_part, toolkit
from tilewright.runtime.modes import OFF, ON, SWITCHES, VARIABLE, Mode, mode
from tilewright.runtime.patch.widening import LIMIT, named_values, widened
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.search.trials import FailedTrial, Trial, checked_space, label, trials
from tilewright.runtime.store import evidence
from tilewright.runtime.store.warn_once import warn_once
from tilewright.runtime.store.winners import Winner
from tilewright.source.digest import source_of
from tilewright.source.launched_hints import launched_hints

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult

FORMAT = 1
"""Counts up when the meaning of a part changes: stored winners of another format are never found."""
WIDEN = "TILEWRIGHT_WIDEN"
NEIGHBOURS_TRIED = 4
"""Times `LIMIT` neighbours are tried, because some launch the same as another one and do not count."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
UNMEASURED_US = sys.float_info.max
"""The time of a configuration that was not timed. Callers compare the times of several searches, so it is a finite
number above every measured one; ``num_samples`` is 0."""


class EmptySpace(RequestError, ValueError):
    """As cuda-tile raises it: there is nothing to search, or nothing that works."""


class NoSequence(RequestError, TypeError):
    """As cuda-tile raises it for a generator."""


class NotLaunched(RuntimeError):
    """A configuration that the search left out: its machine code spills."""


class WrongResult(RuntimeError):
    """A configuration whose output differs from the first one's."""


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
        stored = _result(problem, environment.winners.get(problem.key))
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
        if (stored := _result(problem, environment.winners.get(problem.key))) is not None:
            return stored  # another process has stored it meanwhile
        if not mine:
            return _first(problem, "another process has been tuning this for long")
        from tilewright.runtime.search.searching import Nothing

        try:
            search = environment.search(problem.trials, stream=call.stream, shipped=0, flush_l2=call.flush_l2)
        except Nothing as nothing:
            raise EmptySpace(f"No valid config found in search space.\n{nothing}") from nothing
        if search.outcomes[search.best].us is None:  # there is no memory to try anything; perhaps another time
            return _first(problem, search.note)
        winner = _winner_of(problem, search)
        result = _result(problem, environment.winners.put(winner)) or _result(problem, winner)
    if not call.quiet:
        notes = [str(result), *([f"  {search.note}"] if search.note else [])]
        if isinstance(hints := problem.parts.get("launched_hints"), dict):
            shown = ", ".join(f"{name}={value}" for name, value in hints.items())
            notes.insert(1, f"  timed with {shown}, as the caller launches it")
        print("\n".join(notes), flush=True)
    return result


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


def _result(problem: Problem, winner: Winner | None) -> Any:
    """The `TuningResult`, in which a duplicate has the measurement of its representative; None if there is no winner,
    or if it is not of this space: its index and all labels must agree."""
    from cuda.tile.tune import Measurement, TuningResult

    if winner is None:
        return None
    best, labels = winner.index, list(problem.labels)
    if best is None or not 0 <= best < len(labels) or winner.label != labels[best]:
        return None
    if [outcome.get("label") for outcome in winner.outcomes] != labels:
        return None
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
    return TuningResult(best=successes[best], successes=tuple(successes.values()), failures=tuple(failures))


def first_of(space: Sequence[Any]) -> Any:
    """The first configuration, not measured: the result where nothing may be searched."""
    from cuda.tile.tune import Measurement, TuningResult

    first = Measurement(config=space[0], mean_us=UNMEASURED_US, num_samples=0, error_margin_us=0.0)
    return TuningResult(best=first, successes=(first,), failures=())


def _error(outcome: Mapping[str, Json]) -> type[Exception]:
    """The class by its name, if its module is loaded: a program that only looks up has not loaded all."""
    module, _, name = str(outcome.get("error") or "").partition(":")
    error = getattr(sys.modules.get(module, builtins), name, None) if name else None
    own = {"pruned": NotLaunched, "wrong": WrongResult}.get(str(outcome["status"]), RuntimeError)
    return error if isinstance(error, type) and issubclass(error, Exception) else own


@dataclass(frozen=True)
class SearchCall:
    """The arguments of one call, by the names that cuda-tile gives them."""

    search_space: Sequence[Any]
    stream: Stream
    grid_fn: Callable[[Any], tuple[int, ...]]
    kernel: KernelObject
    args_fn: Callable[[Any], tuple[CallValue, ...]]
    hints_fn: Callable[[Any], Mapping[str, Value]] | None
    quiet: bool
    single_run_timeout_sec: float | None
    flush_l2: bool

    def passed_to(self, search: Callable[..., Any]) -> Any:
        return search(
            self.search_space, self.stream, self.grid_fn, self.kernel, self.args_fn, self.hints_fn,
            quiet=self.quiet, single_run_timeout_sec=self.single_run_timeout_sec, flush_l2=self.flush_l2,
        )  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """``space`` begins with the caller's configurations, and may have more. The other fields are in its order."""

    space: tuple[Any, ...]
    trials: tuple[Trial | FailedTrial, ...]
    labels: tuple[str, ...]
    parts: Mapping[str, Json]
    """Of the key, by name."""
    key: str

    @property
    def kernel(self) -> str:
        """The name of the first kernel."""
        kernels = [trial.kernel for trial in self.trials if isinstance(trial, Trial)]
        if not kernels:
            return "a kernel that cannot be launched"
        function = getattr(kernels[0], "_pyfunc", kernels[0])
        return str(getattr(function, "__qualname__", type(function).__name__))


def checked(space: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return tuple(checked_space(space))
    except RequestError as error:
        empty = hasattr(space, "__len__") and len(space) == 0
        raise (EmptySpace if empty else NoSequence)(str(error)) from None


def problem_of(
    call: SearchCall, space: Sequence[Any], hints: Mapping[str, int], board: Callable[[int], str] = board_of
) -> Problem:
    """The trials and the key. ``hints``: those that the caller launches with, for every trial.

    With `TILEWRIGHT_WIDEN` neighbours follow, if they launch other work than those before them.
    """
    if hints:
        call = replace(call, hints_fn=lambda _: hints)
    shared, limit = SharedDescriptions(), max(LIMIT, len(space))
    listed = list(islice(widened(space), NEIGHBOURS_TRIED * limit)) if widening() else list(space)
    made = trials(listed, call.grid_fn, call.kernel, call.args_fn, call.hints_fn)
    kept: list[tuple[Any, Trial | FailedTrial, str, dict[str, Json]]] = []
    seen = set()
    for index, (config, trial) in enumerate(zip(listed, made, strict=True)):
        try:
            candidate = shared.candidate(trial)
        except Exception:  # args_fn of this configuration: the search meets the error again, and reports it
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
    return Problem(configs, launched, labels, parts, digest(parts))


@dataclass
class SharedDescriptions:
    """The arrays and the kernels' sources of all candidates, each once."""

    arrays: list[dict[str, Json]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    device: int | None = None
    """The GPU of the first array that is on one."""
    _kept: list[object] = field(default_factory=list)
    """So that no other object gets the id of one of these."""
    _places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Id of an array → its index among the descriptions, and its address."""
    _kernels: dict[int, int] = field(default_factory=dict)

    def candidate(self, trial: Trial | FailedTrial) -> dict[str, Json]:
        """The work of one candidate. A failed one has only its stage: its reason may contain an address."""
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
        if id(value) not in self._places:  # read once for each object
            facts = facts_of(value)
            self._kept.append(value)
            if self.device is None:
                self.device = device_of(value)
            self._places[id(value)] = _index_in(self.arrays, array_part(value)), facts.address if facts else 0
        index, address = self._places[id(value)]
        return f"array {index}, storage {_index_in(storages, address)}"


def _index_in(items: list[Any], item: Any) -> int:
    """Its index; appended if it is not there."""
    if item not in items:
        items.append(item)
    return items.index(item)


def widening() -> bool:
    value = os.environ.get(WIDEN, "").strip().lower()
    if value not in ON and value not in OFF:
        warn_once(f"{WIDEN}='{value}' is neither 1 nor 0: nothing is widened")
    return value in ON
