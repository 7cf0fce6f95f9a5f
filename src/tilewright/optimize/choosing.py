"""Which change to try next: class priority × expected effect × what the ledger of earlier runs says.

A ranked list of proposals, each with its reason in words. What the machine code rules out (a change after which
it is the same) is found by compiling, in `attempting.py`; such a proposal costs no iteration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import in_one_line
from tilewright.ledger.records import EntryHistory
from tilewright.playbook.base import LAST, Entry, KernelFacts, Risk, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

PLACE_WEIGHT = 0.85
"""The weight of a class priority is this to the power of its place: the first counts 2.7 times the seventh."""
NO_PLACE = 9
"""The place of an entry that the list of its class does not name."""
PRIOR_TRIES = 2.0
"""The entry's own expectation counts like this many earlier tries."""
AGAIN = 0.5
"""Weight of a site that was reverted before another change was kept: it may help now. The same weight applies to an
entry for each of its sites that was reverted on this code, so that one entry does not use up the patience."""
MOST_TRIES = 2
"""How often one site of one entry is tried."""

Key = tuple[str, str]
"""Entry, and site in words with its function: both stay the same when lines move."""


@dataclass(frozen=True)
class Tries:
    """How often a site was tried, and how many changes had been kept the last time."""

    times: int
    kept: int


@dataclass(frozen=True)
class Proposal:
    """A change that could be tried: one entry at one site, or a change from a proposer; and why it is next."""

    entry: str
    """Name of the playbook's entry; ``proposed`` for a change from a proposer."""
    name: str
    """Short text for a table: ``tile load: gather of x``."""
    place: str
    """The site in words, told apart from others of the same words."""
    risk: Risk
    values: Callable[[], Sequence[Value]]
    """The values to try. Called when the proposal is taken, because an entry may have to compile to know them."""
    apply: Callable[[Value], Mapping[Path, str]]
    """All editable texts after the change. Raises `NotApplicable`."""
    score: float
    why: str
    line: int = 0


@dataclass(frozen=True)
class Past:
    """What the choice depends on besides the code."""

    history: Mapping[str, EntryHistory]
    """By entry, how it fared in earlier runs on kernels of the same bound and architecture."""
    tried: Mapping[Key, Tries]
    """In this run."""
    kept: int
    """How many changes were kept so far: a site is tried again only after another was."""
    lossy: bool
    """Whether entries that round differently by design may be proposed."""
    lowered: Collection[str]
    """Entries whose last success was small (2 to 5 % is accepted with lower priority)."""
    missed: Mapping[str, int]
    """By entry, how many of its sites were reverted since a change was kept. The others are less promising."""


def proposals(
    texts: Mapping[Path, str], facts: KernelFacts, entries: Sequence[Entry], past: Past
) -> tuple[list[Proposal], list[str]]:
    """Everything that could be tried on the incumbent's ``texts``, the most promising first; and which
    entries could not look for sites, with their reasons."""
    launched = _launched(facts)
    found: list[Proposal] = []
    unable: list[str] = []
    for path, text in texts.items():
        source = Source(path.name, text)
        reachable = _reachable(source, launched)
        for entry in entries:
            if entry.about.risk == "lossy" and not past.lossy:
                continue
            try:
                sites = entry.sites(source, facts)
            except Exception as error:  # one entry that trips over a form of code does not end the loop
                unable.append(f"{entry.about.id} {entry.about.name} cannot read {path.name}: {in_one_line(error)}")
                continue
            named: Counter[str] = Counter()
            for site in sites:
                if site.kernel and reachable and site.kernel not in reachable:
                    continue
                place = f"{site.what}, {site.kernel}"
                if len(texts) > 1:
                    place += f" in {path.name}"
                named[place] += 1
                if named[place] > 1:
                    place += f" #{named[place]}"
                before = past.tried.get((entry.about.id, place), Tries(0, -1))
                if before.times < MOST_TRIES and before.kept < past.kept:
                    score, why = _scored(entry, site, facts, past, before.times)
                    found.append(_proposal(entry, site, place, path, source, texts, score, why))
    found.sort(key=lambda one: (-one.score, one.entry, one.line, one.place))
    return found, unable


def _proposal(
    entry: Entry, site: Site, place: str, path: Path, source: Source, texts: Mapping[Path, str], score: float, why: str
) -> Proposal:
    about = entry.about
    return Proposal(
        entry=about.id,
        name=f"{about.name}: {site.what}",
        place=place,
        risk=about.risk,
        values=site.search or (lambda: site.values),
        apply=lambda value: {**texts, path: entry.change(source, site, value)},
        score=score,
        why=f"line {site.line}; {why}",
        line=site.line,
    )


def _scored(entry: Entry, site: Site, facts: KernelFacts, past: Past, tries: int) -> tuple[float, str]:
    about, before = entry.about, past.history.get(entry.about.id)
    place, misses = about.place(facts.kind), past.missed.get(about.id, 0)
    weight = PLACE_WEIGHT ** ((place if place != LAST else NO_PLACE) - 1)
    gain = own = math.log(about.effect.expected)
    if before is not None:
        seen = before.keeps * math.log(before.gain) if before.gain else 0.0
        gain = (PRIOR_TRIES * own + seen) / (PRIOR_TRIES + before.tries)
    score = weight * gain * site.promise * AGAIN ** ((about.id in past.lowered) + misses + (tries > 0))
    said = (
        f"place {place} of {facts.kind}-bound kernels" if place != LAST else f"in no list for {facts.kind}-bound",
        f"expected {about.effect.expected:.2f}× ({about.effect.source}, {about.effect.date})",
        f"kept {before.keeps} of {before.tries} times in earlier runs" if before is not None else "",
        f"here × {site.promise:g}" if site.promise != 1.0 else "",
        site.why,
        "lower priority after a small gain" if about.id in past.lowered else "",
        f"{misses} other sites of it were reverted on this code" if misses else "",
        "tried before another change was kept" if tries else "",
    )
    return score, f"score {score:.3f}: {'; '.join(filter(None, said))}"


def _launched(facts: KernelFacts) -> set[str]:
    """The names of the kernel functions that the task launches."""
    from tilewright.languages import language_of

    kernels = [facts.launch(workload).kernel for workload in facts.workloads]
    return {language_of(kernel).kernel_name(kernel) for kernel in kernels}


def _reachable(source: Source, launched: set[str]) -> set[str]:
    """Functions of the file that a launched kernel calls, and those that no kernel calls. The other functions do not
    run."""
    kernels = launched & set(source.kernels)
    if not kernels:
        return set()
    others = source.called_by(set(source.kernels) - kernels)
    return (set(source.functions) - others) | source.called_by(kernels)
