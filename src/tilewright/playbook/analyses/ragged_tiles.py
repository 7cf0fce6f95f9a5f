"""Adds zero padding to a kernel's loads when a new tile size needs it.

A task may serve only shapes that consist of whole tiles of the shipped size. With a larger tile, the last tile of such
a shape reaches beyond the array. A load that names no padding then leaves elements undefined, and what the kernel
computes of them may reach the result: zero times NaN is NaN. On GPUs with TMA, zeros cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from tilewright.errors import TilewrightError
from tilewright.playbook.analyses.configuration_sites import ConfigurationSite, read_changes, written
from tilewright.playbook.base import KernelFacts, Site
from tilewright.records import Value, Workload
from tilewright.source.syntax import Source, argument, with_argument
from tilewright.space import knobs

PADDED = "zero_padding"
"""The name in a value, ``TILE_M=128,zero_padding=True``, that asks for zero padding."""


def value_with_padding(
    place: ConfigurationSite, changes: Mapping[str, Value], source: Source, facts: KernelFacts
) -> str:
    """Returns ``changes`` as the value of a site, with zero padding if the kernel's loads need it with these tiles."""
    known = facts.kernel in source.kernels and PADDED not in facts.task.space.knobs and source.spelled("PaddingMode")
    needed = known and _unpadded(source, facts.kernel) and _ragged(changes, facts)
    return place.value({**changes, **({PADDED: True} if needed else {})})


def written_with_padding(source: Source, site: Site, value: Value) -> str:
    """Returns the text with the ``value`` of `value_with_padding` at ``site``. Raises `NotApplicable`."""
    changes = read_changes(str(value))
    if not changes.pop(PADDED, False):
        return written(source, site, changes)
    changed = Source(source.name, written(source, site, changes))
    zero = f"{changed.spelled('PaddingMode')}.ZERO"
    loads = _unpadded(changed, site.kernel)
    return changed.changed({call: with_argument(call, "padding_mode", zero) for call in loads}).text


def _unpadded(source: Source, kernel: str) -> list[cst.Call]:
    """Returns the tile loads without padding, of the kernel and of the functions that it calls."""
    functions = [source.functions[name] for name in sorted(source.called_by([kernel]))]
    loads = (call for function in functions for call in source.calls("load", inside=function))
    return [call for call in loads if argument(call, "padding_mode") is None]


def _ragged(changes: Mapping[str, Value], facts: KernelFacts) -> bool:
    """Returns whether a served shape that has only whole tiles of the shipped size is ragged with the new size."""
    shipped = facts.task.space.shipped
    for name, new in changes.items():
        old = shipped.get(name)
        if not knobs.is_tile(name) or not isinstance(old, int) or not isinstance(new, int):
            continue
        if any(extent % old == 0 and extent % new for extent in _whole_tiles(facts, old)):
            return True
    return False


def _whole_tiles(facts: KernelFacts, tile: int) -> Iterator[int]:
    """Yields served extents of each dimension of which the task serves only multiples of some size."""
    for workload in facts.workloads:
        for name, extent in workload.dims.items():
            if type(extent) is int and not any(_serves(facts, workload, name, extent + by) for by in (-1, 1)):
                near = (extent - tile, extent, extent + tile)
                yield from (each for each in near if each == extent or _serves(facts, workload, name, each))


def _serves(facts: KernelFacts, workload: Workload, name: str, extent: int) -> bool:
    try:
        return facts.task.promises({**workload.dims, name: extent})
    except TilewrightError:
        return False
