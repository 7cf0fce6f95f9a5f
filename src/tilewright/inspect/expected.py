"""Computes the expected time of a configuration before it is compiled, from its Tile IR.

A search strategy compares configurations with these times and chooses what to compile. The model is that of
`hardware.prediction`, with its coefficients. The numbers that only machine code has are estimated:

    instructions  of each tile operation, its elements divided by the threads
    trip counts   a loop runs until the launch has stored its output, done its FLOP or read its input
    registers     the values that are live at the same time, or the accumulators and computed factors of products
    CTAs per SM   as many as fit

On sm_90, tileiras compiles a kernel in one of two ways. In the first, one warpgroup copies for the others. A CTA then
gets all registers of an SM that the hint ``occupancy`` leaves to it, so the hint decides how many CTAs run on an SM.
Kernels with matrix products are compiled in this way. For others, the machine code of one configuration shows the way
for all. Absolute times may be wrong by a factor of 2; the order is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.compile.accumulators import entry_of
from tilewright.compile.compile import WARPS, Unit, hints_of, lower
from tilewright.compile.screen import work_of
from tilewright.hardware import prediction
from tilewright.hardware.architectures import SUB_PARTITIONS, WARP
from tilewright.hardware.boards import Board
from tilewright.hardware.executions import FEWEST_RUNS, WARPGROUP, Work
from tilewright.languages.base import Hints, Lowered
from tilewright.records import Candidate, Configuration, Failed, Workload
from tilewright.task.task import Task
from tilewright.tileir.analysis.outline import LoopWork, Outline, outline
from tilewright.tileir.run.registry import Unsupported

ARCHITECTURES = ("sm_90",)
"""Where the two ways of compiling, and the figures below, were observed."""
THREADS = ("num_worker_warps", "occupancy")
"""The hints of which `_Threads` has all effects."""
FILE, CTA_REGISTERS, MOST_REGISTERS, CONSUMER = 65536, 8, 255, 240
"""Registers of an SM; registers are given out in steps of 8; most per thread; most per thread that does not copy."""
COPYING = 24
"""Registers of a thread that only copies."""
OWN_PRODUCTS, OWN = 24, 16
"""Registers of a thread besides its values: addresses and counters, in kernels with and without matrix products."""
LIVE = 0.6
"""Share of the live values that need registers at the same time if all warps copy and compute in turn. The compiler
then finishes parts of a tile early."""
INSTRUCTIONS, FOLD = 100, 30
"""Instructions of a warp besides those for elements: for the kernel, and for each reduction (shuffles, a barrier)."""
LOAD_US = 0.7
"""Time from a load until its data arrive from memory."""
SPILLS = 0.5
"""Time of a spilled register, relative to the time for as many bytes of memory."""
ROW_BYTES = 8
"""Extra bytes of memory traffic for each contiguous row of a tile."""
ROWS = 64
"""Rows of a tile that an instruction for a whole warpgroup multiplies. Smaller tiles use an older instruction."""
EXCHANGE_US = 0.7
"""Time of an iteration in which warpgroups exchange reduced values, and factors made of them, through shared memory. It
was read from the times of attention with 64 rows and 4 or 8 warps."""


@dataclass(frozen=True)
class _Threads:
    """How many CTAs run on an SM, and what their threads have. ``spilled``: registers of a thread."""

    warps: int
    resident: int
    registers: float
    spilled: float
    apart: bool
    """Whether one warpgroup copies for the others. ``warps`` does not count it."""


class ExpectedTimes:
    """The expected times of one workload's configurations. It is the ``expected`` of a `SearchSpace`."""

    def __init__(self, task: Task, workload: Workload, board: Board) -> None:
        self.task, self.workload, self.board = task, workload, board
        self._outlines: dict[Hashable, Outline | None] = {}
        self._lowered: dict[Configuration, _Lowered | None] = {}

    @cached_property
    def _work(self) -> Work:
        return work_of(self.task, self.workload.dims)

    def us(self, configurations: Sequence[Configuration], like: Candidate | None = None) -> tuple[float | None, ...]:
        """Returns the expected time of each configuration in µs; None if it is not known.

        like: a compiled candidate of the same kernel, which shows how the kernel is compiled. Without it, a kernel
            without matrix products gets the geometric mean of both ways.
        """
        if self.board.arch not in ARCHITECTURES:
            return (None,) * len(configurations)
        return tuple(self._us(configuration, like) for configuration in configurations)

    def _ways(self, like: Candidate | None) -> tuple[bool, ...]:
        """Returns whether one warpgroup copies for the others: it is one warpgroup more than the hint requests.

        Both, if it is not known.
        """
        read = None if like is None else self._read(like.configuration)
        if like is None or like.code is None or read is None:
            return True, False
        return (like.code.threads > WARP * _number(read.hints.get("num_worker_warps"), WARPS),)

    def identity(self, configuration: Configuration, like: Candidate | None = None) -> Hashable:
        """Returns a key that is equal for configurations that are expected to have equal machine code and launch.

        Their Tile IR is equal, and what their hints ask for leads to the same threads and registers.
        """
        lowered = self._read(configuration)
        if lowered is None:
            return configuration
        threads = tuple(each.threads for each in self._launches(lowered, like))
        others = tuple((hint, value) for hint, value in lowered.hints.items() if hint not in THREADS)
        return (*lowered.identity[1:], others, threads) if threads else lowered.identity

    def code(self, configuration: Configuration) -> Hashable:
        """Returns a key that is equal for configurations, also of other workloads, that are compiled once."""
        lowered = self._read(configuration)
        return (self.workload.name, configuration) if lowered is None else lowered.identity[0]

    def _us(self, configuration: Configuration, like: Candidate | None) -> float | None:
        lowered = self._read(configuration)
        times = [] if lowered is None else [each.us() for each in self._launches(lowered, like)]
        return math.exp(sum(map(math.log, times)) / len(times)) if times else None

    def _launches(self, lowered: _Lowered, like: Candidate | None) -> Iterator[_Launched]:
        """Yields a launch for each way in which the kernel may be compiled; none if it cannot be read."""
        for apart in self._ways(like):
            if lowered.outline is not None:
                yield _Launched(lowered.outline, lowered.grid, lowered.hints, self._work, self.board, apart)

    def _read(self, configuration: Configuration) -> _Lowered | None:
        """Lowers a configuration once. Hints do not change the outline, so each kernel is outlined once."""
        if configuration not in self._lowered:
            done = lower(self.task, Unit(self.workload, configuration, self.board))
            if isinstance(done, Failed):
                self._lowered[configuration] = None
            else:
                language, lowered, launch = done
                key = (language.kernel_name(launch.kernel), repr(launch.args))
                if key not in self._outlines:
                    self._outlines[key] = _outline_of(lowered)
                hints = {
                    **language.decorated_hints(launch.kernel, self.board.arch), **hints_of(self.task, configuration)
                }  # fmt: skip
                identity = (lowered.identity, launch.grid, key)
                self._lowered[configuration] = _Lowered(self._outlines[key], launch.grid, hints, identity)
        return self._lowered[configuration]


