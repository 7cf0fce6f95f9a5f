"""Mathematical functions: Triton's own, and the functions of libdevice that Tile IR has."""

from __future__ import annotations

import re

from tilewright.languages.tileir_from_triton.composed import COMPOSED, KEEPS, Expressions
from tilewright.languages.tileir_from_triton.elementwise import NEAREST, widened
from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import Attributes, Handle

FUNCTIONS: dict[str, tuple[str, Attributes]] = {
    "absf": ("AbsF", {}), "absi": ("AbsI", {}), "ceil": ("Ceil", {}), "floor": ("Floor", {}),
    "exp": ("Exp", {"rounding_mode": "FULL"}), "exp2": ("Exp2", KEEPS), "log": ("Log", {}), "log2": ("Log2", {}),
    "sin": ("Sin", {}), "cos": ("Cos", {}), "tan": ("Tan", {}), "sinh": ("SinH", {}), "cosh": ("CosH", {}),
    "tanh": ("TanH", {"rounding_mode": "FULL"}), "sqrt": ("Sqrt", NEAREST), "rsqrt": ("Rsqrt", KEEPS),
    "powf": ("FPowF", {}), "fma": ("Fma", NEAREST), "atan2": ("Atan2", {}),
}  # fmt: skip
"""Maps the name of an operation, without its dialect, to the Tile IR operation and its attributes."""
LIBDEVICE = {
    **{name: name for name in FUNCTIONS}, "fabs": "absf", "abs": "absi", "llabs": "absi", "pow": "powf",
    "fast_exp": "exp", "fast_log": "log", "fast_log2": "log2", "fast_sin": "sin", "fast_cos": "cos",
    "fast_tan": "tan", "fast_pow": "powf", "sqrt_rn": "sqrt", "fsqrt_rn": "sqrt", "dsqrt_rn": "sqrt",
    "fmaf_rn": "fma", "fma_rn": "fma", "fast_tanh": "tanh", "frsqrt_rn": "rsqrt", "drsqrt_rn": "rsqrt",
}  # fmt: skip
"""Maps a function of libdevice, without ``__nv_`` and the final ``f`` for float, to its name in `FUNCTIONS`."""
AT_ANY_WIDTH = ("absf", "absi")
TESTS = ("isnan", "isnand", "isinf", "isinfd", "finite", "isfinited")
"""Composed functions whose result is i32."""


@translates(*(f"math.{name}" for name in FUNCTIONS), "tt.precise_sqrt")
def function(t: Translation, op: TtirOp) -> Handle:
    name = "sqrt" if op.name == "tt.precise_sqrt" else op.name.partition(".")[2]
    return applied(t, name, op.type, t.all(op.operands))


def applied(t: Translation, name: str, kind: ValueType, values: list[Handle]) -> Handle:
    """Generates a function. For 16-bit values, the function is computed in f32, and the result is rounded once."""
    operation, attributes = FUNCTIONS[name]
    wide = kind if name in AT_ANY_WIDTH else widened(kind)
    result = t.emit(operation, wide, *(t.convert(value, kind, wide.element) for value in values), **attributes)
    return t.convert(result, wide, kind.element)


@translates("math.erf")
def erf(t: Translation, op: TtirOp) -> Handle:
    return composed(t, "erf", op.type, t.all(op.operands))


def composed(t: Translation, name: str, kind: ValueType, values: list[Handle]) -> Handle:
    """Generates a function that needs several operations. 16-bit values are computed in f32 and rounded once."""
    wide = widened(kind)
    result = COMPOSED[name](Expressions(t, wide), *(t.convert(value, kind, wide.element) for value in values))
    return t.convert(result, wide, kind.element) if name not in TESTS else result


@translates("tt.extern_elementwise")
def libdevice(t: Translation, op: TtirOp) -> Handle:
    """Generates a function of libdevice. The symbol of ``op`` is the function's name."""
    symbol = str(op.attributes["symbol"])
    known = re.fullmatch(r"__nv_(\w+)", symbol)
    stem = known[1] if known else ""
    values, kind = t.all(op.operands), op.operands[0].type
    for name in (stem, stem.removesuffix("f")):
        if name in COMPOSED and kind.is_float:
            return composed(t, name, kind, values)
        if name in LIBDEVICE and op.type.is_float == kind.is_float:
            return applied(t, LIBDEVICE[name], op.type, values)
    raise Untranslated(f"Tile IR has no counterpart of libdevice's {symbol}")
