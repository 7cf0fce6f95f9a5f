"""Lists the limits of each GPU architecture with their sources, and looks up architectures and GPU models (boards).

`Architecture` has the limits of an SM: registers, shared memory, CTAs. `boards.Board` has the rates of one GPU model.
Sizes are in bytes; 1 KiB is 1024 bytes, which NVIDIA's tables call KB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tilewright.errors import RequestError, UnknownChoice
from tilewright.hardware.boards import BOARDS as BOARDS
from tilewright.hardware.boards import Board as Board
from tilewright.printable import plural
from tilewright.records import TensorPath

KIB = 1024
WARP = 32
"""Threads per warp."""
MAX_THREADS_PER_CTA = 1024
REGISTER_GRANULE = 256
"""Registers are given to a warp in units of 256 (cuda_occupancy.h)."""
SHARED_GRANULE = 128
"""Shared memory is given to a CTA in units of 128 bytes (cuda_occupancy.h, 8.0 and newer)."""
TENSOR_COLUMNS = 512
"""Columns of tensor memory of an SM (PTX ISA, tcgen05.alloc)."""
SUB_PARTITIONS = 4
"""An SM has four quarters, each with a quarter of the registers (cuda_occupancy.h)."""


@dataclass(frozen=True)
class Architecture:
    """The limits of one SM, and the instructions and clusters that the tile compiler is expected to use."""

    name: str
    """Such as ``sm_90``."""
    shared_bytes_per_sm: int
    """Shared memory of one SM for all its CTAs, including the reserved bytes of each CTA."""
    shared_bytes_per_cta: int
    """Largest shared memory of one CTA."""
    max_ctas_per_sm: int
    max_warps_per_sm: int
    tensor_path: TensorPath
    """The tensor instructions that a bfloat16 product should use."""
    clusters: tuple[int, ...]
    """The values of ``num_ctas`` that are worth trying. They always include 1."""
    tma: bool
    default_board: str
    """Name of the GPU model that is assumed if only the architecture is known."""
    sources: Mapping[str, str] = field(hash=False, repr=False)
    """Maps a field to the source of its value. "assumed" marks a value that no public document states."""
    registers_per_sm: int = 65536
    """32-bit registers."""
    max_registers_per_thread: int = 255
    reserved_shared_per_cta: int = KIB
    """Shared memory that the driver reserves in each CTA."""

    @property
    def number(self) -> int:
        """The compute capability as one number, such as 90."""
        return int(self.name.removeprefix("sm_"))


_GUIDE = "CUDA Programming Guide 13, tables of technical specifications per compute capability"
_OCCUPANCY = "cuda_occupancy.h of CUDA 13.4"
_PTXAS = "ptxas 13.4: largest .minnctapersm that it accepts"
_REQUIRES = "ptxas 13.4: targets for which it accepts the instruction"
_OBSERVED = "bfloat16 128×128×64 matmul compiled by tileiras 13.4.92 for each target, 2026-11-21"
_CLUSTERS = "tileiras 13.4.92, 2026-11-21: larger values are ignored (sm_80) or find no multicast (sm_120)"


def _architecture(
    name: str, shared_kib: int, ctas: int, warps: int, path: TensorPath, board: str, **sources: str
) -> Architecture:
    """Makes one row of the table.

    shared_kib, ctas, warps: the limits per SM. A CTA can have 1 KiB of shared memory less than the SM.
    sources: maps a field to its source, if the source is not the usual one.
    """
    number = int(name.removeprefix("sm_"))
    # Multicast (TMA writes one tile to several CTAs) is fast on sm_90a, 100, 103, 107 and 110 only, says ptxas 13.4.
    multicast = 90 <= number < 120
    stated = {
        "registers_per_sm": _GUIDE, "max_registers_per_thread": _GUIDE,
        "shared_bytes_per_sm": f"{_GUIDE}; {_OCCUPANCY}", "shared_bytes_per_cta": _GUIDE,
        "reserved_shared_per_cta": "CUDA Programming Guide: 1 KB per thread block is reserved",
        "max_ctas_per_sm": f"{_OCCUPANCY}; {_PTXAS}", "max_warps_per_sm": f"{_GUIDE}; {_PTXAS}",
        "tensor_path": _OBSERVED, "clusters": _CLUSTERS, "tma": _REQUIRES,
        "default_board": "chosen, see default_board()",
    }  # fmt: skip
    return Architecture(
        name=name, tensor_path=path, max_ctas_per_sm=ctas, max_warps_per_sm=warps,
        shared_bytes_per_sm=shared_kib * KIB, shared_bytes_per_cta=(shared_kib - 1) * KIB,
        clusters=(1, 2, 4) if multicast else (1,), tma=number >= 90, default_board=board, sources=stated | sources,
    )  # fmt: skip


_SM_88 = {
    "registers_per_sm": "assumed: as every architecture since 5.0",
    "shared_bytes_per_sm": f"assumed: as sm_86 ({_OCCUPANCY} lists only 8.0 and 8.7 with a larger size; "
    "tileiras plans the same shared memory for both)",
    "shared_bytes_per_cta": "assumed: as sm_86",
    "reserved_shared_per_cta": "assumed: as sm_86",
    "max_warps_per_sm": _PTXAS,
}
_SM_107 = {
    "registers_per_sm": "assumed: as sm_103",
    "max_warps_per_sm": _PTXAS,
    "reserved_shared_per_cta": "assumed: as sm_103 (the guide's two limits differ by 1 KB)",
    "clusters": "assumed: as sm_103",
}
_SM_110 = {"clusters": "assumed: as sm_100"}

_ROWS = (
    #             name     KiB  CTAs warps path, default board
    _architecture("sm_80", 164, 32, 64, "HMMA", "A100-80GB"),  # Ampere
    _architecture("sm_86", 100, 16, 48, "HMMA", "A10"),
    _architecture("sm_87", 164, 16, 48, "HMMA", "Jetson AGX Orin"),
    _architecture("sm_88", 100, 16, 48, "HMMA", "sm_88 (assumed)", **_SM_88),
    _architecture("sm_89", 100, 24, 48, "HMMA", "L40S"),  # Ada
    _architecture("sm_90", 228, 32, 64, "HGMMA", "H200"),  # Hopper
    _architecture("sm_100", 228, 32, 64, "UTCMMA", "B200"),  # Blackwell
    _architecture("sm_103", 228, 32, 64, "UTCMMA", "B300"),
    _architecture("sm_107", 328, 16, 32, "UTCMMA", "sm_107 (assumed)", **_SM_107),
    _architecture("sm_110", 228, 24, 48, "UTCMMA", "Jetson Thor", **_SM_110),
    _architecture("sm_120", 100, 24, 48, "HMMA", "RTX 5090"),
    _architecture("sm_121", 100, 24, 48, "HMMA", "GB10"),
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({row.name: row for row in _ROWS})
"""Maps a name to its architecture, for every target of tileiras 13.4."""


def architecture(name: str) -> Architecture:
    """Returns the architecture called ``name``.

    Raises RequestError, with the right name, for a feature set (``sm_90a``) or a GPU model. Otherwise raises
    UnknownChoice.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    base = name[:-1]
    if name.endswith(("a", "f")) and base in ARCHITECTURES:
        raise RequestError(f"'{name}' is a feature set of {base}, which the compiler chooses itself: write {base}")
    meant = {product.arch for product in BOARDS.values() if name.lower() in product.name.lower().split()}
    if len(meant) == 1:
        raise RequestError(f"'{name}' is a GPU model, not an architecture: write {meant.pop()}")
    raise UnknownChoice("architecture", name, ARCHITECTURES)


