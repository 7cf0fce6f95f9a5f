"""What to tune for which kind of kernel, and a space to start with: for `tilewright new`.

    advise("matmul").reason          what is worth searching, in one line
    advise("matmul").space(90)       a `Space` for sm_90 with the values that others tuned

The counts and gains are those of the published tuning guides; none of them was measured by us. Machine code contradicts
two of their statements, and `advise` says so: an occupancy hint often changes nothing, and ``num_ctas`` does change
memory-bound kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.errors import UnknownChoice
from tilewright.records import Value
from tilewright.space.knobs import HINTS
from tilewright.space.space import Space
from tilewright.space.templates import template

Scope: TypeAlias = Literal["full", "fused", "occupancy"]
"""What to search: tiles and hints; tiles of several fused products, conservatively; occupancy alone."""


@dataclass(frozen=True)
class Kind:
    """A kind of kernel, and the template that lists configurations for it."""

    name: str
    bound: Literal["memory", "balanced", "compute"]
    template: str
    tuned: tuple[str, ...]
    configurations: tuple[int, int]
    """Fewest and most configurations for one architecture."""
    limit: int
    """The source's hard limit on configurations; ours is a time budget for compiling instead."""
    gain: tuple[float, float] | None
    """Expected speed-up as fractions (0.05 is 5 %); None where the source states no number."""
    fused: bool = False
    """Several products in one kernel: about twice the registers and shared memory."""


_TILES = ("M", "N", "K", "num_ctas", "occupancy")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("elementwise", "memory", "elementwise", ("occupancy",), (4, 4), 8, (0.02, 0.15)),
        Kind("norm", "balanced", "elementwise", ("occupancy",), (4, 4), 8, (0.02, 0.15)),
        Kind("cross entropy", "memory", "elementwise", ("occupancy",), (4, 4), 8, (0.0, 0.03)),
        Kind("in place", "memory", "in place", ("occupancy",), (4, 4), 8, (0.0, 0.15)),
        Kind("matmul", "compute", "matmul", _TILES, (2, 7), 30, (0.05, 0.30)),
        Kind("persistent matmul", "compute", "persistent matmul", _TILES, (2, 7), 30, (0.05, 0.30)),
        Kind("fmha", "compute", "fmha", ("M", "N", "num_ctas", "occupancy"), (1, 4), 30, (0.05, 0.20)),
        Kind("fp8 matmul", "compute", "fp8 matmul", ("M", "occupancy", "swap_ab"), (1, 24), 30, (0.10, 0.50)),
        Kind("grouped gemm", "compute", "grouped gemm", ("occupancy",), (4, 4), 8, (0.02, 0.10)),
        Kind("varlen attention", "compute", "varlen attention", ("M", "N", "num_ctas", "occupancy"), (4, 9), 30, None),
        Kind("dual gemm", "compute", "dual gemm", _TILES, (3, 11), 30, None, fused=True),
    )
}
"""By name; the numbers are those of the published tuning guides."""


@dataclass(frozen=True)
class Advice:
    """What to search for a kind of kernel, and why."""

    kind: Kind
    scope: Scope
    occupancies: tuple[int, ...]
    reason: str

    def space(self, arch: int) -> Space:
        """A space to start with on ``sm_<arch>``: every value that the kind's template lists. The knobs are named
        TILE_M, TILE_N, TILE_K, BLOCK and SWAP_AB; the template's first row is taken as the shipped configuration."""
        rows = [row.knobs for row in template(self.kind.template, arch)]
        values: dict[str, list[Value]] = {name: [] for row in rows for name in row}
        for row in rows:
            for name, listed in values.items():
                if (value := row.get(name)) not in listed:
                    listed.append(value)
        return Space(
            constants={_knob(name): listed for name, listed in values.items() if name not in HINTS},
            hints={name: [hint for hint in values[name] if hint is None or type(hint) is int]
                   for name in HINTS if name in values},
            shipped={_knob(name): rows[0].get(name) for name in values},
        )  # fmt: skip


def advise(kind: str) -> Advice:
    """What to search for a kind of kernel. Every kernel is worth tuning; the question is along which knobs. Raises
    UnknownChoice for a kind that is not in `KINDS`."""
    known = find(kind)
    if known.bound == "compute" and known.fused:
        return Advice(known, "fused", (1, 2), "compute-bound and fused: twice the registers, so small tiles")
    if known.bound == "compute" and len(known.tuned) > 1:
        return Advice(known, "full", (1, 2, 4), "compute-bound: tile sizes decide reuse, hints the overlap")
    if known.bound == "compute":
        return Advice(known, "occupancy", (1, 2, 4, 8), "compute-bound, but the problem fixes the tiles")
    why = "balanced" if known.bound == "balanced" else "memory-bound: no tile is shared between CTAs"
    hints = "an occupancy hint often leaves the code unchanged, so try num_worker_warps and num_ctas too"
    return Advice(known, "occupancy", (1, 2, 4, 8), f"{why}; {hints}")


def template_for(kind: str) -> str:
    """The template for a kind, e.g. ``"elementwise"`` for ``"norm"``."""
    return find(kind).template


def find(kind: str) -> Kind:
    """By name, in any case, with ``_`` or ``-`` for the space."""
    name = kind.lower().replace("_", " ").replace("-", " ").strip()
    if name not in KINDS:
        raise UnknownChoice("kind", kind, KINDS)
    return KINDS[name]


def _knob(name: str) -> str:
    return f"TILE_{name}" if name in ("M", "N", "K") else name if name in HINTS else name.upper()
