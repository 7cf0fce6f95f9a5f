"""Operations that make, reshape and rearrange tiles, and operations that give the index of a block in the grid."""

from __future__ import annotations

from tilewright.languages.tileir_from_triton.translation import I32, Translation, translates
from tilewright.languages.tileir_from_triton.ttir import TtirOp
from tilewright.languages.tileir_from_triton.writer import Handle


@translates("tt.get_program_id")
def program_id(t: Translation, op: TtirOp) -> Handle:
    return t.emit("GetTileBlockId", I32, I32, I32)[int(op.attributes["axis"])]


@translates("tt.get_num_programs")
def number_of_programs(t: Translation, op: TtirOp) -> Handle:
    return t.emit("GetNumTileBlocks", I32, I32, I32)[int(op.attributes["axis"])]


@translates("tt.make_range")
def make_range(t: Translation, op: TtirOp) -> Handle:
    numbers, start = t.emit("Iota", op.type), int(op.attributes["start"])
    return t.add(numbers, t.constant(start, op.type), op.type) if start else numbers


@translates("tt.splat", "tt.broadcast")
def broadcast(t: Translation, op: TtirOp) -> Handle:
    source = op.operands[0]
    return t.spread(t[source], source.type, op.type.shape)


@translates("tt.expand_dims", "tt.reshape", "tt.unsplat")
def reshape(t: Translation, op: TtirOp) -> Handle:
    return t.reshape(t[op.operands[0]], op.type)


@translates("tt.trans")
def transpose(t: Translation, op: TtirOp) -> Handle:
    return t.emit("Permute", op.type, t[op.operands[0]], list(op.attributes["order"]))


@translates("tt.cat")
def concatenate(t: Translation, op: TtirOp) -> Handle:
    return t.emit("Cat", op.type, *t.all(op.operands), dim=0)


@translates("tt.join")
def join(t: Translation, op: TtirOp) -> Handle:
    """Generates a tile with a new last axis of extent two, from two tiles."""
    kind = op.operands[0].type
    parts = [t.reshape(one, kind.shaped(*kind.shape, 1)) for one in t.all(op.operands)]
    return t.emit("Cat", op.type, *parts, dim=len(kind.shape))


@translates("tt.split")
def split(t: Translation, op: TtirOp) -> tuple[Handle, ...]:
    """Generates two tiles from a tile whose last axis has extent two: the elements at index 0, and at index 1."""
    source = op.operands[0]
    part = source.type.shaped(*source.type.shape[:-1], 1)
    zero = t.constant(0, I32)
    indices = ([*[zero] * len(op.type.shape), t.constant(k, I32)] for k in (0, 1))
    return tuple(t.reshape(t.emit("Extract", part, t[source], index), op.type) for index in indices)
