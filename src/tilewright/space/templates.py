"""Templates: lists of configurations that others tuned, as starting points for a space, corrected where machine code
disagrees with them.

`template` gives the rows for one architecture, `seed` the same rows as configurations of a space.

The data are those of TileGym and its tuning guide, as ``MxNxK/num_ctas/occupancy/num_worker_warps/swap_ab``. Fields
left off, or ``-``, are not named by the source. `AXES` says what the sizes before the first slash are.

Corrections rest on machine code of a plain row-major bf16 matmul (cuda-tile 1.7.0, tileiras 13.4.92, compiled by
2026-11-21). Spills are counted as STL instructions in the output of nvdisasm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.errors import UnknownChoice
from tilewright.records import Configuration, Value
from tilewright.space.space import Space

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
    ("varlen attention", "sm_120"): tuple(
        (row, "the source lists no sm_120; as fmha") for row in WRITTEN["fmha"]["sm_120"].split()
    ),
    ("dual gemm", "sm_120"): tuple(
        (row, "the source lists no sm_120; as pre-Hopper, HMMA too")
        for row in WRITTEN["dual gemm"]["pre-Hopper"].split()
    ),
}
"""(template, group) → rows that the source lacks, and why they are worth trying."""


HINT_FIELDS = ("num_ctas", "occupancy", "num_worker_warps", "swap_ab")
"""The fields after the sizes, in the order of the notation."""


@dataclass(frozen=True)
class Row:
    """One line of a template. Sizes are named M, N, K or BLOCK; only what the source names is there."""

    template: str
    group: str
    knobs: Configuration
    fate: Literal["kept", "replaced", "dropped", "added"]
    written: str | None
    """The row in the source's own notation; None where we added it."""
    reason: str = ""
    """Why it was corrected or added; empty where the source stands."""

    @property
    def source(self) -> str:
        return f"template {self.template}, {self.group}" if self.written else self.reason


def template(name: str, arch: int, *, as_written: bool = False) -> tuple[Row, ...]:
    """The rows of ``name`` for ``sm_<arch>``: corrected, or each one exactly as the source has it.

    Never empty, except as written where the source lists nothing (varlen attention and dual gemm on sm_120). Raises
    `UnknownChoice` for a template or an architecture that is not listed.
    """
    if name not in WRITTEN:
        raise UnknownChoice("template", name, WRITTEN)
    group = next((group for group, members in GROUPS.items() if arch in members), None)
    if EVERY in WRITTEN[name]:
        group = EVERY
    if group is None:
        raise UnknownChoice("architecture", arch, sorted(a for members in GROUPS.values() for a in members))
    if as_written:
        return tuple(_written(name, group))
    corrections = CORRECTIONS.get((name, group), {})
    written = ((row, corrections.get(row.written or "", (row.written, ""))[0]) for row in _written(name, group))
    rows = [replace(row, knobs=_read(name, instead)) for row, instead in written if instead]
    rows += [Row(name, group, _read(name, text), "added", None, why) for text, why in ADDED.get((name, group), ())]
    return tuple(
        {row.knobs: row for row in reversed(rows)}[knobs] for knobs in dict.fromkeys(row.knobs for row in rows)
    )


def title(name: str) -> str:
    """What the template is for, in one line."""
    if name not in TITLES:
        raise UnknownChoice("template", name, TITLES)
    return TITLES[name]


def block_m(rows: int) -> int:
    """BLOCK_M of FP8 and grouped products: the next power of two of the row count, between 16 (the smallest tile of an
    MMA instruction) and 128."""
    return min(128, max(16, 1 << max(rows - 1, 0).bit_length()))


def at_most(rows: Iterable[Row], m: int) -> tuple[Row, ...]:
    """The rows whose tile is no taller than ``m``; for a tiny m the smallest ones."""
    heights = {row: size if isinstance(size := row.knobs.get("M"), int) else 0 for row in rows}
    limit = max(m, min(heights.values(), default=0))
    return tuple(row for row, height in heights.items() if height <= limit)


