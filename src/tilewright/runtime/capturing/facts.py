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
from dataclasses import dataclass
from functools import partial

from tilewright.errors import RequestError
from tilewright.languages import language_of
from tilewright.records import Configuration, Failed
from tilewright.runtime.capturing.described import WHOLE, DescribedLaunch, unpacked
from tilewright.runtime.capturing.rebuilding import loaded_kernel
from tilewright.search import knobs
from tilewright.task import ArraySpec, Launch
from tilewright.tileir.disassemble import ReadError
from tilewright.tileir.reader import read_bytecode
from tilewright.tileir.touched import Touched, touched
from tilewright.tileir.tree import Module

ARCH = "sm_90"
MOST_FACTORS = 3
"""Of one grid axis."""
PERSISTENT = "get_num_tile_blocks"
"""A kernel that asks how many blocks there are works with any number of them."""


@dataclass(frozen=True)
class Facts:
    """What the Tile IR of a captured launch says."""

    launch: DescribedLaunch
    touched: Touched
    persistent: bool
    reduces: bool
    """Whether it adds up over elements, so that another order of adding gives other bits."""


def facts(launch: DescribedLaunch) -> Facts:
    """Raises RequestError where the launch cannot become a task, with the reason."""
    kernel = loaded_kernel(launch)
    for one in launch.arguments:
        if one.kind in ("list", "tuple"):
            raise RequestError(f"{launch.kernel}: argument '{one.name}' is a {one.kind} of arrays, which a task file "
                               "cannot be made of yet: write the task by hand")  # fmt: skip
    args = tuple(one.array if one.kind == "array" else one.value for one in launch.arguments)
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
    return Facts(launch, found, _has(module, PERSISTENT), _has(module, "mmaf", "reduce", "scan"))


def _has(module: Module, *names: str) -> bool:
    return any(op.name in names for op in module.entry().walk())


def _refuse(launch: DescribedLaunch, found: Touched) -> None:
    """What a trial could not be repeated with."""
    if not found.written:
        raise RequestError(f"{launch.kernel} writes no array, so there is nothing to compare")
    if both := sorted(found.read & found.written):
        raise RequestError(
            f"{launch.kernel} reads and writes '{both[0]}' through one argument: a trial would start from what the "
            "trial before it left; pass what is read and what is written as two arguments"
        )
    for one in launch.arrays():
        for other in launch.arrays():
            if one is other or one.storage != other.storage or other.name not in found.written:
                continue
            assert one.array is not None and other.array is not None
            same = (one.offset, one.array.shape, one.array.strides, one.array.dtype) == (
                other.offset, other.array.shape, other.array.strides, other.array.dtype
            )  # fmt: skip
            if not same or one.name in found.written:
                raise RequestError(f"{launch.kernel} writes '{other.name}', which overlaps '{one.name}' without being "
                                   "the same array: a task cannot say that")  # fmt: skip
    for one in launch.arrays():
        if one.contents is not None and one.array is not None and one.array.dtype.startswith(WHOLE):
            values = unpacked(one.contents, one.array).reshape(-1)
            steers = values.size > 2 and bool((values[1:] >= values[:-1]).all()) and values[0] < values[-1]
            if one.name in found.read and steers and not _is_range(values.tolist()):
                raise RequestError(f"{launch.kernel}: '{one.name}' is a table whose numbers rise (such as cu_seqlens); "
                                   "a task draws its inputs, so write this one by hand")  # fmt: skip


def _is_range(values: Sequence[int]) -> bool:
    return list(values) == list(range(len(values)))


# Dimensions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """How a task declares an array: row-major in ``shape``, and the kernel gets it as a view.

    order: the axes of the declared tensor in the kernel's order; None where it is declared as it is.
    flat: the array is no dense block of memory: declared as one axis, viewed by shape and strides.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None
    flat: bool = False


def stored(array: ArraySpec) -> Stored:
    if array.strides == ArraySpec(array.name, array.shape, array.dtype).strides:
        return Stored(array.shape)
    axes = sorted(range(array.ndim), key=lambda axis: (-array.strides[axis], -array.shape[axis], axis))
    dense = tuple(array.shape[axis] for axis in axes)
    if tuple(array.strides[axis] for axis in axes) == ArraySpec("", dense, array.dtype).strides:
        return Stored(dense, tuple(axes.index(axis) for axis in range(array.ndim)))
    last = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True))
    return Stored((last + 1,), flat=True)


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


def grid_forms(found: Facts) -> list[tuple[Form, ...]]:
    """What the grid may be, the likeliest first. No tile is used twice."""
    launch = found.launch
    extents = sorted(
        {extent for one in launch.arrays() if one.array for extent in one.array.shape if extent > 1}
    )
    sizes = tiles(launch)
    single = [Factor(extent, tile) for tile in sizes for extent in extents] + [
        Factor(extent) for extent in extents
    ]
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


def _unlikeliness(found: Facts, sizes: Mapping[str, int], forms: tuple[Form, ...]) -> tuple[int, ...]:
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
