"""How long will a compiled kernel take? Predicted from its machine code, without running it.

    predict(code, grid, work, board)      a `PredictedTime` whose ``why`` names the terms

A roofline with what the machine code adds to it. Five times pass side by side and are joined as the root of their
squares, because each hides the others in part; spilling and the launch come on top.

    memory     the work's bytes at the achievable bandwidth
    products   the work's FLOP at the achievable rate of the tensor path that the code has, longer where
               the tiles on an SM are small, where the last wave is thin; and the staging of their operands
    overhead   the other instructions around the products, for each element that the CTAs write
    issue      every instruction of every warp once: what many small CTAs are bound by
    latency    waves × the life of one CTA: what few CTAs an SM, or little staged memory, are bound by
    spill      local loads and stores as traffic: the caches do not hold what a whole SM spills

Trip counts are not in the machine code; they are inferred from the work: FLOP over those of the static tensor
instructions, or bytes over those of one pass (loads and stores by width; TMA: shared memory).

The coefficients come from a random descent, rounded by hand, on three recordings of 785 configurations in 21 cases, all
five tasks, on H200s on 2026-11-21; the third is bench/recorded/h200-2026-11-21.json.gz. They are fitted and judged on
the same data: no task was left out. Elsewhere, trust the order more than the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.hardware.architectures import KIB, SUB_PARTITIONS, WARP, Occupancy, architecture, attainable_ctas
from tilewright.hardware.boards import Board
from tilewright.records import MachineCode, PredictedTime, TensorPath

WARPGROUP = 4 * WARP
"""Threads that issue one HGMMA together."""


@dataclass(frozen=True)
class Work:
    """The least work of a workload: FLOP, bytes to and from memory, dtype of the products."""

    flops: float
    bytes: float
    dtype: str


@dataclass(frozen=True)
class Coefficients:
    """The fitted numbers: H200, 2026-11-21, bench/recorded/h200-2026-11-21.json.gz."""

    launch_us: float = 5.0
    """Launch, ramp and drain of a grid under cold L2: what the smallest kernels take beyond their bytes."""
    start_us: float = 0.6
    """From the start of a CTA to its first data."""
    turn_us: float = 2.0
    """One turn of a CTA's shared memory in a TMA pipeline: filled, worked on, stored."""
    clocks_per_instruction: float = 16.0
    """Clocks from one instruction of a warp to its next, averaged over straight code with its loads."""
    looped_share: float = 0.037
    """Share of the static instructions (and spills) that the inner loop repeats."""
    alone: float = 1.2
    """Added to the time of the products where the tiles of an SM hold 8192 elements: fewer hide less latency."""
    shared_tile: float = 0.5
    """What the tile counts where the warpgroups of a CTA exchange values of it among each other."""
    wait_us: float = 1.3
    """Waiting for memory, where all loads of a thread would fill its registers once: these bound those in flight."""
    cache_rate: float = 5.3
    """Rate of staging tiles from the L2 over that of memory; an effective number, beyond what the L2 gives."""
    overhead: float = 9.4
    """Time of the other instructions over that of the products × instructions for each element written."""


FITTED = Coefficients()

MMA_SYNC_SHARE: Mapping[tuple[TensorPath, TensorPath], float] = {("HGMMA", "HMMA"): 0.62, ("UTCMMA", "HMMA"): 0.25}
"""(the architecture's path, the code's path) → assumed share of the rate that the older instruction reaches.
Hopper: after Luo et al., arXiv 2402.13499, who find mma.sync well below wgmma; no recorded kernel tests it."""

CUDA_CORE_SHARE = 0.8
"""Assumed share of the float32 peak that code without tensor instructions reaches."""

