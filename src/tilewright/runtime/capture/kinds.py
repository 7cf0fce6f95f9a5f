"""Kinds of launch, and how many launches of a kernel are of each.

Two launches are of one kind when their kernel and its hints, the grid, the shapes, strides, dtypes and alignment of
their arrays, and their other arguments are equal; of a floating-point scalar that is no constant only that it is one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tilewright.runtime.capture.counting import Cell, LaunchCounter, estimated
from tilewright.runtime.capture.described import DescribedLaunch, array_of
from tilewright.runtime.capture.record import Recorded
from tilewright.runtime.capture.timing import Sampled

ALIGNMENT = 15
"""Of an address: a launch specialises on whether it is a multiple of 16."""
PLAIN = frozenset({int, bool, str, type(None)})
"""Arguments that tell kinds apart by what they are."""

Key = tuple[Any, ...]


class LaunchKind:
    """One kind of launch."""

    __slots__ = ("data", "error", "failed", "in_graph", "launch", "next", "own", "sampled")

    def __init__(self, launch: DescribedLaunch, data: dict[str, str]) -> None:
        self.launch, self.data, self.sampled = launch, data, Sampled()
        self.own, self.in_graph = Cell(), Cell()
        """Launches that the process made, and those that it recorded into a CUDA graph."""
        self.next = 1
        """Which of its own launches that are looked at is timed next."""
        self.failed = 0
        self.error = ""


class RecordedKernel:
    """One function with its hints, whatever objects of `ct.kernel` the program makes of it."""

    def __init__(self, function: Any, constants: tuple[bool, ...], counter: LaunchCounter) -> None:
        self.function = function
        """Kept, so that its id stays taken."""
        self.constants = constants
        """Of each parameter, whether it is a constant."""
        self.objects: list[Any] = []
        self.forget(counter)

    def forget(self, counter: LaunchCounter) -> None:
        """As if nothing had been launched."""
        self.counter = counter
        self.kinds: dict[Key, LaunchKind] = {}
        self.others, self.lost = Cell(), Cell()
        """Launches of more kinds than are described, and launches that cannot be described."""

    def last(self) -> LaunchKind:
        """The kind that further kinds are counted with."""
        return next(reversed(self.kinds.values()))

    def recorded(self) -> list[Recorded]:
        kinds = list(self.kinds.values())
        cells = [self.others, self.lost, *(cell for kind in kinds for cell in (kind.own, kind.in_graph))]
        counts = estimated(self.counter.made, cells)
        return [self._recorded(kind, counts, last=kind is kinds[-1]) for kind in kinds]

    def _recorded(self, kind: LaunchKind, counts: dict[Cell, int], last: bool) -> Recorded:
        cells = [kind.own, kind.in_graph, *([self.others] if last else [])]
        times = kind.sampled
        return Recorded(
            kind.launch,
            count=sum(counts[cell] for cell in cells),
            in_graph=counts[kind.in_graph],
            failed=kind.failed,
            error=kind.error,
            busy=times.busy,
            idle=times.idle,
            host=times.host,
            data=kind.data,
            others=counts[self.others] if last else 0,
            estimated=sum(max(0, counts[cell] - cell.seen) for cell in cells),
        )


def key_of(grid: Sequence[Any], args: Sequence[Any], constants: Sequence[bool]) -> Key:
    """What tells the kinds of launches of one kernel apart. The types too: 1, 1.0 and True are equal."""
    torch = sys.modules.get("torch")
    tensor: Any = None if torch is None else torch.Tensor
    key: list[Any] = [*grid]
    for value, constant in zip(args, constants, strict=False):
        made = type(value)
        key.append(made)
        if made in PLAIN:
            key.append(value)
        elif made is tensor:  # the usual ones written out: this is most of what a look costs
            key += (value.shape, value.stride(), value.dtype, value.data_ptr() & ALIGNMENT)
        else:
            key.append(_part(value, constant, tensor))
    return tuple(key)


def _part(value: Any, constant: bool, tensor: Any) -> Any:
    if isinstance(value, float):
        return value if constant else None
    if isinstance(value, (int, str)):
        return value
    if tensor is not None and isinstance(value, tensor):
        return value.shape, value.stride(), value.dtype, value.data_ptr() & ALIGNMENT
    if isinstance(value, (list, tuple)):
        return key_of((), value, (constant,) * len(value))
    found = array_of(value)
    if found is None:
        return repr(value)
    array, address = found
    return array.shape, array.strides, array.dtype, address & ALIGNMENT
