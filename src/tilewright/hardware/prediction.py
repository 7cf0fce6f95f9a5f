"""Predicts the time of a compiled kernel from its machine code, without running it.

The model is a roofline with more terms. The first five overlap in part, so their times are combined as the root of the
sum of their squares. The time for spills and for the launch is added.

    memory     the work's bytes at the achievable bandwidth
    products   the work's FLOP at the achievable rate of the code's tensor instructions, longer for small tiles and a
               partly filled last wave; and the staging of their operands
    overhead   the other instructions around the products, for each element that the CTAs write
    issue      every instruction of every warp once, which limits many small CTAs
    latency    waves × the life of one CTA, which limits few CTAs per SM or little staged memory
    spill      local loads and stores as memory traffic, because the spills of a whole SM do not fit into the caches

The machine code has no trip counts. The model computes them from the work: its FLOP over those of the tensor
instructions in the code, or its bytes over those of one pass (by the width of loads and stores; with TMA the size of
the shared memory).

The coefficients come from a random descent, rounded by hand, on three recordings of 785 configurations in 21 cases, all
five tasks, on H200s on 2026-11-21; the third is bench/recorded/h200-2026-11-21.json.gz. No task was left out of the
fit to test it. On other boards the order is more reliable than the times.
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
    """The least work of a workload: its FLOP, the bytes to and from memory, and the dtype of its products."""

    flops: float
    bytes: float
    dtype: str


# The fitted coefficients: H200, 2026-11-21, bench/recorded/h200-2026-11-21.json.gz.
LAUNCH_US = 5.0
"""Launch, start and end of a grid with cold L2: the time of the smallest kernels minus that for their bytes."""
START_US = 0.6
"""From the start of a CTA to its first data."""
TURN_US = 2.0
"""Filling, using and storing a CTA's shared memory once in a TMA pipeline."""
CLOCKS_PER_INSTRUCTION = 16.0
"""Clocks between two instructions of a warp, on average over straight code with its loads."""
LOOPED_SHARE = 0.037
"""Share of the instructions in the code (and of the spills) that the inner loop repeats."""
ALONE = 1.2
"""Relative extra time of the products where an SM's tiles have 8192 elements. Smaller tiles hide less latency."""
SHARED_TILE = 0.5
"""Factor for the tile's elements where the warpgroups of a CTA exchange values of it."""
WAIT_US = 1.3
"""Wait for memory where the loads of a thread fill its registers once. Registers limit the loads in flight."""
CACHE_RATE = 5.3
"""Rate of staging tiles from the L2 over the rate of memory: a fitted number, higher than the L2's real rate."""
OVERHEAD = 9.4
"""Time of the other instructions over the time of the products, times instructions per written element."""
MMA_SYNC_SHARE: Mapping[tuple[TensorPath, TensorPath], float] = {("HGMMA", "HMMA"): 0.62, ("UTCMMA", "HMMA"): 0.25}
"""(the architecture's path, the code's path) → assumed share of the tensor rate that the older instruction reaches.
For Hopper after Luo et al., arXiv 2402.13499, where mma.sync is much slower than wgmma. No recorded kernel tests it."""
CUDA_CORE_SHARE = 0.8
"""Assumed share of the float32 peak that code without tensor instructions reaches."""
_FLOPS_PER_WARP: Mapping[TensorPath, float] = {
    "DMMA": 2 * 8 * 8 * 4, "HMMA": 2 * 16 * 8 * 16, "IMMA": 2 * 16 * 8 * 32, "QMMA": 2 * 16 * 8 * 32,
    "OMMA": 2 * 16 * 8 * 64, "HGMMA": 2 * 64 * 128 * 16 / 4, "QGMMA": 2 * 64 * 128 * 32 / 4,
    "IGMMA": 2 * 64 * 128 * 32 / 4,
}  # fmt: skip
"""FLOP of one tensor instruction per warp. Warpgroup instructions have many widths; 128 columns are assumed."""
_UTCMMA_FLOPS = 2 * 128 * 256 * 16
"""Assumed FLOP of one UTCMMA, which one thread issues for the whole CTA."""
_WARPGROUP_PATHS = ("HGMMA", "QGMMA", "IGMMA")
_LOADS, _STORES = ("LDG", "LDGSTS", "LD"), ("STG", "ST")


@dataclass(frozen=True)
class Shape:
    """The distribution of a launch's CTAs over the board."""

    ctas: int
    resident: int
    """CTAs on one SM at a time; 1 if none fits, which the screen reports."""
    waves: int
    busy: float
    """CTAs over the number that all waves could hold, at most 1. The last wave may be partly filled."""
    threads: int
    """Threads per CTA; one warpgroup if the code does not say."""


