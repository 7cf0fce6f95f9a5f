"""One case: the problem, its cause, the remedy, the effect, and how the remedy is verified.

A case is a Markdown file in the folder of its family. Its front matter has the fields of `Precedent`. Its body has the
`SECTIONS`. A `measured` entry counts only if it has all six fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from tilewright.coordinate.casebook.front_matter import FrontMatterError, body_of, split
from tilewright.coordinate.principles import PRINCIPLES
from tilewright.records import Json

FAMILIES = ("runtime-execution", "kernel-and-fusion", "communication")
CHOICES = {
    "type": ("case",),
    "family": FAMILIES,
    "maturity": ("stub", "full", "verified-locally"),
    "accuracy_risk": ("lossless", "lossy", "mixed"),
    "apply_via_kind": ("config-knob", "env-var", "default-on", "kernel-change", "code-change"),
    "phase": ("training", "inference", "any"),
}
COUNTS = {"bottleneck": (1, 3), "signals": (2, 5), "patterns": (1, 8), "architectures": (1, 20)}
"""Maps a field to the least and the greatest number of its values."""
PATTERNS = tuple(PRINCIPLES)
BOTTLENECKS = (
    "memory-bound", "compute-bound", "latency-bound", "launch-bound", "host-bound", "communication-bound", "copy-bound",
    "occupancy", "spills", "compile-time", "tuning-time", "noise", "correctness",
)  # fmt: skip
MEASURED = ("metric", "value", "gpu", "workload", "run_ref", "date")
RELATIONS = ("depends-on", "composes-with", "incompatible-with", "alternative-to")
SECTIONS = (
    "Applies when", "Counter-signals", "Mechanism", "Generalizes to", "Apply via", "Expected effect", "Accuracy risk",
    "Verify", "Rollback", "Prior art",
)  # fmt: skip
SHOWN = tuple(name for name in SECTIONS if name not in ("Mechanism", "Generalizes to", "Prior art"))
"""The sections that an answer shows."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured effect. ``run_ref``: the run in the ledger, or a recorded file with the place of the value."""

    metric: str
    value: float
    gpu: str
    workload: str
    run_ref: str
    date: str

    def __str__(self) -> str:
        return f"{self.metric} {self.value:g}, {self.workload}, {self.gpu}, {self.date} ({self.run_ref})"


@dataclass(frozen=True, kw_only=True)
class Precedent:
    """One case. ``family`` and ``slug`` name the case. ``problems``: the mistakes in its front matter, one line
    each."""

    family: str
    slug: str
    body: str
    id: str = ""
    type: str = "case"
    maturity: str = "stub"
    phase: str = "any"
    accuracy_risk: str = "lossless"
    apply_via_kind: str = "code-change"
    model_scope: str = ""
    bottleneck: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    specialists: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    log_markers: tuple[str, ...] = ()
    eligibility: tuple[str, ...] = ()
    interactions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    measured: tuple[Measurement, ...] = ()
    problems: tuple[str, ...] = ()
    where: str = ""
    """The source of the case: a file, or a run in the ledger."""

    @property
    def name(self) -> str:
        return f"{self.family}/{self.slug}"

    @property
    def title(self) -> str:
        found = re.search(r"^# +(.*)$", self.body, re.MULTILINE)
        return found[1].strip() if found else self.slug.replace("-", " ")

    def section(self, name: str) -> str:
        """Returns the text of a section of the body; "" without this section."""
        found = re.search(rf"^## +{re.escape(name)}\s*\n(.*?)(?=^## |\Z)", self.body, re.MULTILINE | re.DOTALL)
        return found[1].strip() if found else ""

    @property
    def shown(self) -> dict[str, str]:
        """Section → its text in one line, for the sections in `SHOWN` that have a text."""
        texts = {name: " ".join(self.section(name).split()) for name in SHOWN}
        return {name: text for name, text in texts.items() if text}

    def text(self) -> str:
        """Returns all text of the case for a search, including the fields."""
        lists = (value for each in fields(self) if isinstance(value := getattr(self, each.name), tuple))
        listed = " ".join(str(item) for values in lists for item in values if isinstance(item, str))
        return f"{self.slug.replace('-', ' ')} {listed} {self.body}"


