"""Computes how often the parts of a machine code run in one launch, and other numbers of the launch.

The machine code has no trip counts. `Executions` computes them from the work: how often a loop has to run until the
whole launch has done its FLOP, stored its output or read its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tilewright.hardware.architectures import WARP, Occupancy, architecture, attainable_ctas
from tilewright.hardware.boards import Board
from tilewright.records import CodeLoop, MachineCode, TensorPath

Number = TypeVar("Number", int, float)
WARPGROUP = 4 * WARP
"""Threads that issue one HGMMA together."""


@dataclass(frozen=True)
class Work:
    """The least work of a workload: its FLOP, the bytes to and from memory, and the dtype of its products.

    written: the bytes of its outputs; if 0, half of ``bytes`` is assumed.
    """

    flops: float
    bytes: float
    dtype: str
    written: float = 0.0


LOOPED_SHARE = 0.037
"""Assumed share of the instructions that are in a loop, for code whose loops were not read."""
DENSE = 50.0
"""FLOP per byte of the workload. Above this, a loop without tensor instructions is assumed to be a matrix product on
the CUDA cores."""
FEWEST_RUNS = 0.05
"""The least number of times that a loop runs per CTA. CTAs that find no work left lower the average below 1."""
SHARED_TILE = 0.5
"""Factor for the number of elements in a tile if the warpgroups of a CTA exchange values of the tile."""
_FLOPS_PER_WARP: Mapping[TensorPath, float] = {
    "DMMA": 2 * 8 * 8 * 4, "HMMA": 2 * 16 * 8 * 16, "IMMA": 2 * 16 * 8 * 32, "QMMA": 2 * 16 * 8 * 32,
    "OMMA": 2 * 16 * 8 * 64, "HGMMA": 2 * 64 * 128 * 16 / 4, "QGMMA": 2 * 64 * 128 * 32 / 4,
    "IGMMA": 2 * 64 * 128 * 32 / 4, "UTCMMA": 2 * 128 * 256 * 16 / 4,
}  # fmt: skip
"""Assumed FLOP per warp of one tensor instruction whose name does not state the shape. One thread issues UTCMMA for the
whole CTA, so its FLOP are divided by an assumed four warps."""
_WARPGROUP_PATHS = ("HGMMA", "QGMMA", "IGMMA")
LOADS, STORES = ("LDG", "LDGSTS", "LD"), ("STG", "ST")


@dataclass(frozen=True)
class Shape:
    """The distribution of a launch's CTAs over the SMs of a GPU."""

    ctas: int
    resident: int
    """CTAs on one SM at a time; 1 if none fits, because the screen reports that case."""
    waves: int
    busy: float
    """The number of CTAs / the number that all waves could hold; at most 1. It is below 1 if the last wave is partly
    filled."""
    threads: int
    """Threads per CTA; one warpgroup if the code does not state the number."""


def shape_of(code: MachineCode, grid: Sequence[int], board: Board) -> Shape:
    """Returns the number of CTAs of ``code`` over ``grid``, how many fit on an SM, and the waves."""
    fits = occupancy_of(code, board).ctas
    ctas = math.prod(grid) * max(code.cluster, 1)
    resident = max(1, min(fits, math.ceil(ctas / board.sms)))
    places = board.sms * resident
    waves = math.ceil(ctas / places)
    return Shape(ctas, resident, waves, ctas / (waves * places), code.threads or WARPGROUP)


def occupancy_of(code: MachineCode, board: Board) -> Occupancy:
    """Returns how many CTAs of ``code`` fit on one SM of ``board``."""
    threads, limits = code.threads or WARPGROUP, architecture(board.arch)
    return attainable_ctas(limits, registers=code.registers, threads=threads, shared_bytes=code.shared_bytes,
                           tensor_columns=code.tensor_columns)  # fmt: skip


