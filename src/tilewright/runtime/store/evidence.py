"""A stored winner: how a search becomes one, what is known of it, and how its kernel is called.

Kernels of one name in several modules are several kernels. The module of a stored launch tells them apart. A kernel is
called by the shortest ending of its full name that no other kernel of the store has: ``softmax``, or
``attention.softmax`` beside ``loss.softmax``. A user may give any ending that belongs to one kernel.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import RequestError, UnknownChoice
from tilewright.records import Json, Value
from tilewright.runtime.search.trials import FailedTrial, label
from tilewright.runtime.store.winners import Winner

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
    """``config``: index → the configuration, None if it has no named fields. The shipped one has index 0."""
    return Winner(
        key=key,
        kernel=kernel,
        parts=parts,
        config=config(result.best),
        index=result.best,
        label=labels[result.best],
        shipped=config(0),
        runner_up=None if result.runner_up is None else config(result.runner_up),
        outcomes=tuple(
            vars(outcome)
            | {
                "label": shown,
                "error": f"{outcome.error.__module__}:{outcome.error.__qualname__}" if outcome.error else None,
            }
            for shown, outcome in zip(labels, result.outcomes, strict=True)
        ),
        launches=launches,
        origin=origin,
        machine={name: parts[name] for name in ("board", "toolkit")}
        | {"host": platform.node(), "seconds": dict(result.seconds)},
        created="",
    )


def launches_of(trials: Sequence[Trial | FailedTrial], result: SearchResult) -> dict[str, Json]:
    """The launches that `tilewright tuned verify` races again, as data. Raises if one cannot be described."""
    from tilewright.runtime.capture.described import described

    places = {"winner": result.best, "runner_up": result.runner_up, "shipped": 0}
    chosen = {name: trials[place] for name, place in places.items() if place is not None}
    return {
        name: described(trial.kernel, trial.grid, trial.arguments()).to_json()
        for name, trial in chosen.items()
        if not isinstance(trial, FailedTrial)
    }


def winner_us(winner: Winner) -> float | None:
    """Its measured time in µs; None if it is not known."""
    return _us(winner, winner.index, "us")


def shipped_us(winner: Winner) -> float | None:
    """The shipped configuration's time in the same race; None if it was not timed. It is the first of a list; in a
    declared space it may be any."""
    shown = "" if winner.shipped is None else label(winner.shipped)
    place = next((place for place, outcome in enumerate(winner.outcomes) if outcome.get("label") == shown), 0)
    return _us(winner, place, "shipped_us")


def speedup(winner: Winner) -> float | None:
    """Over the shipped configuration: above 1 the winner is faster."""
    ours, theirs = winner_us(winner), shipped_us(winner)
    return theirs / ours if ours and theirs else None


def shapes(winner: Winner) -> str:
    """The arrays of the call, e.g. ``bfloat16 4096×1024, 4096``."""
    return shapes_of(winner.parts.get("arrays"))


def shapes_of(part: Json) -> str:
    """The arrays in a part of a key; the dtype is shown when it changes."""
    shown: list[str] = []
    last: Json = None
    for dtype, extents in _arrays(part):
        each = (f"≤{extent.get('up_to')}" if isinstance(extent, dict) else str(extent) for extent in extents)
        text = "×".join(each) or "scalar"
        shown.append(text if dtype == last else f"{dtype} {text}")
        last = dtype
    return ", ".join(shown)


def _arrays(part: Json) -> Iterator[tuple[Json, list[Json]]]:
    """dtype and extents of each array or bucket, in the order of the arguments."""
    if isinstance(part, dict) and "dtype" in part:
        extents = part.get("shape", part.get("bucket"))
        if isinstance(extents, list):
            yield part["dtype"], extents
            return
    items: Iterable[Json] = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for item in items:
        yield from _arrays(item)


def module(winner: Winner) -> str:
    """The module of its kernel, and the function or class inside it. Empty if it is not known."""
    launch = next(iter((winner.launches or {}).values()), None)
    if not isinstance(launch, dict):
        return str(winner.machine.get("module") or "")
    name = str(launch.get("module", ""))
    program = Path(str(launch.get("file", ""))).stem
    if name == "__main__" and program.isidentifier():
        name = program  # all programs are called __main__
    inside = str(launch.get("qualname", "")).replace("<locals>.", "").split(".")[:-1]
    return ".".join((name, *inside))


def board(winner: Winner) -> str:
    return str(winner.parts.get("board") or winner.machine.get("board") or "")


def toolkit(winner: Winner) -> str:
    return str(winner.parts.get("toolkit") or winner.machine.get("toolkit") or "")


def summary(winner: Winner) -> dict[str, Json]:
    """One line of `tilewright tuned list --json`."""
    return {
        "key": winner.key, "kernel": winner.kernel, "module": module(winner), "shapes": shapes(winner),
        "board": board(winner), "toolkit": toolkit(winner),
        "config": None if winner.config is None else dict(winner.config), "label": winner.label,
        "us": winner_us(winner), "shipped_us": shipped_us(winner), "speedup": speedup(winner),
        "created": winner.created, "origin": winner.origin,
    }  # fmt: skip


def _us(winner: Winner, place: int | None, imported: str) -> float | None:
    """From the outcomes. An imported winner has none, but the time from its row."""
    if place is not None and 0 <= place < len(winner.outcomes):
        outcome = winner.outcomes[place]
        us = outcome.get("us") if outcome.get("status") in ("timed", "duplicate") else None
    else:
        us = winner.machine.get(imported)
    return float(us) if isinstance(us, (int, float)) else None


# The names of kernels


class Kernels:
    """The kernels of a store, each with its winners."""

    def __init__(self, winners: Iterable[Winner]) -> None:
        self.winners = tuple(winners)
        modules: dict[str, set[str]] = {}
        for winner in self.winners:
            modules.setdefault(winner.kernel, set()).add(module(winner))
        self._by_key = {one.key: _full_name(one, modules[one.kernel] - {""}) for one in self.winners}
        self._full_names = tuple(dict.fromkeys(self._by_key.values()))
        self._called = {self._by_key[one.key]: self._shortest(one) for one in self.winners}

    def __iter__(self) -> Iterator[str]:
        """The short names of the kernels."""
        return iter(self._called.values())

    def called(self, winner: Winner) -> str:
        return self._called[self._by_key[winner.key]]

    def of(self, name: str | None) -> tuple[Winner, ...]:
        """The winners of one kernel; without a name, of all. The errors name the choices."""
        if name is None:
            return self.winners
        fitting = self._fitting(name)
        if not fitting:
            raise UnknownChoice("kernel", name, self)
        if len(fitting) > 1:
            names = ", ".join(self._called[full] for full in fitting)
            raise RequestError(f"'{name}' is the name of {len(fitting)} kernels; give one of: {names}")
        return tuple(winner for winner in self.winners if self._by_key[winner.key] == fitting[0])

    def _fitting(self, name: str) -> list[str]:
        if name in self._full_names:
            return [name]
        return [full for full in self._full_names if full.endswith(f".{name}")]

    def _shortest(self, winner: Winner) -> str:
        full = self._by_key[winner.key]
        before = full[: -len(winner.kernel)].split(".")
        for place in reversed(range(len(before))):
            ending = ".".join(before[place:]) + winner.kernel
            if self._fitting(ending) == [full]:
                return ending
        return full


def _full_name(winner: Winner, modules: set[str]) -> str:
    """``modules``: those with a kernel of this name. An imported winner whose config file names no module belongs to
    the only one; if there are several, its module is ``unknown``."""
    inside = module(winner)
    if not inside and modules:
        inside = next(iter(modules)) if len(modules) == 1 else "unknown"
    return f"{inside}.{winner.kernel}" if inside else winner.kernel
