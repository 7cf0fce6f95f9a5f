"""The templates T1 to T9 as data: each list as its source writes it (K10), and what we corrected.

Notation: ``MxNxK/num_ctas/occupancy/num_worker_warps/swap_ab``. Fields left off, or ``-``, are not
named by the source. `AXES` says what the sizes before the first slash are.

Corrections rest on machine code of a plain row-major bf16 matmul (cuda-tile 1.7.0, tileiras
13.4.92): cutile-facts 7.3, and where marked "probe" the same kernel compiled on 2026-11-21 on a
machine without a GPU. Spills are counted as STL instructions in the output of nvdisasm.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[int, ...]] = {
    "pre-Hopper": (80, 86, 87, 88, 89),
    "sm_90": (90,),
    "sm_100+": (100, 103, 107, 110),
    "sm_120": (120, 121),
}
"""The architectures that share a list (K9, K10)."""

EVERY = "every"
"""The group of a template that is the same on each architecture."""

AXES: dict[str, tuple[str, ...]] = {
    "T1": ("BLOCK",),
    "T2": ("BLOCK",),
    "T3": ("M", "N", "K"),
    "T4": ("M", "N", "K"),
    "T5": ("M", "N"),
    "T5-dkdv-64": ("M", "N"),
    "T5-dkdv-128": ("M", "N"),
    "T5-dkdv-256": ("M", "N"),
    "T5-dq-64": ("M", "N"),
    "T5-dq-128": ("M", "N"),
    "T5-dq-256": ("M", "N"),
    "T6": ("M",),
    "T7": ("N", "K"),
    "T8": ("M", "N"),
    "T9": ("M", "N", "K"),
}

TITLES: dict[str, str] = {
    "T1": "elementwise, norm: grid ceil(n / 1024), 64-bit offsets above 2^31 - 4096 elements",
    "T2": "in place (RoPE): as T1 with a scratch output during the search (A-41)",
    "T3": "matmul",
    "T4": "persistent matmul: GROUP_SIZE_M 8, grid min(SMs // num_ctas, tiles) x occupancy",
    "T5": "FMHA forward; the released TileGym passes the tile sizes only, no hints",
    "T5-dkdv-64": "FMHA backward dK/dV, head dimension 64",
    "T5-dkdv-128": "FMHA backward dK/dV, head dimension 128",
    "T5-dkdv-256": "FMHA backward dK/dV, head dimension 256",
    "T5-dq-64": "FMHA backward dQ, head dimension 64",
    "T5-dq-128": "FMHA backward dQ, head dimension 128",
    "T5-dq-256": "FMHA backward dQ, head dimension 256",
    "T6": "FP8 W8A8: BLOCK_N = group_n and BLOCK_K = group_k, otherwise wrong, not slow (K8)",
    "T7": "grouped GEMM: grid = SMs, BLOCK_M = min(128, next power of two of the most tokens)",
    "T8": "attention with variable lengths; the key includes S_kv and the query group size",
    "T9": "dual GEMM: GROUP 8, about twice the registers and shared memory of one GEMM",
}


def _product(ms: tuple[int, ...], ns: tuple[int, ...]) -> str:
    return " ".join(f"{m}x{n}" for m in ms for n in ns)


_T1 = "1024/-/1 1024/-/2 1024/-/4 1024/-/8"
_T6 = " ".join(f"{m}/-/{occ}/-/{swap}" for m in (16, 32, 64, 128) for occ in (1, 2, 4) for swap in (0, 1))

WRITTEN: dict[str, dict[str, str]] = {
    "T1": {EVERY: _T1},
    "T2": {EVERY: _T1},
    "T3": {
        "sm_120": "128x64x64/1/1 128x64x32/1/2 64x64x64/1/1 64x64x32/1/2 256x256x64/1/1",
        "sm_90": "32x32x64/1/2 64x32x32/1/2 64x128x32/1/2 64x256x32/1/2 128x64x32/1/2 128x64x64/1/2 128x128x32/1/2",
        "pre-Hopper": "64x64x32/1/1 64x128x32/1/1 128x64x32/1/1 128x128x32/1/1",
        "sm_100+": "128x128x32/1/1 256x256x64/2/1 256x256x64/4/1 512x256x64/2/1",
    },
    "T4": {
        "sm_120": "64x64x64/1/2 64x64x64/1/4 64x64x64/1/1 128x64x64/1/2 128x64x64/1/1 128x64x64/1/4 256x256x64/1/1",
        "pre-Hopper": "64x128x64/1/1 128x64x64/1/1 128x128x32/1/1 128x128x64/1/1",
        "sm_90": "64x128x64/1/2 64x256x64/1/2 128x64x64/1/2 128x128x64/1/2 128x256x64/2/1 256x256x64/2/1",
        "sm_100+": "128x512x64/4/1 256x256x64/2/1 256x256x64/1/1 256x256x128/2/1",
    },
    "T5": {
        "sm_120": "64x64/1/2 128x64/1/2",
        "pre-Hopper": "64x64/1/2 128x64/1/2 128x128/1/1",
        "sm_90": "128x128/1/2 256x128/1/1 256x128/1/2 256x128/2/2",
        "sm_100+": "128x128/1/2 256x128/1/1 256x128/1/2 256x128/2/2",
    },
    "T5-dkdv-64": {EVERY: _product((32, 64, 128), (64, 128))},
    "T5-dkdv-128": {EVERY: _product((16, 32, 64), (32, 64))},
    "T5-dkdv-256": {EVERY: _product((32,), (32, 64))},
    "T5-dq-64": {EVERY: _product((64, 128), (32, 64, 128))},
    "T5-dq-128": {EVERY: _product((32, 64), (16, 32, 64))},
    "T5-dq-256": {EVERY: _product((64,), (32, 64))},
    "T6": {EVERY: _T6},
    "T7": {EVERY: "128x64/-/1 128x64/-/2 128x64/-/4 128x64/-/8"},
    "T8": {
        "sm_100+": "64x64/1/2 64x128/1/2 128x64/1/2 128x128/1/1 128x128/1/2 256x128/1/1 256x128/1/2"
        " 256x128/2/2 256x64/1/1",
        "sm_90": "64x64/1/2 128x64/1/2 128x128/1/1 128x128/1/2 64x128/1/2",
        "pre-Hopper": "64x64/1/2 128x64/1/1 128x64/1/2 128x128/1/1",
        # K10 lists no sm_120: the FMHA rows of T5 stand in (see `ADDED`).
        "sm_120": "",
    },
    "T9": {
        "sm_100+": "128x128x64/1/1 128x128x64/1/2 128x256x64/1/1 256x128x64/1/1 256x128x64/2/1 256x256x64/1/1"
        " 256x256x64/2/1 128x256x64/2/1 256x128x64/2/2 128x128x64/2/2 256x256x64/2/2",
        "sm_90": "64x128x64/1/1 128x64x64/1/1 128x128x64/1/1 128x128x64/1/2",
        "pre-Hopper": "64x128x32/1/1 128x64x32/1/1 128x128x32/1/1",
        # K10 lists no sm_120: the pre-Hopper rows stand in (see `ADDED`).
        "sm_120": "",
    },
}
"""K10, in the order of the source."""

_SPILLS_120 = "820 spill stores (cutile-facts 7.3); 128x128x64 compiles clean (probe)"

CORRECTIONS: dict[tuple[str, str], dict[str, tuple[str | None, str]]] = {
    ("T3", "sm_90"): {
        "32x32x64/1/2": ("64x64x64/1/2", "falls to HMMA: wgmma needs M of 64 (cutile-facts 7.3, 8.1)"),
        "64x256x32/1/2": ("64x256x32/1/1", "255 registers, 194 KB: occupancy 2 is not attained (7.3)"),
    },
    ("T3", "sm_120"): {"256x256x64/1/1": ("128x128x64/1/1", _SPILLS_120)},
    ("T4", "sm_90"): {
        "64x256x64/1/2": ("64x256x64/1/1", "255 registers, 231 KB: occupancy 2 is not attained (7.3)"),
        "256x256x64/2/1": ("256x256x64/4/1", "656 spill stores; clean with num_ctas 4 (7.3, probe)"),
    },
    ("T4", "sm_120"): {
        "256x256x64/1/1": ("128x128x64/1/1", _SPILLS_120),
        "128x64x64/1/4": (None, "48 spill stores; occupancy 1 and 2 of this tile have none (7.3, probe)"),
    },
    ("T4", "pre-Hopper"): {
        "128x128x64/1/1": ("128x128x64/1/1", "kept: 255 registers, but 2 spill stores only on sm_80 (7.3)")
    },
}
"""(template, group) → row as written → (what to try instead, or None to drop it; why)."""

_CLEAN = "no spill on sm_90 (cutile-facts 7.3, probe)"
_WARPS = "no spill on sm_90 with num_worker_warps 8 (probe); cutile-facts 8.3"
_HOPPER_TILES = (
    ("128x128x64/1/1/8", "168 registers instead of 255 on sm_90 (cutile-facts 7.1)"),
    ("256x128x64/2/1", _CLEAN),
    ("128x256x64/1/1/8", _WARPS),
    ("256x128x64/1/1/8", _WARPS),
    ("256x256x64/2/1/8", _WARPS),
)
_FMHA_HOPPER = "1.74 times the shipped FMHA on an H200, causal, 4x32x4096x128 (measured.md 5)"

ADDED: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("T1", EVERY): (("1024/-/-/8", "meant for norms with large tiles (cutile-facts 2.2); new code (7.1)"),),
    ("T3", "sm_90"): (("128x128x64/1/2", _CLEAN), ("128x256x64/2/1", _CLEAN), *_HOPPER_TILES),
    ("T4", "sm_90"): _HOPPER_TILES,
    ("T4", "pre-Hopper"): (("128x128x64/1/1/8", "232 registers and no spill on sm_80 (probe)"),),
    ("T3", "sm_120"): (("128x256x64/1/1/8", "no spill on sm_120 (probe)"),),
    ("T4", "sm_120"): (("128x256x64/1/1/8", "no spill on sm_120 (probe)"),),
    ("T5", "sm_90"): (("64x128/1/2/4", _FMHA_HOPPER),),
    ("T8", "sm_90"): (("64x128/1/2/4", f"the fixed-length kernel gains: {_FMHA_HOPPER}"),),
    ("T8", "sm_120"): (
        ("64x64/1/2", "K10 lists no sm_120 for T8; as T5"),
        ("128x64/1/2", "K10 lists no sm_120 for T8; as T5"),
    ),
    ("T9", "sm_120"): (
        ("64x128x32/1/1", "K10 lists no sm_120 for T9; as pre-Hopper, HMMA too"),
        ("128x64x32/1/1", "K10 lists no sm_120 for T9; as pre-Hopper, HMMA too"),
        ("128x128x32/1/1", "K10 lists no sm_120 for T9; as pre-Hopper, HMMA too"),
    ),
}
"""(template, group) → rows that the source lacks, and why they are worth trying."""
