"""Finds the arrays of floating-point numbers from whose elements a kernel computes addresses.

A task would draw other elements than the captured ones, and the addresses may then be outside an array. So it draws
from the captured range, which is known if the program was captured with ``--data``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.languages.base import Argument
from tilewright.runtime.capture.data import read
from tilewright.runtime.capture.described import WHOLE, DescribedLaunch
from tilewright.tileir.analysis.touched import Origins
from tilewright.tileir.read.tree import KernelEntry
from tilewright.tileir.run.slicing import ADDRESSING, LOADS, behind

Range = tuple[float, float]


def addressing_arrays(entry: KernelEntry, arguments: Sequence[Argument]) -> frozenset[str]:
    """Returns the arrays of floating-point numbers from whose elements the kernel computes addresses. The parameters
    are those of `touched`."""
    ops, origins = list(entry.walk()), Origins(entry, arguments)
    roots = {
        name for op in ops if op.address for what in ADDRESSING if what != "mask" for name in op.operands.get(what, ())
    }
    names = behind(ops, roots, lambda load: ())
    loads = (op for op in ops if op.name in LOADS and not names.isdisjoint(op.results))
    floats = (load for load in loads if not str(load.tile().element).startswith("i"))
    return frozenset(array for load in floats for array in origins.arrays(load.address or "") or ())


def captured_ranges(launch: DescribedLaunch, renamed: DescribedLaunch, data: Mapping[str, str]) -> dict[str, Range]:
    """Returns the least and the largest element of each array of finite floating-point numbers that was stored.

    renamed: the same launch with other names of its arrays, which the result has. data: `Recorded.data`.
    """
    found = {}
    for array, other in zip(launch.arrays(), renamed.arrays(), strict=True):
        file = data.get(array.name, "")
        if not array.spec.dtype.startswith(WHOLE) and Path(file).is_file():
            elements = read(file, array.spec).astype(np.float64)
            if elements.size and np.isfinite(elements).all():
                found[other.name] = float(elements.min()), float(elements.max())
    return found