def predict(code: MachineCode, grid: Sequence[int], work: Work, board: Board) -> PredictedTime:
    """The time of one launch of ``code`` over ``grid`` on ``board``, with cold L2.

    grid: in blocks of the tile language, each of which is a cluster of ``code.cluster`` CTAs.
    """
    shape = shape_of(code, grid, board)
    terms = _side_by_side(code, shape, work, board)
    spill_bytes = _spilled_bytes(code, shape, work)
    spill_us = spill_bytes / _bytes_per_us(board)
    together = math.sqrt(sum(us**2 for us, _ in terms))
    reasons = [text for us, text in sorted(terms, reverse=True) if us >= 0.3 * together]
    if spill_bytes:
        reasons.append(f"+ {_us(spill_us)} spill ({_size(spill_bytes)})")
    reasons.append(f"+ {_us(LAUNCH_US)} launch")
    return PredictedTime(together + spill_us + LAUNCH_US, "; ".join(reasons))


def spill_us(code: MachineCode, grid: Sequence[int], work: Work, board: Board) -> float:
    """The time for spills in the predicted time, in microseconds."""
    return _spilled_bytes(code, shape_of(code, grid, board), work) / _bytes_per_us(board)


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
    return attainable_ctas(limits, registers=code.registers, threads=threads, shared_bytes=code.shared_bytes,
                           tensor_columns=code.tensor_columns)  # fmt: skip


Term = tuple[float, str]
"""Microseconds, and a text that explains them."""


def _side_by_side(code: MachineCode, shape: Shape, work: Work, board: Board) -> list[Term]:
    memory = work.bytes / _bytes_per_us(board)
    warps = math.ceil(shape.threads / WARP)
    issue = shape.ctas * warps * code.instructions / (board.sms * SUB_PARTITIONS * board.boost_clock_mhz)
    return [
        (memory, f"{_us(memory)} memory at {board.achievable_bandwidth() / 1e3:.2g} TB/s"),
        (issue, f"{_us(issue)} issue of {code.instructions} instructions by {shape.ctas * warps} warps"),
        _latency(code, shape, work, board),
        *_products(code, shape, work, board),
    ]


