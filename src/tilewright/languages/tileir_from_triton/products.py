"""Matrix products."""

from __future__ import annotations

from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import TtirOp, Untranslated
from tilewright.languages.tileir_from_triton.writer import Handle

TF32 = 0
"""Triton's `InputPrecision.TF32`. With the other values, products of f32 keep all bits here."""


@translates("tt.dot")
def dot(t: Translation, op: TtirOp) -> Handle:
    """Generates the matrix product a · b + c. With the precision tf32, a and b are first rounded to tf32."""
    left, right, _ = (value.type for value in op.operands)
    a, b, into = t.all(op.operands)
    if not left.is_float:
        return t.emit("MmaI", op.type, a, b, into, "Signed", "Signed")
    if left.element == right.element == "f32" and op.attributes.get("inputPrecision", TF32) == TF32:
        a, b = t.convert(a, left, "tf32"), t.convert(b, right, "tf32")
    elif left.element != right.element and left.bits != right.bits:
        raise Untranslated(f"a product of {left.element} and {right.element}")
    if op.type.element != "f16" or left.element not in ("f16", "f8E4M3FN", "f8E5M2"):
        wide = op.type if op.type.element == "f64" else op.type.of("f32")
        result = t.emit("MmaF", wide, a, b, t.convert(into, op.type, wide.element), False)
        return t.convert(result, wide, op.type.element)
    return t.emit("MmaF", op.type, a, b, into, False)
