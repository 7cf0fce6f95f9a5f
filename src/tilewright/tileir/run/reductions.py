"""Reductions and scans: `reduce` and `scan`, whose bodies combine two elements.

The body's arguments are, for each operand, what was combined so far and then the current element. (Ops.td lists them
the other way round in its text, and this way in its example; scans of an associative, non-commutative body on an H200
with tileiras 13.4 agree with this way in every element, 2026-11-21.)

The order of the combinations is the implementation's. Here it is a tree over neighbours, which keeps the elements'
order; a GPU's reductions keep none (no order that keeps it gave what the H200 computed), so a body that is not
commutative has no defined result. Every step rounds to the element type, as the body says, and as the H200 does: 256
and 255 ones of bf16 sum up to 510 on both. Which tree it is depends on the extent alone, not on how many blocks run
together, so results do not change with the size of a batch.

Identities are never used: combining with one changes nothing, and no tile is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.tileir.read.tree import Op, Region, TileType
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.numbers import dtype_of
from tilewright.tileir.run.registry import Array, Unknown, implements_in_context

Combine = Callable[[Sequence[Array], Sequence[Array]], tuple[Array, ...]]
"""What was combined so far and the current elements → the combination, all for each operand."""

WRAPPING: dict[str, np.ufunc] = {
    "addi": np.add, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
}  # fmt: skip
"""Integer bodies whose result does not depend on the order, nor (except for i1 and i4) on the signedness."""
EXTREMES: dict[str, np.ufunc] = {"maxi": np.maximum, "mini": np.minimum}
LARGEST = {"maxf": (np.fmax, np.maximum), "minf": (np.fmin, np.minimum)}
"""Without and with ``propagate_nan``."""
ROUNDING: dict[str, np.ufunc] = {"addf": np.add, "mulf": np.multiply}


@implements_in_context("reduce")
def reduce(context: Context, op: Op, operands: Sequence[Array]) -> tuple[Array | Unknown, ...]:
    """Combines all elements along ``dim``, which the results lack. Any number of operands."""
    if any(isinstance(operand, Unknown) for operand in operands):
        return _unknown(op)
    axis = 1 + int(op.attributes["dim"])
    one = single_operation(op)
    if one is not None and (known := _reduced_at_once(one, operands[0], axis)) is not None:
        return (known,)
    values = _along_first(operands, axis)
    combine = _combination(context, op.regions[0])
    while len(values[0]) > 1:
        even = len(values[0]) // 2 * 2
        combined = combine([value[0:even:2] for value in values], [value[1:even:2] for value in values])
        rest = [value[even:] for value in values]
        values = [np.concatenate([new, old]) if len(old) else new for new, old in zip(combined, rest, strict=True)]
    return tuple(value[0] for value in values)


@implements_in_context("scan")
def scan(context: Context, op: Op, operands: Sequence[Array]) -> tuple[Array | Unknown, ...]:
    """Element i of a result combines the elements up to and with i along ``dim``; from the end towards the start where
    ``reverse`` is set. Each step of the general case doubles how many elements are combined."""
    if any(isinstance(operand, Unknown) for operand in operands):
        return _unknown(op)
    axis, reverse = 1 + int(op.attributes["dim"]), bool(op.attributes["reverse"])
    values = [np.flip(value, 0) if reverse else value for value in _along_first(operands, axis)]
    if (known := _scanned_at_once(op, values[0])) is not None:
        values = [known]
    else:
        combine, distance = _combination(context, op.regions[0]), 1
        while distance < len(values[0]):
            combined = combine([value[:-distance] for value in values], [value[distance:] for value in values])
            values = [np.concatenate([value[:distance], new]) for value, new in zip(values, combined, strict=True)]
            distance *= 2
    return tuple(np.moveaxis(np.flip(value, 0) if reverse else value, 0, axis) for value in values)


def _unknown(op: Op) -> tuple[Unknown, ...]:
    kinds = (kind for kind in op.result_types if isinstance(kind, TileType))
    return tuple(Unknown((1, *kind.shape), dtype_of(kind.element)) for kind in kinds)


def _along_first(operands: Sequence[Array], axis: int) -> list[Array]:
    """The operands with ``axis`` first and with equally many lanes."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    return [np.moveaxis(np.broadcast_to(operand, shape), axis, 0) for operand in operands]


def _combination(context: Context, region: Region) -> Combine:
    """The body for arrays: its values are scalars for each pair of elements, so all axes become one."""

    def combine(before: Sequence[Array], current: Sequence[Array]) -> tuple[Array, ...]:
        shape = current[0].shape
        pairs = (value.reshape(-1) for both in zip(before, current, strict=True) for value in both)
        results = context.run_region(region, tuple(pairs))
        size = current[0].size
        return tuple(np.broadcast_to(result, (size,)).reshape(shape) for result in results)

    return combine


def single_operation(op: Op) -> Op | None:
    """The body's only operation where it combines the two arguments of a single operand, else None."""
    region = op.regions[0]
    if len(region.body) != 2 or len(region.arguments) != 2:
        return None
    one, end = region.body
    arguments = sorted(name for name, _ in region.arguments)
    given = sorted(name for names in one.operands.values() for name in names)
    return one if given == arguments and end.operands.get("operands") == one.results else None


def _exact(one: Op) -> bool:
    """Whether NumPy's operation on the storage is the operation on the elements."""
    if one.attributes.get("flush_to_zero") or one.attributes.get("rounding_mode", "nearest_even") != "nearest_even":
        return False
    return one.tile().element in ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")


def _reduced_at_once(one: Op, values: Array, axis: int) -> Array | None:
    if not _exact(one):
        return None
    if one.name in ROUNDING:
        return _halved(ROUNDING[one.name], values, axis)
    if one.name in WRAPPING:
        return np.asarray(WRAPPING[one.name].reduce(values, axis, dtype=values.dtype))
    if one.name in EXTREMES:
        seen = values if one.attributes["signedness"] == "signed" else values.view(f"u{values.dtype.itemsize}")
        return np.asarray(EXTREMES[one.name].reduce(seen, axis)).view(values.dtype)
    if one.name not in LARGEST:
        return None
    # NumPy is not asked where NaN or zeros of both signs may be the result: the bits of the one and the order of the
    # others are left to the operation itself.
    ufunc = LARGEST[one.name][bool(one.attributes.get("propagate_nan"))]
    wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values  # exact, and NumPy is quicker
    result = np.asarray(ufunc.reduce(wide, axis))
    return None if np.any((result == 0) | np.isnan(result)) else result.astype(values.dtype, copy=False)


def _halved(ufunc: np.ufunc, values: Array, axis: int) -> Array:
    """A commutative operation, so as a tree that joins halves: their elements lie together in memory."""
    values = np.moveaxis(values, axis, 0)
    with np.errstate(all="ignore"):
        while (count := len(values)) > 1:
            half = count // 2
            combined = ufunc(values[:half], values[half : 2 * half])
            values = combined if count % 2 == 0 else np.concatenate([combined, values[-1:]])
    return np.asarray(values[0])


def _scanned_at_once(op: Op, values: Array) -> Array | None:
    """Along the first axis, one element after another."""
    one = single_operation(op)
    if one is None or not _exact(one) or values.dtype.kind not in "if":
        return None
    ufunc = {**ROUNDING, **WRAPPING, **EXTREMES}.get(one.name)
    if ufunc is None or one.attributes.get("signedness", "signed") != "signed":
        return None
    with np.errstate(all="ignore"):
        return np.asarray(ufunc.accumulate(values, 0, dtype=values.dtype))
