"""Handlers that make and rearrange tiles, read the block's index, and check, print or assume values.

Operations that rearrange a tile return a NumPy view of their operand if they can.

Tokens order memory accesses. This interpreter makes all accesses of a block in the order of the text, which every chain
of tokens allows. So a token is None, and the operations on tokens do nothing.

The compiler relies on an `assume` without a check. If the assumption is false, the result on a GPU is undefined. The
interpreter checks the assumption: a false assumption is a finding, and the block continues. Integers are checked as
signed numbers, pointers as byte addresses.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from tilewright.languages.base import BARRIER
from tilewright.tileir.read.tree import Assumption, Element, KernelEntry, Op, PointerType, TensorViewType, TileType
from tilewright.tileir.run import numbers
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.registry import Array, Elements, Unknown, Unsupported, implements, implements_in_context
from tilewright.tileir.run.views import TensorView
from tilewright.tileir.watch.findings import ASSERTION, ASSUMPTION, MISALIGNED, OUT_OF_BOUNDS

EXPRESSION = re.compile(r"%(?P<flags>[-+ #0]*)(?P<size>\d*(?:\.\d*)?)(?:hh|h|ll|l|j|z|t|L)?(?P<kind>.?)", re.DOTALL)
INTEGERS, UNSIGNED, FLOATS = "diuoxX", "uoxX", "eEfFgGaA"
Nested: TypeAlias = "int | float | list[Nested]"


@implements("constant")
def constant(op: Op) -> Array:
    values, shape = numbers.constant_values(op.attributes["value"]), (1, *op.tile().shape)
    return np.broadcast_to(values, shape) if len(values) == 1 else values.reshape(shape)


@implements("iota")
def iota(op: Op) -> Array:
    kind = op.tile()
    return numbers.wrapped(np.arange(kind.size, dtype=np.int64), kind.element)[None]


@implements("reshape")
def reshape(op: Op, source: Array) -> Array:
    return source.reshape(len(source), *op.tile().shape)


@implements("broadcast")
def broadcast(op: Op, source: Array) -> Array:
    return np.broadcast_to(source, (len(source), *op.tile().shape))


@implements("permute")
def permute(op: Op, source: Array) -> Array:
    """Permutes the axes: axis a of the result is axis ``permutation[a]`` of the source."""
    return source.transpose(0, *(1 + axis for axis in op.attributes["permutation"]))


@implements("cat")
def cat(op: Op, lhs: Array, rhs: Array) -> Array:
    lanes = max(len(lhs), len(rhs))
    both = [np.broadcast_to(side, (lanes, *side.shape[1:])) for side in (lhs, rhs)]
    return np.concatenate(both, 1 + int(op.attributes["dim"]))


@implements_in_context("extract")
def extract(context: Context, op: Op, source: Array, indices: Sequence[Array]) -> Array:
    """Returns one slice of the source, with the result's shape. ``indices`` count slices, not elements. An
    index out of range is reported as a finding, and the returned elements are bytes of `Context.poison`."""
    slices = _slices(source, op.tile().shape)
    at, wrong = _checked_indices(context, op, indices, slices.shape[1 : 1 + len(indices)])
    lane = np.arange(len(source)) if len(source) > 1 else np.zeros(1, np.int64)
    cut: Array = slices[(lane, *at)]
    if wrong.any():
        cut = np.where(wrong.reshape(-1, *(1,) * (cut.ndim - 1)), numbers.poisoned(cut.dtype, context.poison), cut)
    return cut


@implements_in_context("insert")
def insert(context: Context, op: Op, source: Array, destination: Array, indices: Sequence[Array]) -> Array:
    """Returns the destination with one slice replaced by the source. ``indices`` count slices of the source's shape. An
    index out of range is reported as a finding, and nothing is replaced."""
    lanes = max(map(len, (source, destination, *indices)))
    changed = np.broadcast_to(destination, (lanes, *destination.shape[1:])).copy()
    slices = _slices(changed, source.shape[1:])
    clipped, wrong = _checked_indices(context, op, indices, slices.shape[1 : 1 + len(indices)])
    right = np.flatnonzero(~np.broadcast_to(wrong, lanes))
    at = tuple(np.broadcast_to(index, lanes)[right] for index in clipped)
    slices[(right, *at)] = np.broadcast_to(source, (lanes, *source.shape[1:]))[right]
    return changed


def _slices(values: Array, size: Sequence[int]) -> Array:
    """Returns a NumPy view of shape (L, slices along each axis…, extents of a slice…). ``size``: extents of a slice."""
    whole = values.shape[1:]
    pairs = [extent for n, part in zip(whole, size, strict=True) for extent in (n // part, part)]
    rank = len(whole)
    split = values.reshape(len(values), *pairs)  # splitting an axis never copies
    return split.transpose(0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2))


def _checked_indices(
    context: Context, op: Op, indices: Sequence[Array], counts: Sequence[int]
) -> tuple[tuple[Array, ...], Array]:
    """Reports indices out of range. Returns the indices clipped into range, and which blocks had one out of range."""
    wrong = np.zeros(max(map(len, indices), default=1), np.bool_)
    for axis, (index, count) in enumerate(zip(indices, counts, strict=True)):
        bad = np.broadcast_to((index < 0) | (index >= count), wrong.shape)
        for lane in np.flatnonzero(bad & ~wrong):
            number = int(np.broadcast_to(index, wrong.shape)[lane])
            message = f"{op.name}: slice {number} along axis {axis}, which has {count}"
            context.finding(op, OUT_OF_BOUNDS, message, int(lane))
        wrong = wrong | bad
    return tuple(np.clip(index, 0, n - 1) for index, n in zip(indices, counts, strict=True)), wrong


@implements("pack")
def pack(op: Op, source: Array) -> Array:
    """Returns the bytes of a 1-D tile, little-endian. The first of two 4-bit elements is in the low half of
    their byte.
    """
    element, whole = _packable(op, op.tile("source")), np.ascontiguousarray(source)
    return (numbers.packed(whole) if numbers.bits_of(element) == 4 else whole).view(np.int8)


@implements("unpack")
def unpack(op: Op, source: Array) -> Array:
    """Returns the elements of a 1-D tile of bytes, little-endian. This is the inverse of `pack`."""
    element, whole = _packable(op, op.tile()), np.ascontiguousarray(source)
    return numbers.unpacked(whole, element) if numbers.bits_of(element) == 4 else whole.view(numbers.dtype_of(element))


def _packable(op: Op, kind: TileType) -> str:
    """Returns the element type. Raises Unsupported unless ``kind`` is 1-D and is stored with its bits in memory."""
    if len(kind.shape) != 1 or isinstance(kind.element, PointerType) or kind.element in ("i1", "tf32"):
        raise Unsupported(f"{op.name} of {kind} is not supported")
    return kind.element


@implements_in_context("get_tile_block_id")
def get_tile_block_id(context: Context, op: Op) -> tuple[Array, ...]:
    """Returns the block's index along x, y and z. Along an axis of the grid with extent 1, blocks share one value."""
    x, y, _ = context.grid
    places = zip((context.blocks % x, context.blocks // x % y, context.blocks // (x * y)), context.grid, strict=True)
    return tuple(np.zeros(1, np.int32) if extent == 1 else place.astype(np.int32) for place, extent in places)


@implements_in_context("get_num_tile_blocks")
def get_num_tile_blocks(context: Context, op: Op) -> tuple[Array, ...]:
    return tuple(np.array([extent], np.int32) for extent in context.grid)


@implements("make_token", "join_tokens", "memory_fence_alias_tko", "gdc_wait_tko", "gdc_launch_dependents_tko")
def token(op: Op) -> None:
    """Does nothing, because accesses already run in the order of the text, and grids run one after another.

    A fence orders accesses that alias. The gdc operations order grids.
    """


@implements_in_context("assert")
def check(context: Context, op: Op, condition: Elements) -> None:
    """Reports each block in which ``condition`` has a false element, with the index of the first. The block continues.

    A dry run checks only the conditions that it computes. It does not compute a condition that depends on data. It also
    omits a condition if no address and no branch depends on it.
    """
    if op.attributes["message"] == BARRIER and context.memory.exchanges is not None:
        context.memory.exchanges.barrier(context.blocks)
    if isinstance(condition, Unknown):
        return
    for lane, index in _first_false(condition):
        at = f" at element {index}" if math.prod(condition.shape[1:]) > 1 else ""
        context.finding(op, ASSERTION, f"{op.attributes['message']}{at}", lane)


def _first_false(holds: Array) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields the position of each block with a false element, and the index of the block's first false element."""
    for lane in np.flatnonzero(~holds.reshape(len(holds), -1).all(1)):
        index = np.unravel_index(int(np.argmin(holds[lane])), holds.shape[1:])
        yield int(lane), tuple(map(int, index))


@implements_in_context("print_tko")
def print_tko(context: Context, op: Op, args: Sequence[Array] = ()) -> None:
    """Prints once for each block, in the order of the batch. A dry run has no data and prints nothing."""
    if context.dry:
        return
    elements = [kind.element for kind in op.operand_types.get("args", ()) if isinstance(kind, TileType)]
    for lane in range(context.lanes):
        tiles = [value[lane if len(value) > 1 else 0] for value in args]
        context.print(op, formatted(op.attributes["str"], tiles, elements), lane)


def formatted(text: str, tiles: Sequence[Array], elements: Sequence[Element]) -> str:
    """Replaces each expression of ``text`` by a tile of one block: ``[[1, 2], [3, 4]]`` for a 2×2 tile.

    The output is the same as on an H200 (tileiras 13.4). Integers below 32 bits are sign-extended to 32 bits before
    they are printed as unsigned. An infinity or a NaN is padded with blanks. There is one difference: a 64-bit integer
    needs no ``ll`` here, but on the GPU it is printed wrongly without ``ll``.

    Integers can be printed as d i u o x X, floating-point numbers as e E f F g G a A. The dialect leaves the output of
    other pairs undefined, so they raise `Unsupported`. Also raises `Unsupported` if the number of expressions differs
    from the number of tiles.
    """
    arguments = iter(zip(tiles, elements, strict=True))
    done = EXPRESSION.sub(lambda match: "%" if match["kind"] == "%" else _printed(match, arguments), text)
    if next(arguments, None) is not None:
        raise Unsupported(f"print_tko: more arguments than expressions in {text!r}")
    return done


def _printed(match: re.Match[str], arguments: Iterator[tuple[Array, Element]]) -> str:
    tile, element = next(arguments, (None, None))
    if tile is None or element is None:
        raise Unsupported(f"print_tko: no argument for '{match[0]}'")
    kind = match["kind"]
    if not kind or kind not in (FLOATS if numbers.is_float(element) else INTEGERS):
        raise Unsupported(f"print_tko: '{match[0]}' for elements {element} is not supported")
    if numbers.is_float(element):
        tile = tile.astype(np.float64)
    elif kind in UNSIGNED:
        tile = numbers.unsigned(tile if tile.dtype.itemsize == 8 else tile.astype(np.int32), "i64")
    return _nested(tile.tolist(), match["flags"], match["size"], kind)


def _nested(value: Nested, flags: str, size: str, kind: str) -> str:
    """Formats numbers as C's printf does, also where Python's ``%`` gives another result."""
    if isinstance(value, list):
        return f"[{', '.join(_nested(part, flags, size, kind) for part in value)}]"
    if kind in UNSIGNED:
        flags = flags.replace("+", "").replace(" ", "")
    if kind in INTEGERS and "." in size:
        flags = flags.replace("0", "")
    if isinstance(value, float) and not np.isfinite(value):
        flags, size, kind = flags.replace("0", ""), size.split(".")[0], "E" if kind.isupper() else "e"
    if kind in "aA":
        return _hexadecimal(float(value), flags, size, kind)
    if "#" in flags and kind in "oxX":
        if kind == "o":
            raise Unsupported("print_tko: '%#o' is not supported")
        flags = flags if value else flags.replace("#", "")
    return f"%{flags}{size}{kind}" % value


def _hexadecimal(value: float, flags: str, size: str, kind: str) -> str:
    if flags.strip("+") or size:
        raise Unsupported(f"print_tko: '%{flags}{size}{kind}' is not supported")
    digits = re.sub(r"\.?0*p", "p", value.hex()) if "." in value.hex() else value.hex()
    digits = f"+{digits}" if "+" in flags and not digits.startswith("-") else digits
    return digits.upper() if kind == "A" else digits


@implements_in_context("assume")
def assume(context: Context, op: Op, value: Array | TensorView) -> Array | TensorView:
    """Reports the first element of each block for which the assumption is false, unless the run only counts. Returns
    ``value``.

    ``div_by`` of a pointer or a tensor view is about the byte address, and is reported as misaligned. Raises
    `Unsupported` for an assumption that the dialect does not allow on the value's type.
    """
    predicate: Assumption = op.attributes["predicate"]
    stride_bits = context.world.strides.get(op.results[0])
    if stride_bits == NO_ADDRESS or not context.world.checks_assumptions:
        return value
    if isinstance(value, TensorView):
        if predicate.kind != "div_by":
            raise Unsupported(f"assume {described(predicate)} of a tensor view is not supported")
        _report(context, op, predicate, value.base, divisible(value.base, predicate, 1), address=True)
        return value
    kind = op.result_types[0]
    if not isinstance(kind, TileType) or not isinstance(value, np.ndarray):
        raise Unsupported(f"assume {described(predicate)} of {kind} is not supported")
    integers = numbers.signed(value).astype(np.int64, copy=False)
    holds = _holds(predicate, integers, kind)
    said = _in_bytes(predicate, stride_bits) if stride_bits else ""
    _report(context, op, predicate, integers, holds, isinstance(kind.element, PointerType), said)
    return value


NO_ADDRESS = 0
"""The value in `assumed_strides` for a stride on which no address depends. Other values are numbers of bits."""


@lru_cache(64)  # a check runs one kernel hundreds of times
def assumed_strides(kernel: KernelEntry) -> Mapping[str, int]:
    """Maps each result of ``assume`` that is a stride of a tensor view to the number of bits of an element.

    For an axis of extent 1, cuTile 1.7 always assumes that the stride is a multiple of 16 bytes. The compiler then
    takes another axis as the contiguous axis. The assumption may be false. This is no mistake of the program, because
    no address depends on such a stride. Numbers that are used only for such strides get `NO_ADDRESS`.
    """
    used: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    bits: dict[str, int] = {}
    assumed: set[str] = set()
    for op in kernel.walk():
        used.update(name for names in op.operands.values() for name in names)
        if op.name == "assume":
            assumed.update(op.results)
        elif op.name == "make_tensor_view":
            view = op.result_types[0]
            assert isinstance(view, TensorViewType)
            open_axes = [axis for axis, stride in enumerate(view.strides) if stride is None]
            for axis, name in zip(open_axes, op.operands.get("dynamicStrides", ()), strict=True):
                idle[name] += view.shape[axis] == 1
                bits[name] = numbers.bits_of(view.element)
    return {name: NO_ADDRESS if used[name] == idle[name] else bits[name] for name in assumed & bits.keys()}


def _holds(predicate: Assumption, integers: Array, kind: TileType) -> Array:
    if predicate.kind == "div_by":
        step = -(-numbers.bits_of(kind.element.pointee) // 8) if isinstance(kind.element, PointerType) else 1
        return divisible(integers, predicate, step)
    if predicate.kind == "same_elements":  # each element is compared with the first of its group
        first = integers
        for axis, group in enumerate(predicate.values, 1):
            first = np.take(first, np.arange(integers.shape[axis]) // group * group, axis)
        return np.asarray(integers == first)
    if predicate.kind == "bounded" and not isinstance(kind.element, PointerType):
        limits = np.iinfo(np.int64)
        low, high = (limits.min if predicate.low is None else predicate.low), predicate.high
        return np.asarray((integers >= low) & (integers <= (limits.max if high is None else high)))
    raise Unsupported(f"assume {described(predicate)} of {kind} is not supported")


def divisible(integers: Array, predicate: Assumption, step: int) -> Array:
    """Returns, for each element, whether ``div_by`` is true. The divisor is a power of two.

    Without groups, every element must be divisible. Groups have ``every`` elements along the axis ``along``. With
    groups, the first element of a group must be divisible, and each next element must be larger by ``step``.
    """
    even = (integers & np.int64(predicate.divisor - 1)) == 0
    if predicate.every in (None, 1) or predicate.along is None:
        return np.asarray(even)
    values = np.moveaxis(integers, 1 + predicate.along, -1)
    first = np.arange(values.shape[-1]) % predicate.every == 0
    grows = np.ones(values.shape, np.bool_)
    grows[..., 1:] = values[..., 1:] - values[..., :-1] == step
    return np.moveaxis(np.where(first, np.moveaxis(even, 1 + predicate.along, -1), grows), -1, 1 + predicate.along)


def _report(
    context: Context, op: Op, predicate: Assumption, integers: Array, holds: Array, address: bool = False,
    said: str = "",
) -> None:  # fmt: skip
    if holds.all():
        return
    kind = MISALIGNED if address and predicate.kind == "div_by" else ASSUMPTION
    for lane, index in _first_false(holds):
        number = int(integers[(lane, *index)])
        value = f"address {number:#x}" if address else f"{number}"
        at = f" at element {index}" if index else ""
        context.finding(op, kind, f"{said}assumed {described(predicate)}, but it is {value}{at}", lane)


def _in_bytes(predicate: Assumption, bits: int) -> str:
    """Describes the effect of a false assumption about a stride on tensor descriptors. The text begins a message."""
    if predicate.kind != "div_by":
        return ""
    return f"a stride of a tensor descriptor is no multiple of {predicate.divisor * bits // 8} bytes: "


def described(predicate: Assumption) -> str:
    """Returns the predicate in the text form of Tile IR."""
    if predicate.kind == "div_by":
        groups = f", every {predicate.every} along {predicate.along}" if predicate.every is not None else ""
        return f"div_by<{predicate.divisor}{groups}>"
    if predicate.kind == "bounded":
        low, high = ("?" if bound is None else bound for bound in (predicate.low, predicate.high))
        return f"bounded<{low}, {high}>"
    return f"{predicate.kind}<{list(predicate.values)}>"
