"""What a stored winner says of itself: times, gain over the shipped configuration, and shapes, in a few words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tilewright.runtime.search.trials import label
from tilewright.runtime.store.winners import Winner


def winner_us(winner: Winner) -> float | None:
    """Its measured time in µs; None where nothing says it."""
    return _us(winner, winner.index, "us")


def shipped_us(winner: Winner) -> float | None:
    """The shipped configuration's time in the same race; None where it was not timed."""
    return _us(winner, _shipped_place(winner), "shipped_us")


def speedup(winner: Winner) -> float | None:
    """Over the shipped configuration: above 1 the winner is faster."""
    ours, theirs = winner_us(winner), shipped_us(winner)
    return theirs / ours if ours and theirs else None


def shapes(winner: Winner) -> str:
    """The arrays of the call, e.g. ``bfloat16 4096×1024, 4096``; each shape with its dtype where that changes."""
    shown: list[str] = []
    dtype: Any = None
    for array in _arrays(winner.parts.get("arrays")):
        extents = "×".join(map(_extent, _extents(array))) or "scalar"
        shown.append(extents if array["dtype"] == dtype else f"{array['dtype']} {extents}")
        dtype = array["dtype"]
    return ", ".join(shown)


def _arrays(value: Any) -> Iterator[Mapping[str, Any]]:
    """In the order of the arguments; those of a bucket too."""
    if isinstance(value, Mapping) and isinstance(_extents(value), (list, tuple)):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _arrays(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _arrays(one)


def _extents(value: Mapping[str, Any]) -> Any:
    """Those of an array or of a bucket; None of what is neither."""
    return value.get("shape", value.get("bucket")) if "dtype" in value else None


def _extent(extent: Any) -> str:
    return f"≤{extent.get('up_to')}" if isinstance(extent, Mapping) else str(extent)


def module(winner: Winner) -> str:
    """Where its kernel stands: a module, and the function or class inside it. Empty where nothing says it."""
    launch = next(iter((winner.launches or {}).values()), None)
    if not isinstance(launch, Mapping):
        return str(winner.machine.get("module") or "")
    found = str(launch.get("module", ""))
    program = Path(str(launch.get("file", ""))).stem
    if found == "__main__" and program.isidentifier():
        found = program  # else the same for all programs
    inside = str(launch.get("qualname", "")).replace("<locals>.", "").split(".")[:-1]
    return ".".join((found, *inside))


def board(winner: Winner) -> str:
    return str(winner.parts.get("board") or winner.machine.get("board") or "")


def toolkit(winner: Winner) -> str:
    return str(winner.parts.get("toolkit") or winner.machine.get("toolkit") or "")


def summary(winner: Winner) -> dict[str, Any]:
    """One line of `tilewright tuned list --json`."""
    return {
        "key": winner.key, "kernel": winner.kernel, "module": module(winner), "shapes": shapes(winner),
        "board": board(winner), "toolkit": toolkit(winner), "config": winner.config, "label": winner.label,
        "us": winner_us(winner), "shipped_us": shipped_us(winner), "speedup": speedup(winner),
        "created": winner.created, "origin": winner.origin,
    }  # fmt: skip


def _shipped_place(winner: Winner) -> int | None:
    """The shipped configuration is the first of a list, and anywhere in a declared space."""
    if winner.shipped is not None:
        shown = label(winner.shipped)
        for place, outcome in enumerate(winner.outcomes):
            if outcome.get("label") == shown:
                return place
    return 0


def _us(winner: Winner, place: int | None, imported: str) -> float | None:
    """From the outcomes, which an imported winner has not; its row had the time."""
    if place is not None and 0 <= place < len(winner.outcomes):
        outcome = winner.outcomes[place]
        us = outcome.get("us") if outcome.get("status") in ("timed", "duplicate") else None
    else:
        us = winner.machine.get(imported)
    return float(us) if isinstance(us, (int, float)) else None
