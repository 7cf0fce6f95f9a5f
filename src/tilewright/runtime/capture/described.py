"""A launch as data: what was launched, on which arrays, with which constants and hints.

It has no addresses, but what follows from them: alignment, which arrays share memory, and how far apart they lie.
Small integer arrays are kept with their contents, because lengths and indices steer a kernel. `rebuilding` makes the
launch again, `task_file` a task file.
"""

from __future__ import annotations

import base64
import itertools
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.ledger import codec
from tilewright.records import Json, Value
from tilewright.runtime.arrays import ArrayFacts, CallValue, KernelObject, facts_of
from tilewright.task.tensors import ITEM_BYTES, ArraySpec, row_major, span

CONTENTS_BYTES = 64 << 10
"""Integer arrays up to this size are kept with their contents."""
ALIGNED_TO = 256
"""Bytes. GPU memory is allocated at multiples of this, and the offset of an `ArraySpec` counts from one."""
WHOLE = ("int", "uint", "bool")

ArgumentKind: TypeAlias = Literal["array", "list", "tuple", "scalar", "constant", "dtype", "other"]


@dataclass(frozen=True)
class Argument:
    """One argument by the name of the kernel's parameter."""

    name: str
    kind: ArgumentKind
    value: Value = None
    """Of a scalar or a constant; the name of a dtype; the `repr` of any other kind."""
    array: ArraySpec | None = None
    storage: int = 0
    """Arrays with equal numbers share memory."""
    offset: int = 0
    """Bytes between the first element and the lowest first element among the arrays of its storage."""
    contents: str | None = None
    """Of a small integer array: its elements, row-major, packed (`unpacked`)."""
    items: tuple[Argument, ...] = ()
    """Of a list or a tuple."""

    @property
    def spec(self) -> ArraySpec:
        """Of an array."""
        assert self.array is not None
        return self.array

    def arrays(self) -> Iterator[Argument]:
        """This argument and those inside it that are arrays."""
        if self.kind == "array":
            yield self
        for item in self.items:
            yield from item.arrays()


@dataclass(frozen=True)
class DescribedLaunch:
    """One launch. ``kernel`` is the name of its function, and ``file`` has that function."""

    kernel: str
    module: str
    qualname: str
    file: str
    source: str
    """`digest.source_of` the kernel; empty if its source cannot be read."""
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]
    hints: Mapping[str, int | None] = field(default_factory=dict)
    problem: str = ""
    """Why this launch cannot be made again from its description; empty if it can."""

    def arrays(self) -> tuple[Argument, ...]:
        """All arrays, those in lists and tuples too, in the order of the arguments."""
        return tuple(array for argument in self.arguments for array in argument.arrays())

    @property
    def constants(self) -> dict[str, Value]:
        return {argument.name: argument.value for argument in self.arguments if argument.kind == "constant"}

    def to_json(self) -> dict[str, Json]:
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, data: Json) -> DescribedLaunch:
        """Raises ValueError, with the field, if ``data`` is not what `to_json` writes."""
        return codec.from_json(cls, data)


def described(kernel: KernelObject, grid: Sequence[int], args: Sequence[CallValue]) -> DescribedLaunch:
    """A launch of ``kernel`` over ``grid`` on ``args``. Reads small integer arrays, for which it waits for the device,
    unless the launch goes into a CUDA graph."""
    from tilewright.languages.cutile import private

    function = private.python_function(kernel)
    annotations = private.parameter_annotations(kernel)
    names = function.__code__.co_varnames[: len(args)]
    memory = _Memory()
    arguments = tuple(
        _argument(name, arg, index < len(annotations) and annotations[index].constant, memory)
        for index, (name, arg) in enumerate(zip(names, args, strict=False))
    )
    source, problem = _source(kernel)
    return DescribedLaunch(
        kernel=private.function_name(kernel),
        module=str(function.__module__),
        qualname=str(function.__qualname__),
        file=_file_of(function),
        source=source,
        grid=tuple(int(extent) for extent in grid),
        arguments=tuple(map(memory.placed, arguments)),
        hints=private.decorated_hints(kernel, _architecture()),
        problem=problem or _problem(function, arguments),
    )


def array_of(value: CallValue, name: str = "") -> tuple[ArraySpec, int] | None:
    """The specification of an array and the address of its first element; None if ``value`` is not an array. Takes
    `CallerArray`s, NumPy arrays and `ArraySpec`s."""
    if isinstance(value, ArraySpec):
        return replace(value, name=name), value.address_offset
    facts = facts_of(value) or _of_numpy(value)
    if facts is None:
        return None
    dtype, shape, strides, address = facts
    kept = None if strides == row_major(shape) else strides
    return ArraySpec(name, shape, dtype, kept, address % ALIGNED_TO), address


