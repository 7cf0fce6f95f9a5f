"""Conversions between element types."""

from __future__ import annotations

from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import TtirOp, Untranslated
from tilewright.languages.tileir_from_triton.writer import Attributes, Handle

CASTS: dict[str, tuple[str, Attributes]] = {
    "arith.extsi": ("ExtI", {"signedness": "Signed"}),
    "arith.extui": ("ExtI", {"signedness": "Unsigned"}),
    "arith.trunci": ("TruncI", {"overflow": "NONE"}),
    "arith.extf": ("FToF", {"rounding_mode": "NEAREST_EVEN"}),
    "arith.truncf": ("FToF", {"rounding_mode": "NEAREST_EVEN"}),
    "arith.sitofp": ("IToF", {"signedness": "Signed", "rounding_mode": "NEAREST_EVEN"}),
    "arith.uitofp": ("IToF", {"signedness": "Unsigned", "rounding_mode": "NEAREST_EVEN"}),
    "arith.fptosi": ("FToI", {"signedness": "Signed", "rounding_mode": "NEAREST_INT_TO_ZERO", "saturating": False}),
    "arith.fptoui": ("FToI", {"signedness": "Unsigned", "rounding_mode": "NEAREST_INT_TO_ZERO", "saturating": False}),
    "tt.int_to_ptr": ("IntToPtr", {}),
    "tt.ptr_to_int": ("PtrToInt", {}),
}
TO_ZERO = 0
"""Triton's `RoundingMode.RTZ`."""


@translates(*CASTS)
def cast(t: Translation, op: TtirOp) -> Handle:
    name, attributes = CASTS[op.name]
    return t.emit(name, op.type, t[op.operands[0]], **attributes)


@translates("tt.fp_to_fp")
def between_floats(t: Translation, op: TtirOp) -> Handle:
    to_zero = op.attributes.get("rounding") == TO_ZERO
    if to_zero and op.type.bits < 16:
        raise Untranslated(f"rounding to zero of {op.type.element}")
    return t.emit("FToF", op.type, t[op.operands[0]], "ZERO" if to_zero else "NEAREST_EVEN")


@translates("arith.bitcast", "tt.bitcast")
def bitcast(t: Translation, op: TtirOp) -> Handle:
    """Reads the bits as another type. A pointer to booleans may become a pointer to i8: a boolean takes a byte."""
    source = op.operands[0]
    if source.type.pointer:
        return t.emit("PtrToPtr", op.type, t[source])
    return t.emit("Bitcast", op.type, t[source])
