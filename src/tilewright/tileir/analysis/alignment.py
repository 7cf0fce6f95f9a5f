"""Matches the lines of two versions of a source, although the line numbers shift.

The lines inside the two kernels are matched with one another. The lines outside are matched separately. So the match
also works for two different kernels of one file, and for a kernel that was moved in its file.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from tilewright.source.source_file import SourceFile

ALIKE = 0.4  # the least difflib ratio of two changed lines that count as versions of one line
PAIRED_LINES = 2500  # a changed block with more pairs of an old and a new line is paired in order, without comparison


def aligned(before: str, after: str, kernel_before: int = 0, kernel_after: int = 0) -> dict[int, int]:
    """Maps line numbers in ``before`` to line numbers in ``after`` (both from 1), for lines that are equal or similar.

    kernel_before, kernel_after: a line inside each kernel, or 0 if unknown.
    Indentation is ignored, so a line that was moved into a loop still matches.
    """
    old, new = before.splitlines(), after.splitlines()
    inside_old, inside_new = _function(before, kernel_before), _function(after, kernel_after)
    if not inside_old or not inside_new:
        return _matched(old, new, range(1, len(old) + 1), range(1, len(new) + 1))
    outside_old = [line for line in range(1, len(old) + 1) if line not in inside_old]
    outside_new = [line for line in range(1, len(new) + 1) if line not in inside_new]
    if before == after:  # two kernels of one file: the lines outside the kernels have kept their numbers
        around = {line: line for line in outside_old if line not in inside_new}
    else:
        around = _matched(old, new, outside_old, outside_new)
    return around | _matched(old, new, inside_old, inside_new)


def _function(source: str, line: int) -> range:
    """Returns the line numbers of the innermost function around ``line``; an empty range if there is no function."""
    try:
        functions = SourceFile(Path(), source).functions
    except (SyntaxError, ValueError):
        return range(0)
    spans = [
        range(min(part.lineno for part in (node, *node.decorator_list)), (node.end_lineno or 0) + 1)
        for node in functions
    ]
    return min((span for span in spans if line in span), key=len, default=range(0))


def _matched(
    old: Sequence[str], new: Sequence[str], numbers_old: Sequence[int], numbers_new: Sequence[int]
) -> dict[int, int]:
    texts_old = [old[line - 1].strip() for line in numbers_old]
    texts_new = [new[line - 1].strip() for line in numbers_new]
    found: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, texts_old, texts_new, autojunk=False)
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind == "equal":
            found.update(zip(numbers_old[i:i_end], numbers_new[j:j_end], strict=True))
        elif kind == "replace":
            for x, y in _alike(texts_old[i:i_end], texts_new[j:j_end]):
                found[numbers_old[i + x]] = numbers_new[j + y]
    return found


def _alike(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Returns pairs of indices (old, new) of similar lines, in ascending order.

    The sum of the pairs' similarities is the greatest possible. Very large inputs are paired in order instead
    (`PAIRED_LINES`).
    """
    if len(old) * len(new) > PAIRED_LINES:
        return [(n, n) for n in range(min(len(old), len(new)))]
    ratios = [[_similarity(one, other) for other in new] for one in old]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for x in reversed(range(len(old))):
        for y in reversed(range(len(new))):
            best[x][y] = max(best[x + 1][y], best[x][y + 1], ratios[x][y] + best[x + 1][y + 1])
    pairs, x, y = [], 0, 0
    while x < len(old) and y < len(new):
        if ratios[x][y] and best[x][y] == ratios[x][y] + best[x + 1][y + 1]:
            pairs.append((x, y))
            x, y = x + 1, y + 1
        elif best[x][y] == best[x + 1][y]:
            x += 1
        else:
            y += 1
    return pairs


def _similarity(one: str, other: str) -> float:
    ratio = difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() if one and other else 0.0
    return ratio if ratio >= ALIKE else 0.0
