"""Inputs that friendly data hides mistakes from, rounded to what the tensors can hold.

A normal distribution may be replaced by anything; another distribution is a domain, and hostile data
stays within it. What a draw means for a task (whether the reference has an answer there) is judged by
`judging`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import UnknownChoice
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, Distribution, is_whole
from tilewright.verify.arrays import Array
from tilewright.verify.images import storage
from tilewright.verify.tolerance import draw

Draw = Callable[[tuple[int, ...], Distribution, Any, np.random.Generator], Array]

LARGE = 2.0**8
"""Times the declared scale; less where the dtype ends earlier."""
OF_THE_LARGEST = 2.0**-5
"""Share of a dtype's largest number that large data may reach."""
TINY = 2.0**-12
RANGE = 6
"""Mixed signs: magnitudes from 2⁻⁶ to 2⁶ of the declared scale."""
WOBBLE = 2.0**-6
"""Of near-constant rows: the spread relative to the value."""
WHOLE = 4
"""Small integers are of this magnitude at most: their products are exact in every float dtype."""
HALF = 0.5


def drawn(task: Task, dims: Dims, kind: str, seed: int) -> dict[str, Array]:
    """The inputs of one case in the dtypes of their tensors. Equal arguments, equal bits.

    Raises UnknownChoice for a kind that is not among `KINDS`.
    """
    if kind not in KINDS:
        raise UnknownChoice("data", kind, KINDS)
    arrays = task.arrays(dims)
    rng = np.random.default_rng(seed)
    return {
        name: _one(spec.dtype, task.distribution(name, dims), arrays[name].shape, kind, rng)
        for name, spec in task.inputs.items()
    }


def _one(dtype: str, how: Distribution, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Array:
    if kind == "declared" and how.kept(shape):
        return rounded(draw(how, shape, rng), dtype)
    if how.steps is not None:
        return rounded(how.steps.drawn(shape, int(how.b), rng, kind), dtype)
    if is_whole(dtype) or how.kind == "integers":
        return rounded(_whole(how, dtype, shape, kind, rng), dtype)
    values = KINDS[kind](shape, how, limits(dtype), rng)
    if how.kind == "uniform" and kind not in SPECIAL:
        values = np.clip(values, how.a, how.b)
    return rounded(values, dtype)


def limits(dtype: str) -> Any:
    """Largest number, smallest normal and so on of a float dtype."""
    return ml_dtypes.finfo(storage(dtype))  # type: ignore[no-untyped-call]


def rounded(values: Array, dtype: str) -> Array:
    """To nearest in ``dtype``. What is finite stays finite: a dtype without infinity has only NaN beyond."""
    kind = storage(dtype)
    if is_whole(dtype):
        return np.asarray(values).astype(kind)
    largest = float(limits(dtype).max)
    values = np.asarray(values, np.float64)
    if dtype == "float8_e8m0fnu":  # powers of two: neither zero nor sign
        values = np.maximum(np.abs(values), float(limits(dtype).smallest_normal))
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(values), np.clip(values, -largest, largest), values).astype(kind)


# Float tensors ------------------------------------------------------------------------------------


def _scale(how: Distribution) -> float:
    return (abs(how.a) + abs(how.b)) or 1.0 if how.kind == "normal" else max(abs(how.a), abs(how.b)) or 1.0


