"""Templates: lists of configurations that others tuned, as starting points for a space, corrected where machine code
disagrees with them.

`template` gives the rows for one architecture, `seed` the same rows as configurations of a space. The data, with the
reason of every correction, stand in `template_data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.errors import UnknownChoice
from tilewright.records import Configuration, Value
from tilewright.space.space import Space
from tilewright.space.template_data import ADDED, AXES, CORRECTIONS, EVERY, GROUPS, TITLES, WRITTEN

HINT_FIELDS = ("num_ctas", "occupancy", "num_worker_warps", "swap_ab")
"""The fields after the sizes, in the order of the notation."""

LARGEST_BLOCK_M = 128
SMALLEST_BLOCK_M = 16
"""Of FP8 and grouped products; 16 is the smallest tile of an MMA instruction."""


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
    group = EVERY if EVERY in WRITTEN[name] else group_of(arch)
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


def group_of(arch: int) -> str:
    """The group of architectures that shares its rows with ``sm_<arch>``."""
    for group, members in GROUPS.items():
        if arch in members:
            return group
    raise UnknownChoice("architecture", arch, sorted(a for members in GROUPS.values() for a in members))


def block_m(rows: int) -> int:
    """BLOCK_M of FP8 and grouped products: the next power of two of the row count, between 16 and 128."""
    above = 1 << max(rows - 1, 0).bit_length()
    return min(LARGEST_BLOCK_M, max(SMALLEST_BLOCK_M, above))


def at_most(rows: Iterable[Row], m: int) -> tuple[Row, ...]:
    """The rows whose tile is no taller than ``m``; for a tiny m the smallest ones."""
    listed = tuple(rows)
    limit = max(m, min((_height(row) for row in listed), default=0))
    return tuple(row for row in listed if _height(row) <= limit)


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
            values[knob] = None if value == 1 and _leaves_it(space, knob) else value
        elif name in HINT_FIELDS and name != "occupancy" and value not in (None, 1, False):
            return None
    return space.shipped.replace(**values)


def _leaves_it(space: Space, knob: str) -> bool:
    """Whether the space says None for what a template calls 1."""
    listed = space.known_values(knob)
    return knob in ("occupancy", "num_ctas") and None in listed and 1 not in listed


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


def _height(row: Row) -> int:
    size = row.knobs.get("M")
    return size if isinstance(size, int) else 0
