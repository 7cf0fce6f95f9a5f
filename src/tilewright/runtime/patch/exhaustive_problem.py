"""A call of `exhaustive_search` made ready: its configurations, what each would launch, and the key of it all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tilewright.errors import RequestError
from tilewright.records import Failed
from tilewright.runtime.key import board_of, digest
from tilewright.runtime.modes import OFF, ON
from tilewright.runtime.patch import candidate_key
from tilewright.runtime.patch.widening import LIMIT, widened
from tilewright.runtime.search.trials import Trial, checked_space, label, trials
from tilewright.runtime.store.warn_once import warn_once

WIDEN = "TILEWRIGHT_WIDEN"
NEIGHBOURS_TRIED = 4
"""So many times `LIMIT` neighbours are looked at; those that launch what another launches do not count."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class EmptySpace(RequestError, ValueError):
    """As cuda-tile raises it: there is nothing to search, or nothing that works."""


class NoSequence(RequestError, TypeError):
    """As cuda-tile raises it for a generator."""


@dataclass(frozen=True)
class SearchCall:
    """The arguments of one call, by the names that cuda-tile gives them."""

    search_space: Sequence[Any]
    stream: Any
    grid_fn: Callable[[Any], tuple[int, ...]]
    kernel: Any
    args_fn: Callable[[Any], tuple[Any, ...]]
    hints_fn: Callable[[Any], Mapping[str, Any]] | None
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
    """``space`` may hold more than was asked for; its first is the caller's first. The rest is in its order."""

    space: tuple[Any, ...]
    trials: tuple[Trial | Failed, ...]
    labels: tuple[str, ...]
    parts: Mapping[str, Any]
    """Of the key, by name."""
    key: str

    @property
    def kernel(self) -> str:
        """The name of the first kernel."""
        for trial in self.trials:
            if isinstance(trial, Trial):
                function = getattr(trial.kernel, "_pyfunc", trial.kernel)
                return str(getattr(function, "__qualname__", type(function).__name__))
        return "a kernel that cannot be launched"


def checked(space: Any) -> tuple[Any, ...]:
    try:
        return tuple(checked_space(space))
    except RequestError as error:
        empty = hasattr(space, "__len__") and len(space) == 0
        raise (EmptySpace if empty else NoSequence)(str(error)) from None


def problem_of(
    request: SearchCall, space: Sequence[Any], hints: Mapping[str, int], board: Callable[[int], str] = board_of
) -> Problem:
    """The trials and the key. ``hints``: those that the caller launches with, for every trial.

    With `TILEWRIGHT_WIDEN` neighbours follow, as far as they launch other work than those before them.
    """
    if hints:
        request = replace(request, hints_fn=lambda _: hints)
    described, limit = candidate_key.SharedDescriptions(), max(LIMIT, len(space))
    listed = list(islice(widened(space), NEIGHBOURS_TRIED * limit)) if widening() else list(space)
    kept: list[tuple[Any, Trial | Failed, str, dict[str, Any]]] = []
    seen = set()
    for place, (config, trial) in enumerate(zip(listed, _trials(request, listed), strict=True)):
        candidate = _candidate(described, trial)
        work = candidate_key.identity(candidate)
        if place < len(space) or (len(kept) < limit and work not in seen and "failed" not in candidate):
            kept.append((config, trial, _ADDRESS.sub("", label(config)), candidate))
            seen.add(work)
    configs, made, labels, candidates = zip(*kept, strict=True)
    parts = candidate_key.parts_of(labels, candidates, described, request.flush_l2, board)
    if hints:
        parts["launched_hints"] = dict(hints)
    return Problem(configs, made, labels, parts, digest(parts))


def _trials(request: SearchCall, space: Sequence[Any]) -> Sequence[Trial | Failed]:
    return trials(space, request.grid_fn, request.kernel, request.args_fn, request.hints_fn)


def _candidate(described: candidate_key.SharedDescriptions, trial: Trial | Failed) -> dict[str, Any]:
    try:
        return described.candidate(trial)
    except Exception:  # args_fn of this configuration: the search meets it again, and says so
        return {"failed": "arguments"}


def widening() -> bool:
    said = os.environ.get(WIDEN, "").strip().lower()
    if said not in ON and said not in OFF:
        warn_once(f"{WIDEN}='{said}' is neither 1 nor 0: nothing is widened")
    return said in ON
