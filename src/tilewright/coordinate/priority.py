"""Orders the work by impact / effort; then by impact, risk, dependencies and interactions.

The order depends only on the items, not on the order in which they arrive. A prerequisite precedes all items that need
it, whatever their impact.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from tilewright.coordinate.analysis import Level, Recommendation
from tilewright.coordinate.routing import route
from tilewright.errors import RequestError

ChangeRisk: TypeAlias = Literal["lossless", "lossy", "irreversible"]
_AMOUNT: Mapping[str, int] = MappingProxyType({"Low": 1, "Medium": 2, "High": 3})
_RISK: Mapping[str, int] = MappingProxyType({"lossless": 0, "lossy": 1, "irreversible": 2})

EFFORT: Mapping[str, Level] = MappingProxyType({
    "profiling": "Low", "tileir": "Low", "cuda-graph": "Medium", "distributed": "Medium", "cutile": "High",
    "triton": "High", "cute-dsl": "High",
})  # fmt: skip
"""Specialist → the estimated effort of one of its changes. An option or another call is little effort, a kernel is
much."""
LOSSY = ("precision", "bf16", "fp16", "fp8", "fp4", "tf32", "quantiz", "quantis", "approximate")
"""Words that describe changes of the rounding."""


@dataclass(frozen=True)
class WorkItem:
    """One change to try.

    requires: ids of the items that must be done before.
    conflicts: ids of the items whose effect it changes.
    """

    id: str
    text: str
    impact: Level
    effort: Level = "Medium"
    risk: ChangeRisk = "lossless"
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    specialists: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """Ids of the profile's findings that the item is about."""
    tag: str = ""
    """The name of the principle by which it saves time, if a profile names it."""
    change: str = ""
    """The name of the change; "" if the specialists choose it."""


def item_of(recommendation: Recommendation) -> WorkItem:
    """Makes the item of a recommendation. The specialists come from `route`, the effort from `EFFORT`."""
    to = route(recommendation.text).specialists
    efforts = [EFFORT.get(name, "Medium") for name in to] or ["Medium"]
    lossy = any(word in recommendation.text.lower() for word in LOSSY)
    return WorkItem(
        f"R{recommendation.number}", recommendation.text, recommendation.level,
        effort=max(efforts, key=_AMOUNT.__getitem__), risk="lossy" if lossy else "lossless", specialists=to,
    )  # fmt: skip


def ranked(items: Iterable[WorkItem]) -> tuple[WorkItem, ...]:
    """Returns the items in the order of the work.

    Raises RequestError if two items have the same id, if an item requires an unknown one, or if requirements form a
    circle.
    """
    items = tuple(items)
    known = {item.id: item for item in items}
    if len(known) != len(items):
        raise RequestError("two items have the same id; give each its own")
    for item in items:
        if unknown := sorted(set(item.requires) - set(known)):
            raise RequestError(f"{item.id} requires {unknown[0]}, which is not among {', '.join(sorted(known))}")
    waiting = {item.id: set(item.requires) for item in items}
    keys = _keys(items)
    ready = [keys[name] for name, requires in waiting.items() if not requires]
    heapq.heapify(ready)
    order: list[WorkItem] = []
    while ready:
        done = known[heapq.heappop(ready)[-1]]
        order.append(done)
        for name, requires in waiting.items():
            if done.id in requires:
                requires.remove(done.id)
                if not requires:
                    heapq.heappush(ready, keys[name])
    if len(order) < len(items):
        circle = sorted(set(known) - {item.id for item in order})
        raise RequestError(f"{', '.join(circle)} require each other in a circle; remove one of these requirements")
    return tuple(order)


def _keys(items: Sequence[WorkItem]) -> dict[str, tuple[float, int, int, int, int, str]]:
    """Returns the sort key of each item, by id. The id is also the last part of the key, so no two keys are equal."""
    needed = {item.id: sum(item.id in other.requires for other in items) for item in items}
    touched = {item.id: sum(item.id in other.conflicts for other in items) + len(item.conflicts) for item in items}
    return {
        item.id: (
            -_AMOUNT[item.impact] / _AMOUNT[item.effort], -_AMOUNT[item.impact], _RISK[item.risk], -needed[item.id],
            touched[item.id], item.id,
        )
        for item in items
    }  # fmt: skip
