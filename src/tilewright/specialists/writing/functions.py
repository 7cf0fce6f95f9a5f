"""The functions of NumPy and torch that a reference may call, as expressions.

A function gets the graph, then the positional and keyword arguments of the call. A method ``x.f(…)`` is ``f(x, …)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.specialists.writing.expression import Expression, Graph, OutsideForms

Function = Callable[..., Any]
E = Expression

DIRECT = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh",
    "erf": "erf", "sin": "sin", "cos": "cos", "floor": "floor", "ceil": "ceil", "log1p": "log1p", "expm1": "expm1",
    "abs": "abs", "absolute": "abs", "fabs": "abs", "maximum": "maximum", "minimum": "minimum", "fmax": "maximum",
    "add": "+", "subtract": "-", "sub": "-", "multiply": "*", "mul": "*", "divide": "/", "true_divide": "/", "div": "/",
    "negative": "neg", "neg": "neg", "where": "where", "less": "<", "greater": ">", "logical_and": "&",
    "logical_or": "|", "logical_not": "not", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
"""Maps a function to the operation with the same operands."""
SAME = ("float", "to", "type", "astype", "contiguous", "asarray", "float32", "float64", "double", "ascontiguousarray")
"""Functions that do not change the values, because kernels compute in float32."""


def _last(x: E, axis: object) -> None:
    if isinstance(axis, tuple) and len(axis) == 1:
        (axis,) = axis
    if not x.shape or axis not in (-1, len(x.shape) - 1) or (axis is None and len(x.shape) > 1):
        raise OutsideForms(f"a reduction along axis {axis} of rank {len(x.shape)}; only the last axis is reduced")


def reduced(g: Graph, op: str, x: E, axis: object, keep: bool) -> E:
    """Reduces the last axis. ``keep``: whether the axis stays, with extent 1."""
    _last(x, axis)
    kept = g.reduce(op, x)
    return kept if keep else dropped(g, kept, -1)


def _reduction(op: str) -> Function:
    def function(
        g: Graph, x: E, axis: object = None, *, dim: object = None, keepdims: bool = False, keepdim: bool = False,
        dtype: object = None,
    ) -> E:  # fmt: skip
        return reduced(g, op, x, dim if axis is None else axis, keepdims or keepdim)

    return function


def _count(g: Graph, x: E) -> E:
    return g.make("extent", value=x.shape[-1]) if isinstance(x.shape[-1], str) else g.number(1)


def mean(
    g: Graph, x: E, axis: object = None, *, dim: object = None, keepdims: bool = False, keepdim: bool = False,
    dtype: object = None,
) -> E:  # fmt: skip
    return g.apply("/", reduced(g, "sum", x, dim if axis is None else axis, keepdims or keepdim), _count(g, x))


def var(
    g: Graph, x: E, axis: object = None, *, dim: object = None, keepdims: bool = False, keepdim: bool = False,
    ddof: int = 0, unbiased: bool | None = None, correction: int | None = None,
) -> E:  # fmt: skip
    axis = dim if axis is None else axis
    centred = g.apply("-", x, mean(g, x, axis, keepdims=True))
    total = reduced(g, "sum", g.apply("*", centred, centred), axis, keepdims or keepdim)
    less = int(unbiased) if unbiased is not None else ddof if correction is None else correction
    return g.apply("/", total, g.apply("-", _count(g, x), less) if less else _count(g, x))


def std(g: Graph, x: E, *args: Any, **options: Any) -> E:
    return g.apply("sqrt", var(g, x, *args, **options))


def power(g: Graph, x: E, exponent: E | float) -> E:
    """Builds small integer powers as products, half powers as roots. This is faster, and exact for negative bases."""
    if isinstance(exponent, Expression) and exponent.op == "number":
        exponent = float(exponent.value or 0)
    if isinstance(exponent, Expression):
        raise OutsideForms("a power whose exponent is computed")
    roots = {0.5: "sqrt", -0.5: "rsqrt"}
    if exponent in roots:
        return g.apply(roots[exponent], x)
    if not float(exponent).is_integer() or not 1 <= abs(exponent) <= 8:
        raise OutsideForms(f"the power {exponent}; ±0.5 and whole numbers up to 8 are written")
    result = x
    for _ in range(int(abs(exponent)) - 1):
        result = g.apply("*", result, x)
    return result if exponent > 0 else g.apply("/", 1.0, result)


def clip(
    g: Graph, x: E, low: E | float | None = None, high: E | float | None = None, *, min: E | float | None = None,
    max: E | float | None = None, a_min: E | float | None = None, a_max: E | float | None = None,
) -> E:  # fmt: skip
    floor = next((each for each in (low, min, a_min) if each is not None), None)
    ceiling = next((each for each in (high, max, a_max) if each is not None), None)
    x = x if floor is None else g.apply("maximum", x, floor)
    return x if ceiling is None else g.apply("minimum", x, ceiling)


def sigmoid(g: Graph, x: E) -> E:
    return g.apply("/", 1.0, g.apply("+", 1.0, g.apply("exp", g.apply("neg", x))))


def silu(g: Graph, x: E, inplace: bool = False) -> E:
    return g.apply("*", x, sigmoid(g, x))


def relu(g: Graph, x: E, inplace: bool = False) -> E:
    return g.apply("maximum", x, 0.0)


def leaky_relu(g: Graph, x: E, negative_slope: float = 0.01, inplace: bool = False) -> E:
    return g.apply("where", g.apply(">", x, 0.0), x, g.apply("*", x, negative_slope))


def elu(g: Graph, x: E, alpha: float = 1.0, inplace: bool = False) -> E:
    grown = g.apply("expm1", g.apply("minimum", x, 0.0))
    return g.apply("where", g.apply(">", x, 0.0), x, g.apply("*", grown, alpha))


def gelu(g: Graph, x: E, approximate: str = "none") -> E:
    half = g.apply("*", 0.5, x)
    if approximate == "tanh":
        cubic = g.apply("+", x, g.apply("*", 0.044715, power(g, x, 3)))
        return g.apply("*", half, g.apply("+", 1.0, g.apply("tanh", g.apply("*", math.sqrt(2 / math.pi), cubic))))
    return g.apply("*", half, g.apply("+", 1.0, g.apply("erf", g.apply("*", math.sqrt(0.5), x))))


def softplus(g: Graph, x: E) -> E:
    grown = g.apply("log1p", g.apply("exp", g.apply("neg", g.apply("abs", x))))
    return g.apply("+", g.apply("maximum", x, 0.0), grown)


def logaddexp(g: Graph, x: E, y: E) -> E:
    return g.apply("+", y, softplus(g, g.apply("-", x, y)))


def _powers(g: Graph, x: E, axis: object) -> tuple[E, E, E]:
    largest = reduced(g, "max", x, axis, True)
    shifted = g.apply("-", x, largest)
    return largest, shifted, g.apply("exp", shifted)


def softmax(g: Graph, x: E, axis: object = None, *, dim: object = None, dtype: object = None) -> E:
    axis = dim if axis is None else axis
    _, _, powers = _powers(g, x, axis)
    return g.apply("/", powers, reduced(g, "sum", powers, axis, True))


def log_softmax(g: Graph, x: E, axis: object = None, *, dim: object = None, dtype: object = None) -> E:
    axis = dim if axis is None else axis
    _, shifted, powers = _powers(g, x, axis)
    return g.apply("-", shifted, g.apply("log", reduced(g, "sum", powers, axis, True)))


def logsumexp(
    g: Graph, x: E, axis: object = None, *, dim: object = None, keepdims: bool = False, keepdim: bool = False
) -> E:
    axis = dim if axis is None else axis
    largest, _, powers = _powers(g, x, axis)
    kept = g.apply("+", largest, g.apply("log", reduced(g, "sum", powers, axis, True)))
    return kept if keepdims or keepdim else dropped(g, kept, -1)


def _one_axis(x: E, shape: object) -> None:
    if isinstance(shape, tuple) and len(shape) != 1:
        raise OutsideForms("a norm over several axes; only the last axis is reduced")


def layer_norm(
    g: Graph, x: E, shape: object, weight: E | None = None, bias: E | None = None, eps: float = 1e-5
) -> E:  # fmt: skip
    _one_axis(x, shape)
    centred = g.apply("-", x, mean(g, x, -1, keepdims=True))
    spread = mean(g, g.apply("*", centred, centred), -1, keepdims=True)
    normed = g.apply("*", centred, g.apply("rsqrt", g.apply("+", spread, eps)))
    normed = normed if weight is None else g.apply("*", normed, weight)
    return normed if bias is None else g.apply("+", normed, bias)


def rms_norm(g: Graph, x: E, shape: object, weight: E | None = None, eps: float | None = None) -> E:
    _one_axis(x, shape)
    if eps is None:
        raise OutsideForms("rms_norm without eps, whose value depends on the dtype; give eps")
    squares = mean(g, g.apply("*", x, x), -1, keepdims=True)
    normed = g.apply("*", x, g.apply("rsqrt", g.apply("+", squares, eps)))
    return normed if weight is None else g.apply("*", normed, weight)


def picked(g: Graph, x: E, labels: E) -> E:
    """Returns the element of each row with the index in ``labels``, written as a sum with one non-zero term."""
    places = g.make("index", shape=(x.shape[-1],), value=x.shape[-1], dtype="int64")
    here = g.apply("==", places, g.make("expand", [labels], (*labels.shape, 1), -1, labels.dtype))
    return reduced(g, "sum", g.apply("where", here, x, 0.0), -1, False)


def cross_entropy(g: Graph, x: E, labels: E, *, reduction: str = "mean") -> E:
    if reduction != "none" or len(x.shape) != 2 or labels.shape != x.shape[:1]:
        raise OutsideForms("cross_entropy of logits [M, N] and labels [M] is written with reduction='none'")
    return g.apply("-", logsumexp(g, x, -1), picked(g, x, labels))


def transposed(g: Graph, x: E, *axes: int) -> E:
    if x.op != "input" or len(x.shape) != 2 or sorted(axis % 2 for axis in axes) not in ([], [0, 1]):
        raise OutsideForms("the transpose of a computed matrix, or of more than two axes")
    return g.make("transpose", [x], x.shape[::-1])


def matmul(g: Graph, a: E, b: E) -> E:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise OutsideForms(f"the product of shapes {a.shape} and {b.shape}; two matrices [M, K] and [K, N] are written")
    return g.make("product", [a, b], (a.shape[0], b.shape[1]))


def linear(g: Graph, x: E, weight: E, bias: E | None = None) -> E:
    product = matmul(g, x, transposed(g, weight))
    return product if bias is None else g.apply("+", product, bias)


def addmm(g: Graph, bias: E, a: E, b: E) -> E:
    return g.apply("+", bias, matmul(g, a, b))


def dropped(g: Graph, x: E, axis: object = None, *, dim: object = None) -> E:
    """Removes the last axis, whose extent is 1."""
    _last(x, dim if axis is None else axis)
    if x.shape[-1] != 1:
        raise OutsideForms(f"an axis of extent {x.shape[-1]} that is removed")
    return g.make("drop", [x], x.shape[:-1], None, x.dtype)


def expanded(g: Graph, x: E, axis: int) -> E:
    axis = axis % (len(x.shape) + 1)
    return g.make("expand", [x], (*x.shape[:axis], 1, *x.shape[axis:]), axis - len(x.shape) - 1, x.dtype)


def _direct(op: str) -> Function:
    return lambda g, *operands: g.apply(op, *operands)


def _same(g: Graph, x: E, *_: object, **__: object) -> E:
    return x


FUNCTIONS: Mapping[str, Function] = {
    **{name: _direct(op) for name, op in DIRECT.items()},
    **dict.fromkeys(SAME, _same),
    "sum": _reduction("sum"), "max": _reduction("max"), "amax": _reduction("max"), "min": _reduction("min"),
    "amin": _reduction("min"), "mean": mean, "var": var, "std": std, "power": power, "pow": power,
    "square": lambda g, x: g.apply("*", x, x), "reciprocal": lambda g, x: g.apply("/", 1.0, x),
    "clip": clip, "clamp": clip, "sigmoid": sigmoid, "expit": sigmoid, "silu": silu, "relu": relu, "gelu": gelu,
    "leaky_relu": leaky_relu, "elu": elu, "softplus": softplus, "logaddexp": logaddexp, "softmax": softmax,
    "log_softmax": log_softmax, "logsumexp": logsumexp, "layer_norm": layer_norm, "rms_norm": rms_norm,
    "cross_entropy": cross_entropy, "matmul": matmul, "mm": matmul, "dot": matmul, "linear": linear, "addmm": addmm,
    "transpose": transposed, "t": transposed, "squeeze": dropped,
    "expand_dims": expanded, "unsqueeze": expanded,
}  # fmt: skip
