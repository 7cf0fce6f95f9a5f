"""Element-wise floating-point operations.

f32 and f64 are computed as IEEE 754 has it, rounded once in the direction that the operation names. f16
and bf16 are computed in f32 and rounded to their type; where the dialect calls the operation native for
them (addition, multiplication, ``fma``, ``sqrt``), the result is that of one rounding.

The functions of mathematics are computed in float64 and rounded to f32, then to f16 or bf16 (the dialect:
"emulated in f32"); in f64 they are NumPy's. ``approx`` and ``full`` are computed as precisely as the rest:
a GPU may differ from that by some units in the last place. ``flush_to_zero`` (f32 only) replaces subnormal
operands and results by zeros of their sign.

NaN results are quiet; their other bits are NumPy's, not the GPU's 0x7FFFFFFF.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.tileir.read.tree import Op, TileType
from tilewright.tileir.run.exact import float64_exactly, sum_odd
from tilewright.tileir.run.numbers import STORAGE, flushed, round_to
from tilewright.tileir.run.registry import Array, Unsupported, implements

Function = Callable[..., Array]

BASE = ("f16", "bf16", "f32", "f64")
APPROXIMATE = ("approx", "full")
IEEE = ("nearest_even", "zero", "negative_inf", "positive_inf")


def _element(op: Op) -> str:
    """The element type of an operation from floats to the same floats (or, for ``cmpf``, to i1)."""
    type_ = op.operand_types["lhs"][0] if op.name == "cmpf" else op.result_types[0]
    assert isinstance(type_, TileType)
    if type_.element not in BASE:
        raise Unsupported(f"{op.name} of {type_.element}; known: {', '.join(BASE)}")
    assert isinstance(type_.element, str)
    return type_.element


def _single(values: Array) -> Array:
    """f16 and bf16 as f32; f32 and f64 as they are."""
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)


def _flushes(op: Op, element: str) -> bool:
    if not op.attributes.get("flush_to_zero"):
        return False
    if element != "f32":
        raise Unsupported(f"{op.name}: flush_to_zero of {element}; only f32 has it")
    return True


# Arithmetic -------------------------------------------------------------------------------------------


def _arithmetic(op: Op, operands: tuple[Array, ...]) -> Array:
    """One of the operations that are rounded exactly, in whichever type, direction and flushing."""
    element, mode = _element(op), op.attributes.get("rounding_mode", "nearest_even")
    flushing = _flushes(op, element)
    if mode in APPROXIMATE and op.name in ("divf", "sqrt") and element == "f32":
        mode = "nearest_even"
    elif mode not in IEEE:
        raise Unsupported(f"{op.name}: rounding '{mode}' of {element}; known: {', '.join(IEEE)}")
    with np.errstate(all="ignore"):
        operands = tuple(_single(operand) for operand in operands)
        if flushing:
            operands = tuple(flushed(operand) for operand in operands)
        result = _computed(op.name, operands, element, mode)
        # A result that rounds up to the least normal number stays: the dialect speaks of results.
        return flushed(result) if flushing else result


def _computed(name: str, operands: tuple[Array, ...], element: str, mode: str) -> Array:
    """The result of operands in f32 or f64, as ``element``."""
    if element == "f64":
        near = NEAREST[name](*operands)
        if mode == "nearest_even" and name != "fma":
            return near
        return float64_exactly(name, near, operands, mode)
    if mode != "nearest_even":
        return _directed(name, operands, element, mode)
    if name == "fma":
        return _fused(operands, element)
    result = NEAREST[name](*operands)
    # Rounding to f32 in between changes nothing: it has more than twice the bits of f16 and bf16. That holds
    # for subnormal products of bf16 too: from 2**-134 on f32 has them exactly, and less becomes 0.
    return result if element == "f32" else _narrow(result, element)


def _narrow(values: Array, element: str) -> Array:
    return values.astype(STORAGE[element])


NEAREST: dict[str, Function] = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "sqrt": np.sqrt,
    "fma": lambda a, b, c: a * b + c,
}


def _directed(name: str, operands: tuple[Array, ...], element: str, mode: str) -> Array:
    """Rounded in a direction: from float64, which holds the result exactly or rounded to odd."""
    wide = tuple(operand.astype(np.float64) for operand in operands)
    return round_to(_odd(name, wide, mode), element, mode)


def _odd(name: str, wide: tuple[Array, ...], mode: str) -> Array:
    """The result of f32 operands as float64 that rounds like the exact one, with its sign where it is zero."""
    if name == "mulf":
        return wide[0] * wide[1]
    if name in ("divf", "sqrt"):
        return NEAREST[name](*wide)  # not exact, but on the right side of every number of f32
    first, second = (wide[0] * wide[1], wide[2]) if name == "fma" else wide
    if name == "subf":
        second = -second
    total = sum_odd(first, second)
    if mode == "negative_inf":  # x + -x is -0 when rounding down
        cancelled = (total == 0) & (np.signbit(first) != np.signbit(second))
        total = np.where(cancelled, -0.0, total)
    return total


PRECISION = {"f32": 24, "f16": 11, "bf16": 8}
LEAST = {"f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-14}


def _fused(operands: tuple[Array, ...], element: str) -> Array:
    """``lhs * rhs + acc`` rounded once, to nearest even.

    The product is exact in float64; the sum, rounded there, rounds to the same number again unless it
    lies just between two numbers of ``element``. Only such sums are looked at more closely.
    """
    lhs, rhs, acc = (operand.astype(np.float64) for operand in operands)
    product = lhs * rhs
    total = np.asarray(product + acc)
    result = round_to(total, element)
    lost = 53 - PRECISION[element]
    middle = (total.view(np.int64) & np.int64((1 << lost) - 1)) == np.int64(1 << (lost - 1))
    doubtful = middle | ((np.abs(total) < LEAST[element]) & (total != 0))
    if doubtful.any():
        terms = (np.broadcast_to(term, total.shape)[doubtful] for term in (product, acc))
        result[doubtful] = round_to(sum_odd(*terms), element)
    return result


@implements("addf", "subf", "mulf", "divf")
def binary(op: Op, lhs: Array, rhs: Array) -> Array:
    """Correctly rounded sums, differences, products and quotients."""
    return _arithmetic(op, (lhs, rhs))


@implements("fma")
def fma(op: Op, lhs: Array, rhs: Array, acc: Array) -> Array:
    """``lhs * rhs + acc`` with one rounding."""
    return _arithmetic(op, (lhs, rhs, acc))


@implements("sqrt")
def sqrt(op: Op, source: Array) -> Array:
    """The correctly rounded square root; NaN of a negative number, -0 of -0."""
    return _arithmetic(op, (source,))


@implements("remf")
def remf(op: Op, lhs: Array, rhs: Array) -> Array:
    """What truncating division leaves, exactly, with the sign of ``lhs`` (C's ``fmod``)."""
    element = _element(op)
    with np.errstate(all="ignore"):
        return _narrow(np.fmod(_single(lhs), _single(rhs)), element)


# Signs, extremes, integers ----------------------------------------------------------------------------


def _signs(values: Array) -> tuple[Array, Array]:
    """The bits of ``values`` as integers, and an integer with the sign bit only."""
    bits = values.view(f"u{values.dtype.itemsize}")
    return bits, np.array(1 << (8 * values.dtype.itemsize - 1), bits.dtype)


@implements("absf")
def absf(op: Op, source: Array) -> Array:
    """Clears the sign, that of NaN too."""
    _element(op)
    bits, sign = _signs(source)
    return np.asarray(bits & ~sign).view(source.dtype)


@implements("negf")
def negf(op: Op, source: Array) -> Array:
    """Flips the sign, that of zero and NaN too."""
    _element(op)
    bits, sign = _signs(source)
    return np.asarray(bits ^ sign).view(source.dtype)


@implements("maxf", "minf")
def extreme(op: Op, lhs: Array, rhs: Array) -> Array:
    """IEEE 754-2019's maximum and minimum (``propagate_nan``) or maximumNumber and minimumNumber: -0 is
    less than +0, and without ``propagate_nan`` a number wins over NaN."""
    element = _element(op)
    with np.errstate(all="ignore"):
        first, second = _single(lhs), _single(rhs)
    if _flushes(op, element):
        first, second = flushed(first), flushed(second)
    largest = op.name == "maxf"
    with np.errstate(all="ignore"):
        result = np.asarray((np.maximum if largest else np.minimum)(first, second))
        zero = result == 0
        if zero.any():  # NumPy may take either of two zeros
            result = np.where(zero & (first == second), _zeros(first, second, largest), result)
        if (result != result).any():
            result = _with_nan(result, first, second, op.attributes.get("propagate_nan", False))
        return _narrow(result, element) if element in ("f16", "bf16") else result


def _with_nan(result: Array, first: Array, second: Array, propagating: bool) -> Array:
    """Where ``result`` is NaN: the other operand's number, if there is one and it counts."""
    if not propagating:  # not NumPy's fmax: it lets a signalling NaN win
        result = np.where(np.isnan(first), second, np.where(np.isnan(second), first, result))
    return np.where(np.isnan(result), result.dtype.type(np.nan), result)


def _zeros(first: Array, second: Array, largest: bool) -> Array:
    return first + second if largest else -(-first - second)


@implements("ceil", "floor")
def whole(op: Op, source: Array) -> Array:
    """The next integer up or down; zero keeps the sign of the operand."""
    element = _element(op)
    with np.errstate(all="ignore"):
        result = np.asarray((np.ceil if op.name == "ceil" else np.floor)(_single(source)))
        return _narrow(result, element) if element in ("f16", "bf16") else result


ORDERED: dict[str, Function] = {
    "equal": np.equal,
    "not_equal": lambda a, b: (a < b) | (a > b),
    "less_than": np.less,
    "less_than_or_equal": np.less_equal,
    "greater_than": np.greater,
    "greater_than_or_equal": np.greater_equal,
}
OPPOSITE = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less_than": "greater_than_or_equal",
    "less_than_or_equal": "greater_than",
    "greater_than": "less_than_or_equal",
    "greater_than_or_equal": "less_than",
}


