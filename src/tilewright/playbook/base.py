"""Defines the protocol of a playbook entry: one kind of change to the source of a kernel.

An entry is one file with a description and two methods. `Entry.sites` lists the places in the source where the change
applies, and may use facts about the incumbent: counted work, machine code, bounds. `Entry.apply` makes the change at
one of these places. Every new version is verified and measured afterwards, so an entry need not prove that its change
keeps the result. But an entry should not offer changes that cannot help, because each version costs a compilation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, ParamSpec, TypeAlias, TypeVar

import libcst as cst

from tilewright.hardware.architectures import Board
from tilewright.hardware.diagnosis import Resource
from tilewright.hardware.prediction_error import ChangeKind
from tilewright.inspect.work import CountedWork, diagnosis_of
from tilewright.languages import language_of
from tilewright.ledger.records import EntryHistory
from tilewright.playbook.analyses.short_lines import with_short_lines
from tilewright.records import Bound, MachineCode, Value, Workload
from tilewright.source.parsed import Node
from tilewright.source.syntax import Function, Source
from tilewright.task.task import Launch, Task

P = ParamSpec("P")
Result = TypeVar("Result")
Risk: TypeAlias = Literal["lossless", "lossy"]
"""A lossy change rounds differently by design. It is tried only if the user allows it, and marked in the report."""
Values: TypeAlias = tuple[Value, ...]
ANY_LANGUAGE = "any"
HINTS_OF_TILES = ("occupancy", "worker_warps", "latency")
"""The entries whose hints interact with most changes of a cuTile kernel's structure."""
LAST = 99  # the rank of an entry for a kind of bound that its `priority` does not name


class NotApplicable(Exception):
    """The entry cannot change this site to this value; the message says why in one line."""


