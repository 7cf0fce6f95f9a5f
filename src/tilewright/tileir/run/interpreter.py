"""Runs a kernel's blocks on NumPy, many at a time.

The blocks of a grid are put into an order (random by seed) and run in batches; within a batch every operation is one
NumPy operation over all its blocks ("lanes"), as long as control flow keeps them together (`frames`). Blocks that may
wait for one another take turns instead (`waiting`).

A dry run follows addresses and control flow without data: what no address and no branch needs, and whatever is loaded,
is `Unknown`. It counts the work of a whole grid quickly, and stops with `NeedsData` where an address or a branch
depends on data.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import KernelEntry, Location, Op, TileModule, TileType, Type
from tilewright.tileir.run import arithmetic, conversions, integers, pointers, products, reductions, tiles, views
from tilewright.tileir.run.context import Printed, World
from tilewright.tileir.run.control import CONTROL, TERMINATORS, BlockExecutor, Endless, Frame
from tilewright.tileir.run.counting import Counter, Counts
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.numbers import constant_values, dtype_of, width_of
from tilewright.tileir.run.registry import IN_CONTEXT, PURE, Array, Unsupported
from tilewright.tileir.run.slicing import LOADS, needed
from tilewright.tileir.watch.findings import DEADLOCK, Finding

Number: TypeAlias = "int | float | np.generic"

HANDLERS = (arithmetic, conversions, integers, pointers, products, reductions, tiles, views)
"""The modules that register handlers when they are imported."""
IMPLEMENTED = frozenset({*PURE, *IN_CONTEXT, *CONTROL, *TERMINATORS})
"""Names of the operations that run; any other is refused before a block starts."""

BATCH_ELEMENTS = 1 << 21
"""Elements of the kernel's largest tile over all lanes of a batch: bounds the memory of one run."""


TURNS = 4
"""Rounds without a change in memory after which it is a deadlock."""
AT_MOST = 4096
"""Blocks that may wait for one another in one run."""


def may_wait(entry: KernelEntry) -> bool:
    """Whether a block may spin until another has written."""
    return any(
        inner.name in LOADS and inner.attributes.get("memory_ordering_semantics") != "weak"
        for op in entry.walk()
        if op.name == "loop"
        for inner in op.walk()
    )


class Deadlock(Endless):
    """No block that is left can go on; ``op`` is the loop in which one of them waits."""


class Turns:
    """Runs functions in turns; the one whose turn it is passes it on by `wait`."""

    def __init__(self, version: Callable[[], int]) -> None:
        """``version`` changes whenever memory does."""
        self._version = version
        self._condition = threading.Condition()
        self._turn = 0
        self._alive: list[int] = []
        self._names = threading.local()
        self._idle, self._seen = 0, -1
        self._failure: BaseException | None = None

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Runs all to their end. Raises what one of them raised, or `Deadlock`."""
        self._alive = list(range(len(jobs)))
        self._turn = 0
        threads = [threading.Thread(target=self._job, args=(n, job), daemon=True) for n, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def wait(self, op: Op) -> None:
        """Hands on the turn after a pass of the loop ``op``, and returns when it has come round."""
        with self._condition:
            version = self._version()
            self._idle = self._idle + 1 if version == self._seen else 0
            self._seen = version
            if self._idle > TURNS * len(self._alive):
                raise Deadlock(f"{len(self._alive)} blocks wait for one another, and memory no longer changes", op)
            self._pass_on()
            self._until_mine()

    def _job(self, number: int, job: Callable[[], None]) -> None:
        self._names.number = number
        try:
            with self._condition:
                self._until_mine()
            job()
        except BaseException as error:  # handed to the thread that waits for all
            with self._condition:
                self._failure = self._failure or error
        finally:
            with self._condition:
                self._idle = 0
                self._pass_on()
                self._alive.remove(number)
                self._condition.notify_all()

    def _until_mine(self) -> None:
        self._condition.wait_for(lambda: self._turn == self._names.number or self._failure is not None)
        if self._failure is not None:
            raise Deadlock("another block failed")

    def _pass_on(self) -> None:
        if self._turn == self._names.number:
            later = [one for one in self._alive if one > self._turn]
            others = later or [one for one in self._alive if one != self._turn]
            self._turn = others[0] if others else self._turn
            self._condition.notify_all()


@dataclass(frozen=True)
class Executed:
    """What a run showed; what it computed stands in the memory that it was given."""

    findings: tuple[Finding, ...]
    counts: Counts
    prints: tuple[Printed, ...]
    blocks: int
    """How many blocks ran."""
    undefined: tuple[Location, ...] = ()
    """Where elements outside a view without padding were loaded."""


def run(
    module: TileModule,
    arguments: Sequence[Number],
    grid: tuple[int, ...],
    memory: Memory,
    *,
    entry: str | None = None,
    seed: int | None = 0,
    sample: int | None = None,
    dry: bool = False,
    poison: int = 0xFF,
) -> Executed:
    """Runs a grid of blocks of one entry.

    arguments: numbers, and addresses for pointers, in the order of the entry's parameters.
    grid: blocks along x, y and z.
    memory: what the addresses point into; results appear there.
    seed: of the order of the blocks; None runs them in ascending order.
    sample: run only so many blocks, drawn with the seed; the counts say so.
    poison: the byte that undefined values are made of. Raises Unsupported (naming the operation) for what the
    interpreter does not run, NeedsData in a dry run whose addresses depend on data, TypeError for arguments that do not
    fit.
    """
    kernel = module.entry(entry)
    for op in kernel.walk():  # before anything runs
        if op.name not in IMPLEMENTED:
            place = f" ({op.location})" if op.location else ""
            raise Unsupported(f"operation '{op.name}' is not implemented{place}")
    x, y, z = (*grid, 1, 1)[:3]
    world = World((x, y, z), memory, Counter(), poison=poison, dry=dry, irrelevant=tiles.irrelevant(kernel))
    for one in module.globals:
        values = np.ascontiguousarray(np.broadcast_to(constant_values(one.value), one.type.shape))
        memory.globals[one.name] = memory.allocate(one.name, values)
    total = x * y * z
    blocks = np.arange(total) if seed is None else np.random.default_rng(seed).permutation(total)
    blocks = blocks[:sample]
    bound = bind(kernel, arguments)
    try:
        if not dry and may_wait(kernel):
            _run_in_turns(world, kernel, bound, blocks)
        else:
            _run_in_batches(world, kernel, bound, blocks)
    except Endless as waiting:
        at = waiting.op.location if waiting.op else kernel.location
        world.findings.add(Finding(DEADLOCK, str(waiting), at))
    return Executed(
        (*world.findings, *memory.findings),
        world.counter.counts(len(blocks), total),
        tuple(world.prints),
        len(blocks),
        tuple(place for place in world.undefined if place is not None),
    )


def bind(kernel: KernelEntry, arguments: Sequence[Number]) -> dict[str, Array]:
    """The entry's parameters as values that all blocks share. Raises TypeError where they do not fit."""
    if len(arguments) != len(kernel.parameters):
        raise TypeError(f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(arguments)}")
    pairs = zip(kernel.parameters, arguments, strict=True)
    return {name: _argument(value, kind, name) for (name, kind), value in pairs}


