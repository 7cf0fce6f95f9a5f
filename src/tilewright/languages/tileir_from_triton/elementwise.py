"""Arithmetic on elements, comparisons and select."""

from __future__ import annotations

from tilewright.languages.tileir_from_triton.combining import constant_of
from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import Dense, TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import Attributes, Handle

NEAREST: Attributes = {"rounding_mode": "NEAREST_EVEN", "flush_to_zero": False}
SIGNED, UNSIGNED = {"signedness": "Signed"}, {"signedness": "Unsigned"}
WRAPS = {"overflow": "NONE"}
QUIET, LOUD = ({"propagate_nan": loud, "flush_to_zero": False} for loud in (False, True))

BINARY: dict[str, tuple[str, Attributes]] = {
    "arith.addi": ("AddI", WRAPS), "arith.subi": ("SubI", WRAPS), "arith.muli": ("MulI", WRAPS),
    "arith.shli": ("ShLI", WRAPS), "arith.shrsi": ("ShRI", SIGNED), "arith.shrui": ("ShRI", UNSIGNED),
    "arith.andi": ("AndI", {}), "arith.ori": ("OrI", {}), "arith.xori": ("XOrI", {}),
    "arith.divsi": ("DivI", {**SIGNED, "rounding": "ZERO"}),
    "arith.divui": ("DivI", {**UNSIGNED, "rounding": "ZERO"}),
    "arith.ceildivsi": ("DivI", {**SIGNED, "rounding": "POSITIVE_INF"}),
    "arith.floordivsi": ("DivI", {**SIGNED, "rounding": "NEGATIVE_INF"}),
    "arith.remsi": ("RemI", SIGNED), "arith.remui": ("RemI", UNSIGNED),
    "arith.maxsi": ("MaxI", SIGNED), "arith.minsi": ("MinI", SIGNED),
    "arith.maxui": ("MaxI", UNSIGNED), "arith.minui": ("MinI", UNSIGNED),
    "arith.addf": ("AddF", NEAREST), "arith.subf": ("SubF", NEAREST), "arith.mulf": ("MulF", NEAREST),
    "tt.precise_divf": ("DivF", NEAREST), "arith.remf": ("RemF", {}),
    "arith.maxnumf": ("MaxF", QUIET), "arith.minnumf": ("MinF", QUIET),
    "arith.maximumf": ("MaxF", LOUD), "arith.minimumf": ("MinF", LOUD),
}  # fmt: skip
"""Maps an operation of TTIR to the Tile IR operation on two tiles of the result's type, and its attributes."""

PREDICATES = ("EQUAL", "NOT_EQUAL", *("LESS_THAN", "LESS_THAN_OR_EQUAL", "GREATER_THAN", "GREATER_THAN_OR_EQUAL") * 2)
"""Predicates of ``arith.cmpi`` in MLIR's order. The last four are unsigned."""
FLOAT_PREDICATES = ("EQUAL", "GREATER_THAN", "GREATER_THAN_OR_EQUAL", "LESS_THAN", "LESS_THAN_OR_EQUAL", "NOT_EQUAL")
"""Predicates of ``arith.cmpf`` by number: 1 to 7 are ordered (7 is `ord`), 8 to 14 are unordered (14 is `uno`)."""


@translates(*BINARY)
def binary(t: Translation, op: TtirOp) -> Handle:
    name, attributes = BINARY[op.name]
    return t.emit(name, op.type, *t.all(op.operands), **attributes)


@translates("arith.divf", "tt.approx_divf")
def divide(t: Translation, op: TtirOp) -> Handle:
    """Generates Triton's plain division of f32 (div.full), whose error is at most 2 units in the last place."""
    rounding = "FULL" if op.type.element == "f32" else "NEAREST_EVEN"
    rounding = "APPROX" if op.name == "tt.approx_divf" else rounding
    return t.emit("DivF", op.type, *t.all(op.operands), rounding_mode=rounding, flush_to_zero=False)


