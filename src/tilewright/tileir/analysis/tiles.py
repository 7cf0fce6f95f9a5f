"""Finds the tile sizes with which a kernel divides the axes of its arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.languages.base import Argument
from tilewright.tileir.analysis.touched import Origins
from tilewright.tileir.read.tree import KernelEntry, PartitionViewType, StridedViewType

Axis = tuple[str, int]
"""The name of an array, and the number of one of its axes."""


def tile_sizes(entry: KernelEntry, arguments: Sequence[Argument]) -> Mapping[Axis, frozenset[int]]:
    """Returns the tile sizes along each axis that the kernel accesses by tiles, as opposed to pointers.

    arguments: the result of `Language.arguments`, one for each parameter.
    """
    if len(arguments) != len(entry.parameters):
        return {}
    origins, found = Origins(entry, arguments), dict[Axis, frozenset[int]]()
    for op in entry.walk():
        if (place := op.address) is None:
            continue
        for view in (each for types in op.operand_types.values() for each in types):
            if isinstance(view, (PartitionViewType, StridedViewType)):
                for size, axis in zip(view.tile, view.dim_map, strict=True):
                    for name in origins.arrays(place) or ():
                        found[name, axis] = found.get((name, axis), frozenset()) | {size}
    return found
