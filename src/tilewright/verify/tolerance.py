"""Measures how far an output is from the float64 reference, and computes the allowed error.

The error of an element is |out − ref| / (|ref| + rms(ref)), so an output of zeros never passes. The allowed error is
``FACTOR`` times the error of a trusted implementation, which runs in the declared precision on the same data. It is at
least ``FACTOR`` unit roundoffs of the output's dtype. For large outputs, only slices along the independent dimensions
are compared. The verdict states the slices.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.errors import MachineError, TaskError, in_task
from tilewright.records import Configuration, Value
from tilewright.task.task import Task, call_by_name
from tilewright.task.tensors import Dims, Distribution, is_whole
from tilewright.verify.arrays import HOST, Array, Arrays, NamedArrays
from tilewright.verify.images import storage

FACTOR = 2.0  # a candidate's error may be this many times the trusted implementation's error
TRUSTED_AT_MOST = 0.1
"""The largest error of a trusted implementation, as a fraction of the reference's norm. Rounding to two bits of
mantissa (float8_e5m2) gives 0.06. An implementation with an error above 0.1 computes another function."""
CONSTANT_FROM = 16
"""An output needs this many equal elements to count as one constant."""
FLOAT32_ROUNDING = 1e-6
"""More than the relative error of `surely_near`: the five roundings of its two products, its sum, its difference and
its bound are at most 2⁻²⁴ each."""
REFERENCE_FLOP = 2e9  # most FLOP of one float64 reference: about 0.1 s on the host
TRIED_ELEMENTS = 1 << 27
"""The most elements of a float64 tensor with which the reference is tried."""
REFERENCE_ELEMENTS = 1 << 18  # most elements of each tensor of one float64 reference
INTERPRETED_FLOP, INTERPRETED_ELEMENTS = 2 * REFERENCE_FLOP, 1 << 23
"""The most work for which a captured kernel is interpreted as a reference; that takes up to a minute. For more work,
the reference is the captured kernel on the GPU, if there is one."""

UNIT_ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "float8_e8m0fnu": 2.0**-1, "tf32": 2.0**-11,
}  # fmt: skip
"""The largest relative error of rounding to nearest. Integer outputs must be exact."""


@dataclass(frozen=True)
class Slice:
    """The indices of each independent dimension that a comparison covers. Other dimensions are covered in full."""

    indices: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        if not self.indices:
            return "every element"
        return "slices at " + ", ".join(f"{len(ix)} of {name}" for name, ix in self.indices.items())


def pick_slice(task: Task, dims: Dims, rng: np.random.Generator) -> Slice:
    """Picks the indices of each independent dimension to compare: the first, the last and random others. Begins with
    all indices, and halves the largest number until the reference is within `REFERENCE_FLOP` and `REFERENCE_ELEMENTS`.
    """

    def fits(counts: Mapping[str, int]) -> bool:
        return affordable(task, {**dims, **counts}, REFERENCE_FLOP, REFERENCE_ELEMENTS)

    return _picked(dims, task.independent, fits, rng)


def pick_sample(task: Task, dims: Dims, rng: np.random.Generator) -> Slice:
    """Picks indices as `pick_slice` does, but of all dimensions of the outputs, until no output has more than
    `REFERENCE_ELEMENTS` elements. This is for outputs that are known in full: they need not be independent."""
    axes = {str(entry) for name in task.outputs for entry in task.tensors[name].shape}

    def fits(counts: Mapping[str, int]) -> bool:
        arrays = task.arrays({**dims, **counts})
        return all(math.prod(arrays[name].shape) <= REFERENCE_ELEMENTS for name in task.outputs)

    return _picked(dims, axes, fits, rng)


def _picked(
    dims: Dims, names: Collection[str], fits: Callable[[Mapping[str, int]], bool], rng: np.random.Generator
) -> Slice:
    whole = {name: size for name, size in dims.items() if name in names and isinstance(size, int)}
    counts = dict(whole)
    while any(count > 1 for count in counts.values()) and not fits(counts):
        largest = max(counts, key=lambda name: counts[name])
        counts[largest] = -(-counts[largest] // 2)
    return Slice({name: spread(whole[name], count, rng) for name, count in counts.items() if count < whole[name]})


def growth_of_largest(few: int, many: int) -> float:
    """Returns how many times as large the largest of ``many`` errors is as the largest of ``few`` of them.

    The errors of rounding are taken to be normally distributed. 1 of 24: 3.2; a hundredth of ten million: 1.2.
    """
    few = max(1, min(few, many))
    return _median_of_largest(many) / _median_of_largest(few)


def _median_of_largest(count: int) -> float:
    """Returns the median of the largest absolute value of ``count`` standard normal numbers."""
    return NormalDist().inv_cdf(0.5 + 0.5 * 0.5 ** (1 / min(max(1, count), 1 << 40)))


def affordable(task: Task, dims: Dims, flop: float, elements: float) -> bool:
    """Returns whether a reference with the dimensions ``dims`` stays within the limits.

    flop: the limit of FLOP. elements: the limit of elements of the largest tensor.
    """
    largest = max(math.prod(array.shape) for array in task.arrays(dims).values())
    return task.work(dims) <= flop and largest <= elements


def spread(extent: int, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Picks ``count`` indices below ``extent``: the first, the last and random others. If ``count`` is 1, picks a
    random index."""
    if count == 1:
        return (int(rng.integers(extent)),)
    inner = 1 + rng.choice(extent - 2, count - 2, replace=False)  # needs no memory proportional to ``extent``
    return (0, *sorted(int(index) for index in inner), extent - 1)


