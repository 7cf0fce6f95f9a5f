"""What to tune for which kind of kernel: the kinds of K8 and the decision tree of A-04.

The counts and gains are those that the source states; none of them was measured by us. Two of its
statements did not survive a look at the machine code, and `advise` says so where it matters:
occupancy is often a no-op (X-09), and ``num_ctas`` does change memory-bound kernels (X-10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.errors import UnknownChoice

Scope: TypeAlias = Literal["full", "fused", "occupancy"]
"""What to search: tiles and hints; tiles of a fused multi-GEMM, conservatively; occupancy alone."""


@dataclass(frozen=True)
class Kind:
    """A row of K8, with its template of K10."""

    name: str
    bound: Literal["memory", "balanced", "compute"]
    template: str
    tuned: tuple[str, ...]
    configurations: tuple[int, int]
    """Fewest and most configurations for one architecture."""
    limit: int
    """The source's hard limit; ours is a compile budget instead (X-07)."""
    gain: tuple[float, float] | None
    """Expected speed-up as fractions (0.05 is 5 %); None where the source states no number."""
    fused: bool = False
    """Several products in one kernel: about twice the registers and shared memory (K10 T9)."""


_TILES = ("M", "N", "K", "num_ctas", "occupancy")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("elementwise", "memory", "T1", ("occupancy",), (4, 4), 8, (0.02, 0.15)),
        Kind("norm", "balanced", "T1", ("occupancy",), (4, 4), 8, (0.02, 0.15)),
        Kind("cross entropy", "memory", "T1", ("occupancy",), (4, 4), 8, (0.0, 0.03)),
        Kind("in place", "memory", "T2", ("occupancy",), (4, 4), 8, (0.0, 0.15)),
        Kind("matmul", "compute", "T3", _TILES, (2, 7), 30, (0.05, 0.30)),
        Kind("persistent matmul", "compute", "T4", _TILES, (2, 7), 30, (0.05, 0.30)),
        Kind("fmha", "compute", "T5", ("M", "N", "num_ctas", "occupancy"), (1, 4), 30, (0.05, 0.20)),
        Kind("fp8 matmul", "compute", "T6", ("M", "occupancy", "swap_ab"), (1, 24), 30, (0.10, 0.50)),
        Kind("grouped gemm", "compute", "T7", ("occupancy",), (4, 4), 8, (0.02, 0.10)),
        Kind("varlen attention", "compute", "T8", ("M", "N", "num_ctas", "occupancy"), (4, 9), 30, None),
        Kind("dual gemm", "compute", "T9", _TILES, (3, 11), 30, None, fused=True),
    )
}
"""K8; *norm*, *in place*, *varlen attention* and *dual gemm* from A-04 and K10."""


@dataclass(frozen=True)
class Advice:
    """What to search for a kind of kernel, and why."""

    kind: Kind
    scope: Scope
    occupancies: tuple[int, ...]
    reason: str


def advise(kind: str) -> Advice:
    """The decision tree of A-04. Every kernel is worth tuning; the question is along which knobs."""
    found = find(kind)
    if found.bound == "compute" and found.fused:
        return Advice(found, "fused", (1, 2), "compute-bound and fused: twice the registers, so small tiles")
    if found.bound == "compute" and len(found.tuned) > 1:
        return Advice(found, "full", (1, 2, 4), "compute-bound: tile sizes decide reuse, hints the overlap")
    if found.bound == "compute":
        return Advice(found, "occupancy", (1, 2, 4, 8), "compute-bound, but the problem fixes the tiles")
    why = "balanced" if found.bound == "balanced" else "memory-bound: no tile is shared between CTAs"
    checked = "drop identical code first (X-09), and try num_worker_warps and num_ctas too (X-10)"
    return Advice(found, "occupancy", (1, 2, 4, 8), f"{why}; {checked}")


def template_for(kind: str) -> str:
    """The template of K10 for a kind, e.g. ``"T3"`` for ``"matmul"``."""
    return find(kind).template


def find(kind: str) -> Kind:
    """By name, in any case, with ``_`` or ``-`` for the space."""
    name = kind.lower().replace("_", " ").replace("-", " ").strip()
    if name not in KINDS:
        raise UnknownChoice("kind", kind, KINDS)
    return KINDS[name]
