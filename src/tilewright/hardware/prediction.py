"""Predicts the time of a compiled kernel from its machine code, without running it.

The model is a roofline with more terms. The first four terms overlap. They are combined by a power norm (the root of
the sum of their powers), which is a little more than the longest term. The last two are added:

    memory     the work's bytes at the achievable bandwidth, longer if few warps take turns in loading and storing
    compute    the work's FLOP at the achievable rate of the code's tensor instructions, longer for small tiles and a
               partly filled last wave; and the other instructions, each at the rate of its unit (`CLOCKS`)
    staging    loads of the products' operands from the L2
    latency    waves × the duration of one CTA; this term is long if an SM has few CTAs
    spill      local loads and stores, as traffic of L2 and memory
    launch     launch, start and end of a grid

The machine code has no trip counts; `executions` computes them from the work. If the instructions were not read, the
model assumes the full tensor rate and ignores staging and spills: the time is a lower estimate.

bench/fit_predictions.py fits the coefficients to recordings of an H200. It also tests the coefficients on kernels that
were not used for the fit. bench/recorded/README.md has the results. On other GPUs, the predicted order of kernels is
more reliable than the predicted times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tilewright.hardware.architectures import KIB, SUB_PARTITIONS, WARP, architecture
from tilewright.hardware.boards import Board
from tilewright.hardware.executions import (
    LOADS,
    STORES,
    Executions,
    Work,
    by_width,
    shape_of,
    spills,
    staged_share,
    tile_elements,
    uses_tma,
    width,
)
from tilewright.records import CodeLoop, MachineCode, PredictedTime, TensorPath

# The fitted coefficients: bench/fit_predictions.py, 2026-11-22.
LAUNCH_US = 5.03
"""Launch, start and end of a grid with cold L2. It is the time of the smallest kernels minus the time that their bytes
take."""
START_US = 0.4
"""Time from the start of a CTA until its first data arrive."""
CLOCKS_PER_INSTRUCTION = 3.6
"""Clocks between two instructions of one warp, on average."""
ITERATION_US = 0.033
"""Time of one loop iteration in addition to its instructions: barriers, and the wait for the last result."""
WAIT_US = 3.46
"""Wait for memory while the loads of a thread fill its registers once. Registers limit the loads in flight."""
TURN_US = 0.96
"""Time to fill, use and store a CTA's shared memory once in a TMA pipeline."""
TURNS_OF_WARPS = 0.35
"""Relative extra time of memory without TMA, if an SM has 8 warps. Such warps load, compute and store in turn."""
ISSUED_SHARE = 0.69
"""Factor for the summed time, at peak rates, of all instructions other than tensor instructions. It is below 1 because
units overlap.
"""
NARROW = 1.45
"""Extra clocks of an SM for a narrow load or store (below 32 bits per thread), in clocks of a wide load or store."""
TOGETHER = 1.94
"""Exponent that combines the time of tensor instructions with the time of all others. With 1 they run one after the
other; a larger exponent means more overlap.
"""
ONE_AFTER_OTHER = 0.57
"""Share of the shorter time that is added if an SM has only one warpgroup. One warpgroup does not overlap tensor
instructions with others."""
ALONE = 0.3
"""Relative extra time of the products if the tiles on an SM have 8192 elements in total. Smaller tiles hide less
latency."""
CACHE_RATE = 4.56
"""Ratio of the rate of staging tiles from the L2 to the rate of memory. It is fitted, and higher than the L2's real
rate."""
SPILLED_L1, SPILLED_L2 = 0.26, 1.23
"""Time of local loads and stores, relative to the time for as many bytes of memory. The first number applies if all
local memory fits into the caches. The second number is added gradually if local memory exceeds half of the L2."""
OVERLAP, OVERLAP_STRAIGHT = 2.52, 6
"""Exponents that combine memory, compute, staging and latency. The second is for code without TMA and tensor
instructions."""

