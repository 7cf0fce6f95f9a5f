"""Matrix products: `mmaf`, `mmai` and `mmaf_scaled`.

Floating-point products of at most 12-bit significands (all but f32 and f64 inputs) are exact in float32; their sums are
rounded to float32 in the order of NumPy's BLAS, which is not that of a GPU's tensor cores, and the accumulator is added
last. f64 is computed in float64. An f16 accumulator is kept in float32 within one operation and rounded once at its end
(an H200 adds 31 ones to 2048 without losing them, too); f32 inputs keep all their bits there as here. ``fast_acc``,
which lets Hopper keep fewer bits of a sum of fp8 products, changes nothing here.
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
"""Input → accumulators (cuda.tile.mma's documentation, 1.7.0)."""
SCALED = {
    ("f8E4M3FN", "f8E8M0FNU"): (32,),
    ("f8E5M2", "f8E8M0FNU"): (32,),
    ("f4E2M1FN", "f8E8M0FNU"): (16, 32),
    ("f4E2M1FN", "f8E4M3FN"): (16,),
}
"""Input and scale → elements along K that share a scale (cuda.tile.mma_scaled's documentation, 1.7.0)."""


@implements("mmaf")
def mmaf(op: Op, lhs: Array, rhs: Array, acc: Array) -> Array:
    """lhs · rhs + acc for tiles of M×K, K×N and M×N, or with one leading batch axis each."""
    sides, into = (_element(op, "lhs"), _element(op, "rhs")), _element(op, "acc")
    for side in sides:
        if into not in ACCUMULATORS.get(side, ()):
            raise Unsupported(f"mmaf of {sides[0]} and {sides[1]} into {into}")
    dtype: FloatType = np.float64 if into == "f64" else np.float32
    with np.errstate(all="ignore"):
        return round_to(product(lhs, rhs, dtype) + acc.astype(dtype, copy=False), into)


@implements("mmai")
def mmai(op: Op, lhs: Array, rhs: Array, acc: Array) -> Array:
    """lhs · rhs + acc of 8-bit integers, each side signed or unsigned, modulo 2**32.

    A product is below 2**16 in magnitude, so that the sums are exact in float32 up to K = 256 and, for any tile, in
    float64; both are quicker than NumPy's integer products.
    """
    sides, into = (_element(op, "lhs"), _element(op, "rhs")), _element(op, "acc")
    if sides != ("i8", "i8") or into != "i32":
        raise Unsupported(f"mmai of {sides[0]} and {sides[1]} into {into}")
    left = lhs if op.attributes["signedness_lhs"] == "signed" else unsigned(lhs, "i8")
    right = rhs if op.attributes["signedness_rhs"] == "signed" else unsigned(rhs, "i8")
    exact: FloatType = np.float32 if lhs.shape[-1] <= 256 else np.float64
    return wrapped(product(left, right, exact).astype(np.int64) + acc, "i32")


@implements("mmaf_scaled")
def mmaf_scaled(op: Op, lhs: Array, rhs: Array, acc: Array, lhs_scale: Array, rhs_scale: Array) -> Array:
    """lhs · rhs + acc where K/Kₛ neighbours along K share a scale of ``lhs_scale`` (M×Kₛ) or ``rhs_scale`` (Kₛ×N).

    Scaled products are exact in float64. Their sum with the accumulator is rounded to f32 once: more precise than a
    GPU. A NaN scale makes NaN.
    """
    for side, axis in (("lhs", -1), ("rhs", -2)):
        pair = (_element(op, side), _element(op, f"{side}_scale"))
        extent, scales = (op.tile(name).shape[axis] for name in (side, f"{side}_scale"))
        if extent % scales or extent // scales not in SCALED.get(pair, ()):
            raise Unsupported(f"mmaf_scaled of {pair[0]} with {scales} scales {pair[1]} for {extent} elements")
    if _element(op, "acc") != "f32":
        raise Unsupported(f"mmaf_scaled into {_element(op, 'acc')}")
    left = lhs.astype(np.float64) * _spread(lhs_scale, lhs.shape[-1], -1)
    right = rhs.astype(np.float64) * _spread(rhs_scale, rhs.shape[-2], -2)
    with np.errstate(all="ignore"):
        return round_to(product(left, right, np.float64) + acc, _element(op, "acc"))


def _spread(scales: Array, extent: int, axis: int) -> Array:
    return np.repeat(scales.astype(np.float64), extent // scales.shape[axis], axis)


def _element(op: Op, operand: str) -> str:
    return str(op.tile(operand).element)


def product(lhs: Array, rhs: Array, dtype: FloatType) -> Array:
    """The matrix product in ``dtype``, for each lane (and batch); nothing that lanes share is copied.

    Where they share the right side, the rows of all lanes make one large product. A shared left side is broadcast by
    `np.matmul`, which calls BLAS for each lane in place.
    """
    left, right = _for_blas(lhs, dtype), _for_blas(rhs, dtype)
    if left.ndim == 3 and right.shape[0] == 1 and left.shape[0] > 1 and left.flags.c_contiguous:
        lanes, rows, inner = left.shape
        return np.asarray((left.reshape(lanes * rows, inner) @ right[0]).reshape(lanes, rows, -1))
    return np.asarray(np.matmul(left, right))


def _for_blas(values: Array, dtype: FloatType) -> Array:
    """Converted, and copied where BLAS could not take the matrices' strides (broadcast or cut tiles)."""
    values = values.astype(dtype, copy=False)
    rows, columns = values.strides[-2:]
    fits = (columns == values.itemsize and rows >= columns * values.shape[-1]) or (
        rows == values.itemsize and columns >= rows * values.shape[-2]
    )
    return values if fits else np.ascontiguousarray(values)