TEXTS = ("id", *CHOICES, "model_scope")
LISTS = (*COUNTS, "knobs", "specialists", "commits", "log_markers", "eligibility")
FIELDS = (*TEXTS, *LISTS, "interactions", "measured")


def read(path: Path) -> Precedent:
    """Reads one case. If the front matter is malformed, the case has a problem, but its body can be searched."""
    family, slug = path.parent.name, path.stem
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        return Precedent(
            family=family, slug=slug, body="", problems=(f"{path}: cannot be read: {why}",), where=str(path)
        )
    try:
        given, body = split(text)
    except FrontMatterError as error:
        return Precedent(family=family, slug=slug, body=body_of(text), problems=(f"{path} {error}",), where=str(path))
    return made(family, slug, given, body, str(path))


def made(family: str, slug: str, given: Mapping[str, Json], body: str, where: str) -> Precedent:
    """Makes a case from its front matter. A wrong field is left out and becomes a problem."""
    problems = [f"{where}: {problem}" for problem in _problems(family, slug, given)]
    texts = {name: str(given[name]) for name in TEXTS if given.get(name) is not None and name != "family"}
    lists = {name: _texts(given.get(name)) for name in LISTS}
    related = given.get("interactions")
    related = related if isinstance(related, dict) else {}
    return Precedent(
        family=family, slug=slug, body=body, **texts, **lists,  # type: ignore[arg-type]
        interactions={name: _texts(related.get(name)) for name in RELATIONS if related.get(name)},
        measured=tuple(_measured(given.get("measured"))), problems=tuple(problems), where=where,
    )  # fmt: skip


def _texts(value: Json) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return () if value is None else (str(value),)


def _measured(value: Json) -> Iterator[Measurement]:
    """Yields the entries that have all six fields."""
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict) and not list(_lacking(entry)):
            number = entry["value"]
            texts = {name: str(entry[name]) for name in MEASURED if name != "value"}
            assert isinstance(number, (int, float))
            yield Measurement(value=float(number), **texts)


def _lacking(entry: Mapping[str, Json]) -> Iterator[str]:
    """Yields the fields of an entry that are missing, empty, or not a number although they must be numbers."""
    for name in MEASURED:
        value = entry.get(name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value in (None, "", [], {}) or (name == "value" and not number):
            yield name


def _problems(family: str, slug: str, given: Mapping[str, Json]) -> Iterator[str]:
    if given.get("id") != f"case-{slug}":
        yield f"id is '{given.get('id')}', not 'case-{slug}' after its file"
    if given.get("family") != family:
        yield f"family is '{given.get('family')}', not '{family}' after its folder"
    for name, choices in CHOICES.items():
        if given.get(name) not in choices:
            yield f"{name} is '{given.get(name)}'; known: {', '.join(choices)}"
    for name, (least, most) in COUNTS.items():
        if not least <= len(_texts(given.get(name))) <= most:
            yield f"{name} has {len(_texts(given.get(name)))} values, not {least} to {most}"
    for name, known in (("bottleneck", BOTTLENECKS), ("patterns", PATTERNS)):
        if strange := [value for value in _texts(given.get(name)) if value not in known]:
            yield f"{name} '{strange[0]}' is not in the vocabulary; known: {', '.join(known)}"
    related = given.get("interactions")
    if isinstance(related, dict) and (strange := [name for name in related if name not in RELATIONS]):
        yield f"interaction '{strange[0]}' is unknown; known: {', '.join(RELATIONS)}"
    if unknown := [name for name in given if name not in FIELDS]:
        yield f"unknown field '{unknown[0]}'"
    entries = given.get("measured")
    for n, entry in enumerate(entries if isinstance(entries, list) else (), 1):
        lacking = list(_lacking(entry)) if isinstance(entry, dict) else list(MEASURED)
        if lacking:
            yield f"measured entry {n} lacks {', '.join(lacking)}; an entry has all six fields"
