"""Describes a launch as data: its kernel, grid, arrays, constants and hints.

A description has no addresses. It has only their effects: the alignment, which arrays share memory, and how far apart
these arrays are. The contents of small integer arrays are stored, because lengths and indices control what a kernel
does. `rebuilding` makes the launch again; `task_file` makes a task file of it.
"""

from __future__ import annotations

import base64
import itertools
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.ledger import codec
from tilewright.records import Json, Value
from tilewright.runtime.arrays import ArrayFacts, CallValue, KernelObject, facts_of
from tilewright.source.digest import source_of
from tilewright.task.tensors import ALIGNED_TO, ITEM_BYTES, ArraySpec, row_major, span

CONTENTS_BYTES = 64 << 10
"""Contents of integer arrays up to this size are stored."""
MODULE = "module "
"""The beginning of a value in `DescribedLaunch.closure` that is the name of a module."""
WHOLE = ("int", "uint", "bool")
"""Prefixes of the names of integer dtypes."""
INTERMEDIATE = "intermediate"
"""The name, in a task file, of the array that one of two fused launches writes and the other reads."""

ArgumentKind: TypeAlias = Literal["array", "list", "tuple", "descriptor", "scalar", "constant", "dtype", "other"]


@dataclass(frozen=True)
class Argument:
    """One argument, with the name of the kernel's parameter."""

    name: str
    kind: ArgumentKind
    value: Value = None
    """The value of a scalar or a constant, the name of a dtype, or the `repr` of another object."""
    array: ArraySpec | None = None
    storage: int = 0
    """The number of the storage (block of memory) that holds an array. Arrays with equal numbers share memory."""
    offset: int = 0
    """The distance in bytes from the storage's lowest array to this array, between the first elements."""
    contents: str | None = None
    """The elements of a small integer array, row-major and packed (see `unpacked`)."""
    items: tuple[Argument, ...] = ()
    """The items of a list or a tuple. A descriptor has one item, its array."""
    block_shape: tuple[int, ...] = ()
    """The shape of a descriptor's block."""
    padding: str = ""
    """The padding of a descriptor."""

    @property
    def spec(self) -> ArraySpec:
        assert self.array is not None
        return self.array

    def walk(self) -> Iterator[Argument]:
        """Yields this argument and all arguments inside it."""
        yield self
        for item in self.items:
            yield from item.walk()

    def arrays(self) -> Iterator[Argument]:
        return (argument for argument in self.walk() if argument.kind == "array")


@dataclass(frozen=True)
class LiveDescriptor:
    """A tensor descriptor that the host made, as an argument of a launch."""

    base: CallValue
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str


@dataclass(frozen=True)
class Autotuned:
    """The arguments of a kernel's autotuner."""

    configurations: tuple[Mapping[str, Value], ...]
    """The constants and hints of each configuration."""
    keys: tuple[str, ...]
    """The arguments whose values start a new search."""
    restored: tuple[str, ...]
    """The arrays whose elements are restored after each trial."""
    zeroed: tuple[str, ...]
    """The arrays that are set to zero before each trial."""


@dataclass(frozen=True)
class DescribedLaunch:
    """One launch. ``kernel`` is the name of the kernel's function, ``file`` the file that defines it."""

    kernel: str
    module: str
    qualname: str
    file: str
    source: str
    """The result of `digest.source_of` for the kernel; empty if its source cannot be read."""
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]
    hints: Mapping[str, Value] = field(default_factory=dict)
    problem: str = ""
    """The reason why this launch cannot be made again from its description; "" if there is none."""
    language: str = "cutile"
    """The name of the kernel's language."""
    autotuned: Autotuned | None = None
    closure: Mapping[str, Value] = field(default_factory=dict)
    """The values of the variables that a kernel uses of the function around it. A module is its name after `MODULE`."""
    text: str = ""
    """The result of `needed.digest_of_needed` for the kernel; empty if it was not computed. Only the store has it."""

    def arrays(self) -> tuple[Argument, ...]:
        """Returns all arrays in the order of the arguments, including arrays in lists and tuples."""
        return tuple(array for argument in self.arguments for array in argument.arrays())

    def spec_of(self, name: str) -> ArraySpec:
        """Returns the array that a parameter gets, which exists."""
        return next(array.spec for array in self.arrays() if array.name == name)

    def with_arrays(self, change: Callable[[Argument], Argument]) -> DescribedLaunch:
        """Returns the launch with each array replaced by ``change(array)``. The order of the calls is that of
        `arrays`."""

        return replace(self, arguments=_changed(self.arguments, change))

    @property
    def constants(self) -> dict[str, Value]:
        return {argument.name: argument.value for argument in self.arguments if argument.kind == "constant"}

    def to_json(self) -> dict[str, Json]:
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, data: Json) -> DescribedLaunch:
        """Reads a launch from the JSON of `to_json`. Raises ValueError, with the name of the field, if ``data`` is
        wrong."""
        return codec.from_json(cls, data, defaults=True)


