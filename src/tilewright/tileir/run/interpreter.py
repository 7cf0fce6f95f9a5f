"""Runs a kernel's blocks on NumPy, many at a time.

The blocks of a grid are ordered (randomly, by seed) and run in batches. Every operation is one NumPy operation on all
blocks of a batch, or on each group of blocks if control flow separates them (`control`). In the code, ``lanes`` are the
positions of blocks in their batch.
If blocks may wait for one another, one block runs at a time, and blocks take turns (`Turns`).

A dry run computes only the values that addresses and control flow depend on. All other values, and all loaded data, are
`Unknown`. So a dry run counts the work of a whole grid quickly. It raises `NeedsData` if an address or a branch depends
on data that is not known.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from tilewright.tileir.read.tree import KernelEntry, Location, Op, TileModule, TileType, Type
from tilewright.tileir.run import arithmetic, conversions, integers, pointers, products, reductions, tiles, views
from tilewright.tileir.run.context import Printed, World
from tilewright.tileir.run.control import CONTROL, TERMINATORS, BlockExecutor, Endless, Frame
from tilewright.tileir.run.counting import Counter, Counts
from tilewright.tileir.run.dependence import needed_for
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.numbers import constant_values, dtype_of, width_of
from tilewright.tileir.run.registry import IN_CONTEXT, PURE, Array, Unsupported
from tilewright.tileir.run.samples import Samples
from tilewright.tileir.run.slicing import LOADS, needed
from tilewright.tileir.watch.decisions import Decisions
from tilewright.tileir.watch.findings import DEADLOCK, Finding

Number: TypeAlias = "int | float | np.generic"

HANDLERS = (arithmetic, conversions, integers, pointers, products, reductions, tiles, views)
"""The modules that register handlers when they are imported."""
IMPLEMENTED = frozenset({*PURE, *IN_CONTEXT, *CONTROL, *TERMINATORS})
"""Names of the operations that the interpreter runs. A kernel with other operations is refused before a block runs."""
BATCH_ELEMENTS = 1 << 21  # elements of the kernel's largest tile times blocks in a batch: limits the memory of a run
FIRST_BLOCKS = 64
"""The blocks after which a run with a limit of elements first looks at it."""
IDLE_ROUNDS = 4  # if every block has waited this many times without a change in memory, the blocks are in a deadlock
LARGE_GRID = 1 << 22
AWAKE = np.iinfo(np.int64).max  # in place of the first address that a sleeping block has read
AT_MOST = 4096  # the limit of blocks in a run whose blocks may wait for one another


@lru_cache(64)
def may_wait(entry: KernelEntry) -> bool:
    """Tells whether a block may spin until another block has written."""
    inside = (inner for op in entry.walk() if op.name == "loop" for inner in op.walk())
    return any(op.name in LOADS and op.attributes.get("memory_ordering_semantics") != "weak" for op in inside)


class Deadlock(Endless):
    """No remaining block can continue. ``op``: the loop in which one of the blocks waits."""


class Turns:
    """Runs functions in threads, only one at a time. A running function calls `wait` to let the next function run.

    If memory has not changed, the waiting function sleeps. A write by another function wakes the sleeper if the sleeper
    has read the written address with a memory order. If all functions sleep, all are woken, since a loop may also end
    by a count.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._own = threading.local()
        self._ready: deque[int] = deque()
        self._sleeping: dict[int, list[tuple[int, int]]] = {}  # by function: the (first, last) addresses of its reads
        self._idle, self._version = 0, -1
        self._failure: BaseException | None = None

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Runs all functions to their end. Raises the first error of a function, or `Deadlock`.

        Ends all threads, also if it is interrupted.
        """
        self._low, self._high = np.full((2, len(jobs)), AWAKE)
        self._turns: list[SimpleQueue[None]] = [SimpleQueue() for _ in (*jobs, self)]  # the last is for this thread
        self._jobs, self._begun, self._threads = jobs, set[int](), list[threading.Thread]()
        self._ready.extend(range(len(jobs)))
        self._world.memory.ordered = []
        try:
            self._pass_on(free=False)
            self._turns[-1].get()
        finally:
            self._world.stopped = True
            for turn in self._turns:
                turn.put(None)
            while alive := [thread for thread in self._threads if thread.is_alive()]:
                alive[0].join()
            self._world.memory.ordered = None
        if self._failure is not None:
            raise self._failure

    def wait(self, op: Op) -> None:
        """Lets other functions run after an iteration of the loop ``op``. Returns when this function may run again."""
        reads, version = self._noticed(), self._world.memory.version
        if version == self._version:
            self._idle += 1
            self._sleeping[self._own.number] = reads
            if reads:
                self._low[self._own.number] = min(low for low, _ in reads)
                self._high[self._own.number] = max(high for _, high in reads)
        else:
            self._idle, self._version = 0, version
            self._ready.append(self._own.number)
        alive = len(self._ready) + len(self._sleeping)
        if self._idle > IDLE_ROUNDS * alive:
            raise Deadlock(f"{alive} blocks wait for one another, and memory no longer changes", op)
        self._pass_on(free=False)
        self._turns[self._own.number].get()
        if self._world.stopped:
            raise Deadlock("another block failed")

    def _work(self, number: int | None) -> None:
        try:
            while number is not None and not self._world.stopped:
                self._own.number = number
                self._jobs[number]()
                self._noticed()
                self._idle, self._version = 0, self._world.memory.version
                number = self._pass_on(free=True)
        except BaseException as error:  # `run` raises it in its own thread
            self._failure = self._failure or error
            self._turns[-1].put(None)

    def _noticed(self) -> list[tuple[int, int]]:
        """Wakes the functions that have read an address written in this turn. Returns the (first, last) addresses of
        the reads in this turn."""
        reads: list[tuple[int, int]] = []
        for writes, low, high in self._world.memory.ordered or ():
            if not writes:
                reads.append((low, high))
                continue
            near = np.flatnonzero((self._low <= high) & (self._high >= low)).tolist()
            woken = [n for n in near if any(a <= high and low <= b for a, b in self._sleeping[n])]
            for number in woken:
                del self._sleeping[number]
            self._low[woken] = AWAKE
            self._ready.extend(woken)
        self._world.memory.ordered = []
        return reads

    def _pass_on(self, free: bool) -> int | None:
        """Lets the next function run.

        Returns the number of a function that this thread must run. This happens if the next function has not begun and
        this thread is ``free``. Otherwise returns None.
        """
        if not self._ready:
            self._ready.extend(self._sleeping)
            self._sleeping.clear()
            self._low[:] = AWAKE
        if not self._ready:
            self._turns[-1].put(None)
        elif (number := self._ready.popleft()) in self._begun:
            self._turns[number].put(None)
        else:
            self._begun.add(number)
            if free:
                return number
            self._threads.append(threading.Thread(target=self._work, args=(number,), daemon=True))
            self._threads[-1].start()
        return None


@dataclass(frozen=True)
class Executed:
    """The observations of a run. The kernel's results are in the memory that the run was given.

    blocks: the number of blocks that ran.
    undefined: locations of loads that returned undefined elements: outside a view without padding, or masked out.
    """

    findings: tuple[Finding, ...]
    counts: Counts
    prints: tuple[Printed, ...]
    blocks: int
    undefined: tuple[Location, ...] = ()


def run(
    module: TileModule,
    arguments: Sequence[Number],
    grid: tuple[int, ...],
    memory: Memory,
    *,
    entry: str | None = None,
    seed: int | None = 0,
    sample: int | None = None,
    most_elements: float = math.inf,
    only: Sequence[int] | None = None,
    dry: bool = False,
    poison: int = 0xFF,
    changed_padding: Location | None = None,
    seconds: float = math.inf,
    decisions: Decisions | None = None,
    recorded: Mapping[str, bool] = MappingProxyType({}),
    samples: Samples | None = None,
    checks_assumptions: bool = True,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Executed:
    """Runs a grid of blocks of one entry.

    arguments: numbers, and addresses for pointers, in the order of the entry's parameters.
    grid: the number of blocks along x, y and z.
    memory: the memory that the addresses point to, which also receives the results.
    entry: the name of the entry; None if the module has only one.
    seed: orders the blocks randomly; None runs the blocks in ascending order.
    sample: the number of blocks to run, drawn with the seed; None runs all blocks.
    most_elements: no more blocks run once an operation has computed so many elements, over all blocks.
    only: the blocks to run, by number (x varies fastest), in this order.
    dry: compute only addresses and control flow.
    poison: the byte that undefined values consist of.
    changed_padding: the location of a load whose undefined elements consist of another byte than ``poison``.
    seconds: the time limit of the run. After it, a loop raises Unsupported.
    decisions: records three things by block: the ``recorded`` values, the lengths of loops, and the parts of loaded
        tiles that lie inside their tensors.
    recorded: maps the name of a value to whether the value is telling (`dependence.BlockValue`).
    samples: a dry run with samples computes only the ``recorded`` values and control flow. All blocks load the elements
        of one block, which is in the middle of the list of blocks, from the samples.
    checks_assumptions: False omits findings about false assumptions, for a run that only counts.
    on_progress: called with the share of the run that is done (0 to 1): after each batch of blocks, and after each
        iteration of the kernel's outermost loops.

    Raises Unsupported (naming the operation) if the interpreter cannot run the kernel. Raises NeedsData in a dry run
    whose addresses depend on data, and TypeError if the arguments do not match the parameters.
    """
    kernel = module.entry(entry)
    if (unknown := _unknown(kernel)) is not None:
        place = f" ({unknown.location})" if unknown.location else ""
        raise Unsupported(f"operation '{unknown.name}' is not implemented{place}")
    x, y, z = (*grid, 1, 1)[:3]
    names = None
    if dry:
        names = needed(kernel) if samples is None else needed_for(kernel, recorded, samples.in_parts)
    world = World(
        (x, y, z), memory, Counter(), poison=poison, dry=dry, needed=names or frozenset(),
        strides=tiles.assumed_strides(kernel), checks_assumptions=checks_assumptions, changed_padding=changed_padding,
        until=time.monotonic() + seconds, decisions=decisions, on_progress=on_progress,
        steering=names if names and samples is None else frozenset(), recorded=recorded, samples=samples,
    )  # fmt: skip
    for constant in module.globals:
        values = np.ascontiguousarray(np.broadcast_to(constant_values(constant.value), constant.type.shape))
        memory.globals[constant.name] = memory.allocate(constant.name, values)
    total = x * y * z
    blocks = _chosen(total, seed, sample) if only is None else np.asarray(only, np.int64)
    run_batch = partial(_run_batch, world, kernel, bind(kernel, arguments))
    try:
        if not dry and may_wait(kernel):
            if len(blocks) > AT_MOST:
                raise Unsupported(f"{len(blocks)} blocks may wait for one another; the interpreter runs {AT_MOST}")
            turns = Turns(world)
            world.wait = turns.wait
            turns.run([partial(run_batch, np.array([block])) for block in blocks])
        else:
            lanes, ran = max(1, BATCH_ELEMENTS // largest_tile(kernel, names)), 0
            for batch in _batches(world, blocks, lanes, names, most_elements):
                run_batch(batch if samples is None else np.concatenate([blocks[len(blocks) // 2 :][:1], batch]))
                ran += len(batch)
            blocks = blocks[:ran]
    except Endless as error:
        location = error.op.location if error.op else kernel.location
        world.findings.add(Finding(DEADLOCK, str(error), location))
    findings, counts = (*world.findings, *memory.findings), world.counter.counts(len(blocks), total)
    undefined = tuple(location for location in world.undefined if location is not None)
    return Executed(findings, counts, tuple(world.prints), len(blocks), undefined)


@lru_cache(64)  # a check runs one kernel hundreds of times
def _unknown(kernel: KernelEntry) -> Op | None:
    return next((op for op in kernel.walk() if op.name not in IMPLEMENTED), None)


def _batches(
    world: World, blocks: Array, lanes: int, names: frozenset[str] | None, most_elements: float
) -> Iterator[Array]:
    """Yields the blocks in batches of at most ``lanes``, and reports the progress between them.

    most_elements: ends once an operation with results among ``names`` (None: all) has computed so many elements.
    """
    size, started = lanes if most_elements == math.inf else min(lanes, FIRST_BLOCKS), 0
    while size and started < len(blocks):
        batch = blocks[started : started + size]
        world.batch = started / len(blocks), len(batch) / len(blocks)
        yield batch
        world.advanced(1.0)
        started += len(batch)
        if most_elements < math.inf:
            per_block = max(1.0, world.counter.busiest(names) / started)
            size = min(lanes, max(0, int(most_elements / per_block) - started))


def _chosen(total: int, seed: int | None, sample: int | None) -> Array:
    """Draws the blocks to run. A small sample of a large grid needs no memory of the size of the grid."""
    drawn = total if sample is None else min(sample, total)
    if seed is None:
        return np.arange(drawn)
    rng = np.random.default_rng(seed)
    return rng.choice(total, drawn, replace=False) if total > LARGE_GRID else rng.permutation(total)[:drawn]


def bind(kernel: KernelEntry, arguments: Sequence[Number]) -> dict[str, Array]:
    """Returns the parameters' values by name. All blocks share the values. Raises TypeError if the arguments do not
    match."""
    if len(arguments) != len(kernel.parameters):
        raise TypeError(f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(arguments)}")
    pairs = zip(kernel.parameters, arguments, strict=True)
    return {name: _argument(value, kind, name) for (name, kind), value in pairs}


def _argument(value: Number, kind: Type, name: str) -> Array:
    if not isinstance(kind, TileType) or kind.shape:
        raise Unsupported(f"parameter {name} of type {kind} is not supported")
    dtype = dtype_of(kind.element)
    if dtype.kind != "i":
        if not isinstance(value, (bool, int, float, np.generic)):
            raise TypeError(f"argument {name} is {value!r}, not a number")
        return np.asarray([value]).astype(dtype)
    number, bits = operator.index(value), width_of(kind.element)  # type: ignore[arg-type]
    if not -(1 << (bits - 1)) <= number < 1 << bits:  # an unsigned argument may exceed the signed range
        raise TypeError(f"argument {name} is {number}, which does not fit into {bits} bits")
    return np.asarray([number - (1 << bits) if number >= 1 << (bits - 1) else number], dtype)


def _run_batch(world: World, kernel: KernelEntry, bound: dict[str, Array], blocks: Array) -> None:
    frame = Frame(np.arange(len(blocks)))
    for name, value in bound.items():
        frame[name] = value
    executor = BlockExecutor(world, blocks)
    with np.errstate(all="ignore"):
        executor.run(kernel.body, frame)
    executor.forget()


@lru_cache(64)
def largest_tile(kernel: KernelEntry, names: frozenset[str] | None = None) -> int:
    """Returns the number of elements of the largest tile among the results called ``names``, by default all results."""
    results = (pair for op in kernel.walk() for pair in zip(op.results, op.result_types, strict=True))
    kinds = (kind for name, kind in results if names is None or name in names)
    return max((kind.size for kind in kinds if isinstance(kind, TileType)), default=1)