def _argument(value: Number, kind: Type, name: str) -> Array:
    if not isinstance(kind, TileType) or kind.shape:
        raise Unsupported(f"parameter {name} of type {kind}")
    dtype = dtype_of(kind.element)
    if dtype.kind == "i":
        return np.asarray([_integer(value, width_of(kind.element), name)], dtype)
    if not isinstance(value, (bool, int, float, np.generic)):
        raise TypeError(f"argument {name} is {value!r}, not a number")
    return np.asarray([value]).astype(dtype)


def _integer(value: Number, bits: int, name: str) -> int:
    """``value`` as a signed number. Unsigned ones arrive above the signed range. Raises TypeError for what is no whole
    number, or too large."""
    number = operator.index(value)  # type: ignore[arg-type]
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise TypeError(f"argument {name} is {number}, which has no {bits} bits")
    return number - (1 << bits) if number >= 1 << (bits - 1) else number


def _run_in_batches(world: World, kernel: KernelEntry, bound: dict[str, Array], blocks: Array) -> None:
    wanted = needed(kernel) if world.dry else frozenset()
    lanes = max(1, BATCH_ELEMENTS // largest_tile(kernel, wanted if world.dry else None))
    for start in range(0, len(blocks), lanes):
        _run_batch(world, kernel, bound, blocks[start : start + lanes], wanted)


def _run_batch(
    world: World, kernel: KernelEntry, bound: dict[str, Array], blocks: Array, wanted: frozenset[str] = frozenset()
) -> None:
    frame = Frame(np.arange(len(blocks)))
    for name, value in bound.items():
        frame[name] = value
    with np.errstate(all="ignore"):
        BlockExecutor(world, blocks, wanted).run(kernel.body, frame)


def _run_in_turns(world: World, kernel: KernelEntry, bound: dict[str, Array], blocks: Array) -> None:
    if len(blocks) > AT_MOST:
        raise Unsupported(f"{len(blocks)} blocks that may wait for one another; at most {AT_MOST}")
    turns = Turns(lambda: world.memory.version)
    world.wait = turns.wait
    turns.run([lambda one=block: _run_batch(world, kernel, bound, np.array([one])) for block in blocks])  # type: ignore[misc]


def largest_tile(kernel: KernelEntry, names: frozenset[str] | None = None) -> int:
    """Elements of the largest tile among the results of the name, by default among all."""
    results = (pair for op in kernel.walk() for pair in zip(op.results, op.result_types, strict=True))
    wanted = (kind for name, kind in results if names is None or name in names)
    return max((kind.size for kind in wanted if isinstance(kind, TileType)), default=1)
