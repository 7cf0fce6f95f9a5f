"""The protocol of a playbook entry: one kind of change to the source of a kernel.

An entry is one file with a description and two methods. `Entry.sites` lists the places of the syntax tree where the
change applies. It may look at what is known of the incumbent: counted work, machine code, bounds. `Entry.apply` makes
the change at one of these places. Every version is verified and measured afterwards, so an entry need not prove that
its change keeps the result. It should leave out what it can rule out: a version that changes nothing costs a
compilation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import libcst as cst

from tilewright.hardware.architectures import Board
from tilewright.inspect.work import CountedWork
from tilewright.ledger.records import EntryHistory
from tilewright.playbook.analyses.short_lines import with_short_lines
from tilewright.records import Bound, MachineCode, Value, Workload
from tilewright.source.syntax import Function, Node, Source
from tilewright.task.task import Launch, Task

Risk: TypeAlias = Literal["lossless", "lossy"]
"""A lossy change rounds differently by design. It is tried only where the user allows it, and marked where kept."""

LAST = 99
"""The place of an entry that names none for a kind of bound."""


class NotApplicable(Exception):
    """The entry cannot change this site to this value; the message says why in one line."""


@dataclass(frozen=True)
class Effect:
    """Expected speedup as a factor (1.05: 5 % less time), from ``low`` to ``high``, with the source of the figures."""

    low: float
    high: float
    source: str
    date: str

    @classmethod
    def assumed(cls, low: float, high: float, *, kept: int = 0, of: int = 0) -> Effect:
        """From general experience, and how often the change was kept in the recorded runs on an H200."""
        tries = (
            f"kept in {kept} of {of} tries in bench/recorded/h200-naive-2026-11-21.json"
            if of
            else "not tried in the recorded runs"
        )
        return cls(low, high, f"assumed; {tries}", "2026-11-21")

    @property
    def expected(self) -> float:
        """The geometric middle."""
        return float((self.low * self.high) ** 0.5)


@dataclass(frozen=True)
class EntryDescription:
    """What a person wants to know of an entry before it changes their code."""

    id: str
    """The name of its module, which commands, ledgers and reports use."""
    name: str
    what: str
    when: str
    when_not: str
    priority: Mapping[str, int]
    """Kind of bound (``memory``, ``balanced``, ``compute``) → place among the entries, 1 is tried first."""
    effect: Effect
    risk: Risk = "lossless"
    order: int = 1000
    """Place in lists of all entries. Entries of other packages come last unless they name a place."""

    def place(self, kind: str) -> int:
        return self.priority.get(kind, LAST)


@dataclass(frozen=True)
class Site:
    """One place where an entry applies. Line (from 1) and column (from 0) are those of the source it was found in."""

    kernel: str
    """The function that is changed."""
    line: int
    column: int
    what: str
    """A few words for a table: ``load of x``."""
    values: tuple[Value, ...]
    """What `Entry.apply` takes, the most promising first. All are tried in one iteration; empty with ``search``."""
    promise: float = 1.0
    """Factor of the entry's expected gain: below 1 where little can be gained here."""
    why: str = ""
    """What is known of this place."""
    search: Callable[[], tuple[Value, ...]] | None = field(default=None, compare=False, repr=False)
    """Finds the values when the site is tried, where that takes compilations. It may find none."""

    @classmethod
    def at(
        cls,
        source: Source,
        node: cst.CSTNode,
        what: str,
        values: tuple[Value, ...],
        promise: float = 1.0,
        why: str = "",
    ) -> Site:
        """The site that begins where ``node`` does."""
        return cls(source.function_of(node), *source.place(node), what, values, promise, why)

    def node(self, source: Source, nodes: Iterable[Node], missing: str) -> Node:
        """The first of ``nodes`` that begins here. Raises `NotApplicable` with what is ``missing``."""
        for node in nodes:
            if source.place(node) == (self.line, self.column):
                return node
        raise NotApplicable(f"{source.name}:{self.line}: {missing}")

    def function(self, source: Source) -> Function:
        """The function that holds this place. Raises `NotApplicable`."""
        if self.kernel not in source.functions:
            raise NotApplicable(f"{source.name}:{self.line}: there is no function {self.kernel}")
        return source.functions[self.kernel]

    def function_here(self, source: Source) -> Function:
        """The function that begins here. Raises `NotApplicable`."""
        return self.node(source, [self.function(source)], f"{self.kernel} does not begin here")

    def __str__(self) -> str:
        return f"{self.what}, {self.kernel} line {self.line}"


