"""What is known of a stored winner: its times, its gain over the shipped configuration, its shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tilewright.records import Json
from tilewright.runtime.search.trials import label
from tilewright.runtime.store.winners import Winner


def winner_us(winner: Winner) -> float | None:
    """Its measured time in µs; None if it is not known."""
    return _us(winner, winner.index, "us")


def shipped_us(winner: Winner) -> float | None:
    """The shipped configuration's time in the same race; None if it was not timed."""
    return _us(winner, _shipped_place(winner), "shipped_us")


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
        text = (
            "×".join(f"≤{extent.get('up_to')}" if isinstance(extent, dict) else str(extent) for extent in extents)
            or "scalar"
        )
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


def _shipped_place(winner: Winner) -> int | None:
    """The index of the shipped configuration: 0 in a list; in a declared space it may be any."""
    if winner.shipped is not None:
        shown = label(winner.shipped)
        for place, outcome in enumerate(winner.outcomes):
            if outcome.get("label") == shown:
                return place
    return 0


def _us(winner: Winner, place: int | None, imported: str) -> float | None:
    """From the outcomes. An imported winner has none, but the time from its row."""
    if place is not None and 0 <= place < len(winner.outcomes):
        outcome = winner.outcomes[place]
        us = outcome.get("us") if outcome.get("status") in ("timed", "duplicate") else None
    else:
        us = winner.machine.get(imported)
    return float(us) if isinstance(us, (int, float)) else None
