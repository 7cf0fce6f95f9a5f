"""The tensors of a task, as specifications: shape, dtype, and how inputs are drawn.

There is no data in them, so that a task compiles on a machine without a GPU, and can be given larger, strided or
hostile data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

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

LAYOUTS = ("transposed", "sliced", "misaligned")
"""Views that a task may allow: the last two axes swapped in memory, rows of a wider array, and a first
element that lies one element off an aligned address."""


ORDERS: Mapping[str, str] = {"large": "first", "tiny": "last", "mixed signs": "any", "constant rows": "even"}
"""Kind of hostile data → which steps are as long as they may be; all others are drawn."""


@dataclass(frozen=True)
class OffsetSteps:
    """What is known of `offsets` besides the last number.

    Offsets are drawn as steps (the lengths of the groups) with a given sum. Numbers drawn independently would not rise,
    and a kernel would read at arbitrary addresses.
    """

    starts: bool = True
    step: int = 1
    least: int = 0
    most: int | None = None

    def possible(self, shape: tuple[int, ...], last: int) -> bool:
        """Whether there are such offsets."""
        return self._room(shape, last) is not None

    def drawn(self, shape: tuple[int, ...], last: int, rng: np.random.Generator, kind: str = "declared") -> Array:
        """One row of offsets for each row of ``shape``. Raises TaskError where there are none."""
        import numpy as np

        room = self._room(shape, last)
        if room is None:
            raise TaskError(f"no {shape[-1] if shape else 0} offsets rise to {last} as declared: {self}")
        rows = shape[:-1]
        count, units, cap = room
        steps = np.stack([_steps(count, units, cap, ORDERS.get(kind, ""), rng) for _ in range(int(np.prod(rows)))])
        ends = np.cumsum(self.least + self.step * steps, axis=-1)
        if self.starts:
            ends = np.pad(ends, ((0, 0), (1, 0)))
        return ends.reshape(shape)

    def _room(self, shape: tuple[int, ...], last: int) -> tuple[int, int, int] | None:
        """The number of steps, the multiples of ``step`` beyond the least that they share, and the most that a step may
        get; None where no such offsets exist."""
        count = (shape[-1] if shape else 0) - self.starts
        if count < 1 or (beyond := last - count * self.least) < 0 or beyond % self.step:
            return None
        units = beyond // self.step
        cap = units if self.most is None else (self.most - self.least) // self.step
        return (count, units, cap) if units <= count * cap else None


def _steps(count: int, units: int, cap: int, order: str, rng: np.random.Generator) -> Array:
    """``units`` shared among ``count``, at most ``cap`` each."""
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
    """How random input is drawn. ``normal``: mean a, standard deviation b; otherwise low a, high b."""

    kind: str
    a: float
    b: float
    upto: str | None = None
    """``b`` as an expression of dimensions, until `under` makes a number of it."""
    steps: OffsetSteps | None = None
    """The steps between offsets; None for other kinds."""
    like: tuple[int, ...] = ()
    """Numbers to draw, in order, where the shape has as many elements and all of them are allowed."""

    def under(self, dims: Dims, tensor: str) -> Distribution:
        """The distribution under ``dims``, with numbers alone. ``tensor`` is for the message of the TaskError."""
        if self.upto is None:
            return self
        return replace(self, b=float(extent_of(self.upto, dims, tensor)), upto=None)

    def kept(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """``like`` where it fits ``shape`` and the limits, else nothing. Call `under` first."""
        fits = len(self.like) == math.prod(shape) > 0
        ends = self.like[-1:] == (self.b,) if self.steps else all(self.a <= number < self.b for number in self.like)
        return self.like if fits and ends else ()

    def possible(self, shape: tuple[int, ...]) -> bool:
        """Whether anything of this shape can be drawn. Call `under` first."""
        if self.steps is not None:
            return self.steps.possible(shape, int(self.b))
        return self.kind != "integers" or self.a < self.b


D = TypeVar("D", bound="Declaration")


class Declaration:
    """What a task file declares: an option that does not exist is a TaskError that names those that there are."""

    def __new__(cls: type[D], *_: object, **options: object) -> D:
        known = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in options if name not in known]:
            known = [name for name in known if name != "file"]  # `load_task` fills it in
            raise TaskError(f"{cls.__name__} has no option '{unknown[0]}'; {choices(unknown[0], known)}")
        return super().__new__(cls)


def normal(mean: float = 0.0, std: float = 1.0) -> Distribution:
    return Distribution("normal", mean, std)


def uniform(low: float = 0.0, high: float = 1.0) -> Distribution:
    return Distribution("uniform", low, high)


def integers(low: int, high: int | str, *, like: Sequence[int] = ()) -> Distribution:
    """Whole numbers, low included, high excluded; ``high`` may be an expression of dimensions, such as ``"S"``.

    like: what is drawn, row by row, where as many numbers are asked for, all of them are allowed, and the data are to
    be as declared: numbers that decide how long a kernel takes.
    """
    return _up_to("integers", low, high, None, like)


def offsets(
    last: int | str,
    *,
    starts: bool = True,
    step: int = 1,
    least: int = 0,
    most: int | None = None,
    like: Sequence[int] = (),
) -> Distribution:
    """Whole numbers that rise along the last axis to ``last``, which may be an expression of dimensions: offsets of
    sequences that lie one after another (``cu_seqlens``).

    starts: the first number is 0, not the end of the first step. step, least, most: each step is a multiple of the
    first, and between the others. like: as of `integers`, where it ends at ``last``.
    """
    if step < 1 or least < 0 or least % step or (most is not None and (most < least or most % step)):
        raise TaskError(f"offsets: least={least} and most={most} must be multiples of step={step}, in this order")
    return _up_to("offsets", 0, last, OffsetSteps(starts, step, least, most), like)


def _up_to(kind: str, low: int, high: int | str, steps: OffsetSteps | None, like: Sequence[int]) -> Distribution:
    number, upto = (math.nan, high) if isinstance(high, str) else (high, None)
    return Distribution(kind, low, number, upto, steps, tuple(like))


@dataclass(frozen=True)
class _Shaped(Declaration):
    """``shape`` holds dimension names, numbers, or expressions such as ``"D // 2"``."""

    shape: tuple[str | int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if isinstance(shape := self.shape, str):
            raise TaskError(f"the shape '{shape}' is a text; a shape is a tuple of dimensions, such as (\"{shape}\",)")


@dataclass(frozen=True)
class Tensor(_Shaped):
    """An input."""

    distribution: Distribution = Distribution("normal", 0.0, 1.0)


@dataclass(frozen=True)
class Output(_Shaped):
    """An output. With ``in_place_of`` the deployed kernel writes over that input; the search gives it
    a buffer of its own, because a trial must not feed on the output of the trial before it.

    With ``updates`` the kernel reads what it writes, through one argument: the output itself. Before every launch that
    is checked it holds what that input holds, which no argument of the launch needs to be. Launches that are timed
    follow on one another, so numbers may grow beyond bounds there.
    """

    in_place_of: str | None = None
    updates: str | None = None


@dataclass(frozen=True)
class ArraySpec:
    """The specification of an array, used where there is no device. Row-major and aligned by default."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides_: tuple[int, ...] | None = None
    """In elements; None is row-major."""
    address_offset: int = 0
    """Bytes between the first element and the multiple of 256 before it."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return row_major(self.shape) if self.strides_ is None else self.strides_

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without what lies between them."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def is_whole(dtype: str) -> bool:
    """Whether a dtype holds whole numbers only."""
    return dtype == "bool" or dtype.startswith(("int", "uint"))


def extent_of(entry: str | int, dims: Dims, tensor: str) -> int:
    """The extent that ``entry`` of a shape stands for under ``dims``; ``tensor`` is for the error, a TaskError."""
    if isinstance(entry, int):
        return entry
    try:
        extent = eval(entry, {"__builtins__": {}}, dict(dims))  # noqa: S307  (the task file is code already)
    except NameError:
        raise TaskError(
            f"tensor '{tensor}': dimension '{entry}' is not in the workload; known: {', '.join(dims)}"
        ) from None
    except SyntaxError:
        raise TaskError(f"tensor '{tensor}': '{entry}' is not a dimension or an expression of them") from None
    except Exception as error:
        raise TaskError(f"tensor '{tensor}': extent '{entry}': {type(error).__name__}: {error}") from None
    if not isinstance(extent, int) or isinstance(extent, bool) or extent < 0:
        raise TaskError(f"tensor '{tensor}': extent '{entry}' is {extent!r}; it must be a whole number")
    return extent


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense array whose last axis is contiguous."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """From the first element to past the last; 0 without elements. ``strides`` are not negative."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
