"""Checks a launch at a workload's full size (its *own shape*), with the interpreter.

A kernel may be correct on small shapes and wrong on large shapes. Its grid may be limited, its loop may stop early, or
the kernel may branch on an extent. Two kinds of runs show this without computing the whole output:

* All blocks of the full grid run without data. Every address must lie within its tensor, and the stores
  together must reach every byte of every output.
* The first, the last and randomly drawn blocks run on data. So do blocks that branch differently from most blocks
  (`tileir.watch.decisions`). Some of the values that a block stored are compared with the float64 reference.

Blocks that depend on one another (atomics, locks, two blocks that update the same element) cannot run alone. The full
size then stays unverified. If two blocks only store the same element, each must store its final value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from tilewright.errors import ToolFailed
from tilewright.hardware.architectures import Board
from tilewright.progress import Progress, silent
from tilewright.records import Configuration, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.tileir.read.tree import KernelEntry
from tilewright.tileir.run.counting import Counts
from tilewright.tileir.run.interpreter import largest_tile, may_wait
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.tileir.run.registry import NeedsData, Unsupported
from tilewright.tileir.run.slicing import needed
from tilewright.tileir.watch.allocations import Allocation
from tilewright.tileir.watch.decisions import MOST_BLOCKS as MOST_DECISIONS
from tilewright.tileir.watch.decisions import MOST_PATTERNS, Decisions
from tilewright.verify import tolerance
from tilewright.verify.addresses import outside
from tilewright.verify.arrays import Array
from tilewright.verify.data import FAR_FROM_ZERO
from tilewright.verify.following import BlockNumbers
from tilewright.verify.images import held_before
from tilewright.verify.judge import Compared, Unverified, Wrong
from tilewright.verify.own_values import REFERENCE_RATE, OnData, OwnValues, element_named, percents, refuse_long, within
from tilewright.verify.reference import FloatReference
from tilewright.verify.tolerance import Slice

SECONDS = 60.0
BLOCKS = 4
"""Number of randomly drawn blocks that run on data, besides the first and the last block."""
HOSTILE = ("large", "rows of zeros", FAR_FROM_ZERO, "outliers")
"""Kinds of data for the drawn blocks, one kind for each block. Reduced shapes might not show the effect of such data,
because a launch may choose another kernel for large shapes, or the kernel may branch."""
MORE_HOSTILE = ("small integers", "tiny", "constant rows", "mixed signs")
"""More kinds of data. The drawn blocks also run on these, if the time of `MORE_SECONDS` allows it."""
MORE_SECONDS = 2.0
UNUSUAL = 6
"""The largest number of blocks that run on data because they branch differently from most blocks."""
MOST_RARE = 32
"""Replaces `UNUSUAL` for blocks with rare branches, if the time of `RARE_SECONDS` allows it."""
RARE_SECONDS = 5.0
MOST_RUN = BLOCKS + 2 + UNUSUAL
WALKED = 2e7
"""The number of addresses that a run without data computes in a second, on one CPU core of 2026."""
FLOP, TENSOR_FLOP = 1e8, 1e9
"""The number of FLOP that a run with data executes in a second: outside matrix products, and inside them."""
BYTES = 4 << 30
"""The most bytes of the tensors and of the float64 numbers from which they are drawn."""
MOST_BLOCKS = 2**31 - 1, 2**16 - 1, 2**16 - 1
"""The most blocks of a CUDA launch along x, y and z, on every device."""


class OwnShapes:
    """Checks the launches of one task at full size. ``seconds``: limit for the estimated time of one case."""

    def __init__(self, task: Task, board: Board, seconds: float = SECONDS) -> None:
        self.task, self.seconds = task, seconds
        self._launcher = Launcher(task, board)

    def check(
        self, configuration: Configuration, dims: Dims, seed: int, reference: FloatReference,
        progress: Progress = silent,
    ) -> Compared:  # fmt: skip
        """Returns the compared element with the largest error. Raises `Wrong` for a mistake of the kernel.

        Raises `Unverified` if the check proves nothing or would take too long.
        """
        arrays = self.task.arrays(dims)
        runnable = self._runnable(configuration, dims)
        entry = runnable.module.entry()
        blocks = math.prod(runnable.launch.grid)
        refuse_long(_walk_seconds(entry, blocks), self.seconds, "following all blocks")
        following = BlockNumbers(self.task, runnable, dims, seed)
        decisions = Decisions(blocks, seed) if blocks <= MOST_DECISIONS else None
        if decisions is None and following.values:
            raise Unverified(f"its {blocks} blocks are too many to compare them with one another")
        try:
            walked, placed = runnable.dry_run(
                arrays, seed=None, seconds=self.seconds, decisions=decisions, recorded=following.by_addresses,
                on_progress=partial(percents(progress, "addresses", f"of all {blocks} blocks at full size"), 0),
            )  # fmt: skip
        except NeedsData as operation:
            raise Unverified(f"the addresses of {operation} depend on data") from None
        except (Unsupported, ToolFailed, MemoryError) as error:
            raise Unverified(str(error) or type(error).__name__) from None
        if walked.findings:
            raise Wrong(str(walked.findings[0]))
        self._judge_addresses(dims, walked.counts, placed)
        self._refuse_dependent(entry, walked.counts)
        self._refuse_large(dims)
        seconds = walked.counts.flop / FLOP + walked.counts.tensor_flop / TENSOR_FLOP
        refuse_long(seconds * min(1, MOST_RUN / blocks), self.seconds, "running some of the blocks")
        chosen = list(_drawn_blocks(blocks, seed))
        affordable = int(RARE_SECONDS * blocks / max(seconds, 1e-9))
        hostile = list(zip(HOSTILE, chosen[1:-1], strict=False)) if blocks > len(chosen) else []
        declared = [block for block in chosen if block not in dict(hostile).values()]
        inner = chosen[1:-1] or chosen
        one = tolerance.sliced_dims(dims, Slice({name: (0,) for name in self.task.independent if name in dims}))
        a_block = max(seconds / blocks, self.task.work(one) / REFERENCE_RATE, 1e-9)
        more = (*HOSTILE[len(hostile) :], *MORE_HOSTILE)[: int(MORE_SECONDS / a_block)]
        hostile += [(kind, inner[number % len(inner)]) for number, kind in enumerate(more)]
        if decisions is not None:
            patterns = decisions.patterns()
            if len(patterns) <= MOST_PATTERNS:
                declared += [int(one[len(one) // 2]) for one in patterns if not np.isin(one, chosen).any()]
            else:
                following = replace(following, in_parts=True)
            refuse_long(following.seconds(walked.counts), self.seconds, "comparing the blocks with one another")
            following.follow(decisions, self.seconds, lambda share: None)
            ran = [*chosen, *declared]
            declared = sorted({*declared, *decisions.unusual(UNUSUAL, ran, min(MOST_RARE, affordable))})
        stored = {one.name: within(walked.counts.stored_runs, one) for one in placed if one.name in self.task.outputs}
        values = OwnValues(self.task, self.seconds, MOST_RUN)
        worst = values.compared(runnable, dims, seed, reference, OnData(declared, hostile, stored), progress)
        poisoned = [one for one in placed if one.name in stored and held_before(self.task, one.name) is None]
        for tensor in poisoned:  # after the values: reading what another block stores is a mistake
            if _overlap(within(walked.counts.loaded_runs, tensor), stored[tensor.name]):
                raise Unverified(f"blocks read elements of '{tensor.name}' that they store; this cannot be followed")
        return worst

    def written_whole(self, configuration: Configuration, dims: Dims) -> frozenset[str]:
        """Returns the outputs of which a launch stores every byte, as far as the addresses do not depend on data and
        take no longer than the limit."""
        with suppress(Unverified, Wrong, NeedsData, Unsupported, ToolFailed, MemoryError):
            runnable = self._runnable(configuration, dims)
            refuse_long(_walk_seconds(runnable.module.entry(), math.prod(runnable.launch.grid)), self.seconds, "")
            walked, placed = runnable.dry_run(self.task.arrays(dims), seed=None, seconds=self.seconds)
            runs, outputs = walked.counts.stored_runs, (each for each in placed if each.name in self.task.outputs)
            return frozenset(each.name for each in outputs if _first_gap(runs, each.address, each.nbytes) is None)
        return frozenset()

    def _runnable(self, configuration: Configuration, dims: Dims) -> Runnable:
        try:
            runnable = self._launcher.runnable(configuration, dims, self.task.arrays(dims))
        except ToolFailed as error:
            raise Unverified(str(error)) from None
        if isinstance(runnable, Failed):
            raise (Unverified if runnable.stage == "tool" else Wrong)(f"{runnable.stage} failed: {runnable.reason}")
        for axis, number, most in zip("xyz", runnable.launch.grid, MOST_BLOCKS, strict=False):
            if number > most:
                raise Wrong(f"the launch has {number} blocks along {axis}; a GPU takes at most {most}")
        return runnable

    def _refuse_large(self, dims: Dims) -> None:
        needs = sum(math.prod(array.shape) * 8 + array.nbytes for array in self.task.arrays(dims).values())
        if needs > BYTES:
            raise Unverified(f"its tensors need {needs / 2**30:.1f} GiB; the limit is {BYTES >> 30} GiB")

    # Addresses

    def _judge_addresses(self, dims: Dims, counts: Counts, placed: Sequence[Allocation]) -> None:
        for way, runs in (("reads", counts.loaded_runs), ("writes", counts.stored_runs)):
            if (place := outside(runs, placed)) is not None:
                raise Wrong(f"{way} {place}")
        for tensor in placed:
            output = self.task.outputs.get(tensor.name)
            if output is None or output.updates is not None:
                continue  # an updated output may keep its old values
            missing = _first_gap(counts.stored_runs, tensor.address, tensor.nbytes)
            if missing is not None:
                element = element_named(self.task, dims, tensor.name, missing)
                raise Wrong(f"no block stores {element} at the workload's full size")

    def _refuse_dependent(self, entry: KernelEntry, counts: Counts) -> None:
        if may_wait(entry) or any(op.name.startswith("atomic") for op in entry.walk()):
            raise Unverified("blocks depend on one another (atomics), so some of them cannot run alone")
        updated = any(output.updates for output in self.task.outputs.values())
        if updated and counts.stored_bytes > counts.distinct_stored_bytes:
            raise Unverified("some elements are updated more than once, so a block that runs alone has other results")


def _walk_seconds(entry: KernelEntry, blocks: int) -> float:
    """Estimates the time of a run without data."""
    names = needed(entry)
    return blocks * (largest_tile(entry, names) + len(names)) / WALKED


def _drawn_blocks(blocks: int, seed: int) -> Sequence[int]:
    """Returns the first block, the last block, and random blocks in between."""
    if blocks <= BLOCKS + 2:
        return range(blocks)
    return tolerance.spread(blocks, BLOCKS + 2, np.random.default_rng(seed))


def _first_gap(runs: Array, address: int, nbytes: int) -> int | None:
    """Returns the first byte of a tensor that is in no range; None if there is none.

    runs: start and end of disjoint, sorted ranges, shape (n, 2).
    """
    reached = address
    for start, end in runs[(runs[:, 1] > address) & (runs[:, 0] < address + nbytes)]:
        if start > reached:
            break
        reached = max(reached, int(end))
    return None if reached >= address + nbytes else reached - address


def _overlap(some: Array, others: Array) -> bool:
    """Tells whether ranges have a byte in common. Both are disjoint, sorted ranges."""
    before = np.searchsorted(others[:, 1], some[:, 0], "right")  # per range in ``some``: others that end before it
    return bool((before < np.searchsorted(others[:, 0], some[:, 1], "left")).any())
