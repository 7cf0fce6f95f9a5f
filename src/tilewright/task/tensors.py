"""The tensors of a task, as specifications without data: shape, dtype, and how inputs are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.errors import TaskError, choices
from tilewright.records import Value

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]

Dims = Mapping[str, Value]

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4,
    "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
"""Bytes of one element, by the names that NumPy, ml_dtypes and torch share."""
ALIGNED_TO = 256
"""Bytes. GPU memory is allocated at multiples of this number."""
DIVISOR = 16
"""Compilers specialise code for addresses (bytes), extents (elements) and strides (bytes) that this number divides.

Observed with cuda-tile 1.7.0 on an H200. Triton does the same for addresses and integers.
"""

LAYOUTS = ("transposed", "sliced", "misaligned")
"""Memory layouts that a task may allow. Transposed: the last two axes are swapped in memory. Sliced: the array consists
of rows of a wider array. Misaligned: the array begins one element after an aligned address."""
ORDERS: Mapping[str, str] = {"large": "first", "tiny": "last", "mixed signs": "any", "constant rows": "even"}
"""Order of the steps between offsets, by kind of hostile data. The longest steps come ``first``, ``last`` or in ``any``
order; ``even`` steps are equal. For other kinds of data the steps are random."""


@dataclass(frozen=True)
class OffsetSteps:
    """The parameters of `offsets`, except ``last``.

    Offsets are drawn as steps with a given sum, so they increase. Independent random numbers would not increase, and a
    kernel would then read at arbitrary addresses.
    """

    starts: bool = True
    step: int = 1
    least: int = 0
    most: int | None = None

    def possible(self, shape: tuple[int, ...], last: int) -> bool:
        return self._room(shape, last) is not None

    def drawn(self, shape: tuple[int, ...], last: int, rng: np.random.Generator, kind: str = "declared") -> Array:
        """Draws one row of offsets, up to ``last``, for each row of ``shape``. ``kind``: the kind of data (`ORDERS`).

        Raises TaskError if no such offsets exist.
        """
        import numpy as np

        room = self._room(shape, last)
        if room is None:
            raise TaskError(f"{shape[-1] if shape else 0} offsets cannot increase to {last} as declared: {self}")
        rows = shape[:-1]
        count, units, cap = room
        steps = np.stack([_steps(count, units, cap, ORDERS.get(kind, ""), rng) for _ in range(int(np.prod(rows)))])
        ends = np.cumsum(self.least + self.step * steps, axis=-1)
        if self.starts:
            ends = np.pad(ends, ((0, 0), (1, 0)))
        return ends.reshape(shape)

    def _room(self, shape: tuple[int, ...], last: int) -> tuple[int, int, int] | None:
        """Returns the number of steps, the sum of n over all steps, and the largest n of one step.

        A step has the length ``least + n * step``. Returns None if no such steps exist.
        """
        count = (shape[-1] if shape else 0) - self.starts
        if count < 1 or (beyond := last - count * self.least) < 0 or beyond % self.step:
            return None
        units = beyond // self.step
        cap = units if self.most is None else (self.most - self.least) // self.step
        return (count, units, cap) if units <= count * cap else None


def _steps(count: int, units: int, cap: int, order: str, rng: np.random.Generator) -> Array:
    import numpy as np

    if order == "even":
        return units // count + (np.arange(count) < units % count)
    if order:
        before = np.minimum(np.arange(count + 1) * cap, units)
        longest = np.diff(before)
        return {"first": longest, "last": longest[::-1], "any": rng.permutation(longest)}[order]
    shared = rng.multinomial(units, rng.dirichlet(np.ones(count)))
    taken = np.minimum(shared, cap)
    return taken + rng.multivariate_hypergeometric(cap - taken, units - int(taken.sum()), method="marginals")


@dataclass(frozen=True)
class Distribution:
    """The distribution from which an input is drawn.

    For ``normal``, a is the mean and b the standard deviation. For other kinds, a and b are the limits.
    """

    kind: str
    a: float
    b: float
    upto: str | None = None  # an expression of dimensions, from which `under` computes ``b``
    steps: OffsetSteps | None = None  # for offsets only
    like: tuple[int, ...] = ()  # numbers to use, in order, if the shape has as many elements and all are allowed
    always: bool = False  # whether hostile data uses ``like`` too. Then no other shape can be drawn

    def under(self, dims: Dims, tensor: str) -> Distribution:
        """Returns this distribution with its limits for ``dims``. ``tensor``: the name for a TaskError's message."""
        if self.upto is None:
            return self
        return replace(self, b=float(extent_of(self.upto, dims, tensor)), upto=None)

    def kept(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns ``like`` if its numbers fit the shape and the limits, otherwise (). Call `under` first."""
        fits = len(self.like) == math.prod(shape) > 0
        ends = self.like[-1:] == (self.b,) if self.steps else all(self.a <= number < self.b for number in self.like)
        return self.like if fits and ends else ()

    @property
    def one_value(self) -> bool:
        """Whether all drawn numbers are the same. Call `under` first."""
        return self.kind == "integers" and self.steps is None and self.b - self.a == 1

    def possible(self, shape: tuple[int, ...]) -> bool:
        """Returns whether values of this shape can be drawn. Call `under` first."""
        if self.always:
            return bool(self.kept(shape))
        if self.steps is not None:
            return self.steps.possible(shape, int(self.b))
        return self.kind != "integers" or self.a < self.b


D = TypeVar("D", bound="Declaration")


class Declaration:
    """The base class of records in a task file. An unknown option raises a TaskError that lists the known options."""

    def __new__(cls: type[D], *_: object, **options: object) -> D:
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in options if name not in known]:
            known = [name for name in known if name != "file"]  # `load_task` sets it
            raise TaskError(f"{cls.__name__} has no option '{unknown[0]}'; {choices(unknown[0], known)}")
        return super().__new__(cls)


def normal(mean: float = 0.0, std: float = 1.0) -> Distribution:
    """Draws from a normal distribution. Hostile data may have any distribution."""
    return Distribution("normal", mean, std)


def uniform(low: float = 0.0, high: float = 1.0) -> Distribution:
    """Draws numbers between ``low`` and ``high``. Hostile data stays within these limits. Raises TaskError if there are
    no such numbers."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise TaskError(f"uniform({low}, {high}): give two numbers, the smaller one first")
    return Distribution("uniform", low, high)


def integers(low: int, high: int | str, *, like: Sequence[int] = ()) -> Distribution:
    """Draws integers from ``low`` (included) to ``high`` (excluded). ``high`` may be an expression of dimensions, such
    as ``"S"``.

    like: numbers to use instead, row by row, if the tensor has as many elements and the limits allow all numbers. Give
        them if the kernel's time depends on the numbers. Hostile data does not use them.
    Raises TaskError if there are no such integers.
    """
    if not isinstance(high, str) and not low < high:
        raise TaskError(f"integers({low}, {high}): there is none; give the smallest one, and one above the largest")
    return _up_to("integers", low, high, None, like)


def fixed(numbers: Sequence[int]) -> Distribution:
    """Uses the same integers for every draw, row by row.

    This is for arrays whose numbers are valid only together, such as the offsets of groups and the tables made from
    them. Shapes with another number of elements cannot be checked.
    """
    if not numbers:
        raise TaskError("fixed() needs at least one number")
    how = _up_to("integers", min(numbers), max(numbers) + 1, None, numbers)
    return replace(how, always=True)


def offsets(
    last: int | str, *, starts: bool = True, step: int = 1, least: int = 0, most: int | None = None,
    like: Sequence[int] = (),
) -> Distribution:  # fmt: skip
    """Draws integers that increase along the last axis, such as the offsets of packed sequences (``cu_seqlens``).

    last: the last number, or an expression of dimensions.
    starts: whether the first number is 0. Otherwise the first number is the end of the first step.
    step, least, most: each difference is a multiple of ``step`` from ``least`` to ``most``.
    like: recorded integers to use instead of drawn integers, if the last recorded integer equals ``last``.
    """
    if step < 1 or least < 0 or least % step or (most is not None and (most < least or most % step)):
        raise TaskError(f"offsets: least={least} and most={most} must be multiples of step={step}, least up to most")
    return _up_to("offsets", 0, last, OffsetSteps(starts, step, least, most), like)


def _up_to(kind: str, low: int, high: int | str, steps: OffsetSteps | None, like: Sequence[int]) -> Distribution:
    number, upto = (math.nan, high) if isinstance(high, str) else (high, None)
    return Distribution(kind, low, number, upto, steps, tuple(like))


@dataclass(frozen=True)
class _Shaped(Declaration):
    """A tensor whose shape contains dimension names, numbers, or expressions such as ``"D // 2"``."""

    shape: tuple[str | int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if isinstance(shape := self.shape, str):
            raise TaskError(f"the shape '{shape}' is a string; write a tuple of dimensions, such as (\"{shape}\",)")

    def array(self, name: str, dims: Dims) -> ArraySpec:
        return ArraySpec(name, tuple(extent_of(entry, dims, name) for entry in self.shape), self.dtype)


@dataclass(frozen=True)
class Tensor(_Shaped):
    """An input of the kernel."""

    distribution: Distribution = Distribution("normal", 0.0, 1.0)


@dataclass(frozen=True)
class Output(_Shaped):
    """An output of the kernel.

    in_place_of: an input that the deployed kernel overwrites. The search uses a separate buffer, because a trial must
        not read the output of the previous trial.
    updates: an input that the kernel reads and writes through one argument, the output. Before a checked launch, the
        output holds the values of this input. Timed launches update the output repeatedly, so its values may grow.
    """

    in_place_of: str | None = None
    updates: str | None = None


Specification = TypeVar("Specification", bound="ArraySpec")


@dataclass(frozen=True)
class ArraySpec:
    """The shape, dtype and layout of an array without data. The layout is row-major and aligned by default."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides_: tuple[int, ...] | None = None  # in elements; None is row-major
    address_offset: int = 0  # of the first element, modulo `ALIGNED_TO`
    scratch: bool = False  # memory that only one launch uses, see `scratch`

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in elements."""
        return row_major(self.shape) if self.strides_ is None else self.strides_

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes. Gaps between elements do not count."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def as_compiled(self: Specification) -> Specification:
        """Returns the array as compilers see it: its address is reduced modulo `DIVISOR`."""
        return replace(self, address_offset=alignment_of(self.address_offset))


def scratch(name: str, shape: Sequence[int], dtype: str) -> ArraySpec:
    """Makes an argument of a launch that is no tensor of the task: memory for partial results and counters.

    The kernel finds zeros in it at every launch, and nothing that it leaves there is kept. Setting the zeros counts as
    a part of the launch.

    shape: positive numbers of elements. Raises TaskError for another shape, or an unknown dtype.
    """
    if dtype not in ITEM_BYTES:
        raise TaskError(f"scratch '{name}': unknown dtype '{dtype}'; known: {', '.join(ITEM_BYTES)}")
    if not all(isinstance(extent, int) and extent > 0 for extent in shape):
        raise TaskError(f"scratch '{name}': the shape {tuple(shape)} does not consist of positive integers")
    return ArraySpec(name, tuple(shape), dtype, scratch=True)


def scratch_of(arguments: Iterable[object]) -> list[ArraySpec]:
    """Returns the arguments that `scratch` made."""
    return [each for each in arguments if isinstance(each, ArraySpec) and each.scratch]


@dataclass
class Descriptor:
    """A tensor descriptor that a launch passes to a Triton kernel. The ``pre_hook`` of a `triton.Config` may set its
    ``block_shape``."""

    base: Any
    block_shape: Sequence[int]
    padding: str = "zero"


def descriptor(array: Any, block_shape: Sequence[int], padding: str = "zero") -> Descriptor:
    """Makes the tensor descriptor of an array for a launch, with the arguments of `TensorDescriptor.from_tensor`."""
    return Descriptor(array, list(block_shape), padding)


def alignment_of(address: int) -> int:
    """Returns the part of an array's address that compilers see: the address of the first element modulo `DIVISOR`."""
    return address % DIVISOR


def is_whole(dtype: str) -> bool:
    """Returns whether a dtype holds only integers or booleans."""
    return dtype == "bool" or dtype.startswith(("int", "uint"))


def extent_of(entry: str | int, dims: Dims, tensor: str) -> int:
    """Computes one extent of a shape for ``dims``. ``tensor``: the name for a TaskError's message."""
    if isinstance(entry, int):
        return entry
    try:
        extent = eval(entry, {"__builtins__": {}}, dict(dims))  # noqa: S307  (a task file runs code anyway)
    except NameError:
        known = ", ".join(dims)
        raise TaskError(f"tensor '{tensor}': dimension '{entry}' is not in the workload; known: {known}") from None
    except SyntaxError:
        raise TaskError(f"tensor '{tensor}': '{entry}' is not a dimension or an expression of them") from None
    except Exception as error:
        raise TaskError(f"tensor '{tensor}': extent '{entry}': {type(error).__name__}: {error}") from None
    if not isinstance(extent, int) or isinstance(extent, bool) or extent < 0:
        raise TaskError(f"tensor '{tensor}': extent '{entry}' is {extent!r}; it must be a whole number from 0 on")
    return extent


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a dense array whose last axis is contiguous."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the number of elements from the first to the last, including gaps. ``strides`` must not be negative."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