def seed(
    space: Space, name: str, arch: int, dims: Mapping[str, Value], names: Mapping[str, str] | None = None
) -> tuple[Configuration, ...]:
    """The rows of a template as configurations of ``space``, as far as it allows them.

    ``names`` maps M, N, K, BLOCK or swap_ab to knobs, where `knob_names` does not find them.
    """
    return place(space, (row.knobs for row in template(name, arch)), arch, dims, names)


def place(
    space: Space,
    points: Iterable[Mapping[str, Value]],
    arch: int,
    dims: Mapping[str, Value],
    names: Mapping[str, str] | None = None,
) -> tuple[Configuration, ...]:
    """Points in terms of M, N, K, BLOCK, swap_ab and hints, as the configurations the space allows.

    Hints that a point does not name are left to the compiler; other knobs are as shipped. A size or an occupancy for
    which the space has no knob is passed over; a point that needs another knob that the space lacks (num_ctas above 1,
    num_worker_warps, swap_ab) is left out. Occupancy 1 and num_ctas 1 become the compiler's choice where the space
    lists that but not 1. They give the same machine code: both of them for a 128x128x64 matmul on sm_80, 90, 100 and
    120, occupancy for six kernels on each (tileiras 13.4.92, 2026-11-21).
    """
    known = {**knob_names(space), **(names or {})}
    for knob in known.values():
        if knob not in space.knobs:
            raise UnknownChoice("knob", knob, space.knobs)
    placed = (_place(space, point, known) for point in points)
    allowed = (config for config in placed if config and space.allows(config, arch, dims) is None)
    return tuple(dict.fromkeys(allowed))


def knob_names(space: Space) -> dict[str, str]:
    """The constants of a space that are the sizes of a template, by the usual names.

    M is TILE_M, TILE_SIZE_M, BLOCK_M, BLOCK_SIZE_M, TILEM, BLOCKM or TILE_SIZEM, in any case; likewise N and K. BLOCK
    is BLOCK, BLOCK_SIZE, TILE or TILE_SIZE.
    """
    plain = {name.upper().replace("_", "").replace("SIZE", ""): name for name in reversed(space.constants)}
    wanted = {axis: [f"TILE{axis}", f"BLOCK{axis}"] for axis in ("M", "N", "K")}
    wanted |= {"BLOCK": ["BLOCK", "TILE"], "swap_ab": ["SWAPAB"]}
    found = {axis: [plain[name] for name in names if name in plain] for axis, names in wanted.items()}
    return {axis: names[0] for axis, names in found.items() if names}


def _place(space: Space, point: Mapping[str, Value], names: Mapping[str, str]) -> Configuration | None:
    values: dict[str, Value] = dict.fromkeys(space.hints)
    for name, value in point.items():
        knob = name if name in space.hints else names.get(name)
        if knob is not None:
            listed = space.known_values(knob)
            left = value == 1 and knob in ("occupancy", "num_ctas") and None in listed and 1 not in listed
            values[knob] = None if left else value  # what a template calls 1 is the compiler's choice here
        elif name in HINT_FIELDS and name != "occupancy" and value not in (None, 1, False):
            return None
    return space.shipped.replace(**values)


def _written(name: str, group: str) -> Iterator[Row]:
    corrections = CORRECTIONS.get((name, group), {})
    for text in WRITTEN[name][group].split():
        instead, reason = corrections.get(text, (text, ""))
        fate: Literal["kept", "replaced", "dropped"] = "kept" if instead == text else "replaced"
        yield Row(name, group, _read(name, text), fate if instead else "dropped", text, reason)


def _read(name: str, text: str) -> Configuration:
    """``"256x128x64/2/1"`` → M=256, N=128, K=64, num_ctas=2, occupancy=1."""
    tile, *hints = text.split("/")
    values: dict[str, Value] = {axis: int(size) for axis, size in zip(AXES[name], tile.split("x"), strict=True)}
    for field, value in zip(HINT_FIELDS, hints, strict=False):
        if value != "-":
            values[field] = bool(int(value)) if field == "swap_ab" else int(value)
    return Configuration.of(values)