def board(name: str) -> Board:
    """Returns the GPU model called ``name``. Raises UnknownChoice."""
    if name not in BOARDS:
        raise UnknownChoice("board", name, BOARDS)
    return BOARDS[name]


DEFAULT_ARCH = "sm_90"
"""The architecture to compile for if there is no GPU and no architecture is named."""


def default_board(arch: str) -> Board:
    """Returns the GPU model to assume if only the architecture is known: usually the common data-centre GPU.

    The default for sm_86 is A10, because RTX 3090 has the same SM but half the tensor rate. The default for sm_90 is
    H200, because Tilewright is measured on it, and for sm_120 RTX 5090, because TileGym tunes for it. No GPU with sm_88
    or sm_107 is documented, so these two architectures have the rates of a related GPU.
    """
    return BOARDS[architecture(arch).default_board]


_GPU_NAMES = (
    (r"A[18]00.*40GB", "A100-40GB"), (r"\bA[18]00\b", "A100-80GB"), (r"\bA30\b", "A30"), (r"\bA10\b", "A10"),
    (r"\bRTX 3090$", "RTX 3090"), (r"\bOrin\b", "Jetson AGX Orin"), (r"\bL40S\b", "L40S"), (r"\bL4\b", "L4"),
    (r"\bRTX 4090\b", "RTX 4090"), (r"\bGH200\b", "GH200"), (r"\bH[18]00 PCIe\b", "H100 PCIe"),
    (r"\bH[18]00\b", "H100 SXM"), (r"\bH200\b", "H200"), (r"\bH20\b", "H20"), (r"\bGB200\b", "GB200"),
    (r"\bB200\b", "B200"), (r"\bGB300\b", "GB300"), (r"\bB300\b", "B300"), (r"\bThor\b", "Jetson Thor"),
    (r"\bRTX 5080\b", "RTX 5080"), (r"\bRTX 5090\b", "RTX 5090"),
    (r"\bRTX PRO 6000 Blackwell\b", "RTX PRO 6000 Blackwell"), (r"\bGB10\b", "GB10"),
)  # fmt: skip
"""(Pattern for the GPU's name in the driver, name of the `Board`). The first match counts."""
_VARIANT = re.compile(r"\b(Laptop|Max-Q|MIG|NVL|Nano|NX|D)\b")
"""Words in a GPU's name that mark a slower variant of the GPU model, or a part of a GPU (MIG)."""


