"""Compares the numbers that two versions of a program print.

Lines that differ only in their numbers form a table. Its columns are compared from the top down, as long as the two
runs of the unchanged program agree. If they soon differ, their first rows may agree by chance: then the column is not
compared. Numbers with a unit or a name of time, speed or memory are left out. So is a table whose length differs
between the two runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.program.run import ProgramRun

FACTOR, FLOOR, WILD = 16.0, 1e-3, 0.01
"""The constants of the tolerance, with the same meaning as in `outputs`. A printed number is rounded, so the smallest
tolerance is a share of the column's largest number.
"""

LUCK = 1e-6
"""Two runs agree by chance if unrelated numbers would agree as well with a larger probability than this. It matters
only where they do not agree to the end.
"""

LATE = 10
"""At the end of a run that is ended early, up to this many lines may be missing: a change may print them late."""

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)(?![\d.]*\d)", re.I)
_UNIT = re.compile(
    r"\s*(?:[µu]s|ms|ns|s|secs?|seconds?|min(?:utes)?|h|hours?|fps|%?\s*faster|[kKMGT]i?B|bytes|T?G?M?FLOPS?|x speed\w*"
    r"|[\w ]{0,12}/\s?s\w*|s/\w+|ms/\w+|per sec\w*)\b", re.I,
)  # fmt: skip
_NAME = re.compile(
    r"(?:time|elapsed|took|seconds?|secs?|\bms|duration|latency|speed|throughput|fps|memory|mem|rate/s|eta|date)"
    r"[^\d]{0,12}$", re.I,
)  # fmt: skip

_Table: TypeAlias = "list[tuple[str, ...]]"


@dataclass(frozen=True)
class JudgedOutput:
    """The judgement on one output of a changed program."""

    ratio: float
    """The output's difference divided by the tolerance; above 1 is different."""
    why: str
    equal: bool = False
    skipped: bool = False
    """Whether it is not compared, because the two runs of the unchanged program differ too much."""
    weak: bool = False
    """Whether this output proves nothing by itself. Whole numbers, such as step counts, are equal in any run.
    """


def compare_printed(before: ProgramRun, after: ProgramRun, noise: ProgramRun) -> Iterator[JudgedOutput]:
    """Judges each table that has the same length in ``before`` and ``noise``."""
    one, other, same = (_tables(run.stdout) for run in (before, after, noise))
    cut = "seconds" in (before.cut, after.cut, noise.cut)
    for text, rows in one.items():
        steady, found = same.get(text, []), other.get(text, [])
        if len(steady) != len(rows) and not cut:
            continue
        late = after.cut and len(rows) > LATE >= len(rows) - len(found) > 0
        if len(found) != len(rows) and not cut and not late:
            yield JudgedOutput(float("inf"), f"prints {len(found)} lines '{text}' instead of {len(rows)}")
            continue
        for column in range(len(rows[0])):
            yield from _column(f"'{text}'", *([row[column] for row in each] for each in (rows, found, steady)))


def _tables(stdout: str) -> Mapping[str, _Table]:
    """Returns the tables: text of a line with ``#`` for its numbers → rows of numbers, without times and speeds."""
    tables: dict[str, _Table] = {}
    for line in stdout.splitlines():
        numbers = [match for match in NUMBER.finditer(line) if not _of_time(line, match)]
        if numbers:
            text = " ".join(NUMBER.sub("#", line).split())[:80]
            tables.setdefault(f"{text}{'' if len(numbers) == 1 else f' ({len(numbers)})'}", []).append(
                tuple(match.group() for match in numbers)
            )
    return tables


def _of_time(line: str, match: re.Match[str]) -> bool:
    return bool(_UNIT.match(line, match.end()) or _NAME.search(line[: match.start()]))


def _column(text: str, before: list[str], after: list[str], noise: list[str]) -> Iterator[JudgedOutput]:
    scale = max((abs(float(each)) for each in before if abs(float(each)) < float("inf")), default=0.0)
    shown, luck, worst, equal = 0.0, 1.0, JudgedOutput(0.0, f"{text} is equal"), True
    for b, a, n in zip(before, after, noise, strict=False):
        one, other, same, place = float(b), float(a), float(n), _last_place(b)
        gap = 0.0 if b == n else abs(one - same)
        if scale and not gap <= WILD * scale:  # also nan
            if luck > LUCK:
                worst = JudgedOutput(0.0, f"{text} prints {b}, then {n}", skipped=True)
            break
        luck *= _chance(gap, place, scale)
        if b == a == n:
            continue
        shown = max(shown, gap / scale if scale else 0.0)
        equal = equal and b == a
        tolerance = max(FLOOR * scale, FACTOR * shown * scale) + place
        ratio = 0.0 if one == other else abs(one - other) / tolerance if abs(other) < float("inf") else float("inf")
        if not ratio <= worst.ratio:
            worst = JudgedOutput(ratio if ratio == ratio else float("inf"), f"{text} prints {a} instead of {b}")
    whole = all(number.lstrip("+-").isdigit() for number in before)
    yield JudgedOutput(worst.ratio, worst.why, equal and worst.ratio == 0.0, worst.skipped, weak=whole)


def _chance(gap: float, place: float, scale: float) -> float:
    """Returns the probability that two unrelated numbers up to ``scale`` are at most ``gap`` apart.

    Rounding changes at most the last of a few printed digits, which little else does, so then it is squared.
    """
    chance = min(1.0, (2.0 * gap + place) / scale) if scale else 1.0
    return chance**2 if gap <= 1.5 * place else chance


def _last_place(number: str) -> float:
    """Returns the value of a 1 in the last printed digit."""
    digits, _, power = number.lower().partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2])) if digits[-1:].isdigit() else 0.0