def described(kernel: KernelObject, grid: Sequence[int], args: Sequence[CallValue]) -> DescribedLaunch:
    """Describes a launch of a cuTile kernel over ``grid`` on ``args``. Reads small integer arrays, and waits for the
    device to do so. While launches are captured into a CUDA graph, no array is read."""
    from tilewright.languages.cutile import private

    function, annotations = private.python_function(kernel), private.parameter_annotations(kernel)
    constants = {name for name, annotation in zip(_names(function), annotations, strict=False) if annotation.constant}
    launch = described_call(function, grid, dict(zip(_names(function), args, strict=False)), constants)
    return replace(launch, hints=private.decorated_hints(kernel, _architecture()))


def described_call(
    function: FunctionType, grid: Sequence[int], args: Mapping[str, CallValue], constants: Collection[str]
) -> DescribedLaunch:
    """Describes a launch of the kernel with this Python function, without hints.

    args: the values of the parameters, by name.
    constants: the parameters that are constants.
    """
    arguments = described_arguments(args, constants)
    try:
        source, problem = source_of(function), _problem(function, arguments)
    except Exception as error:  # from `inspect`, for a function without a file
        source, problem = "", f"the kernel's source cannot be read ({type(error).__name__}: {error})"
    file = Path(function.__code__.co_filename)
    return DescribedLaunch(
        function.__name__, str(function.__module__), str(function.__qualname__),
        file=str(file.resolve() if file.is_file() else file), source=source,
        grid=tuple(int(extent) for extent in grid), arguments=arguments, problem=problem, closure=_closure(function),
    )  # fmt: skip


def described_arguments(args: Mapping[str, CallValue], constants: Collection[str] = ()) -> tuple[Argument, ...]:
    """Describes the arguments of a call, with the storage and the offset of each array. The parameters are those of
    `described_call`."""
    addresses: list[int] = []
    arguments = tuple(_argument(name, value, name in constants, addresses) for name, value in args.items())
    return with_storages(arguments, addresses)


