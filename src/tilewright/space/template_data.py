"""The templates as data: each list of configurations as TileGym and its tuning guide have it, and what we corrected.

Notation: ``MxNxK/num_ctas/occupancy/num_worker_warps/swap_ab``. Fields left off, or ``-``, are not named by the source.
`AXES` says what the sizes before the first slash are.

Corrections rest on machine code of a plain row-major bf16 matmul (cuda-tile 1.7.0, tileiras 13.4.92, compiled by
2026-11-21). Spills are counted as STL instructions in the output of nvdisasm.
"""

from __future__ import annotations

GROUPS: dict[str, tuple[int, ...]] = {
    "pre-Hopper": (80, 86, 87, 88, 89),
    "sm_90": (90,),
    "sm_100+": (100, 103, 107, 110),
    "sm_120": (120, 121),
}
"""The architectures that share a list."""

EVERY = "every"
"""The group of a template that is the same on each architecture."""

TITLES: dict[str, str] = {
    "elementwise": "elementwise, norm: grid ceil(n / 1024), 64-bit offsets above 2^31 - 4096 elements",
    "in place": "in place (RoPE): as elementwise, with a scratch output during the search",
    "matmul": "matmul",
    "persistent matmul": "persistent matmul: GROUP_SIZE_M 8, grid min(SMs // num_ctas, tiles) x occupancy",
    "fmha": "FMHA forward; the released TileGym passes the tile sizes only, no hints",
    **{
        f"fmha {gradient} {size}": f"FMHA backward {what}, head dimension {size}"
        for gradient, what in (("dkdv", "dK/dV"), ("dq", "dQ"))
        for size in (64, 128, 256)
    },
    "fp8 matmul": "FP8 W8A8: BLOCK_N = group_n and BLOCK_K = group_k, otherwise wrong, not slow",
    "grouped gemm": "grouped GEMM: grid = SMs, BLOCK_M = min(128, next power of two of the most tokens)",
    "varlen attention": "attention with variable lengths; the key includes S_kv and the query group size",
    "dual gemm": "dual GEMM: GROUP 8, about twice the registers and shared memory of one GEMM",
}

AXES: dict[str, tuple[str, ...]] = dict.fromkeys(TITLES, ("M", "N")) | {
    **dict.fromkeys(("elementwise", "in place"), ("BLOCK",)),
    **dict.fromkeys(("matmul", "persistent matmul", "dual gemm"), ("M", "N", "K")),
    "fp8 matmul": ("M",),
    "grouped gemm": ("N", "K"),
}
"""Template → what the sizes of its rows are."""


def _product(ms: tuple[int, ...], ns: tuple[int, ...]) -> str:
    return " ".join(f"{m}x{n}" for m in ms for n in ns)


_ELEMENTWISE = "1024/-/1 1024/-/2 1024/-/4 1024/-/8"
_FP8 = " ".join(f"{m}/-/{occ}/-/{swap}" for m in (16, 32, 64, 128) for occ in (1, 2, 4) for swap in (0, 1))

WRITTEN: dict[str, dict[str, str]] = {
    "elementwise": {EVERY: _ELEMENTWISE},
    "in place": {EVERY: _ELEMENTWISE},
    "matmul": {
        "sm_120": "128x64x64/1/1 128x64x32/1/2 64x64x64/1/1 64x64x32/1/2 256x256x64/1/1",
        "sm_90": "32x32x64/1/2 64x32x32/1/2 64x128x32/1/2 64x256x32/1/2 128x64x32/1/2 128x64x64/1/2 128x128x32/1/2",
        "pre-Hopper": "64x64x32/1/1 64x128x32/1/1 128x64x32/1/1 128x128x32/1/1",
        "sm_100+": "128x128x32/1/1 256x256x64/2/1 256x256x64/4/1 512x256x64/2/1",
    },
    "persistent matmul": {
        "sm_120": "64x64x64/1/2 64x64x64/1/4 64x64x64/1/1 128x64x64/1/2 128x64x64/1/1 128x64x64/1/4 256x256x64/1/1",
        "pre-Hopper": "64x128x64/1/1 128x64x64/1/1 128x128x32/1/1 128x128x64/1/1",
        "sm_90": "64x128x64/1/2 64x256x64/1/2 128x64x64/1/2 128x128x64/1/2 128x256x64/2/1 256x256x64/2/1",
        "sm_100+": "128x512x64/4/1 256x256x64/2/1 256x256x64/1/1 256x256x128/2/1",
    },
    "fmha": {
        "sm_120": "64x64/1/2 128x64/1/2",
        "pre-Hopper": "64x64/1/2 128x64/1/2 128x128/1/1",
        "sm_90": "128x128/1/2 256x128/1/1 256x128/1/2 256x128/2/2",
        "sm_100+": "128x128/1/2 256x128/1/1 256x128/1/2 256x128/2/2",
    },
    "fmha dkdv 64": {EVERY: _product((32, 64, 128), (64, 128))},
    "fmha dkdv 128": {EVERY: _product((16, 32, 64), (32, 64))},
    "fmha dkdv 256": {EVERY: _product((32,), (32, 64))},
    "fmha dq 64": {EVERY: _product((64, 128), (32, 64, 128))},
    "fmha dq 128": {EVERY: _product((32, 64), (16, 32, 64))},
    "fmha dq 256": {EVERY: _product((64,), (32, 64))},
    "fp8 matmul": {EVERY: _FP8},
    "grouped gemm": {EVERY: "128x64/-/1 128x64/-/2 128x64/-/4 128x64/-/8"},
    "varlen attention": {
        "sm_100+": "64x64/1/2 64x128/1/2 128x64/1/2 128x128/1/1 128x128/1/2 256x128/1/1 256x128/1/2"
        " 256x128/2/2 256x64/1/1",
        "sm_90": "64x64/1/2 128x64/1/2 128x128/1/1 128x128/1/2 64x128/1/2",
        "pre-Hopper": "64x64/1/2 128x64/1/1 128x64/1/2 128x128/1/1",
        # The source lists no sm_120: `ADDED` takes the rows of fmha.
        "sm_120": "",
    },
    "dual gemm": {
        "sm_100+": "128x128x64/1/1 128x128x64/1/2 128x256x64/1/1 256x128x64/1/1 256x128x64/2/1 256x256x64/1/1"
        " 256x256x64/2/1 128x256x64/2/1 256x128x64/2/2 128x128x64/2/2 256x256x64/2/2",
        "sm_90": "64x128x64/1/1 128x64x64/1/1 128x128x64/1/1 128x128x64/1/2",
        "pre-Hopper": "64x128x32/1/1 128x64x32/1/1 128x128x32/1/1",
        # The source lists no sm_120: `ADDED` takes the pre-Hopper rows.
        "sm_120": "",
    },
}
"""Template → group of architectures → rows, in the order of the source."""