@translates("arith.negf")
def negate(t: Translation, op: TtirOp) -> Handle:
    return t.emit("NegF", op.type, t[op.operands[0]])


@translates("arith.constant")
def constant(t: Translation, op: TtirOp) -> Handle:
    """Generates a constant. The value of a scalar is kept for later use."""
    if not op.type.shape and (number := constant_of(op)) is not None:
        t.numbers[op.results[0]] = number
    value = op.attributes["value"]
    values = value.values if isinstance(value, Dense) else value
    while isinstance(values, list) and values and isinstance(values[0], list):
        values = [item for inner in values for item in inner]
    return t.constant(values, op.type)


@translates("ub.poison")
def poison(t: Translation, op: TtirOp) -> Handle:
    """Generates an arbitrary value for an undefined value."""
    if op.type.pointer or op.type.descriptor:
        raise Untranslated("an undefined pointer")
    return t.constant(0, op.type)


@translates("arith.cmpi")
def compare_integers(t: Translation, op: TtirOp) -> Handle:
    predicate = int(op.attributes["predicate"])
    sign = "Signed" if predicate < 6 else "Unsigned"
    left, right = t.all(op.operands)
    if op.operands[0].type.pointer:
        kind = op.operands[0].type.of("i64")
        left, right = (t.emit("PtrToInt", kind, one) for one in (left, right))
    return t.emit("CmpI", op.type, left, right, PREDICATES[predicate], sign)


@translates("arith.cmpf")
def compare_floats(t: Translation, op: TtirOp) -> Handle:
    predicate = int(op.attributes["predicate"])
    left, right = t.all(op.operands)
    if predicate in (0, 15):
        return t.constant(predicate == 15, op.type)
    if predicate in (7, 14):
        return not_a_number(t, op, ordered=predicate == 7)
    ordering = "ORDERED" if predicate < 7 else "UNORDERED"
    return t.emit("CmpF", op.type, left, right, FLOAT_PREDICATES[(predicate - 1) % 7], ordering)


def not_a_number(t: Translation, op: TtirOp, ordered: bool) -> Handle:
    """Generates a test for NaN: with ``ordered``, whether no operand is a NaN, else whether any operand is a NaN."""
    how = ("EQUAL", "ORDERED") if ordered else ("NOT_EQUAL", "UNORDERED")
    left, right = (t.emit("CmpF", op.type, one, one, *how) for one in t.all(op.operands))
    return t.emit("AndI" if ordered else "OrI", op.type, left, right)


@translates("arith.select")
def select(t: Translation, op: TtirOp) -> Handle:
    condition, *values = op.operands
    if op.type.descriptor:
        raise Untranslated("a choice between tensor descriptors")
    chosen = t.spread(t[condition], condition.type, op.type.shape)
    return t.emit("Select", op.type, chosen, *t.all(values))


@translates("tt.clampf")
def clamp(t: Translation, op: TtirOp) -> Handle:
    value, low, high = t.all(op.operands)
    how = LOUD if op.attributes.get("propagateNan", 0) not in (0, "none") else QUIET
    above = t.emit("MaxF", op.type, value, low, **how)
    return t.emit("MinF", op.type, above, high, **how)


@translates("tt.mulhiui")
def high_product(t: Translation, op: TtirOp) -> Handle:
    """Generates the upper half of the product of unsigned numbers."""
    left, right = t.all(op.operands)
    if op.type.element == "i64":
        return t.emit("MulhiI", op.type, left, right)
    wide = op.type.of("i64")
    left, right = (t.emit("ExtI", wide, one, "Unsigned") for one in (left, right))
    product = t.emit("MulI", wide, left, right, "NONE")
    shift = t.constant(op.type.bits, wide)
    return t.emit("TruncI", op.type, t.emit("ShRI", wide, product, shift, "Unsigned"), "NONE")


def widened(kind: ValueType) -> ValueType:
    """Converts narrower floats to f32, because Tile IR lacks most functions for them."""
    return kind.of("f32") if kind.bits < 32 else kind
