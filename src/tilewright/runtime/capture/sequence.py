"""Records the order of a process's first launches, and where their arrays are in memory.

The order shows which kernel reads what the kernel before it wrote (`pairs`). It ends at the first launch that capture
does not see: after `MOST` launches, or when a kernel is no longer examined at each launch (`kinds.LaunchCounter`).
Operations of torch are not launches. Capture only sees which arrays of a launch they change in place before the next
launch, because torch counts such changes in a tensor's version.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.runtime.arrays import handle_of
from tilewright.runtime.capture.described import LiveDescriptor, array_of
from tilewright.runtime.capture.kinds import PLAIN, LaunchKind
from tilewright.runtime.capture.language import LiveLaunch
from tilewright.runtime.capture.record import OrderedLaunch

MOST = 1024
"""The most launches of which the order is recorded: a few steps of a model with 50 layers. They take about 100 kB."""


class LaunchSequence:
    """The first launches of a process, in the order in which the program made them."""

    def __init__(self) -> None:
        self._launches: list[tuple[LaunchKind, int, tuple[int, ...], tuple[int, ...]]] = []
        self._before: list[tuple[weakref.ref[Any], int] | None] = []
        """The arrays of the last launch, each with its version; None for an array without a version."""
        self._is_closed = False

    def close(self) -> None:
        """Ends the sequence: the next launch may not be seen."""
        self._is_closed = True
        self._before.clear()

    def add(self, kind: LaunchKind, launch: LiveLaunch) -> None:
        if self._is_closed:
            return
        torch = sys.modules.get("torch")
        tensor = None if torch is None else torch.Tensor
        arrays = list(_arrays(launch.args, tensor))
        changed = tuple(index for index, before in enumerate(self._before) if before and _has_changed(*before))
        addresses = tuple(address for _, address in arrays)
        self._launches.append((kind, handle_of(launch.stream), addresses, changed))
        self._before = [_with_version(value, tensor) for value, _ in arrays]
        if len(self._launches) == MOST:
            self.close()

    def recorded(self, places: Mapping[LaunchKind, int]) -> tuple[OrderedLaunch, ...]:
        """Returns the sequence. ``places``: the place of each kind in `ProcessRecord.launches`."""
        return tuple(
            OrderedLaunch(places[kind], stream, addresses, changed)
            for kind, stream, addresses, changed in self._launches
        )


def _arrays(values: Sequence[Any], tensor: type[Any] | None) -> Iterator[tuple[Any, int]]:
    """Yields the arrays among arguments with their addresses, in the order of `DescribedLaunch.arrays`."""
    for value in values:
        if tensor is not None and isinstance(value, tensor):
            yield value, 0 if value.is_meta else int(value.data_ptr())
        elif type(value) in PLAIN or type(value) is float:
            continue
        elif isinstance(value, (list, tuple)):
            yield from _arrays(value, tensor)
        elif isinstance(value, LiveDescriptor):
            yield from _arrays((value.base,), tensor)
        elif (placed := array_of(value)) is not None:
            yield value, placed[1]


def _with_version(value: Any, tensor: type[Any] | None) -> tuple[weakref.ref[Any], int] | None:
    """Returns a weak reference to a tensor and its version. The tensor lives no longer than without capture."""
    if tensor is None or not isinstance(value, tensor) or value.is_inference():
        return None
    whole = value if value._base is None else value._base  # a view may be gone before the next launch; one version
    return weakref.ref(whole), int(whole._version)


def _has_changed(reference: weakref.ref[Any], version: int) -> bool:
    value = reference()
    return value is not None and value._version != version