def board_for_gpu(gpu_name: str, sms: int, memory_bytes: int, *, arch: str | None = None) -> Board:
    """Returns the model of a GPU by its name in the driver ("NVIDIA H200", "NVIDIA H100 80GB HBM3", …).

    Unknown GPUs, parts of a GPU (MIG) and variants (laptop, NVL, fewer SMs) get an estimate: the rates of the known
    model are scaled by the number of SMs. For an unknown name, the default model of ``arch`` is scaled. The sources of
    an estimate start with "assumed". Raises UnknownChoice for an unknown name without ``arch``.
    """
    if sms <= 0 or memory_bytes <= 0:
        raise RequestError(f"GPU '{gpu_name}' with {sms} SMs and {memory_bytes} bytes: both must be above 0")
    named = next((BOARDS[name] for pattern, name in _GPU_NAMES if re.search(pattern, gpu_name)), None)
    if named is not None and sms == named.sms and not _VARIANT.search(gpu_name):
        return named
    if named is None and arch is None:
        raise UnknownChoice("GPU", gpu_name, BOARDS)
    base = named or default_board(arch or "")
    share = sms / base.sms  # with more SMs than the model has, bandwidth and L2 do not grow
    source = f"assumed: {base.name} scaled by {sms} of {base.sms} SMs"
    queried = "queried from the device"
    return replace(
        base, name=gpu_name, sms=sms, memory_bytes=memory_bytes, measured={},
        bandwidth_gbs=base.bandwidth_gbs * min(share, 1), l2_bytes=int(base.l2_bytes * min(share, 1)),
        tensor_tflops={dtype: rate * share for dtype, rate in base.tensor_tflops.items()},
        fp32_tflops=base.fp32_tflops * share,
        sources=dict.fromkeys(base.sources, source) | {"sms": queried, "memory_bytes": queried},
    )  # fmt: skip


@dataclass(frozen=True)
class Occupancy:
    """The number of CTAs of a kernel that fit on one SM at a time. With 0, the kernel cannot be launched."""

    ctas: int
    why: str


def attainable_ctas(
    arch: Architecture, *, registers: int, threads: int, shared_bytes: int, tensor_columns: int = 0
) -> Occupancy:
    """Returns the CTAs per SM for a kernel with ``registers`` per thread, ``threads`` and ``shared_bytes`` per CTA.

    The rules come from the CUDA occupancy calculator (cuda_occupancy.h). Warps get registers in units of 256 from their
    quarter of the SM. CTAs get shared memory in units of 128 bytes, with 1 KiB reserved in each. A CTA takes
    ``tensor_columns`` of tensor memory. Barriers are not counted. Raises RequestError if a number is negative or there
    are no threads.
    """
    if registers < 0 or threads < 1 or shared_bytes < 0:
        raise RequestError(
            f"no kernel has {registers} registers, {threads} threads and {shared_bytes} bytes of shared memory"
        )
    if threads > MAX_THREADS_PER_CTA:
        return Occupancy(0, f"{threads} threads > {MAX_THREADS_PER_CTA} per CTA")
    if registers > (most := arch.max_registers_per_thread):
        return Occupancy(0, f"{registers} registers > {most} per thread")
    if shared_bytes > arch.shared_bytes_per_cta:
        kib, most_kib = shared_bytes / KIB, arch.shared_bytes_per_cta / KIB
        return Occupancy(0, f"shared memory {kib:.6g} KiB > {most_kib:.6g} KiB per CTA")
    if tensor_columns > TENSOR_COLUMNS:
        return Occupancy(0, f"{tensor_columns} columns of tensor memory > {TENSOR_COLUMNS} per SM")
    warps = math.ceil(threads / WARP)
    # A warp takes at least one granule of registers, from its quarter of the SM.
    registers_per_warp = max(1, math.ceil(registers * WARP / REGISTER_GRANULE)) * REGISTER_GRANULE
    resident_warps = arch.registers_per_sm // SUB_PARTITIONS // registers_per_warp * SUB_PARTITIONS
    shared_per_cta = math.ceil((shared_bytes + arch.reserved_shared_per_cta) / SHARED_GRANULE) * SHARED_GRANULE
    fits: dict[str, int] = {
        "registers": resident_warps // warps,
        "shared memory": arch.shared_bytes_per_sm // shared_per_cta,
        "threads": arch.max_warps_per_sm // warps,
        "CTAs": arch.max_ctas_per_sm,
    }
    if tensor_columns:
        fits["tensor memory"] = TENSOR_COLUMNS // tensor_columns
    tightest = min(fits, key=fits.__getitem__)
    counts = ", ".join(f"{resource} {count}" for resource, count in fits.items())
    ctas = fits[tightest]
    return Occupancy(ctas, f"{plural(ctas, 'CTA')} per SM, limited by {tightest} ({counts})")
