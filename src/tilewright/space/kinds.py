"""Advises `tilewright new`: what to tune for a kind of kernel, and a space to start with.

    advise("matmul").reason          what is worth searching, in one line
    advise("matmul").space(90)       a `Space` for sm_90 with the values that others tuned

The advice follows the published tuning guides. Machine code contradicts the guides in two points: an occupancy hint
often changes nothing, and ``num_ctas`` changes memory-bound kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.errors import UnknownChoice
from tilewright.records import Value
from tilewright.space.knobs import hints
from tilewright.space.space import Space
from tilewright.space.templates import template


@dataclass(frozen=True)
class Kind:
    """A kind of kernel, its template, and the knobs that the guides tune."""

    name: str
    bound: Literal["memory", "balanced", "compute"]
    template: str
    tuned: tuple[str, ...] = ("occupancy",)
    fused: bool = False
    """Whether one kernel computes several products. Then it needs about twice the registers and shared memory."""


_TILES = ("M", "N", "K", "num_ctas", "occupancy")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("elementwise", "memory", "elementwise"),
        Kind("norm", "balanced", "elementwise"),
        Kind("cross entropy", "memory", "elementwise"),
        Kind("in place", "memory", "in place"),
        Kind("matmul", "compute", "matmul", _TILES),
        Kind("persistent matmul", "compute", "persistent matmul", _TILES),
        Kind("fmha", "compute", "fmha", ("M", "N", "num_ctas", "occupancy")),
        Kind("fp8 matmul", "compute", "fp8 matmul", ("M", "occupancy", "swap_ab")),
        Kind("grouped gemm", "compute", "grouped gemm"),
        Kind("varlen attention", "compute", "varlen attention", ("M", "N", "num_ctas", "occupancy")),
        Kind("dual gemm", "compute", "dual gemm", _TILES, fused=True),
    )
}


@dataclass(frozen=True)
class Advice:
    """The advice for a kind of kernel. ``reason`` says in one line which knobs are worth tuning."""

    kind: Kind
    reason: str

    def space(self, arch: int) -> Space:
        """Makes a space to start with on ``sm_<arch>`` from every value in the kind's template.

        The constants are named TILE_M, TILE_N, TILE_K, BLOCK and SWAP_AB. The template's first row becomes the shipped
        configuration.
        """
        rows = template(self.kind.template, arch)
        names = dict.fromkeys(name for row in rows for name in row)
        values: dict[str, list[Value]] = {name: list(dict.fromkeys(row.get(name) for row in rows)) for name in names}
        return Space(
            constants={_knob(name): listed for name, listed in values.items() if name not in hints()},
            hints={name: [hint for hint in values[name] if hint is None or type(hint) is int]
                   for name in hints() if name in values},
            shipped={_knob(name): rows[0].get(name) for name in values},
        )  # fmt: skip


def advise(kind: str) -> Advice:
    """Returns the advice for a kind of kernel. Raises UnknownChoice for a kind not in `KINDS`."""
    known = find(kind)
    if known.bound == "compute" and known.fused:
        return Advice(known, "compute-bound and fused: twice the registers, so small tiles")
    if known.bound == "compute" and len(known.tuned) > 1:
        return Advice(known, "compute-bound: tile sizes decide the reuse of data, hints decide the overlap")
    if known.bound == "compute":
        return Advice(known, "compute-bound, but the problem fixes the tiles")
    why = "balanced" if known.bound == "balanced" else "memory-bound: no tile is shared between CTAs"
    hints = "an occupancy hint often leaves the code unchanged, so try num_worker_warps and num_ctas too"
    return Advice(known, f"{why}; {hints}")


def template_for(kind: str) -> str:
    """Returns the name of the template for a kind, such as ``"elementwise"`` for ``"norm"``."""
    return find(kind).template


def find(kind: str) -> Kind:
    """Returns the kind of this name. Case is ignored, and ``_`` and ``-`` count as spaces. Raises UnknownChoice."""
    name = kind.lower().replace("_", " ").replace("-", " ").strip()
    if name not in KINDS:
        raise UnknownChoice("kind", kind, KINDS)
    return KINDS[name]


def _knob(name: str) -> str:
    return f"TILE_{name}" if name in ("M", "N", "K") else name if name in hints() else name.upper()