_FLOPS_PER_WARP: Mapping[TensorPath, float] = {
    "DMMA": 2 * 8 * 8 * 4, "HMMA": 2 * 16 * 8 * 16, "IMMA": 2 * 16 * 8 * 32, "QMMA": 2 * 16 * 8 * 32,
    "OMMA": 2 * 16 * 8 * 64, "HGMMA": 2 * 64 * 128 * 16 / 4, "QGMMA": 2 * 64 * 128 * 32 / 4,
    "IGMMA": 2 * 64 * 128 * 32 / 4,
}  # fmt: skip
"""FLOP of one tensor instruction, by warp. Instructions of warpgroups come in many widths; 128 columns are assumed."""
_UTCMMA_FLOPS = 2 * 128 * 256 * 16
"""FLOP of one UTCMMA, which one thread issues for the CTA; likewise one size for all."""
_WARPGROUP_PATHS = ("HGMMA", "QGMMA", "IGMMA")
_LOADS, _STORES = ("LDG", "LDGSTS", "LD"), ("STG", "ST")


@dataclass(frozen=True)
class Shape:
    """How the launch lies on the board."""

    ctas: int
    resident: int
    """CTAs on one SM at a time; 1 where not even one fits (the screen then says so)."""
    waves: int
    busy: float
    """CTAs over the places in all waves, at most 1: the last wave may be thin."""
    threads: int
    """Threads per CTA; a warpgroup where the code leaves it to the launch."""


def predict(
    code: MachineCode, grid: Sequence[int], work: Work, board: Board, by: Coefficients = FITTED
) -> PredictedTime:
    """The time of one launch of ``code`` over ``grid`` on ``board``, with cold L2.

    grid: blocks as the tile language counts them; each is a cluster of ``code.cluster`` CTAs.
    """
    shape = shape_of(code, grid, board)
    terms = _side_by_side(code, shape, work, board, by)
    spill_bytes = _spilled_bytes(code, shape, work, by)
    spill_us = spill_bytes / _bytes_per_us(board)
    together = math.sqrt(sum(us**2 for us, _ in terms))
    told = [text for us, text in sorted(terms, reverse=True) if us >= 0.3 * together]
    if spill_bytes:
        told.append(f"+ {_us(spill_us)} spill ({_size(spill_bytes)})")
    told.append(f"+ {_us(by.launch_us)} launch")
    return PredictedTime(together + spill_us + by.launch_us, "; ".join(told))


def spill_us(code: MachineCode, grid: Sequence[int], work: Work, board: Board, by: Coefficients = FITTED) -> float:
    """The part of the predicted time that spilling takes, in microseconds."""
    return _spilled_bytes(code, shape_of(code, grid, board), work, by) / _bytes_per_us(board)


def shape_of(code: MachineCode, grid: Sequence[int], board: Board) -> Shape:
    """CTAs, residency and waves of ``code`` over ``grid``."""
    fits = occupancy_of(code, board).ctas
    ctas = math.prod(grid) * max(code.cluster, 1)
    resident = max(1, min(fits, math.ceil(ctas / board.sms)))
    places = board.sms * resident
    waves = math.ceil(ctas / places)
    return Shape(ctas, resident, waves, ctas / (waves * places), code.threads or WARPGROUP)


def occupancy_of(code: MachineCode, board: Board) -> Occupancy:
    """The CTAs of ``code`` that fit on one SM of ``board``."""
    threads, limits = code.threads or WARPGROUP, architecture(board.arch)
    return attainable_ctas(limits, registers=code.registers, threads=threads, shared_bytes=code.shared_bytes)


Term = tuple[float, str]
"""Microseconds, and the same in words."""


def _side_by_side(code: MachineCode, shape: Shape, work: Work, board: Board, by: Coefficients) -> list[Term]:
    memory = work.bytes / _bytes_per_us(board)
    warps = math.ceil(shape.threads / WARP)
    issue = shape.ctas * warps * code.instructions / (board.sms * SUB_PARTITIONS * board.boost_clock_mhz)
    return [
        (memory, f"{_us(memory)} memory at {board.achievable_bandwidth() / 1e3:.2g} TB/s"),
        (issue, f"{_us(issue)} issue of {code.instructions} instructions by {shape.ctas * warps} warps"),
        _latency(code, shape, work, board, by),
        *_products(code, shape, work, board, by),
    ]


