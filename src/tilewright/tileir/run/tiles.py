"""Making and rearranging tiles, the block's place in the grid, tokens, and what is checked or printed.

Rearranging operations return views of their operand where NumPy can. Tokens order memory accesses; this interpreter
runs all accesses of a block in the order of the text, which satisfies every order that tokens ask for, so a token is
None and the operations on tokens do nothing.

The compiler relies on the promise of an `assume` without checking it; the interpreter checks it. On a GPU the result is
undefined where a promise does not hold. Here that is a finding, and the block goes on. Bounds and differences are those
of signed integers; addresses are compared as they are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import Assumption, Element, KernelEntry, Op, PointerType, TensorViewType, TileType
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.numbers import (
    bits_of,
    bytes_of,
    constant_values,
    dtype_of,
    is_float,
    packed,
    poisoned,
    signed,
    unpacked,
    unsigned,
    wrapped,
)
from tilewright.tileir.run.registry import Array, Unknown, Unsupported, implements, implements_in_context, lanes_of
from tilewright.tileir.run.views import TensorView
from tilewright.tileir.watch.findings import ASSERTION, ASSUMPTION, MISALIGNED, OUT_OF_BOUNDS


@implements("constant")
def constant(op: Op) -> Array:
    values, shape = constant_values(op.attributes["value"]), (1, *op.tile().shape)
    return np.broadcast_to(values, shape) if len(values) == 1 else values.reshape(shape)


@implements("iota")
def iota(op: Op) -> Array:
    kind = op.tile()
    return wrapped(np.arange(kind.size, dtype=np.int64), kind.element)[None]


@implements("reshape")
def reshape(op: Op, source: Array) -> Array:
    return source.reshape(len(source), *op.tile().shape)


@implements("broadcast")
def broadcast(op: Op, source: Array) -> Array:
    return np.broadcast_to(source, (len(source), *op.tile().shape))


@implements("permute")
def permute(op: Op, source: Array) -> Array:
    """Axis a of the result is axis ``permutation[a]`` of the source."""
    return source.transpose(0, *(1 + axis for axis in op.attributes["permutation"]))


@implements("cat")
def cat(op: Op, lhs: Array, rhs: Array) -> Array:
    lanes = lanes_of(lhs, rhs)
    both = [np.broadcast_to(side, (lanes, *side.shape[1:])) for side in (lhs, rhs)]
    return np.concatenate(both, 1 + int(op.attributes["dim"]))


@implements_in_context("extract")
def extract(context: Context, op: Op, source: Array, indices: Sequence[Array]) -> Array:
    """The slice of the source with the numbers ``indices``, counted in slices of the result's size.

    A slice that does not exist is a finding, and undefined: bytes of `Context.poison`.
    """
    slices = _slices(source, op.tile().shape)
    numbers, wrong = _checked(context, op, indices, slices.shape[1 : 1 + len(indices)])
    lane = np.arange(len(source)) if len(source) > 1 else np.zeros(1, np.int64)
    cut: Array = slices[(lane, *numbers)]
    if wrong.any():
        cut = np.where(wrong.reshape(-1, *(1,) * (cut.ndim - 1)), poisoned(cut.dtype, context.poison), cut)
    return cut


@implements_in_context("insert")
def insert(context: Context, op: Op, source: Array, destination: Array, indices: Sequence[Array]) -> Array:
    """The destination with one slice of the source's size replaced by the source; `extract` reads it back.

    A slice that does not exist is a finding, and nothing is replaced.
    """
    lanes = lanes_of(source, destination, *indices)
    changed = np.broadcast_to(destination, (lanes, *destination.shape[1:])).copy()
    slices = _slices(changed, source.shape[1:])
    numbers, wrong = _checked(context, op, indices, slices.shape[1 : 1 + len(indices)])
    right = np.flatnonzero(~np.broadcast_to(wrong, lanes))
    at = tuple(np.broadcast_to(number, lanes)[right] for number in numbers)
    slices[(right, *at)] = np.broadcast_to(source, (lanes, *source.shape[1:]))[right]
    return changed


def _slices(values: Array, size: Sequence[int]) -> Array:
    """A view of shape (L, slices along each axis…, size of a slice…)."""
    whole = values.shape[1:]
    pairs = [extent for n, part in zip(whole, size, strict=True) for extent in (n // part, part)]
    rank = len(whole)
    split = values.reshape(len(values), *pairs)  # splitting an axis never copies
    return split.transpose(0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2))


def _checked(
    context: Context, op: Op, indices: Sequence[Array], counts: Sequence[int]
) -> tuple[tuple[Array, ...], Array]:
    """Slice numbers clipped into range, and the lanes where one was out of range."""
    wrong = np.zeros(lanes_of(*indices), np.bool_)
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
    """The bytes of a 1-D tile, little-endian; of two 4-bit elements the first is the low half."""
    kind, whole = _checked_bytes(op, op.tile("source")), np.ascontiguousarray(source)
    return (packed(whole) if bits_of(kind.element) == 4 else whole).view(np.int8)


@implements("unpack")
def unpack(op: Op, source: Array) -> Array:
    """The inverse of `pack`."""
    kind, whole = _checked_bytes(op, op.tile()), np.ascontiguousarray(source)
    return unpacked(whole, str(kind.element)) if bits_of(kind.element) == 4 else whole.view(dtype_of(kind.element))


def _checked_bytes(op: Op, kind: TileType) -> TileType:
    """``kind``, where its storage holds the bits that are packed."""
    if len(kind.shape) != 1 or isinstance(kind.element, PointerType) or kind.element in ("i1", "tf32"):
        raise Unsupported(f"{op.name} of {kind}")
    return kind


@implements_in_context("get_tile_block_id")
def get_tile_block_id(context: Context, op: Op) -> tuple[Array, ...]:
    """The block's place along x, y and z; a value that all blocks share where the grid has extent 1."""
    x, y, _ = context.grid
    places = (context.blocks % x, context.blocks // x % y, context.blocks // (x * y))
    alone = np.zeros(1, np.int32)
    return tuple(
        alone if extent == 1 else place.astype(np.int32) for place, extent in zip(places, context.grid, strict=True)
    )


@implements_in_context("get_num_tile_blocks")
def get_num_tile_blocks(context: Context, op: Op) -> tuple[Array, ...]:
    return tuple(np.array([extent], np.int32) for extent in context.grid)


@implements("make_token", "join_tokens", "memory_fence_alias_tko", "gdc_wait_tko", "gdc_launch_dependents_tko")
def token(op: Op, **tokens: Sequence[None]) -> None:
    """Nothing: see the module. The fence orders accesses through views and pointers that alias, which here happen in
    the order of the text anyway. One grid runs at a time, so what it waits for has ended and what it launches has not
    begun."""


@implements_in_context("assert")
def check(context: Context, op: Op, condition: Array) -> None:
    """A finding for each lane with a false element, which names the first of them; the block goes on."""
    for lane in np.flatnonzero(~condition.reshape(len(condition), -1).all(1)):
        index = np.unravel_index(int(np.argmin(condition[lane])), condition.shape[1:])
        at = f" at element {tuple(map(int, index))}" if math.prod(condition.shape[1:]) > 1 else ""
        context.finding(op, ASSERTION, f"{op.attributes['message']}{at}", int(lane))


@implements_in_context("print_tko")
def print_tko(context: Context, op: Op, args: Sequence[Array] = (), token: Sequence[None] = ()) -> None:
    """Prints once for each block, in the order of the lanes. A dry run, which lacks the data, prints nothing."""
    if context.dry:
        return
    kinds = op.operand_types.get("args", ())
    elements = [kind.element for kind in kinds if isinstance(kind, TileType)]
    for lane in range(context.lanes):
        tiles = [value[lane if len(value) > 1 else 0] for value in args]
        context.print(op, formatted(op.attributes["str"], tiles, elements), lane)


EXPRESSION = re.compile(r"%(?P<flags>[-+ #0]*)(?P<size>\d*(?:\.\d*)?)(?:hh|h|ll|l|j|z|t|L)?(?P<kind>.?)", re.DOTALL)
INTEGERS, UNSIGNED, FLOATS = "diuoxX", "uoxX", "eEfFgGaA"


Nested: TypeAlias = "int | float | list[Nested]"


def formatted(text: str, tiles: Sequence[Array], elements: Sequence[Element]) -> str:
    """``text`` with each expression replaced by a tile (without lanes): ``[[1, 2], [3, 4]]`` for a 2×2.

    As on an H200 (tileiras 13.4): integers below 32 bits are extended with their sign to 32 before they print as
    unsigned, and an infinity or a NaN is padded with blanks. A 64-bit integer prints as such without ``ll`` too, where
    the GPU prints other digits.

    Integers print as d i u o x X, floating-point numbers as e E f F g G a A. Raises `Unsupported` for any other
    pairing, whose output the dialect leaves undefined, and where their numbers differ.
    """
    given = iter(zip(tiles, elements, strict=True))
    done = EXPRESSION.sub(lambda found: "%" if found["kind"] == "%" else _printed(found, given), text)
    if next(given, None) is not None:
        raise Unsupported(f"print_tko: more arguments than expressions in {text!r}")
    return done


def _printed(found: re.Match[str], given: Iterator[tuple[Array, Element]]) -> str:
    tile, element = next(given, (None, None))
    if tile is None or element is None:
        raise Unsupported(f"print_tko: no argument for '{found[0]}'")
    kind = found["kind"]
    if not kind or kind not in (FLOATS if is_float(element) else INTEGERS):
        raise Unsupported(f"print_tko: '{found[0]}' for elements {element}")
    if is_float(element):
        tile = tile.astype(np.float64)
    elif kind in UNSIGNED:
        tile = unsigned(tile if tile.dtype.itemsize == 8 else tile.astype(np.int32), "i64")
    return _nested(tile.tolist(), found["flags"], found["size"], kind)


def _nested(value: Nested, flags: str, size: str, kind: str) -> str:
    """Numbers as C prints them, where Python's ``%`` differs from it."""
    if isinstance(value, list):
        return f"[{', '.join(_nested(one, flags, size, kind) for one in value)}]"
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
            raise Unsupported("print_tko: '%#o'")
        flags = flags if value else flags.replace("#", "")
    return f"%{flags}{size}{kind}" % value


def _hexadecimal(value: float, flags: str, size: str, kind: str) -> str:
    if flags.strip("+") or size:
        raise Unsupported(f"print_tko: '%{flags}{size}{kind}'")
    digits = re.sub(r"\.?0*p", "p", value.hex()) if "." in value.hex() else value.hex()
    digits = f"+{digits}" if "+" in flags and not digits.startswith("-") else digits
    return digits.upper() if kind == "A" else digits


@implements_in_context("assume")
def assume(context: Context, op: Op, value: Array | TensorView | Unknown) -> Array | TensorView | Unknown:
    """Reports the first element of each lane for which the predicate does not hold; returns ``value``.

    ``div_by`` of a pointer or a tensor view concerns the byte address and is reported as misaligned. Raises
    `Unsupported` for a predicate that the dialect does not allow on the value's type.
    """
    predicate: Assumption = op.attributes["predicate"]
    if isinstance(value, Unknown) or op.results[0] in context.world.irrelevant:
        return value
    if isinstance(value, TensorView):
        if predicate.kind != "div_by":
            raise Unsupported(f"assume {described(predicate)} of a tensor view")
        _report(context, op, predicate, value.base, divisible(value.base, predicate, 1), address=True)
        return value
    kind = op.result_types[0]
    if not isinstance(kind, TileType) or not isinstance(value, np.ndarray):
        raise Unsupported(f"assume {described(predicate)} of {kind}")
    pointer = isinstance(kind.element, PointerType)
    numbers = signed(value).astype(np.int64, copy=False)
    _report(context, op, predicate, numbers, _holds(predicate, numbers, kind), pointer)
    return value


def irrelevant(kernel: KernelEntry) -> frozenset[str]:
    """Results of ``assume`` that are nothing but strides of axes of extent 1, which no address depends on.

    cuTile 1.7 promises that each such stride is a multiple of 16 bytes, even where it is not, so that the compiler
    takes another axis for the contiguous one. That is no mistake of the program.
    """
    used: Counter[str] = Counter()
    strides: Counter[str] = Counter()
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
                strides[name] += view.shape[axis] == 1
    return frozenset(name for name in assumed if 0 < used[name] == strides[name])


def _holds(predicate: Assumption, numbers: Array, kind: TileType) -> Array:
    if predicate.kind == "div_by":
        step = bytes_of(kind.element.pointee) if isinstance(kind.element, PointerType) else 1
        return divisible(numbers, predicate, step)
    if predicate.kind == "same_elements":  # as the first of their group
        first = numbers
        for axis, group in enumerate(predicate.values, 1):
            first = np.take(first, np.arange(numbers.shape[axis]) // group * group, axis)
        return np.asarray(numbers == first)
    if predicate.kind == "bounded" and not isinstance(kind.element, PointerType):
        limits = np.iinfo(np.int64)
        low, high = (limits.min if predicate.low is None else predicate.low), predicate.high
        return np.asarray((numbers >= low) & (numbers <= (limits.max if high is None else high)))
    raise Unsupported(f"assume {described(predicate)} of {kind}")


def divisible(numbers: Array, predicate: Assumption, step: int) -> Array:
    """Which elements are as promised: the first of each group of ``every`` along ``along`` divisible, each of the
    others larger by ``step`` than the one before it. Divisors are powers of two."""
    even = (numbers & np.int64(predicate.divisor - 1)) == 0
    if predicate.every in (None, 1) or predicate.along is None:
        return np.asarray(even)
    values = np.moveaxis(numbers, 1 + predicate.along, -1)
    first = np.arange(values.shape[-1]) % predicate.every == 0
    grows = np.ones(values.shape, np.bool_)
    grows[..., 1:] = values[..., 1:] - values[..., :-1] == step
    return np.moveaxis(np.where(first, np.moveaxis(even, 1 + predicate.along, -1), grows), -1, 1 + predicate.along)


def _report(
    context: Context, op: Op, predicate: Assumption, numbers: Array, holds: Array, address: bool = False
) -> None:
    if holds.all():
        return
    kind = MISALIGNED if address and predicate.kind == "div_by" else ASSUMPTION
    for lane in np.flatnonzero(~holds.reshape(len(holds), -1).all(1)):
        index = np.unravel_index(int(np.argmin(holds[lane])), holds.shape[1:])
        number = int(numbers[(lane, *index)])
        what = f"address {number:#x}" if address else f"{number}"
        at = f" at element {tuple(map(int, index))}" if index else ""
        context.finding(op, kind, f"assumed {described(predicate)}, but it is {what}{at}", int(lane))


def described(predicate: Assumption) -> str:
    """The predicate as Tile IR writes it."""
    if predicate.kind == "div_by":
        groups = f", every {predicate.every} along {predicate.along}" if predicate.every is not None else ""
        return f"div_by<{predicate.divisor}{groups}>"
    if predicate.kind == "bounded":
        low, high = ("?" if bound is None else bound for bound in (predicate.low, predicate.high))
        return f"bounded<{low}, {high}>"
    return f"{predicate.kind}<{list(predicate.values)}>"
