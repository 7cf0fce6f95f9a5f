"""How far an output is from the reference, and how far it may be.

The reference is float64. An error is measured against the reference's own scale, element by element:
|out − ref| / (|ref| + rms(ref)), so that zeros never pass. What is allowed is set by a
trusted implementation in the declared precision on the same data: at most ``FACTOR`` times its error
and never less than the unit roundoff of the output's dtype. Large outputs are compared
slice by slice along the dimensions that the task declares independent; what was compared is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.errors import TaskError
from tilewright.records import Value
from tilewright.task.task import Task, call_by_name
from tilewright.task.tensors import Dims, Distribution, is_whole
from tilewright.verify.arrays import HOST, Array, Arrays
from tilewright.verify.images import storage

FACTOR = 2.0
"""How many times the trusted implementation's error a candidate may make."""

TRUSTED_AT_MOST = 0.1
"""Of the reference's norm that a trusted implementation may be off. Rounding to two bits of mantissa
(float8_e5m2) costs 0.06; what is further off is not the same function."""

REFERENCE_FLOP = 2e9
"""FLOP of one float64 reference: about 0.1 s on the host."""
REFERENCE_ELEMENTS = 1 << 18
"""Elements that one float64 reference may hold per tensor."""

UNIT_ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "float8_e8m0fnu": 2.0**-1, "tf32": 2.0**-11,
}  # fmt: skip
"""Largest relative error of rounding to nearest; whole-number dtypes must come out exact."""


@dataclass(frozen=True)
class Slice:
    """Which indices of each independent dimension a comparison covers; dimensions not named are whole."""

    indices: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        if not self.indices:
            return "every element"
        return "slices at " + ", ".join(f"{len(ix)} of {name}" for name, ix in self.indices.items())


