"""What follows from a captured launch: what its kernel reads and writes, how its arrays lie in memory, and how its
grid depends on extents and tiles.

A launch is only one example, so a few forms are tried for each axis of the grid: products of ``ceil(extent / tile)``
and extents. A number that no form explains stays as it is.

A number in an integer array may be an index, a length or an offset, so another number may be out of range. Numbers that
rise are offsets of sequences that lie one after another; their steps are the lengths.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tilewright.errors import RequestError
from tilewright.languages import language_of
from tilewright.records import Configuration, Failed
from tilewright.runtime.arrays import CallValue
from tilewright.runtime.capture.described import WHOLE, Argument, DescribedLaunch, unpacked
from tilewright.runtime.capture.rebuilding import loaded_kernel
from tilewright.space import knobs
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec, row_major, span
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.analysis.touched import TouchedArrays, touched
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.scanner import ReadError

ARCH = "sm_90"
MOST_FACTORS = 3
"""The most factors of one axis of the grid."""
RESERVED = (
    "kernel", "config", "hardware", "captured", "launch", "launched", "task", "module", "flops", "tw",
)  # fmt: skip
"""Names that a task file defines, and names that a launch function gets."""
WRITTEN_OUT = 256
"""The most numbers that a task file lists, to be drawn as they were."""
LARGEST_STEP = 128
"""The largest power of two that steps are assumed to be multiples of on purpose."""


@dataclass(frozen=True)
class CapturedLaunch:
    """A captured launch, and what its Tile IR says."""

    launch: DescribedLaunch
    touched: TouchedArrays
    persistent: bool
    """Whether it reads the number of blocks: then it works with any."""
    orderly: bool
    """Whether the outputs do not depend on the order of the blocks: there are no atomic operations."""
    index_arrays: Mapping[str, IndexArray]
    """The arrays that are read and whose numbers rise."""

    @property
    def updated(self) -> frozenset[str]:
        """Arrays that are read and written through one argument."""
        return self.touched.read & self.touched.written

    @property
    def filled(self) -> frozenset[str]:
        """Arrays that are written and not read."""
        return self.touched.written - self.touched.read


def captured_launch(launch: DescribedLaunch) -> CapturedLaunch:
    """Raises RequestError, with the reason, if the launch cannot become a task."""
    kernel, launch = loaded_kernel(launch), named(launch)
    args = tuple(_given(launch, argument) for argument in launch.arguments)
    made, language = Launch(kernel, launch.grid, args), language_of(kernel)
    lowered = language.lower(made, dict(launch.hints), Configuration(()), ARCH)
    if isinstance(lowered, Failed):
        raise RequestError(f"{launch.kernel} is not lowered: {lowered.reason}")
    try:
        module = read_bytecode(lowered.code)
    except ReadError as error:
        raise RequestError(f"{launch.kernel}: its Tile IR cannot be read: {error}") from None
    accesses = touched(module.entry(), language.arguments(made))
    _refuse(launch, accesses)
    persistent = any(op.name == "get_num_tile_blocks" for op in module.entry().walk())
    orderly = not any(direction(op) == "atomic" for op in module.entry().walk())
    launch = _merged(launch, accesses)
    rising = {name: array for name, array in index_arrays(launch).items() if name in accesses.read - accesses.written}
    return CapturedLaunch(launch, accesses, persistent, orderly, rising)


def named(launch: DescribedLaunch) -> DescribedLaunch:
    """The launch with arrays whose names can be parameters of a function: ``xs[0]`` of a list is ``xs_0``."""
    taken = {*RESERVED, *(argument.name for argument in launch.arguments if argument.kind != "array")}

    def renamed(array: Argument) -> Argument:
        name = free_name(array.name.replace("[", "_").replace("]", ""), taken)
        taken.add(name)
        return replace(array, name=name, array=replace(array.spec, name=name))

    return launch.with_arrays(renamed)


def free_name(wanted: str, taken: Collection[str]) -> str:
    """``wanted``, with underscores if that name is taken."""
    while wanted in taken:
        wanted += "_"
    return wanted


def _given(launch: DescribedLaunch, argument: Argument) -> CallValue:
    """An argument for a launch without a device."""
    if argument.kind == "list" and all(item.kind == "array" for item in argument.items):
        return [item.array for item in argument.items]
    if argument.kind in ("list", "tuple"):
        raise RequestError(
            f"{launch.kernel}: argument '{argument.name}' is a {argument.kind}, and tasks know lists of arrays only: "
            "pass its items as arguments of their own, or arrays in a list"
        )
    return argument.array if argument.kind == "array" else argument.value


def is_told(launch: DescribedLaunch, argument: Argument) -> bool:
    """Whether an argument may be the number of blocks. A persistent kernel needs it."""
    blocks = math.prod(launch.grid)
    return blocks > 1 and type(argument.value) is int and argument.value == blocks and not knobs.is_tile(argument.name)


def _refuse(launch: DescribedLaunch, accesses: TouchedArrays) -> None:
    """Refuses launches that cannot be repeated."""
    if not accesses.written:
        raise RequestError(f"{launch.kernel} writes no array, so there is nothing to compare")
    for argument, other in itertools.permutations(launch.arrays(), 2):
        if argument.storage != other.storage or other.name not in accesses.written:
            continue
        if _place(argument) != _place(other):
            raise RequestError(
                f"{launch.kernel} writes '{other.name}', which overlaps '{argument.name}' without being the same "
                "array: a task cannot say that; give each memory of its own"
            )
        if argument.name in accesses.written or other.name in accesses.read:
            raise RequestError(
                f"{launch.kernel} gets one array as '{argument.name}' and as '{other.name}', and writes it through "
                "both, or also reads it where it writes: pass it once"
            )


def _merged(launch: DescribedLaunch, accesses: TouchedArrays) -> DescribedLaunch:
    """With one name for the same array, and for integer arrays with equal contents: two drawn ones would differ."""
    kept: dict[str, Argument] = {}
    for array in launch.arrays():
        if array.name not in accesses.written:
            kept[array.name] = next((before for before in kept.values() if _is_one(before, array)), array)
    return launch.with_arrays(lambda array: kept.get(array.name, array))


def _is_one(array: Argument, other: Argument) -> bool:
    known = array.contents is not None and array.contents == other.contents
    return _place(array) == _place(other) or (known and _layout(array) == _layout(other))


def _place(array: Argument) -> tuple[Hashable, ...]:
    return array.storage, array.offset, *_layout(array)


def _layout(array: Argument) -> tuple[Hashable, ...]:
    return array.spec.shape, array.spec.strides, array.spec.dtype


@dataclass(frozen=True)
class DeclaredArray:
    """How a task declares an array: row-major in ``shape``. The kernel gets a view of it.

    order: the axes of the declared tensor in the kernel's order; None if they are equal.
    flat: the array is not a dense block of memory: it is declared with one axis, and viewed by shape and strides.
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
    """The constants that are tile sizes, by their names and values."""
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
"""One axis of the grid: a product of factors; empty for 1."""


