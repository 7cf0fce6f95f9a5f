"""A call of `exhaustive_search` made ready: its configurations, what each would launch, and the key of it all.

The functions of a search may be closures over anything. So the key has their results and not their sources: grid,
arguments and hints of every candidate, in order. It has neither the contents of arrays nor the value of a float.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from tilewright.errors import RequestError
from tilewright.records import Failed, Json, Value
from tilewright.runtime.arrays import CallerArray, CallValue, KernelObject, Stream, facts_of, is_array
from tilewright.runtime.environment import device_of
from tilewright.runtime.key import array_part, board_of, digest, flag_part, source_of, toolkit
from tilewright.runtime.modes import OFF, ON
from tilewright.runtime.patch.widening import LIMIT, widened
from tilewright.runtime.search.trials import Trial, checked_space, label, trials
from tilewright.runtime.store.warn_once import warn_once

FORMAT = 1
"""Counts up when the meaning of a part changes: stored winners of another format are never found."""
WIDEN = "TILEWRIGHT_WIDEN"
NEIGHBOURS_TRIED = 4
"""Times `LIMIT` neighbours are tried, because some launch the same as another one and do not count."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class EmptySpace(RequestError, ValueError):
    """As cuda-tile raises it: there is nothing to search, or nothing that works."""


class NoSequence(RequestError, TypeError):
    """As cuda-tile raises it for a generator."""


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
    trials: tuple[Trial | Failed, ...]
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
    kept: list[tuple[Any, Trial | Failed, str, dict[str, Json]]] = []
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
    device = _current_device() if shared.device is None else shared.device
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
    _kernels: dict[int, int] = field(default_factory=dict)

    def candidate(self, trial: Trial | Failed) -> dict[str, Json]:
        """The work of one candidate. A failed one has only its stage: its reason may contain an address."""
        if isinstance(trial, Failed):
            return {"failed": trial.stage}
        storages: list[int] = []
        return {
            "kernel": self._kernel(trial.kernel),
            "grid": list(trial.grid),
            "arguments": [self._argument(value, storages) for value in trial.arguments()],
            "hints": {name: str(value) for name, value in sorted(trial.hints.items())},
        }

    def _kernel(self, kernel: KernelObject) -> int:
        function = getattr(kernel, "_pyfunc", kernel)
        if id(function) not in self._kernels:
            self._kept.append(function)
            self._kernels[id(function)] = _index_in(self.sources, source_of(kernel))
        return self._kernels[id(function)]

    def _argument(self, value: CallValue, storages: list[int]) -> Json:
        if is_array(value):
            index, address = self._array(value)
            return f"array {index}, storage {_index_in(storages, address)}"
        if isinstance(value, (list, tuple)):
            return [self._argument(item, storages) for item in value]
        return flag_part(value)

    def _array(self, array: CallerArray) -> tuple[int, int]:
        """Its index among the descriptions and its address; read once for each object."""
        if id(array) not in self._places:
            facts = facts_of(array)
            self._kept.append(array)
            if self.device is None:
                self.device = device_of(array)
            self._places[id(array)] = _index_in(self.arrays, array_part(array)), facts.address if facts else 0
        return self._places[id(array)]


Item = TypeVar("Item")


def _index_in(items: list[Item], item: Item) -> int:
    """Its index; appended if it is not there."""
    if item not in items:
        items.append(item)
    return items.index(item)


def _current_device() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0


def widening() -> bool:
    value = os.environ.get(WIDEN, "").strip().lower()
    if value not in ON and value not in OFF:
        warn_once(f"{WIDEN}='{value}' is neither 1 nor 0: nothing is widened")
    return value in ON
