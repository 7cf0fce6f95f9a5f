"""Derives facts from a captured launch: accesses of its kernel, layouts of its arrays, and the form of its grid.

A launch is only one example, so a few forms are tried for each axis of the grid: products of ``ceil(extent / tile)``
and extents. An axis that no form explains keeps its number of blocks.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tilewright.errors import RequestError, ToolFailed
from tilewright.languages import language_of
from tilewright.languages.base import Argument as KernelArgument
from tilewright.records import Configuration, Failed
from tilewright.runtime.arrays import CallValue, KernelObject
from tilewright.runtime.capture.composed import Composed
from tilewright.runtime.capture.described import INTERMEDIATE, Argument, DescribedLaunch
from tilewright.runtime.capture.float_indices import Range, addressing_arrays
from tilewright.runtime.capture.index_arrays import IndexArray, index_arrays
from tilewright.runtime.capture.languages import captured_language
from tilewright.runtime.capture.rebuilding import loaded_kernel
from tilewright.space import knobs
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec, Descriptor, row_major, span
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.analysis.tiles import Axis, tile_sizes
from tilewright.tileir.analysis.touched import TouchedArrays, touched
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import KernelEntry

ARCH = "sm_90"
MOST_FACTORS = 3
"""The most factors of one axis of the grid."""
RESERVED = (
    "kernel", "config", "hardware", "captured", "launch", "launched", "task", "module", "flops", "tw", "produced",
    INTERMEDIATE,
)  # fmt: skip
"""Names that a task file defines, and parameters of its launch function."""


class Row(int):
    """The length of rows, where it is another dimension than an equal extent of another axis. For example, an attention
    may have 128 heads of 128 elements. A `Row` equals only a `Row`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and int(self) == int(other)

    def __ne__(self, other: object) -> bool:  # that of `int` would be used otherwise
        return not self == other

    def __hash__(self) -> int:
        return hash((Row, int(self)))


