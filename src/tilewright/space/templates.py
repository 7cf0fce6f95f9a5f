"""Lists templates: configurations that others tuned, as starting points for a space.

The rows come from TileGym and its tuning guide, as ``MxNxK/num_ctas/occupancy/num_worker_warps/swap_ab``. A field is
missing, or is ``-``, where the source gives no value. `AXES` lists the names of the sizes before the first slash.

A row is corrected if it gives bad machine code for a plain row-major bf16 matmul (cuda-tile 1.7.0, tileiras 13.4.92,
compiled by 2026-11-21). Spills are counted as STL instructions in the output of nvdisasm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.errors import UnknownChoice
from tilewright.records import Configuration, Value
from tilewright.space.space import Space

GROUPS: dict[str, tuple[int, ...]] = {
    "pre-Hopper": (80, 86, 87, 88, 89),
    "sm_90": (90,),
    "sm_100+": (100, 103, 107, 110),
    "sm_120": (120, 121),
}
"""The architectures that share a list of rows."""

EVERY = "every"
"""The group of a template whose rows are the same on every architecture."""

AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("elementwise", "in place"), ("BLOCK",)),
    **dict.fromkeys(("matmul", "persistent matmul", "dual gemm"), ("M", "N", "K")),
    "fp8 matmul": ("M",),
    "grouped gemm": ("N", "K"),
}
"""Maps a template to the axes of its sizes. A template that is not listed has ``("M", "N")``."""


def _product(ms: tuple[int, ...], ns: tuple[int, ...]) -> str:
    return " ".join(f"{m}x{n}" for m in ms for n in ns)


_ELEMENTWISE = "1024/-/1 1024/-/2 1024/-/4 1024/-/8"
_FP8 = " ".join(f"{m}/-/{occ}/-/{swap}" for m in (16, 32, 64, 128) for occ in (1, 2, 4) for swap in (0, 1))

WRITTEN: dict[str, dict[str, str]] = {
    # Also norms. The grid is ceil(n / 1024); above 2^31 - 4096 elements the offsets have 64 bits.
    "elementwise": {EVERY: _ELEMENTWISE},
    # Such as RoPE. The rows of elementwise; the search writes to a scratch output.
    "in place": {EVERY: _ELEMENTWISE},
    "matmul": {
        "sm_120": "128x64x64/1/1 128x64x32/1/2 64x64x64/1/1 64x64x32/1/2 256x256x64/1/1",
        "sm_90": "32x32x64/1/2 64x32x32/1/2 64x128x32/1/2 64x256x32/1/2 128x64x32/1/2 128x64x64/1/2 128x128x32/1/2",
        "pre-Hopper": "64x64x32/1/1 64x128x32/1/1 128x64x32/1/1 128x128x32/1/1",
        "sm_100+": "128x128x32/1/1 256x256x64/2/1 256x256x64/4/1 512x256x64/2/1",
    },
    # GROUP_SIZE_M is 8, the grid min(SMs // num_ctas, tiles) x occupancy.
    "persistent matmul": {
        "sm_120": "64x64x64/1/2 64x64x64/1/4 64x64x64/1/1 128x64x64/1/2 128x64x64/1/1 128x64x64/1/4 256x256x64/1/1",
        "pre-Hopper": "64x128x64/1/1 128x64x64/1/1 128x128x32/1/1 128x128x64/1/1",
        "sm_90": "64x128x64/1/2 64x256x64/1/2 128x64x64/1/2 128x128x64/1/2 128x256x64/2/1 256x256x64/2/1",
        "sm_100+": "128x512x64/4/1 256x256x64/2/1 256x256x64/1/1 256x256x128/2/1",
    },
    # Forward. The released TileGym passes the tile sizes only, no hints.
    "fmha": {
        "sm_120": "64x64/1/2 128x64/1/2",
        "pre-Hopper": "64x64/1/2 128x64/1/2 128x128/1/1",
        "sm_90": "128x128/1/2 256x128/1/1 256x128/1/2 256x128/2/2",
        "sm_100+": "128x128/1/2 256x128/1/1 256x128/1/2 256x128/2/2",
    },
    # Backward, dK/dV and dQ, by head dimension.
    "fmha dkdv 64": {EVERY: _product((32, 64, 128), (64, 128))},
    "fmha dkdv 128": {EVERY: _product((16, 32, 64), (32, 64))},
    "fmha dkdv 256": {EVERY: _product((32,), (32, 64))},
    "fmha dq 64": {EVERY: _product((64, 128), (32, 64, 128))},
    "fmha dq 128": {EVERY: _product((32, 64), (16, 32, 64))},
    "fmha dq 256": {EVERY: _product((64,), (32, 64))},
    # W8A8. BLOCK_N must be group_n and BLOCK_K group_k: other values give wrong results.
    "fp8 matmul": {EVERY: _FP8},
    # The grid is the number of SMs, BLOCK_M min(128, next power of two of the most tokens).
    "grouped gemm": {EVERY: "128x64/-/1 128x64/-/2 128x64/-/4 128x64/-/8"},
    # Attention with variable lengths. The autotuning key includes S_kv and the query group size.
    "varlen attention": {
        "sm_100+": "64x64/1/2 64x128/1/2 128x64/1/2 128x128/1/1 128x128/1/2 256x128/1/1 256x128/1/2"
        " 256x128/2/2 256x64/1/1",
        "sm_90": "64x64/1/2 128x64/1/2 128x128/1/1 128x128/1/2 64x128/1/2",
        "pre-Hopper": "64x64/1/2 128x64/1/1 128x64/1/2 128x128/1/1",
        # The source lists no sm_120: `ADDED` takes the rows of fmha.
        "sm_120": "",
    },
    # GROUP is 8. The kernel takes about twice the registers and shared memory of one GEMM.
    "dual gemm": {
        "sm_100+": "128x128x64/1/1 128x128x64/1/2 128x256x64/1/1 256x128x64/1/1 256x128x64/2/1 256x256x64/1/1"
        " 256x256x64/2/1 128x256x64/2/1 256x128x64/2/2 128x128x64/2/2 256x256x64/2/2",
        "sm_90": "64x128x64/1/1 128x64x64/1/1 128x128x64/1/1 128x128x64/1/2",
        "pre-Hopper": "64x128x32/1/1 128x64x32/1/1 128x128x32/1/1",
        # The source lists no sm_120: `ADDED` takes the pre-Hopper rows.
        "sm_120": "",
    },
}
"""The rows of each template, by group of architectures, in the order of the source."""

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
"""For each (template, group): maps a row of the source to a replacement (None drops the row) and the reason."""

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
    ("varlen attention", "sm_120"): tuple(
        (row, "the source lists no sm_120; as fmha") for row in WRITTEN["fmha"]["sm_120"].split()
    ),
    ("dual gemm", "sm_120"): tuple(
        (row, "the source lists no sm_120; as pre-Hopper, HMMA too")
        for row in WRITTEN["dual gemm"]["pre-Hopper"].split()
    ),
}
"""For each (template, group): pairs of a row that the source lacks, and the reason to try the row."""

HINT_FIELDS = ("num_ctas", "occupancy", "num_worker_warps", "swap_ab")
"""The fields after the sizes, in the order of the notation."""


def template(name: str, arch: int) -> tuple[Configuration, ...]:
    """Returns the corrected rows of a template for ``sm_<arch>``; never empty. Raises `UnknownChoice`.

    The sizes are named M, N, K or BLOCK. A row lacks the knobs for which the source gives no value.
    """
    if name not in WRITTEN:
        raise UnknownChoice("template", name, WRITTEN)
    group = next((group for group, members in GROUPS.items() if arch in members), None)
    if EVERY in WRITTEN[name]:
        group = EVERY
    if group is None:
        raise UnknownChoice("architecture", arch, sorted(a for members in GROUPS.values() for a in members))
    corrections = CORRECTIONS.get((name, group), {})
    corrected = (corrections.get(text, (text, ""))[0] for text in WRITTEN[name][group].split())
    texts = [*filter(None, corrected), *(text for text, _ in ADDED.get((name, group), ()))]
    return tuple(dict.fromkeys(read(name, text) for text in texts))


def place(
    space: Space, points: Iterable[Mapping[str, Value]], arch: int, dims: Mapping[str, Value]
) -> tuple[Configuration, ...]:
    """Converts points with M, N, K, BLOCK, swap_ab and hints to configurations that the space allows.

    The compiler chooses the hints that a point lacks. Constants that a point lacks take their shipped values. A size or
    an occupancy is ignored if the space has no such knob. A point is skipped if the space lacks another knob that the
    point sets (num_ctas above 1, num_worker_warps, swap_ab).

    If the space lists None (the compiler's choice) but not 1, an occupancy or num_ctas of 1 becomes None. The machine
    code is the same (a matmul and six kernels on sm_80, 90, 100 and 120, tileiras 13.4.92, 2026-11-21).
    """
    names = knob_names(space)
    placed = (_place(space, point, names) for point in points)
    allowed = (config for config in placed if config and space.allows(config, arch, dims) is None)
    return tuple(dict.fromkeys(allowed))


def knob_names(space: Space) -> dict[str, str]:
    """Maps the sizes of a template (M, N, K, BLOCK) and ``swap_ab`` to constants of a space, by usual names.

    Usual names for M are TILE_M, TILE_SIZE_M, BLOCK_M, BLOCK_SIZE_M, TILEM, BLOCKM and TILE_SIZEM, in any case. N and K
    have such names too. Usual names for BLOCK are BLOCK, BLOCK_SIZE, TILE and TILE_SIZE.
    """
    plain = {name.upper().replace("_", "").replace("SIZE", ""): name for name in reversed(space.constants)}
    usual = {axis: [f"TILE{axis}", f"BLOCK{axis}"] for axis in ("M", "N", "K")}
    usual |= {"BLOCK": ["BLOCK", "TILE"], "swap_ab": ["SWAPAB"]}
    matches = {axis: [plain[name] for name in names if name in plain] for axis, names in usual.items()}
    return {axis: names[0] for axis, names in matches.items() if names}


def _place(space: Space, point: Mapping[str, Value], names: Mapping[str, str]) -> Configuration | None:
    values: dict[str, Value] = dict.fromkeys(space.hints)
    for name, value in point.items():
        knob = name if name in space.hints else names.get(name)
        if knob is not None:
            listed = space.known_values(knob)
            left = value == 1 and knob in ("occupancy", "num_ctas") and None in listed and 1 not in listed
            values[knob] = None if left else value
        elif name in HINT_FIELDS and name != "occupancy" and value not in (None, 1, False):
            return None
    return space.shipped.replace(**values)


def read(name: str, text: str) -> Configuration:
    """Reads a row of the template ``name``: ``256x128x64/2/1`` is M=256, N=128, K=64, num_ctas=2, occupancy=1."""
    tile, *hints = text.split("/")
    sizes = zip(AXES.get(name, ("M", "N")), map(int, tile.split("x")), strict=True)
    values: dict[str, Value] = dict(sizes)
    for field, value in zip(HINT_FIELDS, hints, strict=False):
        if value != "-":
            values[field] = bool(int(value)) if field == "swap_ab" else int(value)
    return Configuration.of(values)
