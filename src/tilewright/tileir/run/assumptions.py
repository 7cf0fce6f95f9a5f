"""`assume`: the compiler relies on the promise without checking it; the interpreter checks it.

On a GPU the result is undefined where a promise does not hold. Here that is a finding, and the block goes on. Bounds
and differences are those of signed integers; addresses are compared as they are.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tilewright.tileir.read.tree import Assumption, KernelEntry, Op, PointerType, TensorViewType, TileType
from tilewright.tileir.run.context import Context
from tilewright.tileir.run.numbers import bytes_of, signed
from tilewright.tileir.run.registry import Array, Unknown, Unsupported, implements_in_context
from tilewright.tileir.run.views import TensorView
from tilewright.tileir.watch.findings import ASSUMPTION, MISALIGNED


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
    if predicate.kind == "same_elements":
        return _same(numbers, predicate)
    if predicate.kind == "bounded" and not isinstance(kind.element, PointerType):
        return _bounded(numbers, predicate)
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


def _same(numbers: Array, predicate: Assumption) -> Array:
    """Which elements equal the first of their group."""
    first = numbers
    for axis, group in enumerate(predicate.values, 1):
        first = np.take(first, np.arange(numbers.shape[axis]) // group * group, axis)
    return np.asarray(numbers == first)


def _bounded(numbers: Array, predicate: Assumption) -> Array:
    holds = np.ones(numbers.shape, np.bool_)
    if predicate.low is not None:
        holds &= numbers >= predicate.low
    if predicate.high is not None:
        holds &= numbers <= predicate.high
    return holds


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