_SPILLS_120 = "820 spill stores; 128x128x64 compiles without spills"

CORRECTIONS: dict[tuple[str, str], dict[str, tuple[str | None, str]]] = {
    ("matmul", "sm_90"): {
        "32x32x64/1/2": ("64x64x64/1/2", "falls to HMMA: wgmma needs M of 64"),
        "64x256x32/1/2": ("64x256x32/1/1", "255 registers, 194 KB: occupancy 2 is not attained"),
    },
    ("matmul", "sm_120"): {"256x256x64/1/1": ("128x128x64/1/1", _SPILLS_120)},
    ("persistent matmul", "sm_90"): {
        "64x256x64/1/2": ("64x256x64/1/1", "255 registers, 231 KB: occupancy 2 is not attained"),
        "256x256x64/2/1": ("256x256x64/4/1", "656 spill stores; none with num_ctas 4"),
    },
    ("persistent matmul", "sm_120"): {
        "256x256x64/1/1": ("128x128x64/1/1", _SPILLS_120),
        "128x64x64/1/4": (None, "48 spill stores; occupancy 1 and 2 of this tile have none"),
    },
    ("persistent matmul", "pre-Hopper"): {
        "128x128x64/1/1": ("128x128x64/1/1", "kept: 255 registers, but 2 spill stores only on sm_80")
    },
}
"""(template, group) → row as written → (what to try instead, or None to drop it; why)."""

_CLEAN = "no spill on sm_90"
_WARPS = "no spill on sm_90 with num_worker_warps 8"
_HOPPER_TILES = (
    ("128x128x64/1/1/8", "168 registers instead of 255 on sm_90"),
    ("256x128x64/2/1", _CLEAN),
    ("128x256x64/1/1/8", _WARPS),
    ("256x128x64/1/1/8", _WARPS),
    ("256x256x64/2/1/8", _WARPS),
)
_FMHA_HOPPER = "1.74 times the shipped FMHA on an H200, causal, 4x32x4096x128 (2026-11)"

ADDED: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("elementwise", EVERY): (("1024/-/-/8", "meant for norms with large tiles; gives other machine code"),),
    ("matmul", "sm_90"): (("128x128x64/1/2", _CLEAN), ("128x256x64/2/1", _CLEAN), *_HOPPER_TILES),
    ("persistent matmul", "sm_90"): _HOPPER_TILES,
    ("persistent matmul", "pre-Hopper"): (("128x128x64/1/1/8", "232 registers and no spill on sm_80"),),
    ("matmul", "sm_120"): (("128x256x64/1/1/8", "no spill on sm_120"),),
    ("persistent matmul", "sm_120"): (("128x256x64/1/1/8", "no spill on sm_120"),),
    ("fmha", "sm_90"): (("64x128/1/2/4", _FMHA_HOPPER),),
    ("varlen attention", "sm_90"): (("64x128/1/2/4", f"the fixed-length kernel gains: {_FMHA_HOPPER}"),),
    ("varlen attention", "sm_120"): (
        ("64x64/1/2", "the source lists no sm_120; as fmha"),
        ("128x64/1/2", "the source lists no sm_120; as fmha"),
    ),
    ("dual gemm", "sm_120"): (
        ("64x128x32/1/1", "the source lists no sm_120; as pre-Hopper, HMMA too"),
        ("128x64x32/1/1", "the source lists no sm_120; as pre-Hopper, HMMA too"),
        ("128x128x32/1/1", "the source lists no sm_120; as pre-Hopper, HMMA too"),
    ),
}
"""(template, group) → rows that the source lacks, and why they are worth trying."""