CLOCKS: Mapping[str, float] = {
    "float32": 1, "special function": 8, "conversion": 2, "integer": 2, "uniform": 0.5, "control": 0.5, "tensor": 0,
    "local load": 0, "local store": 0, "global load": 5, "global store": 5, "shuffle and vote": 4,
}  # fmt: skip
"""For each class of instructions, the clocks of a sub-partition (a quarter of an SM) for one instruction of a warp.

The clocks are 32 threads divided by a quarter of the results per clock and SM. These results are from the table of
arithmetic throughput in the CUDA C Programming Guide (9.0: float32 128, integer and conversion to 16 bits 64, shuffles
32, special functions 16). Loads and stores take one clock of the whole SM. Other classes take 1.
"""
SHARED_BYTES_A_CLOCK = 128
"""Bytes that the shared memory of an SM moves per clock."""
MMA_SYNC_SHARE: Mapping[tuple[TensorPath, TensorPath], float] = {("HGMMA", "HMMA"): 0.62, ("UTCMMA", "HMMA"): 0.25}
"""Assumed shares of the full tensor rate, for an architecture's tensor path and a code with an older tensor path.

Hopper's share follows Luo et al., arXiv 2402.13499: mma.sync is much slower than wgmma. No recorded kernel tests these
shares.
"""
_SHARED = ("LDS", "LDSM", "STS", "STSM")
Term = tuple[float, str]
"""Microseconds, and a string that explains them."""


def predict(code: MachineCode, grid: Sequence[int], work: Work, board: Board) -> PredictedTime:
    """Returns the predicted time of one launch of ``code`` over ``grid`` on ``board``, with cold L2.

    grid: the number of blocks of the tile language in each dimension. Each block is a cluster of ``code.cluster`` CTAs.
    """
    return Launched(code, grid, work, board).predicted()