def unless_refused(function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result | None:
    """Returns the result of ``function``, or None if it raises `NotApplicable`."""
    try:
        return function(*args, **kwargs)
    except NotApplicable:
        return None


def refusal(function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> str:
    """Returns the message of the `NotApplicable` that ``function`` raises; "" if it raises none."""
    try:
        function(*args, **kwargs)
    except NotApplicable as reason:
        return str(reason)
    return ""


def refused_at(source: Source, node: cst.CSTNode, reason: str) -> NotApplicable:
    """Makes the exception that refuses a change; its message begins with the file and the line of a node."""
    return NotApplicable(f"{source.name}:{source.place(node)[0]}: {reason}")


@dataclass(frozen=True)
class Effect:
    """An expected speedup as a factor (1.05: 5 % less time), between ``low`` and ``high``.

    ``source`` says where the figures come from, and ``date`` when they were taken: ``2026-11-21``.
    """

    low: float
    high: float
    source: str
    date: str

    @classmethod
    def assumed(cls, low: float, high: float, *, kept: int = 0, of: int = 0) -> Effect:
        """Makes an effect that is assumed from general experience.

        kept, of: in the recorded runs on an H200, the change was tried ``of`` times and kept ``kept`` times.
        """
        recorded = f"kept in {kept} of {of} tries in bench/recorded/h200-naive-2026-11-21.json"
        return cls(low, high, f"assumed; {recorded if of else 'not tried in the recorded runs'}", "2026-11-21")

    @property
    def expected(self) -> float:
        """The expected speedup: the geometric mean of ``low`` and ``high``."""
        return float((self.low * self.high) ** 0.5)


@dataclass(frozen=True)
class EntryDescription:
    """Describes an entry to the person whose code the entry changes.

    ``id`` is the name of the entry's module; commands, ledgers and reports use it. ``priority`` ranks the entry among
    all entries for each kind of bound (``memory``, ``balanced``, ``compute``): rank 1 is tried first. ``order`` sorts
    lists of entries; by default, entries of other packages come last. ``language`` is the language of the kernels that
    the entry changes; an entry with `ANY_LANGUAGE` changes only knobs. ``tries`` limits how often the entry is tried at
    one site; it is tried again only after another change was kept. ``eases`` names the resources that the change makes
    a smaller limit: if one of them limits the kernel, the entry is tried early. An entry with ``first`` comes before
    all others on the untouched code if times are measured, so that later changes have to beat what it finds.

    ``together`` makes the change structural: it is tried with the entries of these names, too. They are added one after
    another to the best predicted versions, and all versions are judged as one field. So the change is compared at its
    own best hints, not at the incumbent's. Of an entry with ``all_values``, all values are added, and only to the first
    version, not to the best predicted: they choose another compiler, which the prediction does not compare.
    """

    id: str
    name: str
    what: str
    when: str
    when_not: str
    priority: Mapping[str, int]
    effect: Effect
    risk: Risk = "lossless"
    order: int = 1000
    language: str = "cutile"
    tries: int = 2
    together: tuple[str, ...] = ()
    all_values: bool = False
    eases: tuple[Resource, ...] = ()
    first: bool = False

    def place(self, kind: str) -> int:
        """Returns the entry's rank for a kind of bound."""
        return self.priority.get(kind, LAST)

    def is_for(self, language: str) -> bool:
        """Returns whether the entry changes kernels of ``language``."""
        return self.language in (language, ANY_LANGUAGE)


@dataclass(frozen=True)
class Site:
    """One place in the source where an entry applies.

    ``kernel`` is the function that is changed. ``line`` (from 1) and ``column`` (from 0) are positions in the source in
    which the entry looked for sites. ``what`` describes the site in a few words for a table: ``load of x``.

    ``values`` are the values that `Entry.apply` accepts here, the most promising first; all are tried in one iteration.
    If compilations are needed to find values, ``values`` is empty: ``search`` returns them, perhaps none, when the site
    is tried. ``promise`` multiplies the entry's expected gain: below 1 if little can be gained. ``why`` gives the
    reason for the promise. ``only_on`` is the architecture for which a value is written, if others keep their own.
    """

    kernel: str
    line: int
    column: int
    what: str
    values: Values
    promise: float = 1.0
    why: str = ""
    search: Callable[[], Values] | None = field(default=None, compare=False, repr=False)
    only_on: str = ""

    @classmethod
    def at(
        cls, source: Source, node: cst.CSTNode, what: str, values: Values, promise: float = 1.0, why: str = ""
    ) -> Site:
        """Makes the site that begins where ``node`` begins."""
        return cls(source.function_of(node), *source.place(node), what, values, promise, why)

    def values_to_try(self) -> Values:
        """Returns the values of the site. Calls its ``search`` function if there is one."""
        return self.search() if self.search else self.values

    def node(self, source: Source, nodes: Iterable[Node], missing: str) -> Node:
        """Returns the first of ``nodes`` that begins at this site. Raises `NotApplicable` with the message
        ``missing``."""
        for node in nodes:
            if source.place(node) == (self.line, self.column):
                return node
        raise self.refused(source, missing)

    def function(self, source: Source) -> Function:
        """Returns the function that contains this site. Raises `NotApplicable` if there is none."""
        if self.kernel not in source.functions:
            raise self.refused(source, f"there is no function {self.kernel}")
        return source.functions[self.kernel]

    def function_here(self, source: Source) -> Function:
        """Returns the function that begins at this site. Raises `NotApplicable` if there is none."""
        return self.node(source, [self.function(source)], f"{self.kernel} does not begin here")

    def refused(self, source: Source, reason: str) -> NotApplicable:
        """Makes the exception that refuses a change here; its message begins with the file and the line."""
        return NotApplicable(f"{source.name}:{self.line}: {reason}")

    def __str__(self) -> str:
        return f"{self.what}, {self.kernel} line {self.line}"


@dataclass(frozen=True)
class KernelFacts:
    """The facts about the incumbent, the version that an entry may change.

    task: the task; it ships the incumbent's configuration.
    bounds: the bound of each workload by name, from the baseline's counted work.
    codes: the machine code of the shipped configuration for each workload, by name.
    count: returns the counted work of the incumbent's Tile IR for a workload. Counts each workload only once.
    """

    task: Task
    board: Board
    workloads: tuple[Workload, ...]
    bounds: Mapping[str, Bound]
    codes: Mapping[str, MachineCode]
    count: Callable[[Workload], CountedWork] = field(repr=False)

    def launch(self, workload: Workload) -> Launch:
        """Calls the task's launch for one workload, with array specifications in place of arrays."""
        task = self.task
        return task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), self.board)

    @property
    def launches(self) -> list[Launch]:
        """The launch of each workload."""
        return [self.launch(workload) for workload in self.workloads]

    @property
    def kernel(self) -> str:
        """The name of the kernel function that the task launches."""
        kernel = self.launch(self.workloads[0]).kernel
        return language_of(kernel).kernel_name(kernel)

    @property
    def sm(self) -> int:
        """The compute capability as one number, such as 90."""
        return self.board.sm

    @cached_property
    def limits(self) -> tuple[Resource, ...]:
        """The resource that limits each workload, from its machine code and predicted time. A workload that runs at
        its bound has none."""
        found = []
        for workload in (each for each in self.workloads if each.name in self.codes):
            launched = self.codes[workload.name], self.launch(workload).grid
            counted, bound = self.count(workload), self.bounds[workload.name]
            found.append(diagnosis_of(self.task, workload, launched, bound, self.board, counted))
        return tuple(dict.fromkeys(each.limit.resource for each in found if not each.at_the_bound))

    def sites_of(self, entry: Entry, source: Source) -> Sequence[Site]:
        """Returns the entry's sites in a source. Searches each source only once: a search may take a second."""
        key = id(entry), source.name, source.text
        if key not in self._sites:
            self._sites[key] = entry, entry.sites(source, self)  # the entry is held, so that its id stays its own
        return self._sites[key][1]

    @cached_property
    def _sites(self) -> dict[tuple[int, str, str], tuple[Entry, Sequence[Site]]]:
        return {}

    @property
    def kind(self) -> str:
        """The kind of bound that most workloads have."""
        kinds = [bound.kind for bound in self.bounds.values()]
        return max(kinds, key=kinds.count)