@implements("cmpf")
def cmpf(op: Op, lhs: Array, rhs: Array) -> Array:
    """Compares; with a NaN an ordered comparison is false, an unordered one true."""
    _element(op)
    predicate, ordering = op.attributes["comparison_predicate"], op.attributes["comparison_ordering"]
    with np.errstate(all="ignore"):
        first, second = _single(lhs), _single(rhs)
        if ordering == "ordered":
            return np.asarray(ORDERED[predicate](first, second))
        return np.asarray(~ORDERED[OPPOSITE[predicate]](first, second))


# Functions --------------------------------------------------------------------------------------------


def _rsqrt(values: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(values))


FUNCTIONS: dict[str, Function] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "rsqrt": _rsqrt,
}


def _function(op: Op, function: Function, operands: tuple[Array, ...]) -> Array:
    """``function`` of float64, rounded to f32 and then to the element type where that is narrower."""
    element, mode = _element(op), op.attributes.get("rounding_mode", "full")
    if mode not in (*APPROXIMATE, "nearest_even"):
        raise Unsupported(f"{op.name}: rounding '{mode}'; known: {', '.join(APPROXIMATE)}")
    flushing = _flushes(op, element)
    if flushing:
        operands = tuple(flushed(operand) for operand in operands)
    with np.errstate(all="ignore"):
        result = np.asarray(function(*(operand.astype(np.float64) for operand in operands)))
        if element == "f64":
            return result
        result = result.astype(np.float32)
        if flushing:
            result = flushed(result)
        return result if element == "f32" else _narrow(result, element)


@implements("exp", "exp2", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "rsqrt")
def unary(op: Op, source: Array) -> Array:
    """A function of one number."""
    return _function(op, FUNCTIONS[op.name], (source,))


@implements("atan2")
def atan2(op: Op, x: Array, y: Array) -> Array:
    """The angle of the point whose ordinate is the first operand (which the dialect calls x): cuTile's
    ``atan2(y, x)`` passes its operands in this order."""
    return _function(op, np.arctan2, (x, y))


@implements("fpowf", "fpowi")
def power(op: Op, source: Array, exponent: Array) -> Array:
    """``source ** exponent`` with C's ``pow`` for zeros, infinities and NaN; the integers of ``fpowi`` are signed."""
    if exponent.dtype == np.bool_:
        exponent = -exponent.astype(np.int8)
    return _function(op, np.power, (source, exponent))
