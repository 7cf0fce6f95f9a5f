"""What a playbook entry is: where a change may apply in a kernel's source, and the change itself.

An entry is one file with an `EntryDescription` and two functions. `sites` looks for places in the syntax tree, and may
ask what is known of the incumbent (`KernelFacts`: counted work, machine code, bounds); `apply` changes exactly one
of them. An entry proposes; whether the result is right and faster is the gate's to say, so an entry that
cannot prove that it preserves meaning may still propose. What it can rule out, it should: a site that changes
nothing costs a compilation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.hardware.architectures import Board
from tilewright.inspect.work import CountedWork
from tilewright.ledger.records import EntryHistory
from tilewright.records import Bound, MachineCode, Value, Workload
from tilewright.source.syntax import Source
from tilewright.task.task import Launch, Task

Risk: TypeAlias = Literal["lossless", "lossy"]
"""``lossy``: rounds differently by design. Tried only where the user allows it, and marked wherever it is kept."""

LAST = 99
"""The place of an entry that no priority list names for a kind of bound (K2)."""


class NotApplicable(Exception):
    """The entry cannot change this site to this value; the message says why in one line."""


@dataclass(frozen=True)
class Effect:
    """Expected speedup as a factor, 1.05 for 5 % less time, from ``low`` to ``high``, and where that is from."""

    low: float
    high: float
    source: str
    date: str

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
    """Kind of bound (``memory``, ``balanced``, ``compute``) → place in the order of K2, 1 first."""
    effect: Effect
    risk: Risk = "lossless"
    order: int = 1000
    """Place in the catalogue, for lists; entries of other packages come last where they name none."""

    def place(self, kind: str) -> int:
        return self.priority.get(kind, LAST)


@dataclass(frozen=True)
class Site:
    """One place where an entry applies. Line and column (from 1 and from 0) hold for the source it was found in."""

    kernel: str
    """The function of the source that is changed."""
    line: int
    column: int
    what: str
    """A few words for a table: ``load of x``."""
    values: tuple[Value, ...]
    """What `apply` may put there, the most promising first; all are tried in one iteration. Empty only where
    ``search`` finds them."""
    promise: float = 1.0
    """Scales the entry's expected gain at this place: below 1 where the facts say that little is to be won."""
    why: str = ""
    """What the facts say for this place."""
    search: Callable[[], tuple[Value, ...]] | None = field(default=None, compare=False, repr=False)
    """Finds the values when the site is tried, where that takes compiling; it may find none."""

    def __str__(self) -> str:
        return f"{self.what}, {self.kernel} line {self.line}"


@dataclass(frozen=True)
class KernelFacts:
    """What is known of the incumbent when sites are looked for. ``task`` ships the incumbent's configuration."""

    task: Task
    board: Board
    workloads: tuple[Workload, ...]
    bounds: Mapping[str, Bound]
    """By workload; from the counted work of the baseline."""
    codes: Mapping[str, MachineCode]
    """By workload, of the shipped configuration."""
    count: Callable[[Workload], CountedWork] = field(repr=False)
    """The work as it is counted in the incumbent's Tile IR; asked when needed, remembered by who gives it."""

    def launch(self, workload: Workload) -> Launch:
        """The incumbent's launch on array specifications."""
        task = self.task
        return task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), self.board)

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
    """A playbook entry: a description and two functions, no state."""

    about: EntryDescription

    @abstractmethod
    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        """The places of ``source`` where the entry applies, the most promising first; may be empty."""

    @abstractmethod
    def apply(self, source: Source, site: Site, value: Value) -> str:
        """The whole text with exactly this change. Raises `NotApplicable`."""

    def findings(self, source: Source, facts: KernelFacts) -> Sequence[str]:
        """What the entry sees and cannot change, one line each, for the person who goes on from there."""
        return ()


FORMER_NAMES: Mapping[str, str] = {
    "A": "tile_load", "A-reverse": "gather_load", "B": "persistent", "C": "tune_space", "D": "tf32",
    "D-lossy": "tf32_lossy", "E": "latency", "F": "allow_tma", "G": "tile_sizes", "H-exp2": "exp2",
    "H-ftz": "flush_to_zero", "H-approx": "approximate", "I": "swizzle", "J": "tokens", "K": "batching",
    "L": "proposed", "bounds": "check_bounds", "hoist": "hoisting", "rows": "rows_per_tile",
}  # fmt: skip
"""What entries are called in ledgers from before they had the names of their modules."""


def present_name(entry: str) -> str:
    """The name of an entry as a ledger has it, old or new."""
    return FORMER_NAMES.get(entry, entry)


def by_present_name(history: Mapping[str, EntryHistory]) -> dict[str, EntryHistory]:
    """What earlier runs say of each entry, with the rows under its former name counted in."""
    found: dict[str, EntryHistory] = {}
    for name, one in history.items():
        known = found.get(present_name(name), EntryHistory(present_name(name), 0, 0, None))
        gains = [(each.keeps, each.gain) for each in (known, one) if each.gain is not None]
        logs = sum(keeps * math.log(gain) for keeps, gain in gains)
        gain = math.exp(logs / sum(keeps for keeps, _ in gains)) if gains else None
        found[known.entry] = EntryHistory(known.entry, known.tries + one.tries, known.keeps + one.keeps, gain)
    return found