class Entry(ABC):
    """A playbook entry: a description and two methods, without state."""

    about: EntryDescription
    rest: tuple[str, ...] = ()
    """The entries whose changes must follow this one, by name; none for most entries (see `combined`)."""
    combined: bool = False
    """Whether the entry's field has what other entries would try alone, with more changes added."""

    @abstractmethod
    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        """Returns the places of ``source`` where the entry applies, the most promising first; may be empty."""

    @abstractmethod
    def apply(self, source: Source, site: Site, value: Value) -> str:
        """Returns the whole text of the file with exactly this change. Raises `NotApplicable` if that is impossible."""

    def change(self, source: Source, site: Site, value: Value) -> str:
        """Returns the text that `apply` returns, with new lines broken to under 120 characters where possible."""
        return with_short_lines(source.text, self.apply(source, site, value))

    def kind(self, value: Value) -> ChangeKind:
        """Returns the kind of the change to ``value``. The margin of a predicted difference depends on this kind."""
        return "form"

    def findings(self, source: Source, facts: KernelFacts) -> Sequence[str]:
        """Returns problems that the entry finds but cannot solve, one line each, for a person to look into."""
        return ()

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        """Returns the reason why the launched kernel has no site, in a few words; "" if no reason is known."""
        return ""

    def applies(self, source: Source, site: Site) -> bool:
        """Returns whether the first value of a site can be applied."""
        return unless_refused(self.apply, source, site, site.values[0]) is not None


FORMER_NAMES: Mapping[str, str] = {
    "A": "tile_load", "A-reverse": "gather_load", "B": "persistent", "C": "tune_space", "D": "tf32",
    "D-lossy": "tf32_lossy", "E": "latency", "F": "allow_tma", "G": "tile_sizes", "H-exp2": "exp2",
    "H-ftz": "flush_to_zero", "H-approx": "approximate", "I": "swizzle", "J": "tokens", "K": "batching",
    "L": "proposed", "bounds": "check_bounds", "hoist": "hoisting", "rows": "rows_per_tile",
}  # fmt: skip
"""Maps an entry's name in ledgers of earlier versions to the present name."""


def present_name(entry: str) -> str:
    """Returns the present name of an entry; ``entry`` may be a former name."""
    return FORMER_NAMES.get(entry, entry)


def by_present_name(history: Mapping[str, EntryHistory]) -> dict[str, EntryHistory]:
    """Merges the histories of one entry under its former and present names.

    The numbers of tries and of kept changes are summed. The gain is the geometric mean of the gains, weighted by the
    number of kept changes; None if no gain is known.
    """
    merged: dict[str, EntryHistory] = {}
    for former, added in history.items():
        name = present_name(former)
        known = merged.get(name, EntryHistory(name, 0, 0, None))
        gains = [(row.keeps, row.gain) for row in (known, added) if row.gain is not None]
        logs = sum(keeps * math.log(gain) for keeps, gain in gains)
        gain = math.exp(logs / sum(keeps for keeps, _ in gains)) if gains else None
        merged[name] = EntryHistory(name, known.tries + added.tries, known.keeps + added.keeps, gain)
    return merged
