"""Draws hostile inputs, which show mistakes that ordinary data hides, and rounds them to the tensors' dtypes.

If the task declares a normal distribution, hostile data may have any distribution. If it declares a uniform
distribution or a range of integers, hostile data stays within the declared range. `reference` decides whether the
outputs for the drawn inputs can be represented.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.errors import UnknownChoice
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, Distribution, is_whole
from tilewright.verify.arrays import Array
from tilewright.verify.images import storage
from tilewright.verify.tolerance import draw

LARGE = 2.0**8  # large data is this many times the declared scale; less if the dtype would overflow
OF_THE_LARGEST = 2.0**-5  # large data reaches at most this share of the largest number of the dtype
TINY = 2.0**-12
RANGE = 6  # data of mixed signs has magnitudes from 2⁻⁶ to 2⁶ times the declared scale
WOBBLE = 2.0**-6  # the spread of nearly constant rows, relative to the value
FAR_FROM_ZERO = "far from zero"
LARGE_ROWS = "large rows"
FARTHEST = 4e4  # large rows are this many times the declared scale; less if the dtype would overflow
OUTLIER = 1e4  # one value in every second row is this many times as large as the other values
FAR = 2.0**-10  # the deviation of data far from zero, relative to the mean; more if the dtype is coarser
FOR_SPECIAL = 16  # an array of this many elements has at least one special value of each sign
WHOLE = 4  # the largest magnitude of small integers, whose products are exact in every float dtype


def drawn(task: Task, dims: Dims, kind: str, seed: int, period: int | None = None) -> dict[str, Array]:
    """Draws the inputs of one case in the dtypes of their tensors. Equal arguments give equal bits.

    period: the elements of a tensor repeat after this many elements, which saves time. A prime makes rows differ.
    """
    if kind not in KINDS:
        raise UnknownChoice("data", kind, KINDS)
    arrays = task.arrays(dims)
    rng = np.random.default_rng(seed)
    inputs = {}
    floats = [name for name, spec in task.inputs.items() if not is_whole(spec.dtype)]
    large = rng.choice(floats) if kind == LARGE_ROWS and floats else None  # a product of two would be too large
    for name, spec in task.inputs.items():
        how, shape = task.distribution(name, dims), arrays[name].shape
        repeats = period is not None and math.prod(shape) > period and how.kind in ("normal", "uniform")
        values = _Drawing(spec.dtype, how, (period,) if repeats else shape, rng).of(  # type: ignore[arg-type]
            "declared" if large not in (None, name) else kind
        )
        inputs[name] = np.resize(rounded(values, spec.dtype), shape)
    return inputs


def limits(dtype: str) -> ml_dtypes.finfo:
    return ml_dtypes.finfo(storage(dtype))  # type: ignore[no-untyped-call]


def rounded(values: Array, dtype: str) -> Array:
    """Rounds to the nearest number in ``dtype``. Finite values stay finite: a dtype without infinity would give NaN."""
    kind = storage(dtype)
    if is_whole(dtype):
        return np.asarray(values).astype(kind)
    largest = float(limits(dtype).max)
    values = np.asarray(values, np.float64)
    if dtype == "float8_e8m0fnu":  # this dtype has only powers of two, without zero and sign
        values = np.maximum(np.abs(values), float(limits(dtype).smallest_normal))
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(values), np.clip(values, -largest, largest), values).astype(kind)


@dataclass(frozen=True)
class _Drawing:
    """Draws one tensor, with a method for each kind of data."""

    dtype: str
    how: Distribution
    shape: tuple[int, ...]
    rng: np.random.Generator

    def of(self, kind: str) -> Array:
        how = self.how
        if (kind == "declared" or how.always) and how.kept(self.shape):
            return self.declared()
        if how.steps is not None:
            return how.steps.drawn(self.shape, int(how.b), self.rng, kind)
        if is_whole(self.dtype) or how.kind == "integers":
            return self.whole_numbers(kind)
        values = KINDS[kind](self)
        return np.clip(values, how.a, how.b) if how.kind == "uniform" and kind not in SPECIAL else values

    @property
    def scale(self) -> float:
        a, b = abs(self.how.a), abs(self.how.b)
        return (a + b if self.how.kind == "normal" else max(a, b)) or 1.0

    @property
    def bounded(self) -> bool:
        return self.how.kind == "uniform"

    def half(self) -> Array:
        return self.rng.random(self.shape) < 0.5

    def declared(self) -> Array:
        return draw(self.how, self.shape, self.rng)

    def normal(self) -> Array:
        a, b = self.how.a, self.how.b
        mean, spread = ((a + b) / 2, (b - a) / 6) if self.bounded else (0, 1)
        return self.rng.normal(mean, spread, self.shape)

    def uniform(self) -> Array:
        low, high = (self.how.a, self.how.b) if self.bounded else (-1, 1)
        return self.rng.uniform(low, high, self.shape)

    def large(self) -> Array:
        a, b = self.how.a, self.how.b
        if self.bounded:  # near one end of the range: at most an eighth of the range away
            inward = self.rng.uniform(0, 1 / 8, self.shape)
            top = self.half() if a < 0 else np.ones(self.shape, bool)
            return np.where(top, b - inward * (b - a), a + inward * (b - a))
        return self.declared() * max(1.0, min(LARGE, OF_THE_LARGEST * float(limits(self.dtype).max) / self.scale))

    def tiny(self) -> Array:
        if self.bounded:
            nearest = min(max(0.0, self.how.a), self.how.b)
            return nearest + (self.declared() - nearest) * 2.0**-6
        return self.declared() * min(1.0, max(TINY, float(limits(self.dtype).smallest_normal) * 8 / self.scale))

    def mixed_signs(self) -> Array:
        a, b, sign = self.how.a, self.how.b, np.where(self.half(), -1.0, 1.0)
        if self.bounded:
            return (a + b) / 2 + sign * (b - a) / 2 * self.rng.random(self.shape) ** 4
        return sign * np.exp2(self.rng.uniform(-RANGE, RANGE, self.shape)) * self.scale

    def constant_rows(self) -> Array:
        rows = draw(self.how, (*self.shape[:-1], 1) if self.shape else (), self.rng)
        return rows * (1 + WOBBLE * self.rng.uniform(-1, 1, self.shape))

    def rows(self, share: float) -> Array:
        """Returns a random mask of rows that can be broadcast to the shape. For a vector, the mask selects the first
        half."""
        if len(self.shape) > 1:
            return self.rng.random((*self.shape[:-1], 1)) < share
        return np.arange(math.prod(self.shape)).reshape(self.shape) < math.prod(self.shape) // 2

    def zero_rows(self) -> Array:
        """Draws values, and sets a third of the rows to zero. In a matrix, an eighth of the columns is zero, too."""
        values = self.declared()
        if self.bounded and not self.how.a <= 0 <= self.how.b:
            return values
        columns = self.rng.random(self.shape[-1:]) < 1 / 8 if len(self.shape) > 1 else np.zeros(self.shape, bool)
        return np.where(self.rows(1 / 3) | columns, 0.0, values)

    def outliers(self) -> Array:
        """Draws values with one outlier (`OUTLIER` × the rest) in every second row, without overflow of the dtype."""
        values, large = self.declared(), OUTLIER * self.scale
        if self.bounded:
            large = self.how.a if -self.how.a > self.how.b else self.how.b
            values = values / OUTLIER
        elif large > (most := float(limits(self.dtype).max) / 4):
            values, large = values * (most / large), most
        if not values.size:
            return values
        place = self.rng.integers(self.shape[-1] if self.shape else 1, size=(*self.shape[:-1], 1))
        here = np.arange(self.shape[-1] if self.shape else 1) == place
        sign = np.where(self.half(), -1.0, 1.0)
        return np.where((here & (self.rows(1 / 2) | (len(self.shape) < 2))).reshape(self.shape), sign * large, values)

    def far_from_zero(self) -> Array:
        """Draws all values near one large value. The mean is then much larger than the deviation, and sums only
        grow."""
        middle = self.scale
        if self.bounded:
            middle = self.how.a if -self.how.a > self.how.b else self.how.b
        else:
            middle = min(middle, OF_THE_LARGEST * float(limits(self.dtype).max))
        spread = max(FAR, 2 * float(limits(self.dtype).eps))
        return middle * (1 - spread * self.rng.random(self.shape))

    def large_rows(self) -> Array:
        """Draws rows far below or far above zero, at `FARTHEST` times the scale.

        A kernel whose mask is a finite number such as -10000 instead of infinity then gives wrong results. Only one
        input of a case is drawn in this way.
        """
        if self.bounded:
            return self.far_from_zero()
        far = min(FARTHEST * self.scale, OF_THE_LARGEST * float(limits(self.dtype).max))
        return np.where(self.rows(1 / 2), -far, far) * self.far_from_zero() / self.scale

    def one_magnitude(self) -> Array:
        """Draws rows whose values have equal magnitude.

        Then the magnitude of every value is the maximum of its row. A kernel that scales by the row's maximum reaches
        the limit of its number format in every element.
        """
        rows = draw(self.how, (*self.shape[:-1], 1) if self.shape else (), self.rng)
        return rows * np.where(self.half(), -1.0, 1.0)

    def zeros(self) -> Array:
        """Draws values of which half are zero: +0, and also -0 if the range allows negative values."""
        values = self.declared()
        if self.bounded and not self.how.a <= 0 <= self.how.b:
            return values
        negative = self.half() & (not self.bounded or self.how.a < 0)
        return np.where(self.half(), values, np.where(negative, -0.0, 0.0))

    def denormals(self) -> Array:
        """Draws values of which half are denormal. The others are normal, so a kernel may flush denormals."""
        values = self.declared()
        if self.bounded and not self.how.a <= 0 < self.how.b:
            return values
        low = 0 if self.bounded and self.how.a >= 0 else -1
        small = float(limits(self.dtype).smallest_normal) * self.rng.uniform(low, 1, self.shape)
        return np.where(self.half(), values, small)

    def small_integers(self) -> Array:
        if not self.bounded:
            return self.rng.integers(-WHOLE, WHOLE + 1, self.shape).astype(np.float64)
        low, high = int(np.ceil(self.how.a)), int(np.floor(self.how.b))
        if low > high:
            return self.declared()
        low = max(low, -WHOLE) if high >= -WHOLE else low
        return self.rng.integers(low, min(high, int(np.ceil(self.how.a)) + 2 * WHOLE) + 1, self.shape)

    def special_places(self) -> tuple[Array, Array]:
        """Draws two masks of elements for special values, each with a 128th of the elements.

        An array of `FOR_SPECIAL` elements has at least one special element of each mask. A smaller array, such as a
        scale, may have none, because one special value could hide all other elements.
        """
        drawn = self.rng.random(self.shape)
        first, second = drawn < 1 / 128, drawn >= 127 / 128
        if drawn.size >= FOR_SPECIAL:
            places = self.rng.choice(drawn.size, 2, replace=False)
            first.reshape(-1)[places[0]], first.reshape(-1)[places[1]] = True, False
            second.reshape(-1)[places[0]], second.reshape(-1)[places[1]] = False, True
        return first, second

    def infinities(self) -> Array:
        negative, positive = self.special_places()
        return np.where(negative, -np.inf, np.where(positive, np.inf, self.declared()))

    def nans(self) -> Array:
        first, second = self.special_places()
        return np.where(first | second, np.nan, self.declared())

    def whole_numbers(self, kind: str) -> Array:
        """Draws integers in the declared range. ``kind``: ends of the range, constant rows, zeros, or as declared."""
        if self.dtype == "bool":
            low, high = 0, 1
        elif self.how.kind == "integers":
            low, high = int(self.how.a), int(self.how.b) - 1
        else:
            return self.declared()
        if kind in ("large", "tiny"):
            return np.full(self.shape, high if kind == "large" else low)
        if kind == "mixed signs":
            return np.where(self.half(), low, high)
        if kind == "constant rows":
            rows = self.rng.integers(low, high + 1, (*self.shape[:-1], 1) if self.shape else ())
            return np.broadcast_to(rows, self.shape)
        if kind == "rows of zeros" and low <= 0 <= high:
            return np.where(self.rows(1 / 3), 0, self.rng.integers(low, high + 1, self.shape))
        values = self.rng.integers(low, high + 1, self.shape)
        return np.where(self.half(), 0, values) if kind == "zeros" and low <= 0 <= high else values


KINDS: Mapping[str, Callable[[_Drawing], Array]] = {
    "declared": _Drawing.declared,
    "small integers": _Drawing.small_integers,
    "normal": _Drawing.normal,
    "uniform": _Drawing.uniform,
    "large": _Drawing.large,
    "tiny": _Drawing.tiny,
    "mixed signs": _Drawing.mixed_signs,
    "constant rows": _Drawing.constant_rows,
    "zeros": _Drawing.zeros,
    "rows of zeros": _Drawing.zero_rows,
    "outliers": _Drawing.outliers,
    FAR_FROM_ZERO: _Drawing.far_from_zero,
    LARGE_ROWS: _Drawing.large_rows,
    "one magnitude": _Drawing.one_magnitude,
    "denormals": _Drawing.denormals,
    "infinities": _Drawing.infinities,
    "nans": _Drawing.nans,
}
SPECIAL = ("infinities", "nans")  # kinds that are used only if the task declares ``special_values``
