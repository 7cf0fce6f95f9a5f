"""Loads, stores and atomic updates through pointers."""

from __future__ import annotations

from tilewright.languages.tileir_from_triton.translation import Translation, translates
from tilewright.languages.tileir_from_triton.ttir import SsaValue, TtirOp, Untranslated
from tilewright.languages.tileir_from_triton.writer import TOKEN, Attributes, Handle, Operand

WEAK: Attributes = {"memory_ordering_semantics": "WEAK", "memory_scope": None}
VOLATILE: Attributes = {"memory_ordering_semantics": "RELAXED", "memory_scope": "DEVICE"}
UPDATES = {1: "AND", 2: "OR", 3: "XOR", 4: "ADD", 5: "ADDF", 6: "MAX", 7: "MIN", 8: "UMAX", 9: "UMIN", 10: "XCHG"}
ORDERS = {1: "RELAXED", 2: "ACQUIRE", 3: "RELEASE", 4: "ACQ_REL"}
SCOPES = {1: "DEVICE", 2: "TL_BLK", 3: "SYS"}
"""Tile IR's names of Triton's `RMWOp`, `MemSemantic` and `MemSyncScope`, by Triton's codes."""


@translates("tt.addptr")
def offset(t: Translation, op: TtirOp) -> Handle:
    pointer, number = op.operands
    return t.emit("Offset", op.type, t[pointer], t[number])


@translates("tt.load")
def load(t: Translation, op: TtirOp) -> Handle:
    """Loads through pointers. Masked-out elements without ``other`` are 0.

    Kernels rely on this 0: Triton's documents call these elements undefined, but its compiler for NVIDIA sets them to
    0.
    """
    pointer, mask, other = (_optional(t, group) for group in op.groups)
    if op.operands[0].type.pointer and op.type.pointer:
        raise Untranslated("a pointer in memory")
    if mask is not None and other is None:
        other = t.constant(0, op.type)
    how = VOLATILE if op.attributes.get("isVolatile") else WEAK
    token, hints = t.tokens.before(op, writes=False), t.writer.hints()
    pointer = t.aligned(op.operands[0], pointer)
    result, done = t.emit(
        "LoadPtrTko", op.type, TOKEN, pointer, mask, other, token=token, optimization_hints=hints, **how
    )
    t.tokens.after(op, done, writes=False)
    return result


@translates("tt.store")
def store(t: Translation, op: TtirOp) -> None:
    pointer, value, mask = (_optional(t, op.operands[k : k + 1]) for k in range(3))
    token, hints = t.tokens.before(op, writes=True), t.writer.hints()
    pointer = t.aligned(op.operands[0], pointer)
    done = t.emit("StorePtrTko", TOKEN, pointer, value, mask, token=token, optimization_hints=hints, **WEAK)
    t.tokens.after(op, done, writes=True)


def _optional(t: Translation, group: tuple[SsaValue, ...]) -> Handle | None:
    return t[group[0]] if group else None


@translates("tt.atomic_rmw")
def update(t: Translation, op: TtirOp) -> Handle:
    pointer, value, mask = (_optional(t, op.operands[k : k + 1]) for k in range(3))
    mode = UPDATES[int(op.attributes["atomic_rmw_op"])]
    return _atomic(t, op, "AtomicRMWTko", (pointer,), arg=value, mask=mask, mode=mode)


@translates("tt.atomic_cas")
def compare_and_swap(t: Translation, op: TtirOp) -> Handle:
    pointer, expected, value = t.all(op.operands)
    return _atomic(t, op, "AtomicCASTko", (pointer,), cmp=expected, val=value)


@translates("tt.grid_dependency_wait", "tt.grid_dependency_launch_dependents")
def grid_dependency(t: Translation, op: TtirOp) -> None:
    """Generates a signal or a wait of programmatic dependent launch. Memory accesses must not move across it."""
    name = "GdcWaitTko" if op.name.endswith("wait") else "GdcLaunchDependentsTko"
    t.tokens.after_all(t.emit(name, TOKEN, t.tokens.before_all()))


def _atomic(t: Translation, op: TtirOp, name: str, pointers: tuple[Handle], **values: Operand) -> Handle:
    """Generates an atomic update. An update with a memory order waits for all accesses so far.

    Triton's default memory order is acquire and release.
    """
    order, scope = ORDERS[int(op.attributes["sem"])], SCOPES[int(op.attributes["scope"])]
    relaxed = order == "RELAXED"
    token = t.tokens.before(op, writes=True) if relaxed else t.tokens.before_all()
    how = {"memory_ordering_semantics": order, "memory_scope": scope}
    result, done = t.emit(name, op.type, TOKEN, *pointers, token=token, **values, **how)
    if relaxed:
        t.tokens.after(op, done, writes=True)
    else:
        t.tokens.after_all(done)
    return result