class Executions:
    """How often each part of a code runs in one CTA. Code outside loops runs once; the work gives the runs of each
    loop.

    warps: the warps that compute. In a CTA with more than one warpgroup, tileiras uses one warpgroup for the TMA
        copies. Its loops run at the same time as the others and are not counted.
    """

    def __init__(self, code: MachineCode, shape: Shape, work: Work) -> None:
        self.code, self.work, self.ctas = code, work, shape.ctas
        self.threads, self.consumers = shape.threads, consumers(code, shape)
        self.warps = self.consumers / WARP
        outside, loops = parts(code)
        self.regions = (outside, *loops)
        self.runs = [1.0, *self._runs(outside, loops)]

    def total(self, of: Callable[[CodeLoop], float]) -> float:
        return sum(runs * of(region) for runs, region in zip(self.runs, self.regions, strict=True))

    def iterations(self) -> float:
        """Returns the iterations of all loops, without loops of only a few instructions."""
        loops = zip(self.runs[1:], self.regions[1:], strict=True)
        return sum(runs for runs, loop in loops if sum(loop.mix.values()) > WARP / 2)

    def _runs(self, outside: CodeLoop, loops: Sequence[CodeLoop]) -> list[float]:
        around = {loop.inside for loop in loops}
        storing = [
            place for place, loop in enumerate(loops)
            if self._stored(loop) and not copies_only(loop) and (place in around or not loop.tensor_flops)
        ]  # fmt: skip
        runs: dict[int, float] = {}
        stored = sum(self._stored(loops[place]) for place in storing)
        for place in storing:
            written = (self.work.written or self.work.bytes / 2) / self.ctas - self._stored(outside)
            runs[place] = max(FEWEST_RUNS, written / stored)
        products = [place for place, loop in enumerate(loops) if loop.tensor_flops and place not in runs]
        if products:
            done = outside.tensor_flops + sum(loops[place].tensor_flops * n for place, n in runs.items())
            left = self.work.flops / (self.ctas * self.warps) - done
            each = max(0.0, left / sum(loops[place].tensor_flops for place in products))
            runs |= dict.fromkeys(products, each)
        for place, loop in enumerate(loops):
            if place not in runs:
                runs[place] = 0.0 if copies_only(loop) else self._of_input(loop, runs)
        return [runs[place] for place in range(len(loops))]

    def _of_input(self, loop: CodeLoop, runs: Mapping[int, float]) -> float:
        """Returns the iterations of a loop that has no products and no stores.

        They follow from the bytes that it loads, or the float operations that it computes. If a loop has neither, it is
        assumed to run as often as the loop around it.
        """
        read = max(0.0, self.work.bytes - (self.work.written or self.work.bytes / 2)) / self.ctas
        floats, size = loop.mix.get("float32", 0), sum(loop.mix.values()) - spills(loop)
        if self.code.tensor_path == "none" and floats > size / 2 and self.work.flops > DENSE * self.work.bytes:
            return self.work.flops / (self.ctas * self.consumers * 2 * floats)
        if loaded := width(loop.copies, *LOADS):
            return max(1.0, read / (loaded * self.threads))
        if uses_tma(self.code) and size > WARP and (loaded := width(loop.copies, "LDS")):
            return max(1.0, read / (loaded * self.consumers))
        return runs.get(loop.inside, 1.0) if loop.inside is not None else 1.0

    def _stored(self, region: CodeLoop) -> float:
        """Returns the bytes of the output that a CTA stores in one run of a region. With TMA stores, the stores to
        shared memory are counted."""
        if boxes(self.code, "UTMASTG"):
            return (width(region.copies, "STSM") or width(region.copies, "STS")) * self.consumers
        return width(region.copies, *STORES) * self.threads


def parts(code: MachineCode) -> tuple[CodeLoop, tuple[CodeLoop, ...]]:
    """Returns the code outside the loops, and the loops.

    Earlier versions recorded no loops. Then an assumed share of the code is one loop with all tensor instructions.
    """
    flops = code.tensor_flops or code.tensor_instructions * _FLOPS_PER_WARP.get(code.tensor_path, 0.0)
    if not code.mix:
        spills = {"local load": code.local_loads, "local store": code.local_stores}
        mix = {**spills, "other": max(0, code.instructions - sum(spills.values()))}
        looped = {name: round(count * LOOPED_SHARE) for name, count in mix.items()}
        loops = (CodeLoop(None, looped, {}, flops),) if flops else ()
        return CodeLoop(None, mix, code.copies, 0.0), loops
    inner = code.loops
    if not code.tensor_flops and flops:  # the instructions do not state their shape, so divide the FLOP by their number
        each = flops / max(1, code.mix.get("tensor", 0))
        inner = tuple(replace(loop, tensor_flops=each * loop.mix.get("tensor", 0)) for loop in inner)
    outside = CodeLoop(
        None, _less(code.mix, [loop.mix for loop in inner]), _less(code.copies, [loop.copies for loop in inner]),
        max(0.0, flops - sum(loop.tensor_flops for loop in inner)),
    )  # fmt: skip
    return outside, inner