def axes_of(shape: Sequence[str | int], part: Slice) -> dict[int, tuple[int, ...]]:
    """Maps each axis to its indices in the slice. An axis is omitted if its extent is not a single dimension."""
    return {axis: part.indices[str(entry)] for axis, entry in enumerate(shape) if str(entry) in part.indices}


def cut(task: Task, name: str, array: Array, part: Slice) -> Array:
    """Returns a slice of the tensor called ``name``."""
    for axis, indices in axes_of(task.tensors[name].shape, part).items():
        array = array.take(indices, axis)
    return array


def reference_outputs(
    task: Task, dims: Dims, inputs: NamedArrays, config: Configuration | None = None
) -> dict[str, Array]:
    """Returns the outputs of the float64 reference, with checked shapes. ``dims``: the dimensions of ``inputs``.

    config: the configuration for a reference that takes one (`takes_configuration`).
    """
    what = f"reference of task '{task.name}'"
    try:
        results = evaluated(task, dims, inputs, config=config)
    except (TaskError, MachineError, MemoryError):  # of a captured kernel, whose reference needs the tools
        raise
    except Exception as error:
        raise TaskError(f"{what} failed: {in_task(error)}") from error
    expected = task.arrays(dims)
    named = {name: np.asarray(array, np.float64) for name, array in results.items()}
    for name, array in named.items():
        if array.shape != expected[name].shape:
            raise TaskError(f"{what} has shape {array.shape} for '{name}'; the task declares {expected[name].shape}")
    return named


def takes_configuration(task: Task) -> bool:
    """Returns whether the reference takes a configuration: of a captured kernel, whose results may depend on it."""
    return "config" in inspect.signature(task.reference).parameters


def evaluated(
    task: Task, dims: Dims, inputs: NamedArrays, floats: npt.DTypeLike = np.float64, config: Configuration | None = None
) -> dict[str, Array]:
    """Calls the reference and returns its outputs.

    Integers are passed as int64, booleans unchanged, all other values in the dtype ``floats``. Raises TaskError for a
    wrong number of outputs, and any exception of the task's code.
    """
    offered: dict[str, object] = dict(dims) if config is None else {**dims, "config": config}
    for name, array in inputs.items():
        dtype = task.tensors[name].dtype
        offered[name] = np.asarray(array, np.bool_ if dtype == "bool" else np.int64 if is_whole(dtype) else floats)
    what = f"reference of task '{task.name}'"
    result = call_by_name(task.reference, offered, what)
    if result is None:
        raise TaskError(f"{what} returned None; return the arrays of the outputs {', '.join(task.outputs)}")
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(task.outputs):
        raise TaskError(f"{what} returned {len(results)} arrays for the outputs {', '.join(task.outputs)}")
    return {name: np.asarray(array) for name, array in zip(task.outputs, results, strict=True)}


