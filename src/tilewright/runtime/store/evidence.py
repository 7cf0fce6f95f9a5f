"""Makes a winner from a search, reads facts from a stored winner, and names the kernels of a store.

Kernels with the same name in several modules are different kernels. The module in a stored launch distinguishes them. A
kernel is shown as the shortest ending of its full name that no other kernel of the store has: ``softmax``, or
``attention.softmax`` beside ``loss.softmax``. A user may give any ending that only one kernel has.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tilewright.errors import RequestError, UnknownChoice
from tilewright.records import Json, Value
from tilewright.runtime.search.trials import FailedTrial, label
from tilewright.runtime.store.winners import Place, Winner

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult
    from tilewright.runtime.search.trials import Trial


def winner_of(
    result: SearchResult,
    *,
    key: str,
    kernel: str,
    parts: Mapping[str, Json],
    labels: Sequence[str],
    config: Callable[[int], Mapping[str, Value] | None],
    launches: Mapping[str, Json] | None,
    origin: str,
) -> Winner:
    """Makes the winner of a search. The shipped configuration must have index 0. ``config``: returns the configuration
    with an index, or None if it has no named fields."""
    outcomes = []
    for shown, outcome in zip(labels, result.outcomes, strict=True):
        error = f"{outcome.error.__module__}:{outcome.error.__qualname__}" if outcome.error else None
        outcomes.append(vars(outcome) | {"label": shown, "error": error})
    return Winner(
        key=key,
        kernel=kernel,
        parts=parts,
        config=config(result.best),
        index=result.best,
        label=labels[result.best],
        shipped=config(0),
        runner_up=None if result.runner_up is None else config(result.runner_up),
        outcomes=tuple(outcomes),
        launches=launches,
        origin=origin,
        machine={
            "board": parts["board"], "toolkit": parts["toolkit"], "host": platform.node(),
            "seconds": dict(result.seconds),
        },
    )  # fmt: skip


def launches_of(trials: Sequence[Trial | FailedTrial], result: SearchResult) -> dict[str, Json]:
    """Returns as JSON the launches that `tilewright tuned verify` races again. Raises if one cannot be described."""
    from tilewright.runtime.capture.described import described

    indices = {"winner": result.best, "runner_up": result.runner_up, "shipped": 0}
    tried = {name: trials[index] for name, index in indices.items() if index is not None}
    chosen = {name: trial if isinstance(trial, FailedTrial) else trial.placed() for name, trial in tried.items()}
    launches = {
        name: described(trial.kernel, trial.grid, trial.arguments())
        for name, trial in chosen.items()
        if not isinstance(trial, FailedTrial)
    }
    places = {(launch.file, launch.qualname) for launch in launches.values()}
    texts = {place: _text(*place) for place in places}  # often one: to read a file takes longer than all else here
    return {
        name: replace(launch, text=texts[launch.file, launch.qualname]).to_json() for name, launch in launches.items()
    }


def _text(file: str, qualname: str) -> str:
    """Returns the digest that `unchanged` compares before it executes the kernel's file; empty without a file."""
    from tilewright.source.needed import digest_of_needed

    try:
        return digest_of_needed(Path(file), qualname)
    except RequestError:  # a kernel of a notebook or of another generated source
        return ""


def winner_us(winner: Winner) -> float | None:
    """Returns the winner's measured time in µs; None if the time is not known."""
    return _us(winner, winner.index, "us")


def shipped_us(winner: Winner) -> float | None:
    """Returns the shipped configuration's time in µs from the same race; None if it was not timed. The configuration is
    found by its label, because a declared space may have it at any index."""
    shown = "" if winner.shipped is None else label(winner.shipped)
    index = next((index for index, outcome in enumerate(winner.outcomes) if outcome.get("label") == shown), 0)
    return _us(winner, index, "shipped_us")


def speedup(winner: Winner) -> float | None:
    """Returns the shipped configuration's time divided by the winner's; None if one of the times is not known."""
    us, before = winner_us(winner), shipped_us(winner)
    return before / us if us and before else None


def shapes(winner: Winner) -> str:
    """Returns the arrays of the call as text, e.g. ``bfloat16 4096×1024, 4096``. Of a kernel under `triton.autotune`,
    returns the values of its ``key``, e.g. ``M=4096, N=1024``."""
    if isinstance(key := winner.parts.get("key"), dict):
        return ", ".join(f"{name}={value}" for name, value in key.items())
    return shapes_of(winner.parts.get("arrays"))


def shapes_of(part: Json) -> str:
    """Returns the arrays in a part of a key as text. A dtype is shown only if it differs from the dtype of the previous
    array.
    """
    shown: list[str] = []
    last: Json = None
    for dtype, extents in _arrays(part):
        each = (f"≤{extent.get('up_to')}" if isinstance(extent, dict) else str(extent) for extent in extents)
        text = "×".join(each) or "scalar"
        shown.append(text if dtype == last else f"{dtype} {text}")
        last = dtype
    return ", ".join(shown)


def _arrays(part: Json) -> Iterator[tuple[Json, list[Json]]]:
    """Yields the dtype and extents of each array or bucket, in the order of the arguments."""
    if isinstance(part, dict) and "dtype" in part:
        extents = part.get("shape", part.get("bucket"))
        if isinstance(extents, list):
            yield part["dtype"], extents
            return
    items: Iterable[Json] = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for item in items:
        yield from _arrays(item)


def module(winner: Winner) -> str:
    """Returns the module of the kernel, and the function or class around the kernel; empty if not known."""
    launch = next(iter((winner.launches or {}).values()), None)
    names = [launch.get(name) for name in ("module", "file", "qualname")] if isinstance(launch, dict) else [None] * 3
    return _module(*(None if name is None else str(name) for name in names), str(winner.machine.get("module") or ""))


