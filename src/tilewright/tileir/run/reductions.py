"""Handlers for `reduce` and `scan`, whose bodies combine two elements.

For each operand the body has two arguments: first the combination so far, then the current element. (Ops.td describes
the opposite order, but its example has this order. Scans with an associative, non-commutative body gave the same
elements here as on an H200 with tileiras 13.4, 2026-11-21.)

Tile IR leaves the order of the combinations open. Here, neighbours are combined as a tree, which keeps the elements in
order. A GPU does not keep the order, so a body that is not commutative has no defined result. Every step rounds to the
element type, as on the H200: 256 and 255 ones of bf16 sum up to 510 on both. The tree depends only on the extent, so
the size of a batch does not change the results.

The identities in the text are not used: no tile is empty, and combining with an identity changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.tileir.read.tree import Op, Region
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.registry import Array, implements_in_context

Combine = Callable[[Sequence[Array], Sequence[Array]], tuple[Array, ...]]
"""Takes the combinations so far and the current elements, both by operand. Returns the new combinations by operand."""

WRAPPING: dict[str, np.ufunc] = {
    "addi": np.add, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
}  # fmt: skip
"""Bodies on integers whose result does not depend on the order. The signedness matters only for i1 and i4."""
EXTREMES: dict[str, np.ufunc] = {"maxi": np.maximum, "mini": np.minimum}
LARGEST = {"maxf": (np.fmax, np.maximum), "minf": (np.fmin, np.minimum)}  # without and with ``propagate_nan``
ROUNDING: dict[str, np.ufunc] = {"addf": np.add, "mulf": np.multiply}


@implements_in_context("reduce")
def reduce(context: Context, op: Op, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Combines all elements along the axis ``dim``. The results do not have this axis. Takes any number of operands."""
    axis = 1 + int(op.attributes["dim"])
    single = single_operation(op)
    if single is not None and (result := _reduced_by_numpy(single, operands[0], axis)) is not None:
        return (result,)
    values = _along_first(operands, axis)
    combine = _combination(context, op.regions[0])
    while len(values[0]) > 1:
        even = len(values[0]) // 2 * 2
        combined = combine([value[0:even:2] for value in values], [value[1:even:2] for value in values])
        rest = [value[even:] for value in values]
        values = [np.concatenate([new, old]) if len(old) else new for new, old in zip(combined, rest, strict=True)]
    return tuple(value[0] for value in values)


@implements_in_context("scan")
def scan(context: Context, op: Op, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Replaces each element by the combination of all elements up to and including it, along the axis ``dim``.

    With ``reverse``, starts from the end. In the general case, each step doubles the number of combined elements.
    """
    axis, reverse = 1 + int(op.attributes["dim"]), bool(op.attributes["reverse"])
    values = [np.flip(value, 0) if reverse else value for value in _along_first(operands, axis)]
    if (result := _scanned_by_numpy(op, values[0])) is not None:
        values = [result]
    else:
        combine, distance = _combination(context, op.regions[0]), 1
        while distance < len(values[0]):
            combined = combine([value[:-distance] for value in values], [value[distance:] for value in values])
            values = [np.concatenate([value[:distance], new]) for value, new in zip(values, combined, strict=True)]
            distance *= 2
    return tuple(np.moveaxis(np.flip(value, 0) if reverse else value, 0, axis) for value in values)


def _along_first(operands: Sequence[Array], axis: int) -> list[Array]:
    """Returns the operands with ``axis`` moved to the front, broadcast to the same number of blocks."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    return [np.moveaxis(np.broadcast_to(operand, shape), axis, 0) for operand in operands]


def _combination(context: Context, region: Region) -> Combine:
    """Returns a function that runs the body of ``region`` on arrays. The body takes scalars, so axes are flattened."""

    def combine(before: Sequence[Array], current: Sequence[Array]) -> tuple[Array, ...]:
        shape, size = current[0].shape, current[0].size
        pairs = (value.reshape(-1) for both in zip(before, current, strict=True) for value in both)
        results = context.run_region(region, tuple(pairs))
        return tuple(np.broadcast_to(result, (size,)).reshape(shape) for result in results)

    return combine


def single_operation(op: Op) -> Op | None:
    """Returns the body's only operation if it combines the two arguments of the only operand, else None."""
    region = op.regions[0]
    if len(region.body) != 2 or len(region.arguments) != 2:
        return None
    single, end = region.body
    arguments = sorted(name for name, _ in region.arguments)
    operands = sorted(name for names in single.operands.values() for name in names)
    return single if operands == arguments and end.operands.get("operands") == single.results else None


def _numpy_is_exact(single: Op) -> bool:
    """Tells whether NumPy's operation on stored elements gives the same result as the Tile IR operation."""
    mode = single.attributes.get("rounding_mode", "nearest_even")
    elements = ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")
    return not single.attributes.get("flush_to_zero") and mode == "nearest_even" and single.tile().element in elements


def _reduced_by_numpy(single: Op, values: Array, axis: int) -> Array | None:
    """Returns the reduction by one NumPy call or a few, or None if NumPy might give another result."""
    if not _numpy_is_exact(single):
        return None
    name = single.name
    if name in ROUNDING:
        return _halved(ROUNDING[name], values, axis)
    if name in WRAPPING:
        return np.asarray(WRAPPING[name].reduce(values, axis, dtype=values.dtype))
    if name in EXTREMES:
        numbers = values if single.attributes["signedness"] == "signed" else values.view(f"u{values.dtype.itemsize}")
        return np.asarray(EXTREMES[name].reduce(numbers, axis)).view(values.dtype)
    if name not in LARGEST:
        return None
    ufunc = LARGEST[name][bool(single.attributes.get("propagate_nan"))]
    wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values  # exact, and faster in NumPy
    result = np.asarray(ufunc.reduce(wide, axis))
    # NumPy's result may have another sign of zero, or other bits of a NaN, than the operation's.
    return None if np.any((result == 0) | np.isnan(result)) else result.astype(values.dtype, copy=False)


def _halved(ufunc: np.ufunc, values: Array, axis: int) -> Array:
    """Reduces by a commutative operation: combines the first half with the second, until one element is left."""
    values = np.moveaxis(values, axis, 0)
    with np.errstate(all="ignore"):
        while (count := len(values)) > 1:
            half = count // 2
            combined = ufunc(values[:half], values[half : 2 * half])
            values = combined if count % 2 == 0 else np.concatenate([combined, values[-1:]])
    return np.asarray(values[0])


def _scanned_by_numpy(op: Op, values: Array) -> Array | None:
    """Returns the scan along the first axis by ``ufunc.accumulate``, or None if NumPy might give another result."""
    single = single_operation(op)
    if single is None or not _numpy_is_exact(single) or values.dtype.kind not in "if":
        return None
    ufunc = {**ROUNDING, **WRAPPING, **EXTREMES}.get(single.name)
    if ufunc is None or single.attributes.get("signedness", "signed") != "signed":
        return None
    with np.errstate(all="ignore"):
        return np.asarray(ufunc.accumulate(values, 0, dtype=values.dtype))