@dataclass(frozen=True)
class _Lowered:
    """What is kept of a configuration's Tile IR. ``outline``: None if it is no Tile IR, or cannot be read.

    hints: of the kernel's decorator and of the configuration. None lets the compiler choose.
    """

    outline: Outline | None
    grid: tuple[int, ...]
    hints: Hints
    identity: tuple[Hashable, ...]
    """The code, the grid and the arguments."""


def _outline_of(lowered: Lowered) -> Outline | None:
    entry = entry_of(lowered) if lowered.is_tile_ir else None
    try:
        return None if entry is None else outline(entry)
    except Unsupported:
        return None


def _number(value: object, default: int) -> int:
    return value if type(value) is int and value > 0 else default


class _Launched:
    """One launch of a kernel that is not compiled yet. ``apart``: as in `_Threads`, for a kernel without products."""

    def __init__(
        self, kernel: Outline, grid: tuple[int, ...], hints: Hints, work: Work, board: Board, apart: bool
    ) -> None:
        self.kernel, self.work, self.board = kernel, work, board
        self.cluster = _number(hints.get("num_ctas"), 1)
        self.blocks = math.prod(grid)
        self.ctas = self.blocks * self.cluster
        warps, occupancy = _number(hints.get("num_worker_warps"), WARPS), _number(hints.get("occupancy"), 1)
        self.threads = self._apart(warps, occupancy) if kernel.products or apart else self._together(warps, occupancy)
        self.waves = math.ceil(self.ctas / (board.sms * self.threads.resident))
        self.busy = self.ctas / (self.waves * board.sms * self.threads.resident)
        self.runs = self._runs()

    def us(self) -> float:
        exponent = prediction.OVERLAP if self.threads.apart else prediction.OVERLAP_STRAIGHT
        terms = (self._memory_us(), self._compute_us(), self._staging_us(), self._latency_us())
        return prediction.power_norm(exponent, *terms) + self._spill_us() + prediction.LAUNCH_US

    # Threads --------------------------------------------------------------------------------------

    def _apart(self, warps: int, occupancy: int) -> _Threads:
        """The compiler lowers the occupancy until the accumulators fit, if the products run on tensor cores."""
        products, threads = bool(self.kernel.products), WARPGROUP + WARP * warps
        needed = (OWN_PRODUCTS if products else OWN) + self._live(WARP * warps)
        while True:
            given = min(MOST_REGISTERS, FILE // (threads * occupancy) // CTA_REGISTERS * CTA_REGISTERS)
            consumer = min(CONSUMER, (given * threads - COPYING * WARPGROUP) / (WARP * warps))
            if needed <= consumer or occupancy == 1 or not self._lowered(warps, given):
                return _Threads(warps, self._resident(occupancy), consumer, max(0.0, needed - consumer), True)
            occupancy -= 1

    def _lowered(self, warps: int, given: int) -> bool:
        """Returns whether the compiler lowers an occupancy with which values do not fit into registers.

        With one consuming warpgroup, only if the largest accumulator does not fit into ``given``, a thread's equal
        share.
        """
        if not self.kernel.on_tensor_cores:
            return False
        largest = max(op.tile().size for op in self.kernel.products) / self.cluster / (WARP * warps)
        return warps > 4 or largest > given

    def _together(self, warps: int, occupancy: int) -> _Threads:
        threads = WARP * warps
        most = min(MOST_REGISTERS, FILE // (threads * occupancy))
        needed = OWN + LIVE * self._live(threads)
        registers = max(16, math.ceil(min(needed, most) / CTA_REGISTERS) * CTA_REGISTERS)
        fits = min(FILE // (registers * threads), 2048 // threads, 32)
        return _Threads(warps, self._resident(max(1, fits)), registers, max(0.0, needed - most), False)

    def _resident(self, fits: int) -> int:
        return max(1, min(fits, math.ceil(self.ctas / self.board.sms)))

    def _live(self, threads: int) -> float:
        """Returns the registers of a thread for the values of the kernel."""
        threads *= self.cluster
        part = max(self.kernel.parts, key=lambda part: part.accumulators)
        if not part.products:
            return self.kernel.live / threads
        own = part.accumulators / threads
        if self.kernel.on_tensor_cores:
            return own + part.factors / threads
        # On the CUDA cores, a thread keeps all factors of its share of the result, which is about square.
        return own + 2 * math.sqrt(own) * max(op.tile("lhs").shape[-1] for op in part.products)

    # Work -----------------------------------------------------------------------------------------

    def _runs(self) -> tuple[float, ...]:
        """Returns how often each part runs in a block."""
        first, *loops = self.kernel.parts
        written = self.work.written or self.work.bytes / 2
        read = max(0.0, self.work.bytes - written) / self.blocks
        stored, flop = sum(loop.stored for loop in loops), sum(loop.flop for loop in loops if not loop.stored)
        runs = [1.0]
        for loop in loops:
            around = runs[loop.inside or 0]
            if loop.stored:
                runs.append(max(FEWEST_RUNS, (written / self.blocks - first.stored) / stored))
            elif loop.flop:
                runs.append(max(FEWEST_RUNS, self.work.flops / self.blocks / flop))
            else:
                runs.append(max(around, read / loop.loaded) if loop.loaded else around)
        return tuple(runs)

    def _total(self, of: Callable[[LoopWork], float]) -> float:
        return sum(runs * of(part) for runs, part in zip(self.runs, self.kernel.parts, strict=True))

    @cached_property
    def _instructions(self) -> float:
        """Instructions of a warp, without those on tensor cores."""
        threads = WARP * self.threads.warps

        def of(part: LoopWork) -> float:
            count = sum(cost * max(1.0, size / self.cluster / threads) for size, cost in part.vector)
            if not self.kernel.on_tensor_cores and part.products:  # fused multiply-adds, and loads of their factors
                own = part.accumulators / self.cluster / threads
                count += part.flop / 2 / self.cluster / threads * (1 + 2 / math.sqrt(max(own, 1.0)))
            return count + FOLD * part.folds

        return INSTRUCTIONS + self._total(of)

    # Terms, in µs ---------------------------------------------------------------------------------

    @property
    def _bytes_per_us(self) -> float:
        return self.board.achievable_bandwidth() * 1e3

    def _memory_us(self) -> float:
        us = self.work.bytes / self._bytes_per_us * (1 + ROW_BYTES / self.kernel.contiguous)
        warps = self.threads.resident * self.threads.warps
        return us if self.threads.apart else us * (1 + prediction.TURNS_OF_WARPS * 8 / warps)

    def _compute_us(self) -> float:
        warps, tensor = self.threads.resident * self.threads.warps, self._tensor_us()
        clocks = self.board.sms * SUB_PARTITIONS * self.board.boost_clock_mhz
        others = prediction.ISSUED_SHARE * self._instructions * self.ctas * self.threads.warps / clocks
        others /= self.busy if tensor else 1.0
        alone = prediction.ONE_AFTER_OTHER * min(tensor, others) / max(1.0, warps / 4)
        return prediction.power_norm(prediction.TOGETHER, tensor, others) + alone

    def _tensor_us(self) -> float:
        if not self.kernel.on_tensor_cores:
            return 0.0
        rate = self.board.achievable_tflops("tfloat32" if self.work.dtype == "float32" else self.work.dtype)
        if self._rows() < ROWS:
            rate *= prediction.MMA_SYNC_SHARE["HGMMA", "HMMA"]
        stored = max(part.stored for part in self.kernel.parts) / 2 / self.cluster
        longer = 1 + prediction.ALONE * 8192 / max(1.0, stored * self.threads.resident)
        return self.work.flops / (rate * 1e6) * longer / self.busy

    def _staging_us(self) -> float:
        if not self.kernel.on_tensor_cores:
            return 0.0
        return self._total(lambda part: part.loaded) * self.blocks / self._bytes_per_us / prediction.CACHE_RATE

    def _latency_us(self) -> float:
        clocks = prediction.CLOCKS_PER_INSTRUCTION * self._instructions
        wait = prediction.TURN_US
        if not self.threads.apart:  # no warps load for the next iteration
            words = self._total(lambda part: part.loaded) / 4 / (WARP * self.threads.warps)
            loading = sum(runs for runs, part in zip(self.runs[1:], self.kernel.parts[1:], strict=True) if part.loaded)
            wait = prediction.WAIT_US * min(1.0, words / self.threads.registers) + LOAD_US * loading
        life = prediction.START_US + clocks / self.board.boost_clock_mhz + prediction.ITERATION_US * sum(self.runs[1:])
        return self.waves * (life + wait + EXCHANGE_US * self._exchanges())

    def _exchanges(self) -> float:
        """Returns how often the warpgroups of a CTA exchange values of the rows that they share.

        They share rows if a product's tile has too few for all of them.
        """
        groups = WARP * self.threads.warps // WARPGROUP
        if not self.kernel.on_tensor_cores or self._rows() >= ROWS * groups:
            return 0.0
        loops = zip(self.runs[1:], self.kernel.parts[1:], strict=True)
        return sum(runs for runs, part in loops if part.folds and part.products)

    def _rows(self) -> int:
        """Returns the rows of the smallest tile that a product multiplies."""
        return min(op.tile("lhs").shape[-2] for op in self.kernel.products)

    def _spill_us(self) -> float:
        spilled = 2 * 4 * self.threads.spilled * WARP * self.threads.warps * self.ctas * max(self.runs)
        return SPILLS * spilled / self._bytes_per_us
