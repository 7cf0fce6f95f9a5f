"""Assertions, print, and operations that only inform the compiler."""

from __future__ import annotations

from tilewright.languages.base import BARRIER
from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import SsaValue, TtirOp, ValueType
from tilewright.languages.tileir_from_triton.writer import TOKEN


@translates("tt.assert")
def assertion(t: Translation, op: TtirOp) -> None:
    t.emit("Assert", t[op.operands[0]], str(op.attributes.get("message", "")))


@translates("tt.print")
def print_(t: Translation, op: TtirOp) -> None:
    """Prints one line with whole tiles for each block. Triton prints one line for each element."""
    text = str(op.attributes.get("prefix", "")).lstrip().replace("%", "%%")
    is_hex, signs = op.attributes.get("hex", False), op.attributes.get("isSigned", [])
    kinds = [_format(one, is_hex, bool(sign)) for one, sign in zip(op.operands, signs, strict=False)]
    t.emit("PrintTko", TOKEN, t.all(op.operands), None, " ".join([text, *kinds]) + "\n")


def _format(value: SsaValue, is_hex: bool, signed: bool) -> str:
    if value.type.is_float:
        return "%f"
    wide = "ll" if value.type.bits == 64 else ""
    return f"%{wide}{'x' if is_hex else 'i' if signed or value.type.bits == 1 else 'u'}"


@translates("llvm.intr.assume")
def assumption(t: Translation, op: TtirOp) -> None:
    """Generates an assertion of the assumption, for the interpreter.

    Triton's compiler uses the assumption, so a false assumption makes the result undefined. Tile IR's compiler does not
    need it.
    """
    if t.checks_promises:
        t.emit("Assert", t[op.operands[0]], "tl.assume of a condition that is false")


@translates("gpu.barrier", "ttg.barrier")
def barrier(t: Translation, op: TtirOp) -> None:
    """Marks the place of a barrier for the interpreter. Generates no barrier, because tokens order the accesses."""
    if t.checks_promises:
        t.emit("Assert", t.constant(1, ValueType("i1")), BARRIER)