def grid_forms(captured: CapturedLaunch) -> list[tuple[Form, ...]]:
    """The possible grid forms, the likeliest first; a tile is in at most one factor."""
    launch = captured.launch
    sizes = tiles(launch)
    known = {extent for argument in launch.arrays() for extent in argument.spec.shape}
    if captured.index_arrays:  # the number of sequences, the longest one, and whole numbers among the arguments
        known |= {len(array.numbers) - array.starts for array in captured.index_arrays.values()}
        known |= {array.most for array in captured.index_arrays.values()}
        known |= {
            argument.value
            for argument in launch.arguments
            if argument.name not in sizes and isinstance(argument.value, int)
        }
    extents = sorted(extent for extent in known if extent > 1)
    single = [Factor(extent, tile) for tile in (*sizes, None) for extent in extents]
    blocks = {factor: -(-factor.extent // sizes[factor.tile]) if factor.tile else factor.extent for factor in single}
    single = [factor for factor in single if blocks[factor] > 1]
    of_axis = []
    for extent in launch.grid:
        every = (form for n in range(MOST_FACTORS + 1) for form in itertools.combinations_with_replacement(single, n))
        of_axis.append([form for form in every if math.prod(blocks[factor] for factor in form) == extent])
    whole = []
    for forms in itertools.islice(itertools.product(*of_axis), 4096):
        used = [factor.tile for form in forms for factor in form if factor.tile]
        if len(used) == len(set(used)):
            whole.append(forms)
    return sorted(whole, key=partial(_unlikeliness, captured, sizes))


def _unlikeliness(captured: CapturedLaunch, sizes: Mapping[str, int], forms: tuple[Form, ...]) -> tuple[int, ...]:
    """For sorting, the worst first: tiles of an inner loop (K), contiguous axes without a tile, extents of no output,
    extents that are used twice, extents without a tile, tiles that hold a contiguous axis, the number of factors."""
    arrays = [(argument.name, argument.spec.shape) for argument in captured.launch.arrays() if argument.spec.shape]
    outputs = {extent for name, shape in arrays if name in captured.touched.written for extent in shape}
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


@dataclass(frozen=True)
class IndexArray:
    """Rising numbers. starts: the first is 0. The steps are multiples of ``step``, from ``least`` to ``most``."""

    name: str
    numbers: tuple[int, ...]
    starts: bool
    step: int
    least: int
    most: int

    @property
    def last(self) -> int:
        return self.numbers[-1]

    def text(self, last: str | int) -> str:
        """As `tw.offsets(…)`; ``last``: a number or an expression of dimensions."""
        starts = "" if self.starts else ", starts=False"
        steps = f"step={self.step}, least={self.least}, most={self.most}"
        return f"tw.offsets({last!r}{starts}, {steps}{_like(self.numbers)})"


def index_arrays(launch: DescribedLaunch) -> dict[str, IndexArray]:
    return {array.name: array for array in map(_index_array, launch.arrays()) if array is not None}


def contents(argument: Argument) -> tuple[int, ...]:
    """The captured numbers, row by row; none for other arrays, and if they are not known."""
    if argument.contents is None or not argument.spec.dtype.startswith(WHOLE):
        return ()
    return tuple(int(number) for number in unpacked(argument.contents, argument.spec).reshape(-1))


def among(numbers: tuple[int, ...], beyond: str | int) -> str:
    """Similar numbers, for a task file: from the least one, or from 1 if ``beyond`` depends on the dimensions, to less
    than ``beyond``."""
    if isinstance(beyond, int):
        return f"tw.integers({min(numbers)}, {beyond}{_like(numbers) if len(set(numbers)) > 1 else ''})"
    return f"tw.integers({min(1, *numbers)}, {beyond!r}{_like(numbers)})"


def _like(numbers: tuple[int, ...]) -> str:
    return f", like={numbers!r}" if len(numbers) <= WRITTEN_OUT else ""


def last_number(array: IndexArray, extents: Mapping[int, str]) -> str | int:
    """The last number as an expression of dimensions (``extents``: their names), if it is an extent or an index of an
    axis; else the number."""
    last = array.last
    is_index = array.most <= 1 or last not in extents
    return f"{extents[last + 1]} - 1" if is_index and last + 1 in extents else extents.get(last, last)


def _index_array(argument: Argument) -> IndexArray | None:
    numbers = contents(argument)
    if not numbers or argument.spec.ndim != 1 or min(numbers) < 0:
        return None
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    starts = numbers[0] == 0
    if not steps or min(steps) < 0 or numbers[0] == numbers[-1] or (len(numbers) == 2 and not starts):
        return None
    steps += [] if starts else [numbers[0]]
    common = math.gcd(*steps)
    step = min(common & -common, LARGEST_STEP)
    least = step if min(steps) else 0
    return IndexArray(argument.name, numbers, starts, step, least, max(steps))