def unpacked(contents: str, array: ArraySpec) -> npt.NDArray[np.generic]:
    """The elements of a small array, in its shape."""
    raw = zlib.decompress(base64.b64decode(contents))
    return np.frombuffer(raw, np.dtype(array.dtype)).reshape(array.shape)


def packed(elements: npt.NDArray[np.generic]) -> str:
    """The inverse of `unpacked`."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(elements).tobytes())).decode()


def extent_bytes(array: ArraySpec) -> int:
    """From the first to the end of the last element in memory."""
    return span(array.shape, array.strides) * ITEM_BYTES.get(array.dtype, 1)


def _of_numpy(value: CallValue) -> ArrayFacts | None:
    if not isinstance(value, np.ndarray):
        return None
    strides = tuple(stride // value.itemsize for stride in value.strides)
    return ArrayFacts(value.dtype.name, value.shape, strides, value.ctypes.data)


class _Memory:
    """The memory of the arrays of one launch, until it is known which of them share it."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        """First address and end of each array, by its number."""

    def number(self, address: int, array: ArraySpec) -> int:
        self.spans.append((address, address + extent_bytes(array)))
        return len(self.spans) - 1

    def placed(self, argument: Argument) -> Argument:
        """The argument with its storage and offset instead of its number."""
        if argument.kind != "array":
            return replace(argument, items=tuple(map(self.placed, argument.items)))
        group = self._group(argument.storage)
        lowest = min(self.spans[number][0] for number in group)
        return replace(argument, storage=min(group), offset=self.spans[argument.storage][0] - lowest)

    def _group(self, number: int) -> set[int]:
        """All arrays that overlap this one, directly or through others. An array without an address overlaps none."""
        group, left = {number}, [number]
        while left:
            low, high = self.spans[left.pop()]
            for other, (start, end) in enumerate(self.spans):
                if other not in group and low and start < high and low < end:
                    group.add(other)
                    left.append(other)
        return group


def _argument(name: str, value: CallValue, constant: bool, memory: _Memory) -> Argument:
    if isinstance(value, (list, tuple)):
        items = (_argument(f"{name}[{index}]", item, constant, memory) for index, item in enumerate(value))
        return Argument(name, "list" if isinstance(value, list) else "tuple", items=tuple(items))
    if (placed := array_of(value, name)) is not None:
        array, address = placed
        number = memory.number(address, array)
        return Argument(name, "array", array=array, storage=number, contents=_contents(value, array))
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
    return str(getattr(value, "name", "")) if type(value).__name__ == "DType" else None


def _architecture() -> str | None:
    """The architecture of the GPU that the program uses: hints may depend on it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _contents(value: CallValue, array: ArraySpec) -> str | None:
    """The contents of a small integer array; None for other arrays, and if it must not be read now."""
    whole = array.dtype.startswith(WHOLE) and array.dtype in ITEM_BYTES
    if not whole or not 0 < array.nbytes <= CONTENTS_BYTES:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_meta or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        return packed(value.detach().cpu().numpy())
    return packed(value) if isinstance(value, np.ndarray) else None


def _source(kernel: KernelObject) -> tuple[str, str]:
    """Its hash, and why there is none."""
    from tilewright.source.digest import source_of

    try:
        return source_of(kernel), ""
    except Exception as error:  # inspect's, for a function without a file
        return "", f"the kernel's source cannot be read ({type(error).__name__}: {error})"


def _file_of(function: FunctionType) -> str:
    file = function.__code__.co_filename
    return str(Path(file).resolve()) if Path(file).is_file() else str(file)


def _problem(function: FunctionType, arguments: Sequence[Argument]) -> str:
    """Why the launch cannot be made again; empty if it can."""
    if not Path(function.__code__.co_filename).is_file():
        return f"the kernel stands in no file, but in {function.__code__.co_filename}: write it to a module"
    if function.__name__ == "<lambda>":
        return "the kernel is a lambda: give it a name, with def"
    if "<locals>" in function.__qualname__:
        outer = function.__qualname__.split(".<locals>")[0]
        return f"the kernel is defined inside {outer}(): move it to the top level of its module"
    for argument in itertools.chain.from_iterable(map(_all, arguments)):
        if argument.kind == "other":
            return f"argument '{argument.name}' is {argument.value}, which has no description"
        if argument.array is not None and argument.array.dtype not in ITEM_BYTES:
            return f"array '{argument.name}' has a dtype that is not supported; known: {', '.join(ITEM_BYTES)}"
    return ""


def _all(argument: Argument) -> Iterator[Argument]:
    yield argument
    for item in argument.items:
        yield from _all(item)
