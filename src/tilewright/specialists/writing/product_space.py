"""Defines the candidates that a written product of matrices is tuned over.

Each space is a list, not a product of knobs: at most 24 candidates for large and small products, so that tuning
takes seconds. The first is shipped. The order follows a sweep of 244 configurations of a bf16 matmul on an H200
(``bench/recorded/h200-tileir-matmul-sweep-2026-11-24.json``). There, 128 × 256 × 64 tiles, blocks that loop over tiles,
8 worker warps and a latency of 6 reached 0.99 of the speed of cuBLAS. Products in float32 run on the CUDA cores, where
larger tiles spill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import fill

from tilewright.records import Value
from tilewright.specialists.writing.task_file import literal


@dataclass(frozen=True)
class ProductCandidates:
    """Candidates as a table. ``rows``: the values of ``constants``, then of ``hints``, of one candidate each."""

    constants: tuple[str, ...]
    hints: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def space(self, names: Mapping[str, str]) -> str:
        """Returns the arguments of the task's space.

        names: maps M, N and K to the names of these axes.
        """
        constants = tuple(each.format(**names) for each in self.constants)
        knobs = (*constants, *self.hints)
        columns = (dict.fromkeys(column) for column in zip(*self.rows, strict=True))
        listed = {knob: tuple(column) for knob, column in zip(knobs, columns, strict=True)}
        rows = "\n".join(f"                {literal(row)}," for row in self.rows)
        return "\n".join((
            dictionary_text("constants", {each: listed[each] for each in constants}),
            dictionary_text("hints", {each: listed[each] for each in self.hints}),
            dictionary_text("shipped", dict(zip(knobs, self.rows[0], strict=True))),
            "        only=[",
            "            dict(zip((", _filled(map(literal, knobs), 16), "            ), row)) for row in (",
            rows, "            )", "        ],",
        ))  # fmt: skip


def dictionary_text(name: str, entries: Mapping[str, object]) -> str:
    text = _filled((f"{literal(key)}: {literal(value)}" for key, value in entries.items()), 12)
    return f"        {name}={{\n{text}\n        }},"


def _filled(entries: Iterable[str], indent: int) -> str:
    """Returns the entries in lines of at most 116 characters. Each entry stays on one line."""
    fixed = "".join(each.replace(" ", "\xa0") + ", " for each in entries)
    return fill(fixed, 116, initial_indent=" " * indent, subsequent_indent=" " * indent).replace("\xa0", " ")


TILES = ("TILE_{M}", "TILE_{N}", "TILE_{K}", "GROUP_{M}")
_CUTILE = ((*TILES, "LATENCY", "BLOCKS_PER_SM"), ("occupancy", "num_ctas", "num_worker_warps"))
_TRITON = ((*TILES, "BLOCKS_PER_SM"), ("route", "num_warps", "num_stages", "occupancy", "num_ctas", "num_worker_warps"))

CUTILE = ProductCandidates(*_CUTILE, rows=(
    (128, 256, 64, 16, 6, 1, None, None, 8),
    (128, 256, 64, 4, 6, 1, None, None, 8),
    (128, 256, 64, 8, 7, 1, None, None, 8),
    (128, 256, 64, 8, 4, 1, None, None, 8),
    (256, 256, 64, 8, 4, 1, None, 2, 8),
    (256, 256, 64, 4, 6, 1, None, 2, 8),
    (128, 256, 32, 8, 8, 1, None, None, 8),
    (256, 128, 64, 8, 6, 1, None, None, 8),
    (128, 128, 64, 8, 6, 1, None, None, None),
    (128, 128, 64, 16, 4, 1, None, None, None),
    (128, 128, 64, 8, 6, 1, None, None, 8),
    (128, 128, 32, 8, 4, 2, 2, None, None),
    (128, 64, 64, 8, 4, 2, 2, None, None),
    (64, 128, 64, 8, 4, 2, 2, None, None),
    (64, 256, 64, 8, 6, 1, None, None, 8),
    (64, 64, 64, 8, 4, 2, 2, None, None),
    (64, 64, 128, 8, 6, 1, None, None, None),
))  # fmt: skip
"""Candidates in cuTile for operands of two bytes."""

CUTILE_FLOAT32 = ProductCandidates(*_CUTILE, rows=(
    (128, 128, 8, 8, 4, 1, None, None, 8),
    (64, 128, 16, 8, 4, 1, None, None, 8),
    (128, 64, 16, 8, 4, 1, None, None, 8),
    (64, 64, 16, 8, 4, 1, None, None, None),
    (64, 128, 8, 8, 4, 1, None, None, 8),
))  # fmt: skip

TRITON = ProductCandidates(*_TRITON, rows=(
    (128, 256, 64, 8, 1, "ptx", 8, 3, None, None, None),
    (128, 256, 64, 16, 1, "tileir", None, 6, None, None, 8),
    (128, 256, 64, 4, 1, "tileir", None, 6, None, None, 8),
    (256, 256, 64, 8, 1, "tileir", None, 4, None, 2, 8),
    (128, 256, 64, 8, 1, "tileir", None, 7, None, None, 8),
    (256, 128, 64, 8, 1, "tileir", None, 6, None, None, 8),
    (128, 256, 32, 8, 1, "tileir", None, 8, None, None, 8),
    (128, 128, 64, 8, 1, "tileir", None, 6, None, None, 8),
    (128, 128, 64, 8, 1, "tileir", None, None, None, None, None),
    (64, 128, 64, 8, 2, "tileir", None, 4, 2, None, None),
    (64, 64, 64, 8, 2, "tileir", None, 4, 2, None, None),
    (128, 256, 64, 4, 1, "ptx", 8, 3, None, None, None),
    (128, 256, 64, 16, 1, "ptx", 8, 3, None, None, None),
    (256, 128, 64, 8, 1, "ptx", 8, 3, None, None, None),
    (128, 256, 64, 8, 1, "ptx", 8, 2, None, None, None),
    (128, 128, 64, 8, 2, "ptx", 4, 3, None, None, None),
    (128, 128, 64, 8, 2, "ptx", 8, 2, None, None, None),
    (128, 128, 32, 8, 2, "ptx", 8, 3, None, None, None),
    (64, 128, 64, 8, 2, "ptx", 4, 3, None, None, None),
    (128, 64, 64, 8, 2, "ptx", 4, 3, None, None, None),
    (64, 64, 64, 8, 4, "ptx", 4, 3, None, None, None),
))  # fmt: skip
"""Candidates in Triton for operands of two bytes. The one that is shipped needs no Tile IR."""

TRITON_FLOAT32 = ProductCandidates(*_TRITON, rows=(
    (128, 128, 16, 8, 1, "ptx", 8, 3, None, None, None),
    (128, 128, 32, 8, 1, "ptx", 8, 3, None, None, None),
    (128, 64, 16, 8, 2, "ptx", 4, 3, None, None, None),
    (64, 128, 16, 8, 2, "ptx", 4, 3, None, None, None),
    (64, 64, 32, 8, 4, "ptx", 4, 3, None, None, None),
    (64, 64, 16, 8, 4, "ptx", 4, 4, None, None, None),
    (128, 128, 8, 8, 1, "tileir", None, 4, None, None, 8),
    (64, 128, 16, 8, 1, "tileir", None, 4, None, None, 8),
))  # fmt: skip
