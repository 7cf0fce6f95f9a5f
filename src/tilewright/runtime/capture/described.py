"""A launch as data: what was launched, on what, with which constants and hints.

Addresses are not part of it, but what they decide is: alignment, and which arrays share memory and how
far apart they lie. Small arrays of whole numbers are kept with their contents, because tables of lengths
and indices steer a kernel. `rebuilding` makes a launch of it again, `task_file` a task file.
"""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tilewright.ledger import codec
from tilewright.records import Value
from tilewright.runtime.arrays import ArrayFacts, facts_of
from tilewright.task.strides import row_major, span
from tilewright.task.tensors import ITEM_BYTES, ArraySpec

CONTENTS_BYTES = 64 << 10
"""Arrays of whole numbers up to this are kept with what they hold."""
ALIGNED_TO = 256
"""What the allocators of GPU memory align to; an `ArraySpec` counts from there."""
WHOLE = ("int", "uint", "bool")

ArgumentKind = Literal["array", "list", "tuple", "scalar", "constant", "dtype", "other"]


@dataclass(frozen=True)
class Argument:
    """One argument by the name of the kernel's parameter."""

    name: str
    kind: ArgumentKind
    value: Value = None
    """Of a scalar or a constant; of a dtype its name; of what is none of these how Python shows it."""
    array: ArraySpec | None = None
    storage: int = 0
    """Arrays of equal number share memory."""
    offset: int = 0
    """Bytes between the first element and the lowest first element among the arrays of its storage."""
    contents: str | None = None
    """Of a small array of whole numbers: its elements, row-major, packed (`unpacked`)."""
    items: tuple[Argument, ...] = ()
    """Of a list or a tuple."""

    def arrays(self) -> Iterator[Argument]:
        """This argument and those inside it that are arrays."""
        if self.kind == "array":
            yield self
        for item in self.items:
            yield from item.arrays()


@dataclass(frozen=True)
class DescribedLaunch:
    """One launch. ``kernel`` is its function's name; ``file`` where that function stands."""

    kernel: str
    module: str
    qualname: str
    file: str
    source: str
    """`key.source_of` the kernel; empty where its source cannot be read."""
    grid: tuple[int, ...]
    arguments: tuple[Argument, ...]
    hints: Mapping[str, int | None] = field(default_factory=dict)
    problem: str = ""
    """Why this launch cannot be made again from its description; empty where it can."""

    def arrays(self) -> tuple[Argument, ...]:
        """All arrays, those in lists and tuples too, in the order of the arguments."""
        return tuple(one for argument in self.arguments for one in argument.arrays())

    @property
    def constants(self) -> dict[str, Value]:
        return {one.name: one.value for one in self.arguments if one.kind == "constant"}

    def to_json(self) -> dict[str, Any]:
        return dict(codec.to_json(self))

    @classmethod
    def from_json(cls, data: Any) -> DescribedLaunch:
        """Raises ValueError, with the field, where ``data`` is not what `to_json` writes."""
        return codec.from_json(cls, data)


def described(kernel: Any, grid: Sequence[int], args: Sequence[Any]) -> DescribedLaunch:
    """What a launch of ``kernel`` over ``grid`` on ``args`` is. Reads small arrays of whole numbers, for which it
    waits for the device, unless the launch is being recorded into a CUDA graph."""
    from tilewright.languages.cutile import private

    function = private.python_function(kernel)
    annotations = private.parameter_annotations(kernel)
    names = function.__code__.co_varnames[: len(args)]
    places = _Places()
    arguments = tuple(
        _argument(name, arg, place < len(annotations) and annotations[place].constant, places)
        for place, (name, arg) in enumerate(zip(names, args, strict=False))
    )
    source, problem = _source(kernel)
    return DescribedLaunch(
        kernel=private.function_name(kernel),
        module=str(function.__module__),
        qualname=str(function.__qualname__),
        file=_file_of(function),
        source=source,
        grid=tuple(int(extent) for extent in grid),
        arguments=tuple(places.placed(one) for one in arguments),
        hints=private.decorated_hints(kernel, _architecture()),
        problem=problem or _problem(function, arguments),
    )


def array_of(value: Any, name: str = "") -> tuple[ArraySpec, int] | None:
    """An array and the address of its first element; None for what is no array. torch's tensors, whatever
    has a ``__cuda_array_interface__``, NumPy arrays, and `ArraySpec` itself (which has no address: 0)."""
    if isinstance(value, ArraySpec):
        return replace(value, name=name), value.address_offset
    found = facts_of(value) or _of_numpy(value)
    if found is None:
        return None
    dtype, shape, strides, address = found
    kept = None if strides == row_major(shape) else strides
    return ArraySpec(name, shape, dtype, kept, address % ALIGNED_TO), address


