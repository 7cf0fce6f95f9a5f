"""Reads the analysis with which autopilot starts. Each line must have one of four forms, in this order:

Primary bottleneck: memory-bound
Evidence: Memory bandwidth at 89% of peak, compute at 35%
Recommendations:
1. [High] Enable FlashAttention for self-attention layers
2. [Low] Consider gradient checkpointing for memory reduction
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from tilewright.errors import RequestError

Level: TypeAlias = Literal["High", "Medium", "Low"]
LEVELS: tuple[Level, ...] = get_args(Level)

BOTTLENECK, EVIDENCE, LIST = "Primary bottleneck:", "Evidence:", "Recommendations:"
MOST_BYTES = 1 << 20
MOST_ITEMS = 1000
_ITEM = re.compile(rf"(\d{{1,4}})\. \[({'|'.join(LEVELS)})\] (\S.*)")
_SHOWN = 60


@dataclass(frozen=True)
class Recommendation:
    """One recommended change. ``level`` is its expected impact."""

    number: int
    level: Level
    text: str

    def __str__(self) -> str:
        return f"{self.number}. [{self.level}] {self.text}"


@dataclass(frozen=True)
class Analysis:
    """The resource that limits a program, the evidence, and the recommended changes."""

    bottleneck: str
    evidence: str
    recommendations: tuple[Recommendation, ...]

    def __str__(self) -> str:
        items = "".join(f"{one}\n" for one in self.recommendations)
        return f"{BOTTLENECK} {self.bottleneck}\n{EVIDENCE} {self.evidence}\n{LIST}\n{items}"


def read_analysis_file(path: Path) -> Analysis:
    """Reads a file. Raises RequestError if it cannot be read, or is not an analysis."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise RequestError(f"{path} has more than {MOST_BYTES >> 20} MiB; an analysis is a page of text")
        return read_analysis(data.decode("utf-8"), str(path))
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 text (byte {error.start}); write the analysis as text") from error


def read_analysis(text: str, name: str = "the analysis") -> Analysis:
    """Reads an analysis. Raises RequestError for the first malformed line. ``name``: the start of the message."""
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, line in lines:
        if not line.isprintable():
            raise RequestError(f"{name}:{number}: a character that cannot be printed in {_shown(line)}; remove it")
    heads = [_after(lines, place, form, name) for place, form in enumerate((BOTTLENECK, EVIDENCE, LIST))]
    if heads[2]:
        raise RequestError(f"{name}:{lines[2][0]}: text behind '{LIST}'; write each recommendation in a line below")
    items = tuple(_item(line, number, place, name) for place, (number, line) in enumerate(lines[3:], 1))
    if not items:
        raise RequestError(f"{name}: no recommendation; add a line such as '1. [High] Enable FlashAttention'")
    return Analysis(heads[0], heads[1], items)


def _after(lines: Sequence[tuple[int, str]], place: int, form: str, name: str) -> str:
    number, line = lines[place] if place < len(lines) else (0, "")
    if not line.startswith(form):
        if not number:
            raise RequestError(f"{name} ends before the line '{form} …'; write that line")
        raise RequestError(f"{name}:{number}: {_shown(line)}, expected '{form}'")
    rest = line.removeprefix(form).strip()
    if not rest and form != LIST:
        raise RequestError(f"{name}:{number}: nothing behind '{form}'; say it in the same line")
    return rest


def _item(line: str, number: int, place: int, name: str) -> Recommendation:
    found = _ITEM.fullmatch(line)
    if found is None:
        raise RequestError(f"{name}:{number}: {_shown(line)} is not of the form 'N. [High|Medium|Low] text'")
    if int(found[1]) != place or place > MOST_ITEMS:
        fix = f"write number {place}" if place <= MOST_ITEMS else f"the most are {MOST_ITEMS}"
        raise RequestError(f"{name}:{number}: recommendation {found[1]} is number {place} in the list; {fix}")
    return Recommendation(place, level_of(found[2]), found[3])


def level_of(text: str) -> Level:
    return next(each for each in LEVELS if each == text)


def _shown(line: str) -> str:
    return repr(line if len(line) <= _SHOWN else line[:_SHOWN] + "…")