def _latency(code: MachineCode, shape: Shape, work: Work, board: Board, by: Coefficients) -> Term:
    if code.tensor_path != "none":
        life, of = by.start_us, "start"
    elif _uses_tma(code):
        turns = _passes(code, shape, work)
        life, of = (by.start_us + turns * by.turn_us, f"for {turns:.2g} turns of {code.shared_bytes // KIB} KiB")
    else:
        executed = _executed(code, shape, work, by)
        clocks = executed * code.instructions * by.clocks_per_instruction
        # Registers that all loads of a thread would fill together, one pass.
        asked = sum(n * max(1, bits // 32) for kind, bits, n in _by_width(code.copies) if kind in ("LDG", "LD"))
        waits = executed * by.wait_us * asked / max(code.registers, WARP // 2)
        life, of = by.start_us + waits + clocks / board.boost_clock_mhz, "each"
    us = shape.waves * life
    waves = "1 wave" if shape.waves == 1 else f"{shape.waves} waves"
    ctas = "1 CTA" if shape.resident == 1 else f"{shape.resident} CTAs"
    return us, f"{_us(us)} latency ({waves} of {_us(life)} {of}, {ctas} an SM)"


def _products(code: MachineCode, shape: Shape, work: Work, board: Board, by: Coefficients) -> list[Term]:
    if code.tensor_path == "none":
        us = work.flops / (CUDA_CORE_SHARE * board.fp32_tflops * 1e6)
        return [(us, f"{_us(us)} arithmetic on the CUDA cores")]
    dtype = "tfloat32" if work.dtype == "float32" else work.dtype
    expected = architecture(board.arch).tensor_path
    rate = board.achievable_tflops(dtype) * MMA_SYNC_SHARE.get((expected, code.tensor_path), 1.0)
    ideal = work.flops / (rate * 1e6) / shape.busy
    others = max(1, code.instructions - code.local_loads - code.local_stores)
    longer = 1 + by.alone * 8192 / (_area(code, shape, by) * shape.resident)
    products, overhead = ideal * longer, ideal * by.overhead * others / _written(code, shape)
    tiles = _area(code, shape, by) * shape.resident
    at = f"{code.tensor_path} at {rate:.0f} TFLOP/s ×{longer / shape.busy:.2f} ({tiles:,.0f} elements an SM)"
    staged = work.flops * _staged_share(code, shape, by) / (by.cache_rate * _bytes_per_us(board))
    return [
        (products, f"{_us(products)} {at}"),
        (overhead, f"{_us(overhead)} instructions around the products"),
        (staged, f"{_us(staged)} staging of tiles from the L2"),
    ]


def _written(code: MachineCode, shape: Shape) -> float:
    """Elements (of two bytes) that the CTAs of one SM write in one pass over the code."""
    if _exchanges(code):  # the warpgroups write one tile together, and stage more than outputs
        return max(1.0, _width(code, "STSM") * WARPGROUP / 2 * shape.resident)
    width = _width(code, *(("STSM", "STS") if _boxes(code, "UTMASTG") else _STORES))
    return max(width, 8) * _consumers(code, shape) / 2 * shape.resident


def _area(code: MachineCode, shape: Shape, by: Coefficients) -> float:
    """Elements of the tile that a CTA writes; further copies of the code store it again."""
    stores, loads = _boxes(code, "UTMASTG"), _boxes(code, "UTMALDG")
    if not stores:
        return _written(code, shape) / shape.resident
    boxes = max(1, min(stores, loads - 1))
    if _exchanges(code):
        return _width(code, "STSM") * WARPGROUP / 2 * by.shared_tile
    return max(1024, _width(code, "STSM", "STS") * _consumers(code, shape) / 2 * boxes / stores)


def _staged_share(code: MachineCode, shape: Shape, by: Coefficients) -> float:
    """Bytes (of two-byte elements) staged for each FLOP: 1 / rows + 1 / columns of the tile that a CTA writes.

    Told by the TMA: a box is 128 bytes wide, a store of every box once is one tile, and loads go over the same columns.
    Stores beyond that are further copies of the code, and no larger tile. A multicast tile is the cluster's.
    """
    stores, loads = _boxes(code, "UTMASTG"), _boxes(code, "UTMALDG")
    if not stores or code.tensor_path not in _WARPGROUP_PATHS:
        return 0.0
    boxes = max(1, min(stores, loads - 1))
    columns = 64 * boxes
    area = _area(code, shape, by) * (code.cluster if any("MULTICAST" in kind for kind in code.copies) else 1)
    return 1 / columns + columns / max(area, columns)


def _consumers(code: MachineCode, shape: Shape) -> int:
    """Threads that take up the products: tileiras keeps one warpgroup of a larger CTA for the TMA copies."""
    return shape.threads - (WARPGROUP if _uses_tma(code) and shape.threads > WARPGROUP else 0)


def _exchanges(code: MachineCode) -> bool:
    """Whether warpgroups read back from shared memory what others wrote: their operands and TMA need no LDS.

    Elsewhere LDS says nothing: with UTCMMA it reads the address of tensor memory, with HMMA the operands. Without STSM
    it reads something else, such as the table of a list of arrays.
    """
    exchanged = _width(code, "LDS") > 0 and _width(code, "STSM") > 0
    return code.tensor_path in _WARPGROUP_PATHS and _boxes(code, "UTMASTG") > 0 and exchanged


def _passes(code: MachineCode, shape: Shape, work: Work) -> float:
    """How often each CTA goes through its code, as the work tells. May be below 1 for TMA."""
    if code.tensor_path == "UTCMMA":
        return work.flops / (shape.ctas * code.tensor_instructions * _UTCMMA_FLOPS)
    if code.tensor_path != "none":
        warps = _consumers(code, shape) / WARP
        return work.flops / (shape.ctas * code.tensor_instructions * _FLOPS_PER_WARP[code.tensor_path] * warps)
    if _uses_tma(code):
        return work.bytes / (shape.ctas * max(code.shared_bytes, KIB))
    moved = _width(code, *_LOADS, *_STORES) * shape.threads
    return work.bytes / (shape.ctas * moved) if moved else 1.0


def _executed(code: MachineCode, shape: Shape, work: Work, by: Coefficients) -> float:
    """How often an instruction of a CTA runs on average; those in the loop run more than once."""
    return 1 + by.looped_share * max(0.0, _passes(code, shape, work) - 1)


def _spilled_bytes(code: MachineCode, shape: Shape, work: Work, by: Coefficients) -> float:
    local = code.local_loads + code.local_stores
    if not local:
        return 0.0
    return local * 4 * shape.threads * shape.ctas * _executed(code, shape, work, by)


def _width(code: MachineCode, *kinds: str) -> int:
    """Bytes for each thread, in one pass, of the copies of ``kinds`` (``LDG`` counts ``LDG.128`` and all)."""
    return sum(bits * count // 8 for kind, bits, count in _by_width(code.copies) if kind in kinds)


def _boxes(code: MachineCode, kind: str) -> int:
    return sum(count for name, count in code.copies.items() if name.startswith(kind))


def _by_width(copies: Mapping[str, int]) -> Iterable[tuple[str, int, int]]:
    for name, count in copies.items():
        kind, _, bits = name.partition(".")
        if bits.isdigit():
            yield kind, int(bits), count


def _uses_tma(code: MachineCode) -> bool:
    return any(kind.startswith(("UTMALDG", "UBLKCP")) for kind in code.copies)


def _bytes_per_us(board: Board) -> float:
    return board.achievable_bandwidth() * 1e3


def _us(us: float) -> str:
    return f"{us:,.0f} µs" if us >= 10 else f"{us:.2g} µs"


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
