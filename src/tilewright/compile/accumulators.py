"""Finds candidates whose accumulators cannot fit into registers, from their Tile IR, before they are compiled.

On sm_90 an accumulator is in the registers of the threads that issue the product, in every iteration of its loop. A
kernel with too large accumulators has to spill, and takes up to ten times as long to compile as the winner. So `tune`
and the search in the user's process do not compile such candidates at first. They are compiled only if every correct
candidate has at least `LEAST_STACK` bytes of stack. The shipped configuration is always compiled. In
examples/matmul.py, 11 of 40 configurations are skipped. This saves 15 of 31 s of the compilers' processor time (a
machine with 2 cores, 2026-11-22).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilewright.compile.skipped import NotStarted
from tilewright.errors import ToolFailed
from tilewright.hardware.architectures import WARP
from tilewright.languages.base import Language, Lowered
from tilewright.records import Configuration
from tilewright.task.task import Launch
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import KernelEntry, Op

LEAST_STACK = 640
"""Bytes of stack per thread. All recorded candidates whose accumulators do not fit have at least this much stack. They
are 1.9 to 9.2 times slower than the best candidate (matmul on an H200)."""
SMALLEST = 1 << 15  # elements; the accumulators in smaller tiles always fit
REGISTERS = 254  # per thread: 255, less one for the address of the stack
WORKER_WARPS = 4  # if no hint sets it; all sm_90 product kernels in bench/recorded/ use 4
WORD_BITS = 32
BITS = {"f64": 64, "i64": 64, "f32": 32, "i32": 32, "tf32": 32, "f16": 16, "bf16": 16}
LEAVES = ("continue", "break")


@dataclass(frozen=True)
class HasToSpill(NotStarted):
    """A candidate that was not compiled, because its accumulators cannot fit."""


UNFIT = HasToSpill(
    "compile", f"not compiled: its accumulators need more than {REGISTERS} registers per thread, so the kernel spills"
)


def entry_of(lowered: Lowered) -> KernelEntry | None:
    """Returns the decoded Tile IR of a kernel; None if it cannot be read."""
    try:
        return read_bytecode(lowered.code).entry()
    except (ToolFailed, LookupError):
        return None


class Accumulators:
    """Finds the candidates that have to spill. ``read``: decodes a kernel.

    Reading a kernel takes as long as the front end. So a kernel is read only if its two largest constants could be the
    extents of a too large tile. If one candidate of a kernel has no matrix products, the other candidates of this
    kernel are not read.
    """

    def __init__(self, read: Callable[[Lowered], KernelEntry | None] = entry_of) -> None:
        self._read = read
        self._without: set[str] = set()

    def could_be_unfit(self, language: Language, launch: Launch, lowered: Lowered) -> bool:
        """Returns whether the kernel has to be read to know whether its accumulators fit."""
        if lowered.arch != "sm_90" or not lowered.is_tile_ir or language.kernel_name(launch.kernel) in self._without:
            return False
        constant = language.constant_parameters(launch.kernel) or [True] * len(launch.args)
        numbers = sorted(
            arg for arg, of_code in zip(launch.args, constant, strict=False) if of_code and _can_be_extent(arg)
        )
        return len(numbers) >= 2 and math.prod(numbers[-2:]) >= SMALLEST

    def unfit(self, language: Language, launch: Launch, lowered: Lowered) -> bool:
        """Returns whether the accumulators of a candidate cannot fit into registers."""
        if not self.could_be_unfit(language, launch, lowered) or (entry := self._read(lowered)) is None:
            return False
        words = accumulator_words(entry)
        if not words:
            self._without.add(language.kernel_name(launch.kernel))
        return words > registers(entry, lowered.arch)


def needs_unfit(stack_bytes: Iterable[int]) -> bool:
    """Returns whether candidates that have to spill should be compiled, too.

    stack_bytes: the stack per thread of each correct candidate.
    """
    return min(stack_bytes, default=LEAST_STACK) >= LEAST_STACK


def accumulator_words(entry: KernelEntry) -> int:
    """Returns the number of 32-bit registers that the accumulators of a loop need, over all threads of a cluster.

    An accumulator is the result of a matrix product that a loop carries to its next iteration. If the kernel has
    several loops, returns the largest number.
    """
    products = {name: op for op in entry.walk() if op.name.startswith("mma") for name in op.results}

    def words(loop: Op) -> int:
        ends = (op for op in loop.regions[0].body if op.name in LEAVES)
        carried = {name for op in ends for name in op.operands.get("operands", ()) if name in products}
        tiles = (products[name].tile() for name in carried)
        return sum(tile.size * BITS.get(str(tile.element), 0) // WORD_BITS for tile in tiles)

    return max((words(op) for op in entry.walk() if op.name in ("for", "loop")), default=0)


def registers(entry: KernelEntry, arch: str) -> int:
    """Returns the total number of registers of the threads in a cluster that issue products.

    The hints in the code determine how many threads issue products.
    """
    hints = {**entry.hints.get("default", {}), **entry.hints.get(arch, {})}
    return _registers(hints.get("num_worker_warps_per_cta"), hints.get("num_cta_in_cga"))


def _registers(worker_warps: object, ctas: object) -> int:
    """Returns the registers of all worker warps of a cluster. A number that is not set has its default."""
    warps = worker_warps if isinstance(worker_warps, int) else WORKER_WARPS
    return REGISTERS * WARP * warps * (ctas if isinstance(ctas, int) else 1)


def is_likely_unfit(configuration: Configuration, tile_sizes: Iterable[int], arch: str) -> bool:
    """Guesses, before the front end has run, whether the accumulators cannot fit into registers.

    The guess is that the accumulator is a float32 tile whose extents are the two largest of ``tile_sizes``. Triton's
    kernels, which have the hint ``num_warps``, are never skipped.
    """
    if "num_warps" in configuration:
        return False
    extents = sorted(tile_sizes)[-2:]
    available = _registers(configuration.get("num_worker_warps"), configuration.get("num_ctas"))
    return arch == "sm_90" and len(extents) == 2 and math.prod(extents) > available


def _can_be_extent(value: object) -> bool:
    """Returns whether ``value`` can be an extent of a tile: a power of two."""
    return type(value) is int and value > 0 and not value & (value - 1)