def pick_slice(task: Task, dims: Dims, rng: np.random.Generator) -> Slice:
    """As large a slice as the reference can afford. It holds the first and last index where two fit; the others are
    random."""
    counts = {name: int(dims[name]) for name in task.independent if isinstance(dims.get(name), int)}  # type: ignore[arg-type]
    whole = dict(counts)

    def too_much() -> bool:
        reduced = {**dims, **counts}
        elements = max(math.prod(array.shape) for array in task.arrays(reduced).values())
        return task.work(reduced) > REFERENCE_FLOP or elements > REFERENCE_ELEMENTS

    while too_much() and any(count > 1 for count in counts.values()):
        largest = max(counts, key=lambda name: counts[name])
        counts[largest] = -(-counts[largest] // 2)
    return Slice({name: _indices(whole[name], count, rng) for name, count in counts.items() if count < whole[name]})


def _indices(extent: int, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    if count == 1:
        return (int(rng.integers(extent)),)
    inner = 1 + rng.permutation(extent - 2)[: count - 2]
    return (0, *sorted(int(index) for index in inner), extent - 1)


def axes_of(shape: Sequence[str | int], part: Slice) -> dict[int, tuple[int, ...]]:
    """The axes of a tensor that a slice cuts, with the indices. Only axes that are a plain dimension name can be
    cut."""
    return {axis: part.indices[str(entry)] for axis, entry in enumerate(shape) if str(entry) in part.indices}


def reference_outputs(task: Task, dims: Dims, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The float64 reference on ``inputs``, checked for shape; ``dims`` are those of the slice."""
    what = f"reference of task '{task.name}'"
    try:
        results = evaluated(task, dims, inputs)
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"{what} failed: {type(error).__name__}: {error}") from error
    expected = task.arrays(dims)
    named = {name: np.asarray(array, np.float64) for name, array in results.items()}
    for name, array in named.items():
        if array.shape != expected[name].shape:
            raise TaskError(f"{what} has shape {array.shape} for '{name}'; the task declares {expected[name].shape}")
    return named


def evaluated(
    task: Task, dims: Dims, inputs: Mapping[str, Array], floats: npt.DTypeLike = np.float64
) -> dict[str, Array]:
    """The reference's outputs by name, as it returns them. It gets whole numbers in int64, booleans as such, all else
    in ``floats``. Raises TaskError where it returns another number of arrays, and what the task's own code raises."""
    offered: dict[str, object] = dict(dims)
    for name, array in inputs.items():
        dtype = task.tensors[name].dtype
        offered[name] = np.asarray(array, np.bool_ if dtype == "bool" else np.int64 if is_whole(dtype) else floats)
    what = f"reference of task '{task.name}'"
    result = call_by_name(task.reference, offered, what)
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(task.outputs):
        raise TaskError(f"{what} returned {len(results)} arrays for the outputs {', '.join(task.outputs)}")
    return {name: np.asarray(array) for name, array in zip(task.outputs, results, strict=True)}


def try_reference(task: Task, dims: Dims) -> None:
    """The reference on drawn inputs of one slice, for a machine without a device. Raises TaskError where it fails, has
    the wrong shape, or cannot tell right from wrong."""
    rng = np.random.default_rng(0)
    reduced = sliced_dims(dims, pick_slice(task, dims, rng))
    arrays = task.arrays(reduced)
    outputs = []
    for _ in range(2):
        inputs = {name: draw(task.distribution(name, reduced), arrays[name].shape, rng) for name in task.inputs}
        outputs.append(reference_outputs(task, reduced, inputs))
    if reason := degenerate(*outputs):
        raise TaskError(f"task '{task.name}': {reason}; a check against it would prove nothing")


def draw(how: Distribution, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """``how``: as `Task.distribution` gives it."""
    if like := how.kept(shape):
        return np.array(like, np.int64).reshape(shape)
    if how.steps is not None:
        return how.steps.drawn(shape, int(how.b), rng)
    if how.kind == "normal":
        return rng.normal(how.a, how.b, shape)
    if how.kind == "uniform":
        return rng.uniform(how.a, how.b, shape)
    return rng.integers(int(how.a), int(how.b), shape)


def sliced_dims(dims: Dims, part: Slice) -> dict[str, Value]:
    return {**dims, **{name: len(indices) for name, indices in part.indices.items()}}


def degenerate(first: Mapping[str, Array], second: Mapping[str, Array]) -> str | None:
    """Why a reference cannot tell right from wrong: its outputs do not vary with the inputs."""
    for name in first:
        a, b = first[name], second[name]
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return f"the reference's output '{name}' is not finite on ordinary inputs"
        if a.size and a.shape == b.shape and np.array_equal(a, b):
            return f"the reference's output '{name}' does not depend on the inputs"
        if a.size > 1 and np.ptp(a) == 0:
            return f"the reference's output '{name}' is one constant"
    return None


@dataclass(frozen=True)
class Error:
    """How far an output is from the reference, and where it is worst."""

    worst: float
    """Largest |out − ref| / (|ref| + rms(ref)); infinite where the output is not finite."""
    total: float
    """‖out − ref‖ / ‖ref‖."""
    index: tuple[int, ...]
    got: float
    wanted: float


NO_ERROR = Error(0.0, 0.0, (), 0.0, 0.0)


def error_of(out: Array, ref: Array, arrays: Arrays = HOST, *, negligible: float = 0.0, special: bool = False) -> Error:
    """``out`` against ``ref`` of the same shape, in any dtypes. NaN equals nothing.

    negligible: a difference up to this is none: what the output's dtype cannot hold beside zero.
    special: infinities and NaN are right where ``ref`` has the same; such elements count for nothing else.
    """
    shape, worst, off = tuple(ref.shape), Error(-1.0, 0.0, (), 0.0, 0.0), 0.0
    size, start = math.prod(shape), 0
    if not size:
        return NO_ERROR
    with np.errstate(all="ignore"):
        squares = sum(arrays.squares(_scale(arrays, piece, special)) for piece in arrays.pieces(ref))
        rms = math.sqrt(squares / size)
        for a, b in zip(arrays.pieces(out), arrays.pieces(ref), strict=True):
            distance = _distance(arrays, a, b, negligible, special)
            scale = _scale(arrays, b, special) + rms
            scaled = distance / arrays.where(scale < 1e-300, 1e-300, scale)
            # Also where the reference is NaN:
            largest, at = arrays.largest(arrays.where(~arrays.finite(scaled), math.inf, scaled))
            if largest > worst.worst:
                index = tuple(int(i) for i in np.unravel_index(start + at, shape))
                worst = Error(largest, 0.0, index, float(a[at]), float(b[at]))
            off += arrays.squares(distance)
            start += math.prod(b.shape)
        total = math.sqrt(off) / math.sqrt(squares) if squares else (math.inf if off else 0.0)
    return replace(worst, total=total if math.isfinite(total) else math.inf)


def _scale(arrays: Arrays, ref: Array, special: bool) -> Array:
    """|ref|; without what is not finite, where such elements are compared on their own."""
    scale = abs(arrays.wide(ref))
    return arrays.where(~arrays.finite(scale), 0.0, scale) if special else scale


def _distance(arrays: Arrays, out: Array, ref: Array, negligible: float, special: bool) -> Array:
    """|out − ref|: not finite where one of them is not, unless ``special`` and they are the same."""
    a, b = arrays.wide(out), arrays.wide(ref)
    distance = abs(a - b)
    if arrays.whole(ref):  # float64 does not hold every whole number
        distance = arrays.where(~arrays.equal(out, ref) & (distance == 0), 1.0, distance)
    elif special:
        distance = arrays.where((a == b) | ((a != a) & (b != b)), 0.0, distance)
    return arrays.where(distance <= negligible, 0.0, distance)


def negligible(dtype: str) -> float:
    """The difference that underflow alone makes: one step next to zero. Where denormals of the dtype are denormals of
    float32 too, all of them, since kernels may flush those to zero."""
    if is_whole(dtype):
        return 0.0
    limits = ml_dtypes.finfo(storage(dtype))  # type: ignore[no-untyped-call]
    normal = dtype in ("float32", "bfloat16", "float64")
    return float(limits.smallest_normal if normal else limits.smallest_subnormal)


def untrustworthy(task: Task, name: str, error: Error) -> TaskError:
    """Of a trusted implementation that is off by more than `TRUSTED_AT_MOST`."""
    return TaskError(
        f"trusted of task '{task.name}': '{name}' is {error.total:.2g} of its norm from the float64 reference; "
        "one of the two is wrong, and candidates would be allowed as much"
    )


@dataclass(frozen=True)
class Allowance:
    """What an error may be, and where that comes from."""

    worst: float
    total: float
    why: str


def allowance(
    dtype: str, trusted: Error | None, *, precision: str | None = None, whose: str = "the trusted implementation"
) -> Allowance:
    """``FACTOR`` times the trusted implementation's error, at least ``FACTOR`` unit roundoffs.

    precision: the arithmetic, where the task declares it coarser than the output's dtype.
    whose: the error that ``trusted`` is, in words.
    """
    floor = UNIT_ROUNDOFF.get(dtype, 0.0)
    if precision is not None and UNIT_ROUNDOFF[precision] > floor:
        dtype, floor = precision, UNIT_ROUNDOFF[precision]
    rounding = trusted is None or trusted.worst < floor
    worst, total = (max(trusted.worst, floor), max(trusted.total, floor / 2)) if trusted else (floor, floor)
    why = f"unit roundoff of {dtype}, {floor:.2g}" if rounding else f"{whose}'s {worst:.2g}"
    return Allowance(FACTOR * worst, FACTOR * total, f"{FACTOR:g} × {why}")


def share(error: Error, allowed: Allowance) -> float:
    """Error over allowance; above 1 is incorrect."""
    if error.worst == 0.0:
        return 0.0
    return max(_ratio(error.worst, allowed.worst), _ratio(error.total, allowed.total))


def _ratio(value: float, limit: float) -> float:
    return value / limit if limit else math.inf
