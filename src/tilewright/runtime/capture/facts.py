"""What a captured launch tells of its kernel: what it reads and writes, how it lies in memory, and how its grid
follows from extents and tiles.

A launch is one point, so a rule is found by trying a few forms against it: a grid axis that is a product of
``ceil(extent / tile)`` and extents. What no form explains stays the number that it was.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright.errors import RequestError
from tilewright.languages import language_of
from tilewright.records import Configuration, Failed
from tilewright.runtime.capture.described import Argument, DescribedLaunch
from tilewright.runtime.capture.index_arrays import IndexArray, index_arrays
from tilewright.runtime.capture.naming import named
from tilewright.runtime.capture.rebuilding import loaded_kernel
from tilewright.space import knobs
from tilewright.task.strides import row_major, span
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.analysis.touched import TouchedArrays, touched
from tilewright.tileir.read.disassemble import ReadError
from tilewright.tileir.read.reader import read_bytecode

ARCH = "sm_90"
MOST_FACTORS = 3
"""Of one grid axis."""
PERSISTENT = "get_num_tile_blocks"
"""A kernel that asks how many blocks there are works with any number of them."""


@dataclass(frozen=True)
class CapturedLaunch:
    """What the Tile IR of a captured launch says."""

    launch: DescribedLaunch
    touched: TouchedArrays
    persistent: bool
    """Whether it works with any number of blocks."""
    orderly: bool
    """Whether the order of the blocks cannot show in the outputs: nothing is added up between them."""
    index_arrays: Mapping[str, IndexArray]
    """Of the arrays that are read, those whose numbers rise."""

    @property
    def updated(self) -> frozenset[str]:
        """Arrays that are read and written through one argument."""
        return self.touched.read & self.touched.written

    @property
    def filled(self) -> frozenset[str]:
        """Arrays that are written and not read."""
        return self.touched.written - self.touched.read


def captured_launch(launch: DescribedLaunch) -> CapturedLaunch:
    """Raises RequestError where the launch cannot become a task, with the reason."""
    kernel, launch = loaded_kernel(launch), named(launch)
    args = tuple(_given(launch, one) for one in launch.arguments)
    made, language = Launch(kernel, launch.grid, args), language_of(kernel)
    lowered = language.lower(made, dict(launch.hints), Configuration(()), ARCH)
    if isinstance(lowered, Failed):
        raise RequestError(f"{launch.kernel} is not lowered: {lowered.reason}")
    try:
        module = read_bytecode(lowered.code)
    except ReadError as error:
        raise RequestError(f"{launch.kernel}: its Tile IR cannot be read: {error}") from None
    found = touched(module.entry(), language.arguments(made))
    _refuse(launch, found)
    persistent = any(op.name == PERSISTENT for op in module.entry().walk())
    orderly = not any(direction(op) == "atomic" for op in module.entry().walk())
    launch = _merged(launch, found)
    rising = {name: array for name, array in index_arrays(launch).items() if name in found.read - found.written}
    return CapturedLaunch(launch, found, persistent, orderly, rising)


def _given(launch: DescribedLaunch, one: Argument) -> Any:
    """An argument as a launch has it where there is no device."""
    if one.kind == "list" and all(item.kind == "array" for item in one.items):
        return [item.array for item in one.items]
    if one.kind in ("list", "tuple"):
        raise RequestError(f"{launch.kernel}: argument '{one.name}' is a {one.kind}, and tasks know lists of arrays "
                           "only: pass its items as arguments of their own, or arrays in a list")  # fmt: skip
    return one.array if one.kind == "array" else one.value


def is_told(launch: DescribedLaunch, one: Argument) -> bool:
    """Whether an argument may be the number of blocks, which a kernel needs that walks over its tiles."""
    blocks = math.prod(launch.grid)
    return blocks > 1 and type(one.value) is int and one.value == blocks and not knobs.is_tile(one.name)


def _refuse(launch: DescribedLaunch, found: TouchedArrays) -> None:
    """What a trial could not be repeated with."""
    if not found.written:
        raise RequestError(f"{launch.kernel} writes no array, so there is nothing to compare")
    for one, other in itertools.permutations(launch.arrays(), 2):
        if one.storage != other.storage or other.name not in found.written:
            continue
        if not _is_same_place(one, other):
            raise RequestError(f"{launch.kernel} writes '{other.name}', which overlaps '{one.name}' without being the "
                               "same array: a task cannot say that; give each memory of its own")  # fmt: skip
        if one.name in found.written or other.name in found.read:
            raise RequestError(f"{launch.kernel} gets one array as '{one.name}' and as '{other.name}', and writes it "
                               "through both, or also reads it where it writes: pass it once")  # fmt: skip


def _merged(launch: DescribedLaunch, found: TouchedArrays) -> DescribedLaunch:
    """With one name for what is one array, or an index array of equal numbers: two that are drawn would differ."""
    inputs = [one for one in launch.arrays() if one.name not in found.written]
    names: dict[str, Argument] = {}
    for place, one in enumerate(inputs):
        names[one.name] = next((names[before.name] for before in inputs[:place] if _is_one(before, one)), one)

    def renamed(one: Argument) -> Argument:
        if one.kind == "array":
            return names.get(one.name, one)
        return replace(one, items=tuple(renamed(item) for item in one.items))

    return replace(launch, arguments=tuple(renamed(one) for one in launch.arguments))


def _is_one(one: Argument, other: Argument) -> bool:
    assert one.array is not None and other.array is not None
    if one.storage == other.storage and _is_same_place(one, other):
        return True
    alike = (one.array.shape, one.array.strides, one.array.dtype, one.contents) == (
        other.array.shape, other.array.strides, other.array.dtype, other.contents
    )  # fmt: skip
    return alike and one.contents is not None


def _is_same_place(one: Argument, other: Argument) -> bool:
    assert one.array is not None and other.array is not None
    return (one.offset, one.array.shape, one.array.strides, one.array.dtype) == (
        other.offset, other.array.shape, other.array.strides, other.array.dtype
    )  # fmt: skip


# Dimensions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeclaredArray:
    """How a task declares an array: row-major in ``shape``, and the kernel gets it as a view.

    order: the axes of the declared tensor in the kernel's order; None where it is declared as it is.
    flat: the array is no dense block of memory: declared as one axis, viewed by shape and strides.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None
    flat: bool = False


