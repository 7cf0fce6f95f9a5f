"""Runs bodies of operations: dispatch, branches and loops over lanes that may part.

Every way out of a body is an `Exit` with the lanes that took it, so that a ``break`` inside an ``if`` inside a loop
needs no case of its own: it leaves the ``if`` with its lanes and reaches the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tilewright.tileir.read.tree import Op, Region, TileType
from tilewright.tileir.run.context import Context, Element, World
from tilewright.tileir.run.numbers import dtype_of
from tilewright.tileir.run.registry import IN_CONTEXT, PURE, Array, NeedsData, Unknown, Unsupported

TERMINATORS = frozenset({"yield", "continue", "break", "return"})
ENDLESS = 1 << 18
"""Iterations of one ``loop`` after which it is taken to run for ever."""

VARIADIC = frozenset({
    "index", "dynamicShape", "dynamicStrides", "operands", "tokens", "args", "indices", "token", "mask", "paddingValue",
})  # fmt: skip
"""Operands that a handler gets as a tuple, empty where they are absent."""


Value = Any
"""An array with a leading axis of lanes (of length 1 where all share it), a view, an `Unknown`, or None for a token."""

_ABSENT = object()


class Frame:
    """Values by name for ``lanes``, positions among the blocks of a batch, ascending."""

    __slots__ = ("_cut", "_parent", "_values", "lanes")

    def __init__(self, lanes: Array, parent: Frame | None = None) -> None:
        self.lanes = lanes
        self._parent = parent
        self._cut = np.searchsorted(parent.lanes, lanes) if parent and len(parent.lanes) != len(lanes) else None
        self._values: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        value = self._values.get(name, _ABSENT)
        if value is not _ABSENT:
            return value
        if self._parent is None:
            raise KeyError(name)
        value = self._parent[name]
        if self._cut is not None:
            value = taken(value, self._cut)
        self._values[name] = value
        return value

    def __setitem__(self, name: str, value: Value) -> None:
        self._values[name] = value


@dataclass(frozen=True)
class Exit:
    """Lanes that reached a terminator (``yield``, ``continue``, ``break``, ``return``), and what they brought."""

    kind: str
    lanes: Array
    values: tuple[Value, ...]


def taken(value: Value, index: Array) -> Value:
    """``value`` for some of its lanes."""
    if isinstance(value, np.ndarray):
        return value if value.shape[0] == 1 else value[index]
    if value is None or isinstance(value, Unknown):
        return value
    return value.take(index)


def merged(exits: Sequence[Exit]) -> tuple[Array, tuple[Value, ...]]:
    """All lanes of several exits in ascending order, and their values in that order."""
    if len(exits) == 1:
        return exits[0].lanes, exits[0].values
    lanes = np.concatenate([one.lanes for one in exits])
    order = np.argsort(lanes, kind="stable")
    counts = [len(one.lanes) for one in exits]
    columns = zip(*(one.values for one in exits), strict=True)
    return lanes[order], tuple(_side_by_side(column, counts, order) for column in columns)


def _side_by_side(values: Sequence[Value], counts: Sequence[int], order: Array) -> Value:
    first = values[0]
    if all(value is first for value in values) and (first is None or isinstance(first, Unknown)):
        return first
    if (unknown := next((value for value in values if isinstance(value, Unknown)), None)) is not None:
        return unknown
    if isinstance(first, np.ndarray):
        if all(value.shape[0] == 1 and value.tobytes() == first.tobytes() for value in values):
            return first
        wide = [np.broadcast_to(v, (n, *v.shape[1:])) for v, n in zip(values, counts, strict=True)]
        return np.concatenate(wide)[order]
    if isinstance(first, tuple):
        return tuple(_side_by_side(column, counts, order) for column in zip(*values, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        names = [one.name for one in fields(first) if _has_lanes(getattr(first, one.name))]
        parts = ([getattr(value, name) for value in values] for name in names)
        joined = [_side_by_side(part, counts, order) for part in parts]
        return replace(first, **dict(zip(names, joined, strict=True)))
    raise TypeError(f"cannot merge values of type {type(first).__name__}")


def _has_lanes(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(_has_lanes(item) for item in value)
    return isinstance(value, np.ndarray) or (is_dataclass(value) and hasattr(value, "take"))


def known(value: Value, what: str) -> Array:
    """An array that control flow or an address depends on. Raises NeedsData in a dry run that has none."""
    if isinstance(value, Unknown):
        raise NeedsData(what)
    return np.asarray(value)


class Endless(Exception):
    """A run that does not end; ``op`` is the loop where it is known."""

    def __init__(self, why: str, op: Op | None = None) -> None:
        super().__init__(why)
        self.op = op


class BlockExecutor:
    """Runs the lanes of one batch of blocks."""

    def __init__(self, world: World, blocks: Array, needed: frozenset[str] = frozenset()) -> None:
        """``blocks``: linear numbers, in the order in which they run; ``needed``: the values that a dry run must have
        (`slicing.needed`)."""
        self.world, self.blocks, self.needed = world, blocks, needed
        self._latest: _FrameContext | None = None

    def run(self, body: Sequence[Op], frame: Frame) -> list[Exit]:
        """Runs ``body`` for all lanes of ``frame``; one exit for each way that some of them left it."""
        left: list[Exit] = []
        for op in body:
            self.world.counter.executed(op, len(frame.lanes))
            if op.name in TERMINATORS:
                values = tuple(frame[name] for name in op.operands.get("operands", ()))
                return [*left, Exit(op.name, frame.lanes, values)]
            if op.name not in CONTROL:
                results = self._evaluated(op, frame, partial(self._context, frame))
                for name, value in zip(op.results, results, strict=True):
                    frame[name] = value
                continue
            ended, away = CONTROL[op.name](self, op, frame)
            left += away
            if not ended:
                return left
            lanes, values = merged(ended)
            frame = frame if len(lanes) == len(frame.lanes) else Frame(lanes, frame)
            for name, value in zip(op.results, values, strict=True):
                frame[name] = value
        # A region may end without a terminator where it yields nothing.
        return [*left, Exit("yield", frame.lanes, ())]

    def _evaluated(self, op: Op, frame: Frame | _RegionScope, context: Callable[[], Context]) -> tuple[Value, ...]:
        values = {
            name: tuple(frame[one] for one in names) if name in VARIADIC or len(names) != 1 else frame[names[0]]
            for name, names in op.operands.items()
        }
        if (pure := PURE.get(op.name)) is not None:
            if self.world.dry and (unknown := self._unknown(op, values)):
                return unknown
            result = pure(op, **values)
        elif (handler := IN_CONTEXT.get(op.name)) is not None:
            if self.world.dry and op.address is None and (unknown := self._unknown(op, values)):
                return unknown
            result = handler(context(), op, **values)
        else:
            raise Unsupported(f"operation '{op.name}' is not implemented")
        if isinstance(result, tuple):
            return result
        return () if not op.results else (result,)

    def _unknown(self, op: Op, values: dict[str, Value]) -> tuple[Value, ...] | None:
        """In a dry run: what no address and no branch needs, or has an unknown operand, is unknown."""
        flat = [one for value in values.values() for one in (value if isinstance(value, tuple) else (value,))]
        if not any(isinstance(one, Unknown) for one in flat) and (
            not op.results or not self.needed.isdisjoint(op.results)
        ):
            return None
        return tuple(
            Unknown((1, *kind.shape), dtype_of(kind.element)) if isinstance(kind, TileType) else None
            for kind in op.result_types
        )

    def _context(self, frame: Frame) -> Context:
        if self._latest is None or self._latest.frame is not frame:
            self._latest = _FrameContext(self, frame)
        return self._latest

    def region(self, region: Region, arguments: Sequence[Array], outer: Frame) -> tuple[Array, ...]:
        """Runs a region of a reduction or a scan over arrays with any leading axis."""
        values: dict[str, Value] = dict(zip((name for name, _ in region.arguments), arguments, strict=True))
        scope = _RegionScope(values, outer)
        for op in region.body:
            if op.name in TERMINATORS:
                return tuple(scope[name] for name in op.operands["operands"])
            results = self._evaluated(op, scope, lambda: _Anywhere(self, outer))
            values.update(zip(op.results, results, strict=True))
        raise Unsupported("a region of a reduction without a terminator")

    def _if(self, op: Op, frame: Frame) -> tuple[list[Exit], list[Exit]]:
        condition = known(frame[op.operands["condition"][0]], "if")
        branches = (op.regions[0].body, op.regions[1].body if len(op.regions) > 1 else ())
        if condition.shape[0] == 1 or condition.all() or not condition.any():
            exits = self.run(branches[0 if condition[0] else 1], frame)
        else:
            ways = zip(branches, (condition, ~condition), strict=True)
            exits = [one for body, chosen in ways for one in self.run(body, Frame(frame.lanes[chosen], frame))]
        return [one for one in exits if one.kind == "yield"], [one for one in exits if one.kind != "yield"]

    def _for(self, op: Op, frame: Frame) -> tuple[list[Exit], list[Exit]]:
        region = op.regions[0]
        name, kind = region.arguments[0]
        assert isinstance(kind, TileType)
        bounds = [known(frame[op.operands[what][0]], "for") for what in ("lowerBound", "upperBound", "step")]
        if op.attributes.get("unsignedCmp"):
            bounds = [bound.view(f"u{bound.dtype.itemsize}") for bound in bounds]
        storage, active = dtype_of(kind.element), frame
        at, end, step = (bound.astype(object if bound.dtype.itemsize == 8 else np.int64) for bound in bounds)
        carried = tuple(frame[one] for one in op.operands["initValues"])
        ended: list[Exit] = []
        away: list[Exit] = []
        if np.any(step <= 0):
            raise Unsupported("a 'for' whose step is not positive")
        while True:
            goes_on = np.asarray(at < end, bool)
            if not goes_on.all():
                chosen = np.broadcast_to(goes_on, len(active.lanes))
                leaving = np.flatnonzero(~chosen)
                ended.append(Exit("yield", active.lanes[leaving], tuple(taken(value, leaving) for value in carried)))
                if not chosen.any():
                    return ended, away
                index = np.flatnonzero(chosen)
                at, end, step = (taken(value, index) for value in (at, end, step))
                carried = tuple(taken(value, index) for value in carried)
                active = Frame(active.lanes[chosen], frame)
            # The counter is int64, or Python's integers where it has 64 bits.
            counter = (at & (2**64 - 1)).astype(np.uint64).view(storage) if at.dtype == object else at.astype(storage)
            active[name] = counter
            active, carried, kept = self._iteration(op, frame, active, carried, ended, away)
            if kept is not None:
                at, end, step = (taken(value, kept) for value in (at, end, step))
            if not len(active.lanes):
                return ended, away
            at = at + step

    def _loop(self, op: Op, frame: Frame) -> tuple[list[Exit], list[Exit]]:
        carried = tuple(frame[one] for one in op.operands["initValues"])
        ended: list[Exit] = []
        away: list[Exit] = []
        active = frame
        for _ in range(ENDLESS):
            active, carried, _kept = self._iteration(op, frame, active, carried, ended, away)
            if not len(active.lanes):
                return ended, away
            self.world.wait(op)
        raise Endless(f"a loop did not end within {ENDLESS} iterations", op)

    def _iteration(
        self, op: Op, frame: Frame, active: Frame, carried: tuple[Value, ...], ended: list[Exit], away: list[Exit]
    ) -> tuple[Frame, tuple[Value, ...], Array | None]:
        """One pass through a loop's body: the lanes that go on, what they carry, and, where some left, which of the
        lanes before these are."""
        region = op.regions[0]
        names = [name for name, _ in region.arguments[-len(carried) :]] if carried else []
        for name, value in zip(names, carried, strict=True):
            active[name] = value
        self.world.counter.iterated(op, len(active.lanes))
        exits = self.run(region.body, active)
        if len(exits) == 1 and exits[0].kind in ("continue", "yield"):
            return active, exits[0].values, None
        going = [one for one in exits if one.kind in ("continue", "yield")]
        ended += [Exit("yield", one.lanes, one.values) for one in exits if one.kind == "break"]
        away += [one for one in exits if one.kind == "return"]
        if not going:
            return Frame(active.lanes[:0], frame), (), None
        lanes, values = merged(going)
        kept = np.searchsorted(active.lanes, lanes)
        return (active if len(lanes) == len(active.lanes) else Frame(lanes, frame)), values, kept


CONTROL = {"if": BlockExecutor._if, "for": BlockExecutor._for, "loop": BlockExecutor._loop}


class _FrameContext(Context):
    def __init__(self, executor: BlockExecutor, frame: Frame) -> None:
        self.frame = frame
        super().__init__(
            executor.world,
            executor.blocks[frame.lanes],
            lambda region, arguments: executor.region(region, arguments, frame),
        )


class _Anywhere(_FrameContext):
    """Inside a region: the leading axis is no longer the lanes, so a finding names no block."""

    def finding(self, op: Op, kind: str, message: str, lane: int | None = None, element: Element | None = None) -> None:
        super().finding(op, kind, message, None, element)


class _RegionScope:
    def __init__(self, values: dict[str, Value], outer: Frame) -> None:
        self.values, self.outer = values, outer

    def __getitem__(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        value = self.outer[name]
        if isinstance(value, np.ndarray) and value.shape[0] != 1:
            raise Unsupported(f"a region that uses '{name}', which differs from block to block")
        return value