def _names(function: FunctionType) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def array_of(value: CallValue, name: str = "") -> tuple[ArraySpec, int] | None:
    """Returns the specification of an array and the address of its first element. ``value``: a `CallerArray`, a NumPy
    array or an `ArraySpec`. Returns None for anything else."""
    if isinstance(value, ArraySpec):
        return replace(value, name=name), value.address_offset
    facts = facts_of(value)
    if isinstance(value, np.ndarray):
        strides = tuple(stride // value.itemsize for stride in value.strides)
        facts = ArrayFacts(value.dtype.name, value.shape, strides, value.ctypes.data)
    if facts is None:
        return None
    dtype, shape, strides, address = facts
    return ArraySpec(
        name, shape, dtype, None if strides == row_major(shape) else strides, address % ALIGNED_TO
    ), address


def unpacked(contents: str, array: ArraySpec) -> npt.NDArray[np.generic]:
    """Returns the elements that `packed` wrote, in the shape of ``array``."""
    raw = zlib.decompress(base64.b64decode(contents))
    return np.frombuffer(raw, np.dtype(array.dtype)).reshape(array.shape)


def packed(elements: npt.NDArray[np.generic]) -> str:
    """Returns the elements as text, which `unpacked` reads."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(elements).tobytes())).decode()


def extent_bytes(array: ArraySpec) -> int:
    """Returns the bytes from the start of the first element to the end of the last element in memory."""
    return span(array.shape, array.strides) * ITEM_BYTES.get(array.dtype, 1)


def _changed(arguments: Sequence[Argument], change: Callable[[Argument], Argument]) -> tuple[Argument, ...]:
    def changed(argument: Argument) -> Argument:
        if argument.kind == "array":
            return change(argument)
        return replace(argument, items=tuple(map(changed, argument.items)))

    return tuple(map(changed, arguments))


def with_storages(arguments: Sequence[Argument], addresses: Sequence[int]) -> tuple[Argument, ...]:
    """Returns the arguments with the storage and the offset of each array. Arrays that overlap, directly or through
    other arrays, share a storage. An array without an address (0) overlaps no other."""
    arrays = [array for argument in arguments for array in argument.arrays()]
    spans = [(low, low + extent_bytes(array.spec)) for low, array in zip(addresses, arrays, strict=True)]
    storages = list(range(len(spans)))
    for one, other in itertools.combinations(range(len(spans)), 2):
        (low, high), (start, end) = spans[one], spans[other]
        if low and start and start < high and low < end and storages[one] != storages[other]:
            kept, gone = sorted((storages[one], storages[other]))
            storages = [kept if storage == gone else storage for storage in storages]
    lowest: dict[int, int] = {}
    for storage, (low, _) in zip(storages, spans, strict=True):
        lowest[storage] = min(low, lowest.get(storage, low))
    placed = iter([(storage, low - lowest[storage]) for storage, (low, _) in zip(storages, spans, strict=True)])

    def with_storage(array: Argument) -> Argument:
        storage, offset = next(placed)
        return replace(array, storage=storage, offset=offset)

    return _changed(arguments, with_storage)


def _argument(name: str, value: CallValue, constant: bool, addresses: list[int]) -> Argument:
    if isinstance(value, (list, tuple)):
        items = (_argument(f"{name}[{index}]", item, constant, addresses) for index, item in enumerate(value))
        return Argument(name, "list" if isinstance(value, list) else "tuple", items=tuple(items))
    if isinstance(value, LiveDescriptor):
        base = _argument(name, value.base, constant, addresses)
        spec = replace(base.spec, shape=value.shape, strides_=value.strides)
        item = replace(base, array=spec, contents=None)
        return Argument(name, "descriptor", items=(item,), block_shape=value.block_shape, padding=value.padding)
    if (placed := array_of(value, name)) is not None:
        array, address = placed
        addresses.append(address)
        return Argument(name, "array", array=array, contents=_contents(value, array))
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return Argument(name, "constant" if constant else "scalar", value)
    if dtype := _dtype_name(value):
        return Argument(name, "dtype", dtype)
    return Argument(name, "other", f"{type(value).__name__} {value!r}"[:120])


def _dtype_name(value: CallValue) -> str | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(getattr(value, "name", "")) if type(value).__name__ in ("DType", "dtype") else None


def _architecture() -> str | None:
    """Returns the architecture of the GPU, because hints may depend on it; None if CUDA is not initialized."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _contents(value: CallValue, array: ArraySpec) -> str | None:
    """Returns the packed elements of a small integer array; None for other arrays, or while a graph is captured."""
    whole = array.dtype.startswith(WHOLE) and array.dtype in ITEM_BYTES
    if not whole or not 0 < array.nbytes <= CONTENTS_BYTES:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_meta or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        return packed(value.detach().cpu().numpy())
    return packed(value) if isinstance(value, np.ndarray) else None


def _closure(function: FunctionType) -> dict[str, Value]:
    """Returns `DescribedLaunch.closure`, without values that cannot be written into a file."""
    found: dict[str, Value] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            value = cell.cell_contents
            if isinstance(value, ModuleType):
                found[name] = MODULE + value.__name__
            elif value is None or type(value) in (bool, int, float, str):
                found[name] = value
    return found


def _problem(function: FunctionType, arguments: Sequence[Argument]) -> str:
    """Returns why the launch cannot be made again; empty without such a reason."""
    if not Path(function.__code__.co_filename).is_file():
        return f"the kernel is not in a file but in {function.__code__.co_filename}: write it to a module"
    if function.__name__ == "<lambda>":
        return "the kernel is a lambda: give it a name, with def"
    if unknown := [name for name in function.__code__.co_freevars if name not in _closure(function)]:
        around = function.__qualname__.split(".<locals>")[0]
        what = f"the kernel is defined inside {around}() and uses its variable '{unknown[0]}'"
        return f"{what}, which is no number, string or module: move the kernel to the top level of its module"
    for argument in (inner for outer in arguments for inner in outer.walk()):
        if argument.kind == "other":
            return f"argument '{argument.name}' is {argument.value}, which has no description"
        if argument.array is not None and argument.array.dtype not in ITEM_BYTES:
            return f"array '{argument.name}' has a dtype that is not supported; known: {', '.join(ITEM_BYTES)}"
    return ""
