"""Runs the operations of a batch of blocks, with branches and loops in which the blocks may diverge.

A body runs for all its blocks at once. Blocks that leave a body through the same terminator make one `Exit`. So a
``break`` inside an ``if`` inside a loop is no special case: its `Exit` leaves the ``if`` and reaches the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from tilewright.tileir.read.tree import Op, Region, TileType
from tilewright.tileir.run.context import Context, World
from tilewright.tileir.run.numbers import dtype_of
from tilewright.tileir.run.registry import IN_CONTEXT, PURE, Array, NeedsData, Unknown, Unsupported
from tilewright.tileir.watch.decisions import Decisions

TERMINATORS = frozenset({"yield", "continue", "break", "return"})
ENDLESS = 1 << 18  # a ``loop`` with more iterations than this is reported as endless
Value = Any
"""An array, a view, `Unknown`, or None for a token. The first axis of an array is the blocks; its length is 1 if all
blocks share the value."""

_ABSENT = object()


class Frame:
    """The values of some blocks, by name. ``lanes``: the blocks' positions in the batch, in ascending order.

    A value that is not in the frame is taken from the parent frame, for the blocks of this frame only.
    """

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
    """Blocks that reached a terminator (``kind``: ``yield``, ``continue``, ``break`` or ``return``), and the values of
    its operands."""

    kind: str
    lanes: Array
    values: tuple[Value, ...]


def taken(value: Value, index: Array) -> Value:
    """Returns ``value`` for the blocks at the positions ``index``."""
    if isinstance(value, np.ndarray):
        return value if value.shape[0] == 1 else value[index]
    if value is None or isinstance(value, Unknown):
        return value
    return value.take(index)


def merged(exits: Sequence[Exit]) -> tuple[Array, tuple[Value, ...]]:
    """Joins several exits. Returns the positions of all their blocks in ascending order, and the values in the same
    order."""
    if len(exits) == 1:
        return exits[0].lanes, exits[0].values
    lanes = np.concatenate([part.lanes for part in exits])
    order = np.argsort(lanes, kind="stable")
    counts = [len(part.lanes) for part in exits]
    columns = zip(*(part.values for part in exits), strict=True)
    return lanes[order], tuple(_joined(column, counts, order) for column in columns)


def _joined(values: Sequence[Value], counts: Sequence[int], order: Array) -> Value:
    """Joins the ``values`` of several exits for one operand.

    counts: the number of blocks of each exit.
    order: the permutation that sorts the blocks of all exits.
    """
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
        return tuple(_joined(column, counts, order) for column in zip(*values, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        names = [part.name for part in fields(first) if _has_lanes(getattr(first, part.name))]
        parts = {name: _joined([getattr(value, name) for value in values], counts, order) for name in names}
        return replace(first, **parts)
    raise TypeError(f"cannot merge values of type {type(first).__name__}")


def _has_lanes(value: Value) -> bool:
    if isinstance(value, tuple):
        return any(_has_lanes(item) for item in value)
    return isinstance(value, np.ndarray) or (is_dataclass(value) and hasattr(value, "take"))


def known(value: Value, what: str) -> Array:
    """Returns the array that a branch, a loop or an address depends on. Raises NeedsData if it is `Unknown`."""
    if isinstance(value, Unknown):
        raise NeedsData(what)
    return np.asarray(value)


class Endless(Exception):
    """The kernel does not end. ``op`` is the loop that does not end, if known."""

    def __init__(self, why: str, op: Op | None = None) -> None:
        super().__init__(why)
        self.op = op


class BlockExecutor:
    """Runs one batch of blocks."""

    def __init__(self, world: World, blocks: Array) -> None:
        """Prepares one batch. ``blocks``: the number of each block of the batch."""
        self.world, self.blocks = world, blocks
        self._latest: _FrameContext | None = None
        self._loops = 0
        """The number of loops around the current operation."""

    def run(self, body: Sequence[Op], frame: Frame) -> list[Exit]:
        """Runs ``body`` for all blocks of ``frame``. Returns an exit for each terminator that some blocks reached."""
        left: list[Exit] = []
        decisions, recorded = self.world.decisions, self.world.recorded
        for op in body:
            self.world.counter.executed(op, len(frame.lanes))
            if op.name in TERMINATORS:
                values = tuple(frame[name] for name in op.operands.get("operands", ()))
                return [*left, Exit(op.name, frame.lanes, values)]
            if op.name not in CONTROL:
                results = self._evaluated(op, frame, partial(self._context, frame))
                if decisions and op.results and (telling := recorded.get(op.results[0])) is not None:
                    self._record(decisions, op, results[0], frame.lanes, telling)
            else:
                exits = CONTROL[op.name](self, op, frame)
                left += [end for end in exits if end.kind != "yield"]
                ended = [end for end in exits if end.kind == "yield"]
                if not ended:
                    return left
                lanes, results = merged(ended)
                frame = frame if len(lanes) == len(frame.lanes) else Frame(lanes, frame)
            for name, value in zip(op.results, results, strict=True):
                frame[name] = value
        return [*left, Exit("yield", frame.lanes, ())]  # a region that yields nothing may have no terminator

    def _record(self, decisions: Decisions, op: Op, value: Value, lanes: Array, telling: bool) -> None:
        if isinstance(value, Unknown):
            decisions.unknown = decisions.unknown or op
        else:
            decisions.add(op.results[0], value, self.blocks[lanes], telling=telling)

    def _evaluated(self, op: Op, frame: Frame | _RegionScope, context: Callable[[], Context]) -> tuple[Value, ...]:
        """Returns the results of an operation that is not in `CONTROL`."""
        values = {
            name: tuple([frame[value] for value in names]) if variadic else frame[names[0]]
            for name, names, variadic in op.given
        }
        if op.address and self.world.samples and self.world.needed.isdisjoint(op.results):
            return self._unknown(op, values) or ()
        if (pure := PURE.get(op.name)) is not None:
            if self.world.dry and (unknown := self._unknown(op, values)):
                return unknown
            if values:
                result = pure(op, **values)
            elif (result := self.world.literals.get(op)) is None:
                result = self.world.literals[op] = pure(op)
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
        """Returns `Unknown` results for an operation that a dry run skips, or None for an operation to compute.

        A dry run skips an operation if an operand is unknown, or if no address and no branch needs the results.
        """
        flat = [part for value in values.values() for part in (value if isinstance(value, tuple) else (value,))]
        is_needed = not op.results or not self.world.needed.isdisjoint(op.results)
        if is_needed and not any(isinstance(part, Unknown) for part in flat):
            return None
        if is_needed and op.name == "make_tensor_view":  # accesses through the view need the address
            raise NeedsData(op.name)
        return tuple(
            Unknown((1, *kind.shape), dtype_of(kind.element)) if isinstance(kind, TileType) else None
            for kind in op.result_types
        )

    def _context(self, frame: Frame) -> Context:
        if self._latest is None or self._latest.frame is not frame:
            self._latest = _FrameContext(self, frame)
        return self._latest

    def forget(self) -> None:
        """Drops the last context. It refers to this executor, so only a garbage collection would free its values."""
        self._latest = None

    def region(self, region: Region, arguments: Sequence[Array], outer: Frame) -> tuple[Array, ...]:
        """Runs the region of a reduction or a scan on ``arguments``. Returns the values that the region yields.

        The arrays' first axis need not be the blocks.
        """
        values: dict[str, Value] = dict(zip((name for name, _ in region.arguments), arguments, strict=True))
        scope = _RegionScope(values, outer)
        for op in region.body:
            if op.name in TERMINATORS:
                return tuple(scope[name] for name in op.operands["operands"])
            results = self._evaluated(op, scope, lambda: _RegionContext(self, outer))
            values.update(zip(op.results, results, strict=True))
        raise Unsupported("the region of a reduction has no terminator")

    def _if(self, op: Op, frame: Frame) -> list[Exit]:
        condition = known(frame[op.operands["condition"][0]], "if")
        branches = (op.regions[0].body, op.regions[1].body if len(op.regions) > 1 else ())
        if condition.shape[0] == 1 or condition.all() or not condition.any():
            return self.run(branches[0 if condition[0] else 1], frame)
        ways = zip(branches, (condition, ~condition), strict=True)
        return [end for body, chosen in ways for end in self.run(body, Frame(frame.lanes[chosen], frame))]

    def _for(self, op: Op, frame: Frame) -> list[Exit]:
        region = op.regions[0]
        induction, kind = region.arguments[0]
        assert isinstance(kind, TileType)
        bounds = [known(frame[op.operands[what][0]], "for") for what in ("lowerBound", "upperBound", "step")]
        if op.attributes.get("unsignedCmp"):
            bounds = [bound.view(f"u{bound.dtype.itemsize}") for bound in bounds]
        storage, active = dtype_of(kind.element), frame
        at, end, step = (bound.astype(object if bound.dtype.itemsize == 8 else np.int64) for bound in bounds)
        carried = tuple(frame[name] for name in op.operands["initValues"])
        left: list[Exit] = []
        if np.any(step <= 0):
            raise Unsupported("a 'for' whose step is not positive is not supported")
        trips = np.maximum(end - at + step - 1, 0) // step
        if self.world.decisions is not None:
            self.world.decisions.add(induction, trips, self.blocks[frame.lanes])
        iteration = 0
        while True:
            goes_on = np.asarray(at < end, bool)
            if not goes_on.all():
                chosen = np.broadcast_to(goes_on, len(active.lanes))
                leaving = np.flatnonzero(~chosen)
                left.append(Exit("yield", active.lanes[leaving], tuple(taken(value, leaving) for value in carried)))
                if not chosen.any():
                    return left
                index = np.flatnonzero(chosen)
                at, end, step = (taken(value, index) for value in (at, end, step))
                carried = tuple(taken(value, index) for value in carried)
                active = Frame(active.lanes[chosen], frame)
            # ``at`` is an int64 array. If the counter has 64 bits, it is an array of Python integers, which do not
            # overflow.
            counter = (at & (2**64 - 1)).astype(np.uint64).view(storage) if at.dtype == object else at.astype(storage)
            active[induction] = counter
            active, carried, kept = self._iteration(op, frame, active, carried, left)
            if kept is not None:
                at, end, step = (taken(value, kept) for value in (at, end, step))
            if not len(active.lanes):
                return left
            at, iteration = at + step, iteration + 1
            if not self._loops:
                self.world.advanced(iteration / int(trips.max()))

    def _loop(self, op: Op, frame: Frame) -> list[Exit]:
        active, carried = frame, tuple(frame[name] for name in op.operands["initValues"])
        left: list[Exit] = []
        for _ in range(ENDLESS):
            active, carried, _kept = self._iteration(op, frame, active, carried, left)
            if not len(active.lanes):
                return left
            self.world.wait(op)
        raise Endless(f"a loop did not end within {ENDLESS} iterations", op)

    def _iteration(
        self, op: Op, frame: Frame, active: Frame, carried: tuple[Value, ...], left: list[Exit]
    ) -> tuple[Frame, tuple[Value, ...], Array | None]:
        """Runs one iteration of a loop for the blocks of ``active``, and adds the exits from the loop to ``left``.

        Returns a frame of the blocks that continue, the values that they carry, and their positions in ``active`` (None
        if all blocks continue).
        """
        if self.world.stopped:
            raise Endless("the run has ended", op)
        if monotonic() > self.world.until:
            raise Unsupported("the run exceeds its time limit: its blocks loop over many tiles")
        region = op.regions[0]
        names = [name for name, _ in region.arguments[-len(carried) :]] if carried else []
        for name, value in zip(names, carried, strict=True):
            active[name] = value
        self.world.counter.iterated(op, len(active.lanes))
        self._loops += 1
        exits = self.run(region.body, active)
        self._loops -= 1
        if len(exits) == 1 and exits[0].kind in ("continue", "yield"):
            return active, exits[0].values, None
        going = [end for end in exits if end.kind in ("continue", "yield")]
        gone = [end for end in exits if end.kind in ("break", "return")]
        left += [replace(end, kind="yield") if end.kind == "break" else end for end in gone]
        if not going:
            return Frame(active.lanes[:0], frame), (), None
        lanes, values = merged(going)
        kept = np.searchsorted(active.lanes, lanes)
        return (active if len(lanes) == len(active.lanes) else Frame(lanes, frame)), values, kept


CONTROL = {"if": BlockExecutor._if, "for": BlockExecutor._for, "loop": BlockExecutor._loop}
"""The method that runs each operation and returns the exits.

The blocks of a ``yield`` continue after the operation. Other blocks also leave the body that contains the operation.
"""


class _FrameContext(Context):
    def __init__(self, executor: BlockExecutor, frame: Frame) -> None:
        self.frame = frame
        super().__init__(executor.world, executor.blocks[frame.lanes], partial(executor.region, outer=frame))


class _RegionContext(_FrameContext):
    """The context inside a region. The first axis of its arrays is not the blocks, so its findings name no block."""

    def finding(self, op: Op, kind: str, message: str, lane: int | None = None) -> None:
        super().finding(op, kind, message)


class _RegionScope:
    def __init__(self, values: dict[str, Value], outer: Frame) -> None:
        self.values, self.outer = values, outer

    def __getitem__(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        value = self.outer[name]
        if isinstance(value, np.ndarray) and value.shape[0] != 1:
            raise Unsupported(f"a region uses '{name}', which differs from block to block")
        return value
