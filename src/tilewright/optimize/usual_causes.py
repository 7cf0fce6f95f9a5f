"""The usual causes of a wrong result after a change, as data: each fits if the change adds such code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Texts = Mapping[Path, str]


@dataclass(frozen=True)
class UsualCause:
    """``added``: a pattern of the lines that a change adds, if this may be the cause."""

    text: str
    added: re.Pattern[str]


USUAL_CAUSES = (
    UsualCause(
        "flush_to_zero or approximate rounding changes values",
        re.compile(r"flush_to_zero|RoundingMode\.(APPROX|FULL)|exp2|rsqrt|use_fast_acc|fast_math"),
    ),
    UsualCause(
        "a tile reaches beyond the end of an array: check padding and masks",
        re.compile(
            r"\b(TILE|BLOCK|ROWS|CHUNK)\w*\b|padding_mode|check_bounds|\bshape=|ct\.(load|store|gather|scatter)\("
        ),
    ),
    UsualCause("allow_tma=False uses another path with other padding", re.compile(r"allow_tma")),
    UsualCause(
        "the bounds of the persistent loop are wrong: an item is missed or done twice",
        re.compile(r"num_blocks|num_programs|BLOCKS_PER_SM|range\([^)]*\b(bid|program_id|items|start)"),
    ),
)


def fitting(before: Texts, after: Texts) -> str:
    """Returns the causes that fit the change from ``before`` to ``after``; "" if none fits."""
    added = [line for path, text in after.items() for line in _added(before.get(path, ""), text)]
    found = [cause.text for cause in USUAL_CAUSES if any(map(cause.added.search, added))]
    return "; or ".join(found)


def _added(before: str, after: str) -> Iterator[str]:
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line.startswith("+ "):
            yield line[2:].partition("#")[0]
