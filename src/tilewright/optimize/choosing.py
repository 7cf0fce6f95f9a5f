"""Ranks the changes to try next by priority for the kernel's bound, expected effect, and success in earlier runs.

A *site* is a place in the source where a playbook entry can make its change. Every proposal has its reasons as text. A
change that leaves the machine code unchanged costs no iteration, because `attempting.py` compiles before an iteration
is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilewright.errors import in_one_line
from tilewright.hardware.prediction_error import ChangeKind
from tilewright.languages import language_of
from tilewright.ledger.records import EntryHistory
from tilewright.playbook.analyses.edited_files import EditedFiles, edited_files
from tilewright.playbook.base import LAST, Entry, KernelFacts, Risk, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

PLACE_WEIGHT = 0.85
"""An entry has a rank n for each kind of bound (memory, balanced or compute). The weight of rank n is this number to
the power n - 1. So rank 1 has 2.7 times the weight of rank 7."""
NO_PLACE = 9
"""The rank of an entry that declares no rank for the kernel's bound."""
PRIOR_TRIES = 2.0
"""The expected effect that an entry declares has the weight of this many earlier tries."""
AGAIN = 0.5
"""A factor for the score of a site. It applies if the site was tried before another change was kept: the site may help
now. It also applies once for each site of the same entry that was reverted on the present code, so that other entries
get a turn."""
NAMED = 10.0
"""Added to the score of an entry that eases a limit of the kernel, if the site was not tried yet. It is more than any
score, so these come first. It is added twice for a combined entry: its field contains what its parts would try alone,
with more changes added. It is added three times for an entry that comes first on the untouched code
(`EntryDescription.first`)."""

Key = tuple[str, str]
"""The name of an entry, and a description of its site with the function's name. Both stay the same when lines move."""


@dataclass(frozen=True)
class Tries:
    """The number of tries of a site, and the number of changes that had been kept at the last try."""

    times: int
    kept: int


@dataclass(frozen=True)
class Proposal:
    """A change to try: one entry at one site, or a change from a proposer."""

    entry: str
    """Name of the playbook's entry; ``proposed`` for a change from a proposer."""
    name: str
    """Short text for a table: ``tile load: gather of x``."""
    place: str
    """A description of the site. A number is added if several sites have the same description."""
    risk: Risk
    values: Callable[[], Sequence[Value]]
    """A function that returns the values to try. It is called only for a chosen proposal, because finding values may
    need compilations."""
    apply: Callable[[Value], Mapping[Path, str]]
    """A function that returns all editable texts after the change. Raises `NotApplicable` if the value does not fit."""
    score: float
    why: str
    """The reasons for the score."""
    line: int = 0
    kind: Callable[[Value], ChangeKind] = lambda value: "form"
    rest: tuple[str, ...] = ()
    """The entries whose changes must be added to each value, in this order."""
    together: tuple[str, ...] = ()
    """The entries whose changes are tried in addition, in this order."""

    @property
    def key(self) -> Key:
        return self.entry, self.place


@dataclass(frozen=True)
class Past:
    """The data about earlier tries on which the ranking depends."""

    history: Mapping[str, EntryHistory]
    """The success of each entry in earlier runs on kernels of the same bound and architecture, by the entry's name."""
    tried: Mapping[Key, Tries]
    """The tries of this run."""
    kept: int
    """The number of changes kept so far. A site is tried again only after a further change was kept."""
    lossy: bool
    """Whether entries that change the rounding by design may be proposed."""
    lowered: Collection[str]
    """Entries whose last kept change gained under 5 %."""
    missed: Mapping[str, int]
    """The number of each entry's sites that were reverted since the last kept change, by the entry's name."""
    measured: bool = False
    """Whether times are measured on a GPU. Predicted times say little about hints, so no entry comes first then."""
    by_place: bool = False
    """Whether the entries' places in the priority list of the kernel's bound alone decide the order (policy ``base``).
    An entry whose last gain was small comes after all others."""


