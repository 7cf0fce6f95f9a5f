"""Handlers for the matrix products `mmaf`, `mmai` and `mmaf_scaled`.

f64 is computed in float64, every other type in float32. In float32 the product of two elements is exact, except for f32
elements. Neither this module nor a GPU rounds f32 elements to tf32. The sum is rounded to float32 in the order of
NumPy's BLAS, which is not the order of a GPU's tensor cores. The accumulator is added last.

An f16 accumulator stays in float32 during the operation, and is rounded once at the end. An H200 does the same: it adds
31 ones to 2048 and loses none. ``fast_acc`` has no effect, although Hopper then keeps fewer bits of a sum of fp8
products.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import Op
from tilewright.tileir.run.numbers import round_to, unsigned, wrapped
from tilewright.tileir.run.registry import Array, Unsupported, implements

FloatType: TypeAlias = "type[np.float32] | type[np.float64]"

ACCUMULATORS = {
    **dict.fromkeys(("f16", "f8E4M3FN", "f8E5M2"), ("f16", "f32")),
    **dict.fromkeys(("bf16", "tf32", "f32"), ("f32",)),
    "f64": ("f64",),
}
"""The accumulator's possible element types, by the element type of an input (documentation of cuda.tile.mma, 1.7.0)."""
SCALED = {
    ("f8E4M3FN", "f8E8M0FNU"): (32,), ("f8E5M2", "f8E8M0FNU"): (32,),
    ("f4E2M1FN", "f8E8M0FNU"): (16, 32), ("f4E2M1FN", "f8E4M3FN"): (16,),
}  # fmt: skip
"""Possible numbers of elements along K that share a scale, by (type of input, type of scale). Source: documentation of
cuda.tile.mma_scaled, 1.7.0."""


@implements("mmaf")
def mmaf(op: Op, lhs: Array, rhs: Array, acc: Array) -> Array:
    """Computes lhs · rhs + acc for tiles of M×K, K×N and M×N. All three may have a leading batch axis."""
    left, right, into = (_element(op, operand) for operand in ("lhs", "rhs", "acc"))
    if any(into not in ACCUMULATORS.get(side, ()) for side in (left, right)):
        raise Unsupported(f"mmaf of {left} and {right} into {into} is not supported")
    dtype: FloatType = np.float64 if into == "f64" else np.float32
    with np.errstate(all="ignore"):
        return round_to(product(lhs, rhs, dtype) + acc.astype(dtype, copy=False), into)


@implements("mmai")
def mmai(op: Op, lhs: Array, rhs: Array, acc: Array) -> Array:
    """Computes lhs · rhs + acc of 8-bit integers, modulo 2**32. Each of lhs and rhs may be signed or unsigned.

    A product of two elements is below 2**16 in magnitude. So the sums are exact in float32 up to K = 256, and in
    float64 for any tile. Both are faster than NumPy's integer products.
    """
    elements = tuple(_element(op, operand) for operand in ("lhs", "rhs", "acc"))
    if elements != ("i8", "i8", "i32"):
        raise Unsupported(f"mmai of {elements[0]} and {elements[1]} into {elements[2]} is not supported")
    left = lhs if op.attributes["signedness_lhs"] == "signed" else unsigned(lhs, "i8")
    right = rhs if op.attributes["signedness_rhs"] == "signed" else unsigned(rhs, "i8")
    exact: FloatType = np.float32 if lhs.shape[-1] <= 256 else np.float64
    return wrapped(product(left, right, exact).astype(np.int64) + acc, "i32")


@implements("mmaf_scaled")
def mmaf_scaled(op: Op, lhs: Array, rhs: Array, acc: Array, lhs_scale: Array, rhs_scale: Array) -> Array:
    """Computes lhs · rhs + acc. K/Kₛ elements along K share a scale of ``lhs_scale`` (M×Kₛ) or ``rhs_scale`` (Kₛ×N).

    Scaled products are exact in float64. Their sum with the accumulator is rounded to f32 once, which is more precise
    than on a GPU. A NaN scale gives NaN.
    """
    for side, axis in (("lhs", -1), ("rhs", -2)):
        pair = (_element(op, side), _element(op, f"{side}_scale"))
        extent, scales = (op.tile(name).shape[axis] for name in (side, f"{side}_scale"))
        if extent % scales or extent // scales not in SCALED.get(pair, ()):
            raise Unsupported(
                f"mmaf_scaled of {pair[0]} with {scales} scales {pair[1]} for {extent} elements is not supported"
            )
    if _element(op, "acc") != "f32":
        raise Unsupported(f"mmaf_scaled into {_element(op, 'acc')} is not supported")
    left = lhs.astype(np.float64) * _spread(lhs_scale, lhs.shape[-1], -1)
    right = rhs.astype(np.float64) * _spread(rhs_scale, rhs.shape[-2], -2)
    with np.errstate(all="ignore"):
        return round_to(product(left, right, np.float64) + acc, _element(op, "acc"))


def _spread(scales: Array, extent: int, axis: int) -> Array:
    return np.repeat(scales.astype(np.float64), extent // scales.shape[axis], axis)


def _element(op: Op, operand: str) -> str:
    return str(op.tile(operand).element)


def product(lhs: Array, rhs: Array, dtype: FloatType) -> Array:
    """Returns the matrix product in ``dtype`` for each block and each index of the batch axis.

    `np.matmul` broadcasts an operand that blocks share, and calls BLAS for each block. In a single large product of all
    blocks' rows, the rounding would depend on the position of a row. Then the bits would depend on the block order.
    """
    return np.asarray(np.matmul(_for_blas(lhs, dtype), _for_blas(rhs, dtype)))


def _for_blas(values: Array, dtype: FloatType) -> Array:
    """Converts to ``dtype``, and copies matrices whose strides BLAS does not support (broadcast or sliced tiles)."""
    values = values.astype(dtype, copy=False)
    (row_stride, column_stride), (rows, columns), item = values.strides[-2:], values.shape[-2:], values.itemsize
    row_major = column_stride == item and row_stride >= item * columns
    column_major = row_stride == item and column_stride >= item * rows
    return values if row_major or column_major else np.ascontiguousarray(values)