def try_reference(task: Task, dims: Dims) -> None:
    """Tries the reference on random inputs. Raises TaskError if it fails or its outputs do not depend on the inputs.

    Does nothing if no slice of the inputs is small enough. The check itself then tries smaller shapes.
    """
    rng = np.random.default_rng(0)
    reduced = sliced_dims(dims, pick_slice(task, dims, rng))
    arrays = task.arrays(reduced)
    if max(math.prod(array.shape) for array in arrays.values()) > TRIED_ELEMENTS:
        return
    outputs, whole = [], all(is_whole(spec.dtype) for spec in task.inputs.values())
    for number in range(2):
        how = {name: task.distribution(name, reduced) for name in task.inputs}
        if number and whole:  # `like` would give the same numbers again
            how = {name: each if each.always else replace(each, like=()) for name, each in how.items()}
        inputs = {name: draw(each, arrays[name].shape, rng) for name, each in how.items()}
        outputs.append(reference_outputs(task, reduced, inputs))
    if reason := degenerate(*outputs):
        raise TaskError(f"task '{task.name}': {reason}; a check against it would prove nothing")


def draw(how: Distribution, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draws values from a distribution that `Task.distribution` returned."""
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


def degenerate(first: NamedArrays, second: NamedArrays) -> str | None:
    """Returns the reason why a reference proves nothing; None if the reference is useful.

    A reference proves nothing if its outputs for two sets of inputs are equal, constant or not finite. A few elements
    may be equal by chance, such as the largest numbers of two rows in bfloat16.
    """
    for name in first:
        a, b = first[name], second[name]
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return f"the reference's output '{name}' is not finite on ordinary inputs"
        if a.size and a.shape == b.shape and np.array_equal(a, b):
            return f"the reference's output '{name}' does not depend on the inputs"
        if min(a.size, b.size) >= CONSTANT_FROM and np.ptp(a) == np.ptp(b) == 0:
            return f"the reference's output '{name}' is one constant"
    return None


@dataclass(frozen=True)
class Error:
    """The error of an output against the reference, and the worst element."""

    worst: float  # the largest |out − ref| / (|ref| + rms(ref)); infinite if the output is not finite
    total: float  # ‖out − ref‖ / ‖ref‖
    index: tuple[int, ...]
    got: float
    wanted: float


NO_ERROR = Error(0.0, 0.0, (), 0.0, 0.0)


def error_of(
    out: Array, ref: Array, arrays: Arrays = HOST, *, negligible: float = 0.0, special: bool = False,
    squares: float | None = None,
) -> Error:  # fmt: skip
    """Compares ``out`` with ``ref`` of the same shape. The dtypes may differ. NaN is not equal to any number.

    negligible: differences up to this number count as 0.
    special: whether an infinity or NaN is correct if ``ref`` has the same value there. Such elements do not count for
        the scale.
    squares: `squares_of` the reference, if it is known.
    """
    shape = tuple(ref.shape)
    size = math.prod(shape)
    if not size:
        return NO_ERROR
    if squares is None:
        squares = squares_of(ref, arrays, special=special)
    rms = math.sqrt(squares / size)
    sizes: list[int] = []

    def measured(a: Array, b: Array) -> tuple[Any, Any, Any]:
        """Compares two flat pieces. Returns the largest scaled distance, its index, and the summed squares of the
        distances."""
        sizes.append(math.prod(b.shape))
        with np.errstate(all="ignore"):
            wide = arrays.wide(b)
            distance = _distance(arrays, a, b, wide, negligible, special)
            scaled = distance / arrays.at_least(_scale(arrays, wide, special) + rms, 1e-300)
            scaled = arrays.infinite_for_nan(scaled)  # also if the reference is NaN
            return *arrays.largest(scaled), arrays.sum_of_squares(distance)

    pieces = list(arrays.numbers(arrays.each(measured, out, ref)))
    place = max(range(len(pieces)), key=lambda each: pieces[each][0])
    largest, at, _ = pieces[place]
    flat = sum(sizes[:place]) + int(at)
    index = tuple(int(i) for i in np.unravel_index(flat, shape))
    worst = Error(largest, 0.0, index, float(out.reshape(-1)[flat]), float(ref.reshape(-1)[flat]))
    off = sum(squared for *_, squared in pieces)
    total = math.sqrt(off) / math.sqrt(squares) if squares else (math.inf if off else 0.0)
    return replace(worst, total=total if math.isfinite(total) else math.inf)


def squares_of(ref: Array, arrays: Arrays = HOST, *, special: bool = False) -> float:
    """Returns the sum of the squares of a reference. ``special``: as in `error_of`."""

    def squares(piece: Array) -> tuple[Any]:
        with np.errstate(all="ignore"):
            return (arrays.sum_of_squares(_scale(arrays, arrays.wide(piece), special)),)

    return sum(number for (number,) in arrays.numbers(arrays.each(squares, ref)))


def surely_near(out: Array, ref: Array, bound: float, arrays: Arrays = HOST, *, squares: float | None = None) -> bool:
    """Returns True only if all elements of ``out`` are finite and `error_of` finds no error above ``bound``.

    Computes in float32, with nine operations on each piece; `error_of` has 22. False proves nothing: it is also the
    answer for two dtypes, and for values that float32 cannot represent. squares: `squares_of` the reference, if known.
    """
    size = math.prod(ref.shape)
    if not size or out.dtype != ref.dtype or arrays.whole(out) or out.itemsize > np.dtype(np.float32).itemsize:
        return False
    if bound > 1e38:  # 3.5e38 is infinite in float32, and everything would be near
        return False
    rms = math.sqrt((squares_of(ref, arrays) if squares is None else squares) / size)
    bound *= 1 - FLOAT32_ROUNDING

    def near(a: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            b = arrays.narrow(b)
            # Not ``<=``: infinity is not near infinity. The sum of large numbers would overflow before the product.
            return abs(arrays.narrow(a) - b) < abs(b) * bound + rms * bound

    return arrays.everywhere(near, out, ref)


def _scale(arrays: Arrays, wide: Array, special: bool) -> Array:
    """Returns |ref|. If ``special``, infinities and NaN become 0, since `_distance` compares them separately.

    wide: ref in float64.
    """
    scale = abs(wide)
    return arrays.where(~arrays.finite(scale), 0.0, scale) if special else scale


def _distance(arrays: Arrays, out: Array, ref: Array, b: Array, negligible: float, special: bool) -> Array:
    """Returns |out − ref|. The result is not finite where an operand is not finite.

    With ``special``, the distance of equal infinities or of two NaN is 0. ``b``: ref in float64.
    """
    a = arrays.wide(out)
    distance = abs(a - b)
    if arrays.whole(ref):  # float64 cannot represent every integer
        distance = arrays.where(~arrays.equal(out, ref) & (distance == 0), 1.0, distance)
    elif special:
        distance = arrays.where((a == b) | ((a != a) & (b != b)), 0.0, distance)
    return arrays.without_up_to(distance, negligible) if negligible else distance


def negligible(dtype: str) -> float:
    """Returns the largest difference that underflow alone can cause: the smallest denormal number of ``dtype``.

    Kernels may flush denormals to zero. So the result is the smallest normal number if the denormals of ``dtype`` are
    also denormals in float32.
    """
    if is_whole(dtype):
        return 0.0
    limits = ml_dtypes.finfo(storage(dtype))  # type: ignore[no-untyped-call]
    normal = dtype in ("float32", "bfloat16", "float64")
    return float(limits.smallest_normal if normal else limits.smallest_subnormal)


def untrustworthy(task: Task, name: str, error: Error) -> TaskError:
    """Returns the exception for a trusted implementation whose error is above `TRUSTED_AT_MOST`."""
    return TaskError(
        f"trusted of task '{task.name}': '{name}' differs by {error.total:.2g} of its norm from the float64 reference; "
        "one of the two is wrong, and candidates would be allowed this error"
    )


@dataclass(frozen=True)
class Allowance:
    """The largest allowed error, in the units of `Error`, and the source of the numbers."""

    worst: float
    total: float
    why: str


def allowance(
    dtype: str, trusted: Error | None, *, precision: str | None = None, whose: str = "the trusted implementation"
) -> Allowance:
    """Returns the allowed error: ``FACTOR`` times ``trusted``, the error of the implementation called ``whose``.

    It is at least ``FACTOR`` unit roundoffs of the output's dtype, or of the task's ``precision`` if that is coarser.
    """
    floor = UNIT_ROUNDOFF.get(dtype, 0.0)
    if precision is not None and UNIT_ROUNDOFF[precision] > floor:
        dtype, floor = precision, UNIT_ROUNDOFF[precision]
    rounding = trusted is None or trusted.worst < floor
    worst, total = (max(trusted.worst, floor), max(trusted.total, floor / 2)) if trusted else (floor, floor)
    why = f"unit roundoff of {dtype}, {floor:.2g}" if rounding else f"{whose}'s {worst:.2g}"
    return Allowance(FACTOR * worst, FACTOR * total, f"{FACTOR:g} × {why}")


def share(error: Error, allowed: Allowance) -> float:
    """Returns error / allowed error; above 1 is incorrect."""
    if error.worst == 0.0:
        return 0.0
    pairs = ((error.worst, allowed.worst), (error.total, allowed.total))
    return max(value / limit if limit else math.inf for value, limit in pairs)