class Launched:
    """One launch of a compiled code: its work, facts from its machine code, and the terms of its predicted time."""

    def __init__(self, code: MachineCode, grid: Sequence[int], work: Work, board: Board) -> None:
        self.code, self.shape, self.board = code, shape_of(code, grid, board), board
        shape, executed = self.shape, Executions(code, self.shape, work)
        self.executed = executed
        bytes_per_us, lanes = board.achievable_bandwidth() * 1e3, shape.ctas * executed.warps
        clocks_per_us = board.sms * SUB_PARTITIONS * board.boost_clock_mhz
        self.bytes_us = work.bytes / bytes_per_us
        self.peak_us = executed.total(_clocks) * lanes / clocks_per_us
        """Time of all instructions except tensor instructions, each at the rate of its unit."""
        self.flops_us = work.flops / (board.fp32_tflops * 1e6) if code.tensor_path == "none" else 0.0
        self.narrow_us = SUB_PARTITIONS * executed.total(_narrow) * lanes / clocks_per_us
        self.path_us = executed.total(lambda region: sum(region.mix.values())) / board.boost_clock_mhz
        """Time of the instructions of one warp, at one clock each."""
        self.iterations = executed.iterations()
        self.refills = executed.total(_loaded_registers) / max(code.registers, WARP // 2)
        """How often the loads of a thread fill all its registers."""
        self.spilled_bytes = 4 * WARP * lanes * executed.total(spills)
        self.spilled_us = self.spilled_bytes / bytes_per_us
        self.footprint = code.stack_bytes * shape.threads * shape.resident * board.sms
        self.warps_on_sm = max(1.0, shape.resident * executed.warps)
        self.straight = code.tensor_path == "none" and not uses_tma(code)
        """Whether the code uses neither TMA nor tensor instructions. Then a CTA loads, computes and stores in turn."""
        self.turns = self.products_us = self.staged_us = self.rate = 0.0
        self.tile = 1.0
        if code.tensor_path != "none":
            self.rate = _achievable(code, work, board)
            self.products_us = work.flops / (self.rate * 1e6)
            self.staged_us = work.flops * staged_share(code, shape) / bytes_per_us
            self.tile = math.inf if code.unread else tile_elements(code, shape) * shape.resident
            """Number of elements of all tiles on an SM."""
        elif uses_tma(code):
            self.turns = work.bytes / (shape.ctas * max(code.shared_bytes, KIB))

    def predicted(self) -> PredictedTime:
        together = self.together_us()
        reasons = [text for us, text in sorted(self.terms(), reverse=True) if us >= 0.3 * together]
        if self.spilled_bytes:
            reasons.append(f"+ {_us(self.spill_us())} spill ({_size(self.spilled_bytes)})")
        reasons += [f"+ {_us(LAUNCH_US)} launch", *(["instructions not read"] if self.code.unread else [])]
        return PredictedTime(self.us(), "; ".join(reasons))

    def us(self) -> float:
        return self.together_us() + self.spill_us() + LAUNCH_US

    def together_us(self) -> float:
        """Returns the combined time of memory, compute, staging and latency, in µs.

        The terms overlap, so the combined time is less than their sum.
        """
        terms = (self.memory_us(), self.compute_us(), self.staging_us(), self.latency_us())
        return power_norm(OVERLAP_STRAIGHT if self.straight else OVERLAP, *terms)

    def memory_us(self) -> float:
        return self.bytes_us * (1 + TURNS_OF_WARPS * 8 / self.warps_on_sm if self.straight else 1.0)

    def compute_us(self) -> float:
        """Returns the time of tensor instructions and other instructions, in µs.

        Several warpgroups overlap the two kinds. A single warpgroup runs one kind after the other.
        """
        tensor, others = self.tensor_us(), self.others_us()
        alone = ONE_AFTER_OTHER * min(tensor, others) / max(1.0, self.warps_on_sm / 4)
        return power_norm(TOGETHER, tensor, others) + alone

    def tensor_us(self) -> float:
        return self.products_us * self._longer()

    def others_us(self) -> float:
        us = max(ISSUED_SHARE * (self.peak_us + NARROW * self.narrow_us), self.flops_us)
        return us / self.shape.busy if self.products_us else us

    def staging_us(self) -> float:
        return self.staged_us / CACHE_RATE

    def latency_us(self) -> float:
        life = START_US + CLOCKS_PER_INSTRUCTION * self.path_us + ITERATION_US * self.iterations
        return self.shape.waves * (life + WAIT_US * self.refills + TURN_US * self.turns)

    def spill_us(self) -> float:
        outgrown = self.footprint / (self.footprint + self.board.l2_bytes / 2)
        return (SPILLED_L1 + SPILLED_L2 * outgrown) * self.spilled_us

    def terms(self) -> Iterator[Term]:
        """Yields the terms that overlap, each with the text that explains it."""
        shape, memory, others, latency = self.shape, self.memory_us(), self.others_us(), self.latency_us()
        yield memory, f"{_us(memory)} memory at {self.board.achievable_bandwidth() / 1e3:.2g} TB/s"
        warps = f"{shape.ctas * shape.threads // WARP} warps"
        yield others, f"{_us(others)} issue of {self.code.instructions} instructions by {warps}"
        if self.products_us:
            at = f"{self.code.tensor_path} at {self.rate:.0f} TFLOP/s ×{self._longer():.2f}"
            tile = "" if self.code.unread else f" ({self.tile:,.0f} elements an SM)"
            yield self.tensor_us(), f"{_us(self.tensor_us())} {at}{tile}"
            yield self.staging_us(), f"{_us(self.staging_us())} staging of tiles from the L2"
        waves = "1 wave" if shape.waves == 1 else f"{shape.waves} waves"
        ctas = "1 CTA" if shape.resident == 1 else f"{shape.resident} CTAs"
        yield latency, f"{_us(latency)} latency ({waves} of {_us(latency / shape.waves)}, {ctas} an SM)"

    def _longer(self) -> float:
        """Returns the factor by which the products take longer than at the achievable rate.

        Small tiles hide less latency, and the last wave may be partly filled.
        """
        return (1 + ALONE * 8192 / self.tile) / self.shape.busy


def _achievable(code: MachineCode, work: Work, board: Board) -> float:
    """Returns the TFLOP/s that the code's tensor instructions can reach."""
    dtype = "tfloat32" if work.dtype == "float32" else work.dtype
    slower = MMA_SYNC_SHARE.get((architecture(board.arch).tensor_path, code.tensor_path), 1.0)
    return board.achievable_tflops(dtype) * slower


def _clocks(region: CodeLoop) -> float:
    """Returns the clocks that a sub-partition needs for the instructions of one warp."""
    clocks = sum(CLOCKS.get(name, 1.0) * count for name, count in region.mix.items())
    return clocks + SUB_PARTITIONS * width(region.copies, *_SHARED) * WARP / SHARED_BYTES_A_CLOCK


def _narrow(region: CodeLoop) -> float:
    return sum(n for kind, bits, n in by_width(region.copies) if kind in (*LOADS, *STORES) and bits < 32)


def narrow_clocks(region: CodeLoop) -> float:
    """Returns the extra clocks of a sub-partition for the narrow loads and stores of one warp."""
    return SUB_PARTITIONS * NARROW * _narrow(region)


def _loaded_registers(region: CodeLoop) -> float:
    return sum(n * max(1, bits // 32) for kind, bits, n in by_width(region.copies) if kind in ("LDG", "LD"))


def power_norm(exponent: float, *terms: float) -> float:
    largest = max(terms)
    return largest * sum((term / largest) ** exponent for term in terms) ** (1 / exponent) if largest else 0.0


def _us(us: float) -> str:
    return f"{us:,.0f} µs" if us >= 10 else f"{us:.2g} µs"


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