def _normal(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    if how.kind == "normal":
        return rng.normal(0, 1, shape)
    return rng.normal((how.a + how.b) / 2, (how.b - how.a) / 6, shape)


def _uniform(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    return rng.uniform(-1, 1, shape) if how.kind == "normal" else rng.uniform(how.a, how.b, shape)


def _large(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    if how.kind == "uniform":  # the outer eighth of the domain
        inward = rng.uniform(0, 1 / 8, shape)
        top = rng.random(shape) < HALF if how.a < 0 else np.ones(shape, bool)
        return np.where(top, how.b - inward * (how.b - how.a), how.a + inward * (how.b - how.a))
    times = max(1.0, min(LARGE, OF_THE_LARGEST * float(limits.max) / _scale(how)))
    return draw(how, shape, rng) * times


def _tiny(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    if how.kind == "uniform":
        nearest = min(max(0.0, how.a), how.b)
        return nearest + (draw(how, shape, rng) - nearest) * 2.0**-6
    times = min(1.0, max(TINY, float(limits.smallest_normal) * 8 / _scale(how)))
    return draw(how, shape, rng) * times


def _signs(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    sign = np.where(rng.random(shape) < HALF, -1.0, 1.0)
    if how.kind == "uniform":
        return (how.a + how.b) / 2 + sign * (how.b - how.a) / 2 * rng.random(shape) ** 4
    return sign * np.exp2(rng.uniform(-RANGE, RANGE, shape)) * _scale(how)


def _constant_rows(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    rows = draw(how, (*shape[:-1], 1), rng) if shape else draw(how, shape, rng)
    return rows * (1 + WOBBLE * rng.uniform(-1, 1, shape))


def _zeros(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    """Half of the elements are zero, of either sign where the domain has both."""
    values = draw(how, shape, rng)
    if how.kind == "uniform" and not how.a <= 0 <= how.b:
        return values
    negative = (rng.random(shape) < HALF) & (how.kind == "normal" or how.a < 0)
    return np.where(rng.random(shape) < HALF, values, np.where(negative, -0.0, 0.0))


def _denormals(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    """Half of the elements are denormal; the others keep the outputs at their scale, so that what flushes
    denormals to zero is not wrong for that alone."""
    values = draw(how, shape, rng)
    if how.kind == "uniform" and not how.a <= 0 < how.b:
        return values
    small = float(limits.smallest_normal) * rng.uniform(-1 if how.kind == "normal" or how.a < 0 else 0, 1, shape)
    return np.where(rng.random(shape) < HALF, values, small)


def _small_integers(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    if how.kind == "normal":
        return rng.integers(-WHOLE, WHOLE + 1, shape).astype(np.float64)
    low, high = int(np.ceil(how.a)), int(np.floor(how.b))
    if low > high:
        return draw(how, shape, rng)
    return rng.integers(max(low, -WHOLE) if high >= -WHOLE else low, min(high, low + 2 * WHOLE) + 1, shape)


def _infinities(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    values, where = draw(how, shape, rng), rng.random(shape) < 1 / 64
    return np.where(where, np.where(rng.random(shape) < HALF, -np.inf, np.inf), values)


def _nans(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    return np.where(rng.random(shape) < 1 / 64, np.nan, draw(how, shape, rng))


def _declared(shape: tuple[int, ...], how: Distribution, limits: Any, rng: np.random.Generator) -> Array:
    return draw(how, shape, rng)


KINDS: Mapping[str, Draw] = {
    "declared": _declared,
    "small integers": _small_integers,
    "normal": _normal,
    "uniform": _uniform,
    "large": _large,
    "tiny": _tiny,
    "mixed signs": _signs,
    "constant rows": _constant_rows,
    "zeros": _zeros,
    "denormals": _denormals,
    "infinities": _infinities,
    "nans": _nans,
}
SPECIAL = ("infinities", "nans")
"""Only where the task says that it promises something for them."""


# Tensors of whole numbers -------------------------------------------------------------------------


def _whole(how: Distribution, dtype: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Array:
    """Within the declared domain: its ends, one value per row, zeros, or as declared."""
    if dtype == "bool":
        low, high = 0, 1
    elif how.kind == "integers":
        low, high = int(how.a), int(how.b) - 1
    else:
        return draw(how, shape, rng)
    if kind == "large":
        return np.full(shape, high)
    if kind == "tiny":
        return np.full(shape, low)
    if kind == "mixed signs":
        return np.where(rng.random(shape) < HALF, low, high)
    if kind == "constant rows":
        row = rng.integers(low, high + 1, (*shape[:-1], 1)) if shape else rng.integers(low, high + 1)
        return np.broadcast_to(row, shape)
    values = rng.integers(low, high + 1, shape)
    if kind == "zeros" and low <= 0 <= high:
        return np.where(rng.random(shape) < HALF, 0, values)
    return values
