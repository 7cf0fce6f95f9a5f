"""Kinds of launch, and how many launches of a kernel are of each.

Launches of one kind have equal kernels, hints and grids, equal shapes, strides, dtypes and alignments of their arrays,
and equal other arguments. The value of a floating-point scalar does not count, unless it is a constant.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from types import FunctionType
from typing import Any, TypeAlias

from tilewright.runtime.arrays import CallValue, KernelObject
from tilewright.runtime.capture.counting import Cell, LaunchCounter, estimated
from tilewright.runtime.capture.described import DescribedLaunch, array_of
from tilewright.runtime.capture.record import Recorded
from tilewright.runtime.capture.timing import Sampled

ALIGNMENT = 15
"""Of an address: a launch specialises on whether it is a multiple of 16."""
PLAIN = frozenset({int, bool, str, type(None)})
"""Types of arguments whose value is a part of the key."""

LaunchKey: TypeAlias = tuple[Hashable, ...]


class LaunchKind:
    """One kind of launch."""

    __slots__ = ("data", "error", "failed", "in_graph", "launch", "next", "own", "sampled")

    def __init__(self, launch: DescribedLaunch, data: dict[str, str]) -> None:
        self.launch, self.data, self.sampled = launch, data, Sampled()
        self.own, self.in_graph = Cell(), Cell()
        """Launches that the process made, and those that it recorded into a CUDA graph."""
        self.next = 1
        """The number of its next launch to time, among its own launches that are looked at."""
        self.failed = 0
        self.error = ""


class RecordedKernel:
    """One function with its hints, for all kernel objects that the program makes of it."""

    def __init__(self, function: FunctionType, constants: tuple[bool, ...], counter: LaunchCounter) -> None:
        self.function = function
        """Kept, so that no other function gets its id."""
        self.constants = constants
        """Of each parameter, whether it is a constant."""
        self.objects: list[KernelObject] = []
        self.forget(counter)

    def forget(self, counter: LaunchCounter) -> None:
        """Forgets all launches."""
        self.counter = counter
        self.kinds: dict[LaunchKey, LaunchKind] = {}
        self.others, self.lost = Cell(), Cell()
        """Launches of more kinds than are described, and launches that cannot be described."""

    def last(self) -> LaunchKind:
        """The kind whose count includes launches of further kinds."""
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


def key_of(grid: Sequence[int], args: Sequence[Any], constants: Sequence[bool]) -> LaunchKey:
    """Equal for launches of one kind of one kernel. It has the types too, because 1, 1.0 and True are equal."""
    torch = sys.modules.get("torch")
    tensor = None if torch is None else torch.Tensor
    key: list[Hashable] = [*grid]
    for value, constant in zip(args, constants, strict=False):
        made = type(value)
        key.append(made)  # type: ignore[arg-type]
        if made in PLAIN:
            key.append(value)
        elif made is tensor:  # inlined: this is most of the cost of a look
            key += (value.shape, value.stride(), value.dtype, value.data_ptr() & ALIGNMENT)
        else:
            key.append(_part(value, constant, tensor))
    return tuple(key)


def _part(value: CallValue, constant: bool, tensor: type[Any] | None) -> Hashable:
    if isinstance(value, float):
        return value if constant else None
    if isinstance(value, (int, str)):
        return value
    if tensor is not None and isinstance(value, tensor):
        return value.shape, value.stride(), value.dtype, value.data_ptr() & ALIGNMENT
    if isinstance(value, (list, tuple)):
        return key_of((), value, (constant,) * len(value))
    if (placed := array_of(value)) is None:
        return repr(value)
    array, address = placed
    return array.shape, array.strides, array.dtype, address & ALIGNMENT
