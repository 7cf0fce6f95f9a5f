"""Tensor descriptors. They become views of a tensor whose tiles may begin at any element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.languages.tileir_from_triton.translation import I32, I64, Translation, translates
from tilewright.languages.tileir_from_triton.ttir import TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import TOKEN, Handle

ALIGNED_BYTES = 16
"""The address and the strides of a descriptor are multiples of this number of bytes. Triton requires it."""
STRIDE_BYTES = 1 << 40
"""The strides of a descriptor are smaller than this. The hardware requires it. Without this bound the compiler does not
use TMA if the host passes strides of 64 bits."""
REDUCTIONS = {1: "ADD", 2: "MIN", 3: "MAX", 6: "AND", 7: "OR", 8: "XOR"}
"""Maps the number of Triton's `DescriptorReduceKind` to Tile IR's mode for integers."""


@dataclass(frozen=True)
class View:
    """The Tile IR view of a descriptor."""

    handle: Handle
    block: ValueType
    tensor: Handle


@translates("tt.make_tensor_descriptor")
def make_descriptor(t: Translation, op: TtirOp) -> View:
    base, rank = op.operands[0], len(op.type.shape)
    shape, strides = op.operands[1 : 1 + rank], op.operands[1 + rank : 1 + 2 * rank]
    padding = "Nan" if op.attributes.get("padding", 1) == 2 else "Zero"
    extents = [t.to_i64(t[one], one.type) for one in shape]
    even_rows = t.narrow(shape[-1]) in map(t.narrow, strides)
    return view_of(t, op.type, t[base], extents, t.all(strides), padding, even_rows)


def view_of(
    t: Translation, kind: ValueType, base: Handle, shape: Sequence[Handle], strides: Sequence[Handle], padding: str,
    even_rows: bool,
) -> View:  # fmt: skip
    """Makes the view of a tensor at ``base``. Extents and strides are i64.

    even_rows: whether the last extent is a multiple of 16 bytes, as each stride is. The compiler of toolkit 13.5 stores
        by TMA only if it knows this.
    """
    block = ValueType(kind.element, kind.shape)
    tensor_type, view_type = t.writer.view_types(block, padding)
    divisor = max(1, ALIGNED_BYTES * 8 // block.bits)
    most = STRIDE_BYTES * 8 // block.bits - 1
    bounded = [t.writer.bounded(one, I64, 0, most) for one in strides[:-1]]
    steps = [t.writer.assume(one, I64, divisor, None, None) for one in bounded]
    address = t.writer.assume(base, ValueType(kind.element, pointer=True), ALIGNED_BYTES, None, None)
    *others, last = shape
    last = t.writer.assume(last, I64, divisor, None, None) if even_rows else last
    tensor = t.emit("MakeTensorView", tensor_type, address, [*others, last], steps)
    return View(t.emit("MakeStridedView", view_type, tensor), block, tensor)


def from_host(t: Translation, kind: ValueType, passed: Sequence[Handle], padding: str, even_rows: bool) -> View:
    """Returns the view of a descriptor that is a parameter of the kernel.

    Instead of the descriptor, the kernel gets the address of the tensor. As in Triton, the next parameters are the
    extents (i32) and strides (i64).
    """
    base, rank = passed[0], len(kind.shape)
    extents = [t.to_i64(one, I32) for one in passed[1 : 1 + rank]]
    return view_of(t, kind, base, extents, passed[1 + rank : 1 + 2 * rank], padding, even_rows)


@translates("tt.descriptor_load")
def load(t: Translation, op: TtirOp) -> Handle:
    """Loads a block, which may have fewer axes than the descriptor."""
    view, indices = t[op.operands[0]], t.all(op.operands[1:])
    token = t.tokens.before(op, writes=False)
    result, done = t.emit(
        "LoadViewTko", view.block, TOKEN, view.handle, indices, token, "WEAK", None, t.writer.hints(),
        [False] * len(indices),
    )  # fmt: skip
    t.tokens.after(op, done, writes=False)
    return result if view.block.shape == op.type.shape else t.reshape(result, op.type)


@translates("tt.descriptor_store")
def store(t: Translation, op: TtirOp) -> None:
    """Stores the part of a block that is inside the tensor."""
    view, value, indices = t[op.operands[0]], op.operands[1], t.all(op.operands[2:])
    tile = t[value] if value.type.shape == view.block.shape else t.reshape(t[value], view.block)
    token = t.tokens.before(op, writes=True)
    done = t.emit(
        "StoreViewTko", TOKEN, tile, view.handle, indices, token, "WEAK", None, t.writer.hints(),
        [False] * len(indices),
    )  # fmt: skip
    t.tokens.after(op, done, writes=True)


@translates("tt.descriptor_gather")
def gather(t: Translation, op: TtirOp) -> Handle:
    """Loads rows of the tensor. A tile operand has the indices of the rows, a scalar operand has the first column."""
    view, indices = t[op.operands[0]], t.all(op.operands[1:])
    rows = t.emit("MakeGatherScatterView", t.writer.gather_type(view.block, op.type), view.tensor)
    token, bounds = t.tokens.before(op, writes=False), [False, False]
    result, done = t.emit("LoadViewTko", op.type, TOKEN, rows, indices, token, "WEAK", None, None, bounds)
    t.tokens.after(op, done, writes=False)
    return result


@translates("tt.descriptor_scatter")
def scatter(t: Translation, op: TtirOp) -> None:
    """Stores rows of the tensor. A tile operand has the indices of the rows, a scalar operand has the first column."""
    view, value = t[op.operands[0]], op.operands[3]
    rows = t.emit("MakeGatherScatterView", t.writer.gather_type(view.block, value.type), view.tensor)
    token, indices = t.tokens.before(op, writes=True), t.all(op.operands[1:3])
    done = t.emit("StoreViewTko", TOKEN, t[value], rows, indices, token, "WEAK", None, None, [False, False])
    t.tokens.after(op, done, writes=True)


@translates("tt.descriptor_reduce")
def reduce(t: Translation, op: TtirOp) -> None:
    """Combines memory with a block, atomically for each element. The view of this access must not have padding."""
    view, value, indices = t[op.operands[0]], op.operands[1], t.all(op.operands[2:])
    kind = int(op.attributes["kind"])
    if kind not in REDUCTIONS or (value.type.is_float and kind != 1):
        raise Untranslated("a descriptor reduction other than add, or and, or, xor, min, max of integers")
    mode = "ADDF" if value.type.is_float else REDUCTIONS[kind]
    tile = t[value] if value.type.shape == view.block.shape else t.reshape(t[value], view.block)
    token = t.tokens.before(op, writes=True)
    unpadded = t.emit("MakeStridedView", t.writer.view_types(view.block, "Missing")[1], view.tensor)
    done = t.emit(
        "AtomicRedViewTko", TOKEN, unpadded, indices, tile, token, "RELAXED", "DEVICE", mode,
        [False] * len(indices),
    )  # fmt: skip
    t.tokens.after(op, done, writes=True)