def _latency(code: MachineCode, shape: Shape, work: Work, board: Board) -> Term:
    if code.tensor_path != "none":
        life, of = START_US, "start"
    elif _uses_tma(code):
        turns = _passes(code, shape, work)
        life, of = (START_US + turns * TURN_US, f"for {turns:.2g} turns of {code.shared_bytes // KIB} KiB")
    else:
        executed = _executed(code, shape, work)
        clocks = executed * code.instructions * CLOCKS_PER_INSTRUCTION
        # Registers that all loads of a thread in one pass fill.
        loaded = sum(n * max(1, bits // 32) for kind, bits, n in _by_width(code.copies) if kind in ("LDG", "LD"))
        waits = executed * WAIT_US * loaded / max(code.registers, WARP // 2)
        life, of = START_US + waits + clocks / board.boost_clock_mhz, "each"
    us = shape.waves * life
    waves = "1 wave" if shape.waves == 1 else f"{shape.waves} waves"
    ctas = "1 CTA" if shape.resident == 1 else f"{shape.resident} CTAs"
    return us, f"{_us(us)} latency ({waves} of {_us(life)} {of}, {ctas} an SM)"


def _products(code: MachineCode, shape: Shape, work: Work, board: Board) -> list[Term]:
    if code.tensor_path == "none":
        us = work.flops / (CUDA_CORE_SHARE * board.fp32_tflops * 1e6)
        return [(us, f"{_us(us)} arithmetic on the CUDA cores")]
    dtype = "tfloat32" if work.dtype == "float32" else work.dtype
    expected = architecture(board.arch).tensor_path
    rate = board.achievable_tflops(dtype) * MMA_SYNC_SHARE.get((expected, code.tensor_path), 1.0)
    ideal = work.flops / (rate * 1e6) / shape.busy
    others = max(1, code.instructions - code.local_loads - code.local_stores)
    tiles = _area(code, shape) * shape.resident
    longer = 1 + ALONE * 8192 / tiles
    products, overhead = ideal * longer, ideal * OVERHEAD * others / _written(code, shape)
    at = f"{code.tensor_path} at {rate:.0f} TFLOP/s ×{longer / shape.busy:.2f} ({tiles:,.0f} elements an SM)"
    staged = work.flops * _staged_share(code, shape) / (CACHE_RATE * _bytes_per_us(board))
    return [
        (products, f"{_us(products)} {at}"),
        (overhead, f"{_us(overhead)} instructions around the products"),
        (staged, f"{_us(staged)} staging of tiles from the L2"),
    ]


def _written(code: MachineCode, shape: Shape) -> float:
    """Elements (of two bytes) that the CTAs of one SM write in one pass over the code."""
    if _exchanges(code):  # the warpgroups write one tile together, and also stage other values
        return max(1.0, _width(code, "STSM") * WARPGROUP / 2 * shape.resident)
    width = _width(code, *(("STSM", "STS") if _boxes(code, "UTMASTG") else _STORES))
    return max(width, 8) * _consumers(code, shape) / 2 * shape.resident


def _stored_boxes(code: MachineCode) -> int:
    """TMA boxes in one tile. More TMA stores than that belong to copies of the same code."""
    return max(1, min(_boxes(code, "UTMASTG"), _boxes(code, "UTMALDG") - 1))


def _area(code: MachineCode, shape: Shape) -> float:
    """Elements of the tile that a CTA writes."""
    stores, boxes = _boxes(code, "UTMASTG"), _stored_boxes(code)
    if not stores:
        return _written(code, shape) / shape.resident
    if _exchanges(code):
        return _width(code, "STSM") * WARPGROUP / 2 * SHARED_TILE
    return max(1024, _width(code, "STSM", "STS") * _consumers(code, shape) / 2 * boxes / stores)


def _staged_share(code: MachineCode, shape: Shape) -> float:
    """Bytes (of two-byte elements) staged for each FLOP: 1 / rows + 1 / columns of the tile that a CTA writes.

    A TMA box is 128 bytes wide, so the number of boxes gives the columns. With multicast a cluster shares one tile.
    """
    if not _boxes(code, "UTMASTG") or code.tensor_path not in _WARPGROUP_PATHS:
        return 0.0
    columns = 64 * _stored_boxes(code)
    area = _area(code, shape) * (code.cluster if any("MULTICAST" in kind for kind in code.copies) else 1)
    return 1 / columns + columns / max(area, columns)


def _consumers(code: MachineCode, shape: Shape) -> int:
    """Threads that compute products. In a CTA with more than one warpgroup, tileiras uses one for the TMA copies."""
    return shape.threads - (WARPGROUP if _uses_tma(code) and shape.threads > WARPGROUP else 0)


def _exchanges(code: MachineCode) -> bool:
    """Whether warpgroups exchange values through shared memory, which LDS instructions show.

    Their operands and TMA need no LDS. With other tensor paths LDS reads something else: the address of tensor memory
    with UTCMMA, the operands with HMMA. Without STSM it reads for example the table of a list of arrays.
    """
    exchanged = _width(code, "LDS") > 0 and _width(code, "STSM") > 0
    return code.tensor_path in _WARPGROUP_PATHS and _boxes(code, "UTMASTG") > 0 and exchanged


def _passes(code: MachineCode, shape: Shape, work: Work) -> float:
    """How often each CTA runs through its code, computed from the work. May be below 1 for TMA."""
    if code.tensor_path == "UTCMMA":
        return work.flops / (shape.ctas * code.tensor_instructions * _UTCMMA_FLOPS)
    if code.tensor_path != "none":
        warps = _consumers(code, shape) / WARP
        return work.flops / (shape.ctas * code.tensor_instructions * _FLOPS_PER_WARP[code.tensor_path] * warps)
    if _uses_tma(code):
        return work.bytes / (shape.ctas * max(code.shared_bytes, KIB))
    moved = _width(code, *_LOADS, *_STORES) * shape.threads
    return work.bytes / (shape.ctas * moved) if moved else 1.0


def _executed(code: MachineCode, shape: Shape, work: Work) -> float:
    """How often an instruction of a CTA runs on average, because those in a loop run more than once."""
    return 1 + LOOPED_SHARE * max(0.0, _passes(code, shape, work) - 1)


def _spilled_bytes(code: MachineCode, shape: Shape, work: Work) -> float:
    local = code.local_loads + code.local_stores
    if not local:
        return 0.0
    return local * 4 * shape.threads * shape.ctas * _executed(code, shape, work)


def _width(code: MachineCode, *kinds: str) -> int:
    """Bytes that a thread copies in one pass by instructions of ``kinds``; ``LDG`` means all of its widths."""
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