@lru_cache(maxsize=1024)
def _module(name: str | None, file: str | None, qualname: str | None, of_imported: str) -> str:
    if name is None and file is None and qualname is None:
        return of_imported
    program = Path(file or "").stem
    if name == "__main__" and program.isidentifier():
        name = program  # the module of every program is called __main__
    inside = (qualname or "").replace("<locals>.", "").split(".")[:-1]
    return ".".join((name or "", *inside))


def board(winner: Winner) -> str:
    return str(winner.parts.get("board") or winner.machine.get("board") or "")


def toolkit(winner: Winner) -> str:
    return str(winner.parts.get("toolkit") or winner.machine.get("toolkit") or "")


def summary(winner: Winner) -> dict[str, Json]:
    """Returns the winner as an entry of `tilewright tuned list --json`."""
    return {
        "key": winner.key, "kernel": winner.kernel, "module": module(winner), "shapes": shapes(winner),
        "board": board(winner), "toolkit": toolkit(winner),
        "config": None if winner.config is None else dict(winner.config), "label": winner.label,
        "us": winner_us(winner), "shipped_us": shipped_us(winner), "speedup": speedup(winner),
        "created": winner.created, "origin": winner.origin, "from": winner.came_from or None,
    }  # fmt: skip


def _us(winner: Winner, index: int | None, imported: str) -> float | None:
    """Returns the time in µs of the configuration at ``index``.

    imported: the name of the time in ``machine``. An imported winner has this time, but no outcomes.
    """
    if index is not None and 0 <= index < len(winner.outcomes):
        outcome = winner.outcomes[index]
        us = outcome.get("us") if outcome.get("status") in ("timed", "duplicate") else None
    else:
        us = winner.machine.get(imported)
    if not isinstance(us, (int, float)) or not 0 < us <= sys.float_info.max:  # the store may have been changed
        return None
    return float(us)


class OfKernel(Protocol):
    """A winner, or the verdict on one."""

    @property
    def key(self) -> str: ...
    @property
    def kernel(self) -> str: ...


class Kernels:
    """The names of the kernels of a store. Nothing is read before a name is asked for.

    places: returns key, kernel and place of each winner (`Winners.places`).
    """

    def __init__(self, places: Callable[[], Iterable[tuple[str, str, Place]]]) -> None:
        self._places = places

    @cached_property
    def _inside(self) -> dict[str, tuple[str, str]]:
        """Maps a key to the kernel and its module."""
        return {
            key: (kernel, _module(*map(_text_or_none, place[:3]), str(place[3] or "")))
            for key, kernel, place in self._places()
        }

    @cached_property
    def _by_key(self) -> dict[str, str]:
        """Maps a key to the kernel's full name."""
        modules: dict[str, set[str]] = {}
        for kernel, inside in self._inside.values():
            modules.setdefault(kernel, set()).add(inside)
        return {key: _full_name(*each, modules[each[0]] - {""}) for key, each in self._inside.items()}

    @cached_property
    def _kernels(self) -> dict[str, str]:
        """Maps each full name to the kernel's own name."""
        return {self._by_key[key]: kernel for key, (kernel, _) in self._inside.items()}

    @cached_property
    def _called(self) -> dict[str, str]:
        """Maps each full name to the short one."""
        return {full: self._shortest(full, kernel) for full, kernel in self._kernels.items()}

    def __iter__(self) -> Iterator[str]:
        """Yields the short names of the kernels."""
        return iter(self._called.values())

    def __len__(self) -> int:
        """Returns the number of winners."""
        return len(self._by_key)

    def called(self, winner: OfKernel) -> str:
        """Returns the short name of the winner's kernel."""
        return self._called.get(self._by_key.get(winner.key, ""), winner.kernel)

    def of(self, name: str | None, winners: Iterable[Winner]) -> Iterator[Winner]:
        """Returns the winners of the kernel called ``name``; None means all kernels. Raises an error that lists the
        kernels if none or several have the name."""
        if name is None:
            return iter(winners)
        fitting = self._fitting(name)
        if not fitting:
            raise UnknownChoice("kernel", name, self)
        if len(fitting) > 1:
            names = ", ".join(self._called[full] for full in fitting)
            raise RequestError(f"'{name}' is the name of {len(fitting)} kernels; give one of: {names}")
        return (winner for winner in winners if self._by_key.get(winner.key) == fitting[0])

    def _fitting(self, name: str) -> list[str]:
        return [name] if name in self._kernels else [n for n in self._kernels if n.endswith(f".{name}")]

    def _shortest(self, full: str, kernel: str) -> str:
        before = full[: -len(kernel)].split(".")
        for index in reversed(range(len(before))):
            ending = ".".join(before[index:]) + kernel
            if self._fitting(ending) == [full]:
                return ending
        return full


def _text_or_none(value: Value) -> str | None:
    return None if value is None else str(value)


@lru_cache(maxsize=1024)
def _joined(module: str, kernel: str) -> str:
    """Returns the full name, one object for all winners of a kernel."""
    return f"{module}.{kernel}" if module else kernel


def _full_name(kernel: str, inside: str, modules: set[str]) -> str:
    """Returns the module and name of a winner's kernel. ``modules``: the modules with a kernel of this name. An
    imported winner may have no module. It then gets the only module in ``modules``, or ``unknown`` if there are
    several."""
    if not inside and modules:
        inside = next(iter(modules)) if len(modules) == 1 else "unknown"
    return _joined(inside, kernel)