def _less(whole: Mapping[str, Number], others: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    left = {name: count - sum(other.get(name, 0) for other in others) for name, count in whole.items()}
    return {name: count for name, count in left.items() if count > 0}


def spills(region: CodeLoop) -> int:
    """Returns the number of local loads and stores of a region. They are no part of the workload's work."""
    return region.mix.get("local load", 0) + region.mix.get("local store", 0)


def copies_only(loop: CodeLoop) -> bool:
    """Whether the loop belongs to the warps that copy through TMA for the others."""
    copies = any(kind.startswith(("UTMALDG", "UTMASTG", "UBLKCP")) for kind in loop.copies)
    return copies and not loop.tensor_flops and loop.mix.get("float32", 0) < WARP


def tile_elements(code: MachineCode, shape: Shape) -> float:
    """Returns the number of two-byte elements of the tile that a CTA writes."""
    stores = boxes(code, "UTMASTG")
    if not stores:
        return max(width(code.copies, *STORES), 8) * consumers(code, shape) / 2
    if _exchanges(code):
        return width(code.copies, "STSM") * WARPGROUP / 2 * SHARED_TILE
    stored = width(code.copies, "STSM") or width(code.copies, "STS")  # a kernel that makes descriptors has STS, too
    return max(1024, stored * consumers(code, shape) / 2 / _copies(code, stores))


def staged_share(code: MachineCode, shape: Shape) -> float:
    """Returns the bytes that are staged for each FLOP: 1 / rows + 1 / columns of the tile that a CTA writes.

    Elements are assumed to have two bytes. A TMA box is 128 bytes wide, so the number of boxes gives the columns. With
    multicast, a cluster shares one tile. Without TMA, the tile is assumed to be square; its operands come from the L2,
    too. If special functions stand between products (a softmax), one operand stays on the SM: 1 / rows.
    """
    if code.tensor_path not in _WARPGROUP_PATHS:
        return 0.0
    if not boxes(code, "UTMASTG"):
        return 2 / math.sqrt(tile_elements(code, shape))
    columns = 64 * _stored_boxes(code)
    area = tile_elements(code, shape) * (code.cluster if any("MULTICAST" in kind for kind in code.copies) else 1)
    outside, loops = parts(code)
    softmax = any(part.tensor_flops and part.mix.get("special function", 0) >= 8 for part in (outside, *loops))
    return (0.0 if softmax else 1 / columns) + columns / max(area, columns)


def _stored_boxes(code: MachineCode) -> int:
    """Returns the number of TMA boxes in a row of a tile."""
    return max(1, min(boxes(code, "UTMASTG"), boxes(code, "UTMALDG") - 1))


def _copies(code: MachineCode, stores: int) -> int:
    """Returns the number of copies of the code that stores a tile. A copy has one, two or four TMA stores for each box
    of a row, because warpgroups may store parts of the rows. So three stores for each box mean two copies.
    """
    return max(1, (stores // _stored_boxes(code)).bit_count())


def consumers(code: MachineCode, shape: Shape) -> int:
    """Returns the number of threads that compute. In a CTA with more than one warpgroup, tileiras uses one warpgroup
    for the TMA copies."""
    apart = any(map(copies_only, code.loops)) if code.mix else uses_tma(code)
    return shape.threads - (WARPGROUP if apart and shape.threads > WARPGROUP else 0)


def _exchanges(code: MachineCode) -> bool:
    """Whether warpgroups exchange values through shared memory. This is assumed if a loop has an LDS instruction.

    wgmma and TMA do not use LDS. A kernel that makes TMA descriptors uses LDS, but before its loops. The assumption
    does not hold for other tensor paths: UTCMMA code loads the address of tensor memory by LDS, and HMMA code loads its
    operands. In code without STSM, LDS may read the table of a list of arrays.
    """
    _, loops = parts(code)
    read = any(width(loop.copies, "LDS") for loop in loops) if code.mix else width(code.copies, "LDS") > 0
    exchanged = read and width(code.copies, "STSM") > 0
    return code.tensor_path in _WARPGROUP_PATHS and boxes(code, "UTMASTG") > 0 and exchanged


def width(copies: Mapping[str, int], *kinds: str) -> int:
    """Returns the bytes that a thread copies in one pass by instructions of ``kinds``. A kind includes all its widths:
    ``LDG`` is ``LDG.32``, ``LDG.64`` and so on."""
    return sum(bits * count // 8 for kind, bits, count in by_width(copies) if kind in kinds)


def boxes(code: MachineCode, kind: str) -> int:
    return sum(count for name, count in code.copies.items() if name.startswith(kind))


def by_width(copies: Mapping[str, int]) -> Iterable[tuple[str, int, int]]:
    for name, count in copies.items():
        kind, _, bits = name.partition(".")
        if bits.isdigit():
            yield kind, int(bits), count


def uses_tma(code: MachineCode) -> bool:
    return any(kind.startswith(("UTMALDG", "UBLKCP")) for kind in code.copies)