def proposals(
    texts: Mapping[Path, str], facts: KernelFacts, entries: Sequence[Entry], past: Past
) -> tuple[list[Proposal], list[str]]:
    """Returns the proposals for the incumbent's ``texts``, the most promising first.

    The second list has the errors of entries that failed while they searched for sites.
    """
    launched = _launched(facts)
    ranked: list[Proposal] = []
    failures: list[str] = []
    for files in edited_files(texts):
        source = files.source
        reachable = _reachable(source, launched)
        for entry in entries:
            if entry.about.risk == "lossy" and not past.lossy:
                continue
            try:
                sites = facts.sites_of(entry, source)
            except Exception as error:  # an entry that fails on some code does not end the loop
                failures.append(f"{entry.about.id} {entry.about.name} cannot read {source.name}: {in_one_line(error)}")
                continue
            named: Counter[str] = Counter()
            for site in sites:
                if site.kernel and reachable and site.kernel not in reachable:
                    continue
                place = f"{site.what}, {site.kernel}"
                if len(texts) > 1:
                    place += f" in {source.name}"
                named[place] += 1
                if named[place] > 1:
                    place += f" #{named[place]}"
                before = past.tried.get((entry.about.id, place), Tries(0, -1))
                if before.times < entry.about.tries and before.kept < past.kept:
                    score, why = _scored(entry, site, facts, past, before.times)
                    ranked.append(_proposal(entry, site, place, files, texts, score, why))
    if past.by_place:
        places = {entry.about.id: (entry.about.id in past.lowered, entry.about.place(facts.kind)) for entry in entries}
        ranked.sort(key=lambda each: (*places[each.entry], -each.score, each.entry, each.line, each.place))
    else:
        ranked.sort(key=lambda proposal: (-proposal.score, proposal.entry, proposal.line, proposal.place))
    return ranked, failures


def why_not(entry: Entry, texts: Mapping[Path, str], facts: KernelFacts) -> str:
    """Returns the reason why an entry has no site in ``texts``; "" if no reason is known."""
    return next(filter(None, (entry.why_not(files.source, facts) for files in edited_files(texts))), "")


def _proposal(
    entry: Entry, site: Site, place: str, files: EditedFiles, texts: Mapping[Path, str], score: float, why: str
) -> Proposal:
    about = entry.about
    return Proposal(
        entry=about.id, name=f"{about.name}: {site.what}", place=place, risk=about.risk,
        values=site.values_to_try, apply=partial(files.changed, texts, entry, site),
        score=score, why=f"line {site.line}; {why}", line=site.line, kind=entry.kind,
        rest=entry.rest, together=about.together,
    )  # fmt: skip


def _scored(entry: Entry, site: Site, facts: KernelFacts, past: Past, tries: int) -> tuple[float, str]:
    about, before = entry.about, past.history.get(entry.about.id)
    place, misses = about.place(facts.kind), past.missed.get(about.id, 0)
    weight = PLACE_WEIGHT ** ((place if place != LAST else NO_PLACE) - 1)
    gain = own = math.log(about.effect.expected)
    if before is not None:
        seen = before.keeps * math.log(before.gain) if before.gain else 0.0
        gain = (PRIOR_TRIES * own + seen) / (PRIOR_TRIES + before.tries)
    score = weight * gain * site.promise * AGAIN ** ((about.id in past.lowered) + misses + (tries > 0))
    eased = [resource for resource in about.eases if resource in facts.limits]
    first = about.first and past.measured and not past.kept
    score += NAMED * (3 if first else 1 + entry.combined if eased and not tries else 0)
    reasons = (
        "first on the untouched code" if first else "",
        f"eases the limit: {', '.join(eased)}" if eased else "",
        f"place {place} of {facts.kind}-bound kernels" if place != LAST else f"in no list for {facts.kind}-bound",
        f"expected {about.effect.expected:.2f}× ({about.effect.source}, {about.effect.date})",
        f"kept {before.keeps} of {before.tries} times in earlier runs" if before is not None else "",
        f"here × {site.promise:g}" if site.promise != 1.0 else "",
        site.why,
        "lower priority after a small gain" if about.id in past.lowered else "",
        f"{misses} other sites of this entry were reverted on this code" if misses else "",
        "tried before another change was kept" if tries else "",
    )
    return score, f"score {score:.3f}: {'; '.join(filter(None, reasons))}"


def _launched(facts: KernelFacts) -> set[str]:
    """Returns the names of the kernel functions that the task launches."""
    return {language_of(launch.kernel).kernel_name(launch.kernel) for launch in facts.launches}


def _reachable(source: Source, launched: set[str]) -> set[str]:
    """Returns the functions that a launched kernel may call. A function is left out if only other kernels call it.

    Returns nothing if the file has no launched kernel.
    """
    kernels = launched & set(source.kernels)
    if not kernels:
        return set()
    others = source.called_by(set(source.kernels) - kernels)
    return (set(source.functions) - others) | source.called_by(kernels)