def declared_array(array: ArraySpec) -> DeclaredArray:
    if array.strides == row_major(array.shape):
        return DeclaredArray(array.shape)
    axes = sorted(range(array.ndim), key=lambda axis: (-array.strides[axis], -array.shape[axis], axis))
    dense = tuple(array.shape[axis] for axis in axes)
    if tuple(array.strides[axis] for axis in axes) == row_major(dense):
        return DeclaredArray(dense, tuple(axes.index(axis) for axis in range(array.ndim)))
    return DeclaredArray((span(array.shape, array.strides),), flat=True)


def tiles(launch: DescribedLaunch) -> dict[str, int]:
    """The constants that are tile sizes by name and value."""
    return {
        name: value
        for name, value in launch.constants.items()
        if knobs.is_tile(name) and isinstance(value, int) and knobs.is_power_of_two(value) and value > 1
    }


@dataclass(frozen=True)
class Factor:
    """``ceil(extent / tile)``, or the extent itself."""

    extent: int
    tile: str | None = None


Form = tuple[Factor, ...]
"""One grid axis: a product; empty for 1."""


def grid_forms(found: CapturedLaunch) -> list[tuple[Form, ...]]:
    """What the grid may be, the likeliest first. No tile is used twice."""
    launch = found.launch
    sizes = tiles(launch)
    known = {extent for one in launch.arrays() if one.array for extent in one.array.shape}
    if found.index_arrays:  # what they count, the longest of it, and what the launch says of that
        known |= {len(array.numbers) - array.starts for array in found.index_arrays.values()}
        known |= {array.most for array in found.index_arrays.values()}
        known |= {one.value for one in launch.arguments if one.name not in sizes and isinstance(one.value, int)}
    extents = sorted(extent for extent in known if extent > 1)
    single = [Factor(extent, tile) for tile in sizes for extent in extents] + [Factor(extent) for extent in extents]
    of_axis = [list(_forms(blocks, single, sizes)) for blocks in launch.grid]
    if any(not forms for forms in of_axis):
        return []
    whole = []
    for forms in itertools.islice(itertools.product(*of_axis), 4096):
        used = [factor.tile for form in forms for factor in form if factor.tile]
        if len(used) == len(set(used)):
            whole.append(forms)
    return sorted(whole, key=partial(_unlikeliness, found, sizes))


def _forms(blocks: int, single: Sequence[Factor], sizes: Mapping[str, int]) -> Iterator[Form]:
    if blocks == 1:
        yield ()
    for count in range(1, MOST_FACTORS + 1):
        for factors in itertools.combinations_with_replacement(single, count):
            values = [_value(factor, sizes) for factor in factors]
            if math.prod(values) == blocks and 1 not in values:
                yield factors


def _value(factor: Factor, sizes: Mapping[str, int]) -> int:
    return -(-factor.extent // sizes[factor.tile]) if factor.tile else factor.extent


def _unlikeliness(found: CapturedLaunch, sizes: Mapping[str, int], forms: tuple[Form, ...]) -> tuple[int, ...]:
    """Each worse than the next: tiles of an inner loop (K), contiguous axes without a tile, extents that no output has,
    extents used twice, extents without a tile, tiles that would hold a contiguous axis, the number of factors."""
    arrays = [(one.name, one.array.shape) for one in found.launch.arrays() if one.array and one.array.shape]
    outputs = {extent for name, shape in arrays if name in found.touched.written for extent in shape}
    last = {shape[-1] for _, shape in arrays if len(shape) > 1}
    factors = [factor for form in forms for factor in form]
    tiled = [factor for factor in factors if factor.tile]
    plain = [factor.extent for factor in factors if not factor.tile]
    return (
        sum(re.search(r"(_|^)K$", (factor.tile or "").upper()) is not None for factor in tiled),
        sum(extent in last for extent in plain),
        sum(factor.extent not in outputs for factor in factors),
        len(factors) - len({factor.extent for factor in factors}),
        len(plain),
        sum(sizes[factor.tile or ""] in last - {factor.extent} for factor in tiled),
        len(factors),
    )