def unpacked(contents: str, array: ArraySpec) -> np.ndarray[Any, Any]:
    """The elements that were kept of a small array, in its shape."""
    raw = zlib.decompress(base64.b64decode(contents))
    return np.frombuffer(raw, np.dtype(array.dtype)).reshape(array.shape)


def packed(elements: np.ndarray[Any, Any]) -> str:
    """The inverse of `unpacked`."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(elements).tobytes())).decode()


def extent_bytes(array: ArraySpec) -> int:
    """From the first to the end of the last element in memory."""
    return span(array.shape, array.strides) * ITEM_BYTES.get(array.dtype, 1)


def _of_numpy(value: Any) -> ArrayFacts | None:
    if not isinstance(value, np.ndarray):
        return None
    strides = tuple(stride // value.itemsize for stride in value.strides)
    return ArrayFacts(value.dtype.name, value.shape, strides, value.ctypes.data)


class _Places:
    """Where the arrays of one launch lie, until it is known which of them share memory."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        """Of each array, by the number that it got: first address, and the end."""

    def number(self, address: int, array: ArraySpec) -> int:
        self.spans.append((address, address + extent_bytes(array)))
        return len(self.spans) - 1

    def placed(self, one: Argument) -> Argument:
        """The argument with its storage and offset in place of its own number."""
        if one.kind != "array":
            return replace(one, items=tuple(self.placed(item) for item in one.items))
        group = self._group(one.storage)
        lowest = min(self.spans[number][0] for number in group)
        return replace(one, storage=min(group), offset=self.spans[one.storage][0] - lowest)

    def _group(self, number: int) -> set[int]:
        """All arrays that overlap this one, directly or through others. Without an address nothing does."""
        group, left = {number}, [number]
        while left:
            low, high = self.spans[left.pop()]
            for other, (start, end) in enumerate(self.spans):
                if other not in group and low and start < high and low < end:
                    group.add(other)
                    left.append(other)
        return group


def _argument(name: str, value: Any, constant: bool, places: _Places) -> Argument:
    if isinstance(value, (list, tuple)):
        items = (_argument(f"{name}[{place}]", item, constant, places) for place, item in enumerate(value))
        return Argument(name, "list" if isinstance(value, list) else "tuple", items=tuple(items))
    found = array_of(value, name)
    if found is not None:
        array, address = found
        number = places.number(address, array)
        return Argument(name, "array", array=array, storage=number, contents=_contents(value, array))
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return Argument(name, "constant" if constant else "scalar", value)
    if dtype := _dtype_name(value):
        return Argument(name, "dtype", dtype)
    return Argument(name, "other", f"{type(value).__name__} {value!r}"[:120])


def _dtype_name(value: Any) -> str | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(value.name) if type(value).__name__ == "DType" else None


def _architecture() -> str | None:
    """Of the GPU that the program uses, for hints that are given by architecture."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _contents(value: Any, array: ArraySpec) -> str | None:
    """What a small array of whole numbers holds; None for others, and where it must not be read now."""
    whole = array.dtype.startswith(WHOLE) and array.dtype in ITEM_BYTES
    if not whole or not 0 < array.nbytes <= CONTENTS_BYTES:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_meta or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        return packed(value.detach().cpu().numpy())
    return packed(value) if isinstance(value, np.ndarray) else None


def _source(kernel: Any) -> tuple[str, str]:
    """Its hash, and why there is none."""
    from tilewright.runtime.key import source_of

    try:
        return source_of(kernel), ""
    except Exception as error:  # inspect's, for what no file holds
        return "", f"the kernel's source cannot be read ({type(error).__name__}: {error})"


def _file_of(function: Any) -> str:
    file = function.__code__.co_filename
    return str(Path(file).resolve()) if Path(file).is_file() else str(file)


def _problem(function: Any, arguments: Sequence[Argument]) -> str:
    """Why the launch cannot be made again, from what it is made of."""
    if not Path(function.__code__.co_filename).is_file():
        return f"the kernel stands in no file, but in {function.__code__.co_filename}: write it to a module"
    if function.__name__ == "<lambda>":
        return "the kernel is a lambda: give it a name, with def"
    if "<locals>" in function.__qualname__:
        outer = function.__qualname__.split(".<locals>")[0]
        return f"the kernel is defined inside {outer}(): move it to the top level of its module"
    strange = [one for argument in arguments for one in _all(argument) if one.kind == "other"]
    if strange:
        return f"argument '{strange[0].name}' is {strange[0].value}, which has no description"
    unknown = [one for argument in arguments for one in argument.arrays() if _unknown_dtype(one)]
    if unknown:
        return f"array '{unknown[0].name}' has a dtype that is not supported; known: {', '.join(ITEM_BYTES)}"
    return ""


def _unknown_dtype(one: Argument) -> bool:
    return one.array is not None and one.array.dtype not in ITEM_BYTES


def _all(argument: Argument) -> Iterator[Argument]:
    yield argument
    for item in argument.items:
        yield from _all(item)
