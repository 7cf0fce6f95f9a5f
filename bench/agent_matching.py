"""Decides which known problems of a program a run of `tilewright agent` has found. Nothing here is done by hand.

A *claim* is what the agent says about the program: each change that it tried, and each item for which it tried none,
also where only the time was missing.

* Places. Lines are those of the untouched program. A change is at its site, and at the lines that its diff replaces or
  inserts at, except for imports, comments and blank lines. The lines of a later change are traced back through the kept
  changes before it. An item without a change is at each ``file.py:line`` that its text, its findings and its end name.
* Kind. Each problem has patterns, written before any run of the agent. A change fits if one of them is found in its
  name or rationale; an item without a change, in its text, its findings or the reason of its end.
* *Found*: a claim at a place of the problem, of its kind. *Mended*: such a claim that was kept.
* *False*: a claim that stands (kept, or left open as an opportunity), at a known place, and fits no problem; unless it
  was kept and the interval of its race is wholly below 1. A claim that the agent took back by itself (no gain, wrong,
  not applicable, already there) is not false.
* *To look at*: a claim that stands, at no place. A person decides, and writes ``true`` or ``false`` with a reason.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.ledger.agent_records import AgentChange, AgentItem, AgentParts

Standing: TypeAlias = Literal["kept", "open", "taken back"]
Verdict: TypeAlias = Literal["fits", "real gain", "taken back", "false", "to look at"]
Texts: TypeAlias = Mapping[str, str]
"""Path relative to the program's folder → text."""

NAMED = re.compile(r"([\w./-]+\.py):(\d+)")
PASSED_OVER = re.compile(r"\s*(#.*|import\s.*|from\s+\S+\s+import\s.*)?")


@dataclass(frozen=True)
class Lines:
    """Lines of a file of the untouched program, the last one included."""

    file: str
    first: int
    last: int

    def meets(self, other: Lines) -> bool:
        return self.file == other.file and self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Problem:
    id: str
    about: str
    places: tuple[Lines, ...]
    patterns: tuple[str, ...]
    lossless: bool
    needs_cuda: bool


@dataclass(frozen=True)
class Claim:
    """``says``: the text in which a problem's patterns are searched. ``gain``: the ratio of its race, low and high."""

    id: str
    says: str
    places: tuple[Lines, ...]
    standing: Standing
    gain: tuple[float, float] | None = None

    def fits(self, problem: Problem) -> bool:
        at = any(mine.meets(other) for mine in self.places for other in problem.places)
        return at and any(re.search(pattern, self.says, re.IGNORECASE) for pattern in problem.patterns)


def problems_of(listed: Sequence[Mapping[str, object]], patterns: Mapping[str, Sequence[str]]) -> tuple[Problem, ...]:
    """Reads the problems of one program, as PROBLEMS.json lists them."""
    return tuple(
        Problem(
            each["id"], each["kind"], tuple(Lines(p["file"], *p["lines"]) for p in each["places"]),
            tuple(patterns[each["id"]]), each["lossless"], each["needs_cuda"],
        )
        for each in json.loads(json.dumps(listed))
    )  # fmt: skip


def claims_of(parts: AgentParts, original: Texts, root: Path) -> tuple[Claim, ...]:
    """Returns the claims of a run. root: the program's folder, whose files the run's paths name."""
    found, now = [], dict(original)
    kept = {change.id for change in parts.kept}
    for change in parts.changes:
        new = {_relative(path, root): text for path, text in change.texts.items()}
        places = (*_changed(original, now, new), *_sites(change, original, now))
        standing: Standing = "kept" if change.id in kept else "taken back"
        says = f"{change.name.replace('_', ' ')}: {change.rationale}"
        found.append(Claim(change.id, says, tuple(dict.fromkeys(places)), standing, _gain(parts, change)))
        if change.id in kept:
            now |= new
    found += [_of_item(item, parts, root) for item in parts.items if not parts.changes_of(item.id)]
    return tuple(found)


def verdict_on(claim: Claim, problems: Sequence[Problem]) -> Verdict:
    """Says what a claim is worth; see the module's text."""
    if any(claim.fits(problem) for problem in problems):
        return "fits"
    if claim.standing == "taken back":
        return "taken back"
    if claim.standing == "kept" and claim.gain is not None and claim.gain[1] < 1.0:
        return "real gain"
    return "false" if claim.places else "to look at"


def _of_item(item: AgentItem, parts: AgentParts, root: Path) -> Claim:
    end = parts.end_of(item.id)
    findings = [each for each in parts.findings if each.id in item.findings or each.item == item.id]
    said = [item.text, *(text for each in findings for text in (each.kind, each.text, each.evidence))]
    said += [end.reason, end.evidence] if end else []
    says = "\n".join(said)
    places = tuple(Lines(_relative(file, root), int(line), int(line)) for file, line in NAMED.findall(says))
    stands = end is None or end.why == "blocked"
    return Claim(item.id, says, places, "open" if stands else "taken back")


def _gain(parts: AgentParts, change: AgentChange) -> tuple[float, float] | None:
    races = [m.ratio for m in parts.measurements if m.change == change.id and m.kind == "race" and m.ratio]
    return (races[-1].low, races[-1].high) if races and math.isfinite(races[-1].high) else None


def _sites(change: AgentChange, original: Texts, now: Texts) -> Iterator[Lines]:
    for file, line in NAMED.findall(change.site):
        name = next((each for each in now if each == file or file.endswith(f"/{each}")), file)
        first, last = traced(original.get(name, ""), now.get(name, ""), int(line), int(line))
        yield Lines(name, first, last)


def _changed(original: Texts, now: Texts, new: Texts) -> Iterator[Lines]:
    """Yields the lines of the untouched program that the new texts change."""
    for name, text in new.items():
        before, after = now.get(name, "").splitlines(), text.splitlines()
        for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag == "equal" or all(PASSED_OVER.fullmatch(line) for line in (*before[a:b], *after[c:d])):
                continue
            first, last = traced(original.get(name, ""), now.get(name, ""), a + 1, max(a + 1, b))
            yield Lines(name, first, last)


def traced(original: str, now: str, first: int, last: int) -> tuple[int, int]:
    """Returns the lines of the original text that lines of the present text come from, or between which they are."""
    matcher = difflib.SequenceMatcher(None, original.splitlines(), now.splitlines(), autojunk=False)
    lows, highs = [], []
    for tag, a, b, c, d in matcher.get_opcodes():
        low, high = max(first - 1, c), min(last, d)
        if low < high:
            lows.append(a + low - c if tag == "equal" else a)
            highs.append(a + high - c if tag == "equal" else max(b, a + 1))
    return (min(lows) + 1, max(highs)) if lows else (first, last)


def _relative(path: str, root: Path) -> str:
    given = Path(path)
    return str(given.relative_to(root)) if given.is_absolute() and given.is_relative_to(root) else path