@dataclass(frozen=True)
class KernelFacts:
    """What is known of the incumbent when sites are looked for. ``task`` ships the incumbent's configuration."""

    task: Task
    board: Board
    workloads: tuple[Workload, ...]
    bounds: Mapping[str, Bound]
    """By workload, from the counted work of the baseline."""
    codes: Mapping[str, MachineCode]
    """By workload, of the shipped configuration."""
    count: Callable[[Workload], CountedWork] = field(repr=False)
    """Counts the work in the incumbent's Tile IR, once for each workload."""

    def launch(self, workload: Workload) -> Launch:
        """The incumbent's launch on array specifications."""
        task = self.task
        return task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), self.board)

    @property
    def launches(self) -> list[Launch]:
        """The launch of each workload."""
        return [self.launch(workload) for workload in self.workloads]

    @property
    def sm(self) -> int:
        """Compute capability as one number: 90."""
        return self.board.sm

    @property
    def kind(self) -> str:
        """The bound that most workloads have."""
        kinds = [bound.kind for bound in self.bounds.values()]
        return max(kinds, key=kinds.count)


class Entry(ABC):
    """A playbook entry: a description and two methods, without state."""

    about: EntryDescription

    @abstractmethod
    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        """The places of ``source`` where the entry applies, the most promising first; may be empty."""

    @abstractmethod
    def apply(self, source: Source, site: Site, value: Value) -> str:
        """The whole text with exactly this change. Raises `NotApplicable`."""

    def change(self, source: Source, site: Site, value: Value) -> str:
        """The text after `apply`, with the lines that it wrote under 120 characters where they can be broken."""
        return with_short_lines(source.text, self.apply(source, site, value))

    def findings(self, source: Source, facts: KernelFacts) -> Sequence[str]:
        """What the entry sees but cannot change, one line each, for the person who goes on from there."""
        return ()

    def applies(self, source: Source, site: Site) -> bool:
        """Whether the first value of a site can be applied."""
        try:
            self.apply(source, site, site.values[0])
        except NotApplicable:
            return False
        return True


FORMER_NAMES: Mapping[str, str] = {
    "A": "tile_load", "A-reverse": "gather_load", "B": "persistent", "C": "tune_space", "D": "tf32",
    "D-lossy": "tf32_lossy", "E": "latency", "F": "allow_tma", "G": "tile_sizes", "H-exp2": "exp2",
    "H-ftz": "flush_to_zero", "H-approx": "approximate", "I": "swizzle", "J": "tokens", "K": "batching",
    "L": "proposed", "bounds": "check_bounds", "hoist": "hoisting", "rows": "rows_per_tile",
}  # fmt: skip
"""The name in ledgers of earlier versions → the name today."""


def present_name(entry: str) -> str:
    """The name today of an entry in a ledger."""
    return FORMER_NAMES.get(entry, entry)


def by_present_name(history: Mapping[str, EntryHistory]) -> dict[str, EntryHistory]:
    """The history of each entry, with the rows under its former name counted in."""
    found: dict[str, EntryHistory] = {}
    for name, one in history.items():
        known = found.get(present_name(name), EntryHistory(present_name(name), 0, 0, None))
        gains = [(each.keeps, each.gain) for each in (known, one) if each.gain is not None]
        logs = sum(keeps * math.log(gain) for keeps, gain in gains)
        gain = math.exp(logs / sum(keeps for keeps, _ in gains)) if gains else None
        found[known.entry] = EntryHistory(known.entry, known.tries + one.tries, known.keeps + one.keeps, gain)
    return found
