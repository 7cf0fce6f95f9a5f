"""The problem of a call of the patched `exhaustive_search`: its trials, and its key.

The functions of a search may be closures over anything. So the key has their results instead of their sources: the
grid, arguments and hints of every candidate, in order. It has neither the contents of arrays nor the values of floats.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from tilewright.records import Json, Value
from tilewright.runtime.arrays import CallValue, KernelObject, Stream, facts_of, is_array
from tilewright.runtime.environment import device_of
from tilewright.runtime.key import array_part, flag_part, toolkit
from tilewright.runtime.modes import OFF, ON
from tilewright.runtime.patch.answering import Problem
from tilewright.runtime.patch.widening import LIMIT, named_values, widened
from tilewright.runtime.search.cutile_trials import trials
from tilewright.runtime.search.trials import Config, FailedTrial, Trial, label
from tilewright.runtime.store.warn_once import warn_once
from tilewright.source.digest import source_of

if TYPE_CHECKING:
    from cuda.tile.tune import TuningResult

Item = TypeVar("Item")

FORMAT = 1
"""The format of the key. Increase it when the meaning of a part changes: winners of another format are not found."""
WIDEN = "TILEWRIGHT_WIDEN"
NEIGHBOURS_TRIED = 4
"""With `WIDEN`, a search also tries neighbours of the given configurations. A neighbour that does the same work as an
earlier configuration is dropped. So that enough are left, ``NEIGHBOURS_TRIED`` times as many configurations are made as
the search may keep."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


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