@dataclass(frozen=True)
class CapturedLaunch:
    """A captured launch with the facts from its Tile IR."""

    launch: DescribedLaunch
    touched: TouchedArrays
    persistent: bool
    """Whether the kernel reads the number of blocks. If so, the kernel works with any number of blocks."""
    deterministic: bool
    """Whether the outputs are the same for every order of the blocks, as in kernels without atomic operations."""
    index_arrays: Mapping[str, IndexArray]
    """The arrays that are only read and whose numbers never decrease."""
    products: Mapping[int, tuple[int, ...]]
    """Maps an argument that is a stride or a number of elements, and an extent in which the program merged several
    axes, to the extents whose product it is."""
    passed: int
    """The number of the kernel's arguments that a task passes by position."""
    configured: tuple[str, ...]
    """The other parameters, which the configuration names. Parameters that the kernel object computes are left out."""
    tiled: Mapping[str, frozenset[Axis]]
    """The axes of arrays that a constant divides into tiles. Accesses by pointers are not known."""
    composed: Composed | None = None
    """The two captured launches of which this launch does the work; None for a captured launch."""
    addressing: frozenset[str] = frozenset()
    """The arrays of floating-point numbers from whose elements the kernel computes addresses."""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """The least and the largest element of those of `addressing` whose elements are known."""
    partly: frozenset[str] = frozenset()
    """Arrays of which the kernel writes only a part. Their other elements keep the values from before the launch."""

    def tiled_extents(self, constant: str) -> frozenset[int]:
        """Returns the extents that a constant divides into tiles; none if unknown."""
        shapes = {array.name: array.spec.shape for array in self.launch.arrays()}
        return frozenset(shapes[name][axis] for name, axis in self.tiled.get(constant, ()))

    @property
    def tiles(self) -> dict[str, int]:
        """The constants that are sizes of tiles, with their values: by their names, by the program's autotuner, or as
        a constant of 1 that divides only an axis of which each block handles one element."""
        launch = self.launch
        tuned = {name for each in launch.autotuned.configurations for name in each} if launch.autotuned else set[str]()
        named = {name: value for name, value in launch.constants.items() if knobs.is_tile(name) or name in tuned}
        sizes = {name: value for name, value in named.items() if isinstance(value, int) and value > 1}
        sizes = {name: value for name, value in sizes.items() if knobs.is_power_of_two(value)}
        blocks = {extent for extent in launch.grid if extent > 1}
        ones = (name for name, value in launch.constants.items() if type(value) is int and value == 1)
        single = (name for name in ones if len(extents := self.tiled_extents(name)) == 1 and extents <= blocks)
        return {**sizes, **dict.fromkeys(single, 1)}

    def followed(self, name: str, value: int) -> tuple[int, ...]:
        """Returns the extents that an integer argument may follow, the likeliest first. A tile that covers an axis
        follows its extent, and no other one. A tile that only divides axes follows none."""
        if axes := self.tiled.get(name):
            covered = (self._shared(array, axis) for array, axis in axes)
            return tuple(sorted({extent for extent in covered if value // 2 < extent <= value}))
        return (Row(value), value) if knobs.is_tile(name) else (value, Row(value))

    def _shared(self, name: str, axis: int) -> int:
        """Returns the extent of an axis, or 0 if the array is in a list with other extents."""
        (argument, *_) = (each for each in self.launch.arguments if any(array.name == name for array in each.arrays()))
        extents = {
            array.spec.shape[axis] for array in argument.arrays() if argument.kind == "list" or array.name == name
        }
        return extents.pop() if len(extents) == 1 else 0

    @property
    def updated(self) -> frozenset[str]:
        """The written arrays whose contents before the launch matter."""
        return (self.touched.read | self.partly) & self.touched.written

    @property
    def filled(self) -> frozenset[str]:
        """The written arrays whose contents before the launch do not matter."""
        return self.touched.written - self.updated


def captured_launch(launch: DescribedLaunch) -> CapturedLaunch:
    """Reads the launch's Tile IR. Raises RequestError, with the reason, if the launch cannot become a task."""
    kernel, launch = loaded_kernel(launch), named(launch)
    language, captures = language_of(kernel), captured_language(launch.language)
    if not Path(launch.file).is_file():  # recorded on another machine
        launch = replace(launch, file=str(Path(captures.function_of(kernel).__code__.co_filename).resolve()))
    known = {hint.name for hint in language.hints}
    if unknown := [name for name, value in launch.hints.items() if value not in (None, False) and name not in known]:
        raise RequestError(f"{launch.kernel} is launched with the option '{unknown[0]}', for which a task has no hint")
    entry, arguments = _tile_ir(kernel, launch)
    passed = captures.passed(kernel, launch)
    others = launch.arguments[len(passed) :]
    accesses = touched(entry, arguments)
    _refuse(launch, accesses)
    persistent = any(op.name == "get_num_tile_blocks" for op in entry.walk())
    deterministic = not any(direction(op) == "atomic" for op in entry.walk())
    launch = _merged(launch, accesses)
    rising = {name: array for name, array in index_arrays(launch).items() if name in accesses.read - accesses.written}
    computed = captures.computed(kernel)
    return CapturedLaunch(
        launch, accesses, persistent, deterministic, rising,
        products=_products(launch) if captures.has_pointers else {},
        passed=len(passed),
        configured=tuple(argument.name for argument in others if argument.name not in computed),
        tiled={} if captures.has_pointers else _tiled(kernel, launch),
        addressing=addressing_arrays(entry, arguments),
    )  # fmt: skip


def accesses(launch: DescribedLaunch) -> TouchedArrays:
    """Returns the arrays that a launch reads and writes, by their names in `named`. Raises RequestError, with the
    reason, if the kernel cannot be loaded, or has no Tile IR."""
    kernel = loaded_kernel(launch)
    return touched(*_tile_ir(kernel, named(launch)))


def _tile_ir(kernel: KernelObject, launch: DescribedLaunch) -> tuple[KernelEntry, Sequence[KernelArgument]]:
    """Returns the launch's Tile IR, and the value of each of its parameters. Raises RequestError if there is none."""
    language = language_of(kernel)
    passed = captured_language(launch.language).passed(kernel, launch)
    args = tuple(_argument_without_device(launch, argument) for argument in passed)
    made, others = Launch(kernel, launch.grid, args), launch.arguments[len(args) :]
    config = Configuration.of({argument.name: argument.value for argument in others})
    lowered = language.tile_ir_of(made, dict(launch.hints), config, ARCH)
    if isinstance(lowered, Failed):
        raise RequestError(f"{launch.kernel} cannot be lowered to Tile IR: {lowered.reason}")
    try:
        return read_bytecode(lowered.code).entry(), language.arguments(made)
    except ToolFailed as error:
        raise RequestError(f"{launch.kernel}: its Tile IR cannot be read: {error}") from None


def _tiled(kernel: KernelObject, launch: DescribedLaunch) -> dict[str, frozenset[Axis]]:
    """Returns the axes that each constant divides into tiles. Found by trying: these axes have other tiles if the
    constant has another value."""
    before, found = tile_sizes(*_tile_ir(kernel, launch)), dict[str, frozenset[Axis]]()
    for name, value in launch.constants.items():
        if not knobs.is_power_of_two(value) or not isinstance(value, int):
            continue
        for other in (value // 2, value * 2) if value > 1 else (2,):
            arguments = (replace(each, value=other) if each.name == name else each for each in launch.arguments)
            with suppress(RequestError):
                after = tile_sizes(*_tile_ir(kernel, replace(launch, arguments=tuple(arguments))))
                found[name] = frozenset(axis for axis, sizes in before.items() if after.get(axis) != sizes)
                break
    return {name: axes for name, axes in found.items() if axes}


def named(launch: DescribedLaunch) -> DescribedLaunch:
    """Renames arrays so that a function can have them as parameters: ``xs[0]`` of a list becomes ``xs_0``."""
    own = ("array", "descriptor")
    taken = {*RESERVED, *(argument.name for argument in launch.arguments if argument.kind not in own)}

    def renamed(array: Argument) -> Argument:
        name = free_name(array.name.replace("[", "_").replace("]", ""), taken)
        taken.add(name)
        return replace(array, name=name, array=replace(array.spec, name=name))

    return launch.with_arrays(renamed)


def free_name(wanted: str, taken: Collection[str]) -> str:
    """Returns ``wanted``, with underscores appended until the name is not in ``taken``."""
    while wanted in taken:
        wanted += "_"
    return wanted


def _products(launch: DescribedLaunch) -> dict[int, tuple[int, ...]]:
    """Returns `CapturedLaunch.products`. Only kernels with pointers get the strides and the number of elements as
    integers."""
    numbers = {argument.value for argument in launch.arguments if type(argument.value) is int}
    shapes = [declared_array(array.spec).shape for array in launch.arrays()]
    products: dict[int, tuple[int, ...]] = {}
    for shape in shapes:
        for start, end in itertools.combinations(range(len(shape) + 1), 2):
            factors = tuple(extent for extent in shape[start:end] if extent > 1)
            if len(factors) > 1 and (product := math.prod(factors)) in numbers:
                products.setdefault(product, factors)
    return {product: factors for product, factors in products.items() if not any(product in shape for shape in shapes)}


def merged_extents(launch: DescribedLaunch) -> dict[int, tuple[int, ...]]:
    """Returns the extents that are a product with an axis of the grid that is no extent: programs often pass rows of
    several axes as one axis, ``x.reshape(batch * length, width)``, with a grid of (batch, length). The other factors
    are axes of the grid, extents and integer arguments."""
    shapes = [declared_array(array.spec).shape for array in launch.arrays()]
    extents = {extent for shape in shapes for extent in shape}
    rows = {shape[0] for shape in shapes if len(shape) > 1} - {extent for shape in shapes for extent in shape[1:]}
    axes = {extent for extent in launch.grid if extent > 1}
    numbers = {each.value for each in launch.arguments if type(each.value) is int and not knobs.is_tile(each.name)}
    pool = sorted(axes | {number for number in extents | numbers if isinstance(number, int) and number > 1})
    found: dict[int, tuple[int, ...]] = {}
    for extent in sorted(rows - axes):
        smaller = [number for number in pool if not extent % number and number < extent]
        ways = [
            way for count in (2, 3) for way in itertools.combinations(smaller, count)
            if math.prod(way) == extent and axes.intersection(way) - extents and not found.keys() & way
        ]  # fmt: skip
        if ways:
            found[extent] = max(ways, key=lambda way: len(axes.intersection(way)))
    return found


def _argument_without_device(launch: DescribedLaunch, argument: Argument) -> CallValue:
    if argument.kind == "descriptor":
        return Descriptor(argument.items[0].spec, argument.block_shape, argument.padding)
    if argument.kind == "dtype":
        return captured_language(launch.language).dtype(str(argument.value))
    if argument.kind == "list" and all(item.kind == "array" for item in argument.items):
        return [item.array for item in argument.items]
    if argument.kind == "tuple":
        return tuple(_argument_without_device(launch, item) for item in argument.items)
    if argument.kind == "list":
        what = f"argument '{argument.name}' is a list, and tasks support only lists of arrays"
        raise RequestError(f"{launch.kernel}: {what}: pass each item as an argument, or in a tuple")
    return argument.array if argument.kind == "array" else argument.value


def may_be_block_count(launch: DescribedLaunch, argument: Argument) -> bool:
    """Returns whether an argument equals the number of blocks. Persistent kernels often take this number as an
    argument."""
    blocks = math.prod(launch.grid)
    return blocks > 1 and type(argument.value) is int and argument.value == blocks and not knobs.is_tile(argument.name)


def _refuse(launch: DescribedLaunch, accesses: TouchedArrays) -> None:
    """Raises RequestError if the launch writes no array, or writes arrays in a way that a task cannot express."""
    if not accesses.written:
        raise RequestError(f"{launch.kernel} writes no array, so there is nothing to compare")
    if not accesses.read:
        what = "reads no array, so its outputs depend on nothing that a check could change"
        raise RequestError(f"{launch.kernel} {what}")
    for argument, other in itertools.permutations(launch.arrays(), 2):
        if argument.storage != other.storage or other.name not in accesses.written:
            continue
        if _place(argument) != _place(other):
            overlap = f"writes '{other.name}', which overlaps '{argument.name}' without being the same array"
            raise RequestError(f"{launch.kernel} {overlap}: a task cannot express that; allocate the arrays apart")
        if argument.name in accesses.written or other.name in accesses.read:
            twice = f"gets one array as '{argument.name}' and as '{other.name}', and writes it through both"
            raise RequestError(f"{launch.kernel} {twice}, or also reads it where it writes: pass it once")


def _merged(launch: DescribedLaunch, accesses: TouchedArrays) -> DescribedLaunch:
    """Gives one name to equal arrays, and to integer arrays with equal contents, so that a task draws them once."""
    kept: dict[str, Argument] = {}
    for array in launch.arrays():
        if array.name not in accesses.written:
            kept[array.name] = next((before for before in kept.values() if _are_same(before, array)), array)
    return launch.with_arrays(lambda array: kept.get(array.name, array))


def _are_same(array: Argument, other: Argument) -> bool:
    equal = array.contents is not None and array.contents == other.contents
    return _place(array) == _place(other) or (equal and _place(array)[2:] == _place(other)[2:])


def _place(array: Argument) -> tuple[Hashable, ...]:
    return array.storage, array.offset, array.spec.shape, array.spec.strides, array.spec.dtype


@dataclass(frozen=True)
class DeclaredArray:
    """The declaration of a captured array in a task: row-major, with the extents ``shape``. The kernel gets a view of
    it.

    order: for each axis of the view, the axis of the declared array; None if both have the same order.
    flat: whether the array is not a dense block of memory. Then it is declared with one axis, and viewed with shape and
        strides.
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


@dataclass(frozen=True)
class Factor:
    """A factor of the grid: ``ceil(extent / tile)``, or the extent itself.

    unexplained: whether ``extent`` is the captured number of blocks, because no form explains it.
    """

    extent: int
    tile: str | None = None
    unexplained: bool = False


Form = tuple[Factor, ...]
"""One axis of the grid as a product of factors; empty for 1."""


def grid_forms(captured: CapturedLaunch) -> list[tuple[Form, ...]]:
    """Returns the possible forms of the whole grid, the most likely first. Each tile is in at most one factor. An axis
    without a form keeps its number of blocks, if another axis has one."""
    launch, sizes = captured.launch, captured.tiles
    known = {extent for argument in launch.arrays() for extent in argument.spec.shape} | captured.products.keys()
    known |= {part for parts in captured.products.values() for part in parts}
    if captured.index_arrays:  # the number of sequences, the longest length and integer arguments count as extents, too
        known |= {len(array.numbers) - array.starts for array in captured.index_arrays.values()}
        known |= {array.most for array in captured.index_arrays.values()}
        others = (argument.value for argument in launch.arguments if argument.name not in sizes)
        known |= {value for value in others if isinstance(value, int)}
    extents = sorted(extent for extent in known if extent > 1)
    divided = {tile: captured.tiled_extents(tile) for tile in sizes}
    single = [Factor(extent, tile) for tile in sizes for extent in extents if extent in (divided[tile] or known)]
    single += [Factor(extent) for extent in extents]
    blocks = {factor: -(-factor.extent // sizes[factor.tile]) if factor.tile else factor.extent for factor in single}
    single = [factor for factor in single if blocks[factor] > 1]
    of_axis = []
    for extent in launch.grid:
        every = (form for n in range(MOST_FACTORS + 1) for form in itertools.combinations_with_replacement(single, n))
        of_axis.append([form for form in every if math.prod(blocks[factor] for factor in form) == extent])
    if not any(form for forms in of_axis for form in forms):
        return [] if [] in of_axis else [((),) * len(of_axis)]
    of_axis = [
        forms or [(Factor(extent, unexplained=True),)] for forms, extent in zip(of_axis, launch.grid, strict=True)
    ]
    whole = []
    for forms in itertools.islice(itertools.product(*of_axis), 4096):
        used = [factor.tile for form in forms for factor in form if factor.tile]
        if len(used) == len(set(used)):
            whole.append(forms)
    return sorted(whole, key=partial(_unlikeliness, captured, sizes))


def _unlikeliness(captured: CapturedLaunch, sizes: Mapping[str, int], forms: tuple[Form, ...]) -> tuple[int, ...]:
    """Returns a sort key for forms of the grid: counts of unlikely properties, the most unlikely one first.

    The counts are, in this order:
    - tiles of an inner loop (K), and contiguous axes without a tile;
    - extents of no output, extents that are used twice, and extents without a tile;
    - tiles that cover a contiguous axis, and factors.
    """
    arrays = [(argument.name, argument.spec.shape) for argument in captured.launch.arrays() if argument.spec.shape]
    outputs = {extent for name, shape in arrays if name in captured.touched.written for extent in shape}
    outputs |= {product for product, factors in captured.products.items() if outputs.issuperset(factors)}
    last = {shape[-1] for _, shape in arrays if len(shape) > 1} - {each for _, shape in arrays for each in shape[:-1]}
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
