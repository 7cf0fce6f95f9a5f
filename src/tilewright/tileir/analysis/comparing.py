"""Two versions of a kernel's Tile IR side by side, by line of their own source.

Operations are counted by line, name and type. Memory operations are matched one to one (on matched lines first, then by
the array that they access) and compared in how they access memory and in what their tokens make them wait for. Pure:
two entries with their sources go in, frozen records come out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.tileir.analysis import accesses
from tilewright.tileir.analysis.accesses import Trait, direction, type_text
from tilewright.tileir.analysis.alignment import aligned
from tilewright.tileir.analysis.tokens import TokenChains, Wait
from tilewright.tileir.read.tree import Global, KernelEntry, Op, TokenType


@dataclass(frozen=True)
class Version:
    entry: KernelEntry
    source: str = ""
    """Text of the file that holds the kernel."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Parameters (with their %) that are addresses → the arrays' names."""
    globals: tuple[Global, ...] = ()


@dataclass(frozen=True)
class Place:
    """A line of the kernel's own file; 0 where an operation belongs to none."""

    line: int
    helper_line: int | None = None
    """In a helper of the same file that ``line`` calls: the line there."""

    @property
    def order(self) -> tuple[int, int]:
        return self.line, self.helper_line or 0

    def __str__(self) -> str:
        within = f" (in line {self.helper_line})" if self.helper_line is not None else ""
        return f"line {self.line}{within}"


@dataclass(frozen=True)
class OperationChange:
    operation: str
    type: str
    """Of its first result, or of the tile that it stores."""
    details: str
    """Attributes that are not the default, e.g. ``value=128``."""
    before: int
    after: int


@dataclass(frozen=True)
class LineChange:
    """A line whose operations differ; None where the other version has no such line."""

    before: Place | None
    after: Place | None
    source_before: str
    source_after: str
    operations: tuple[OperationChange, ...]


@dataclass(frozen=True)
class Reference:
    """A memory operation that another waits for."""

    operation: str
    tensor: str | None
    place: Place
    earlier_iteration: bool = False

    def __str__(self) -> str:
        of = f" of {self.tensor}" if self.tensor else ""
        back = " of an earlier iteration" if self.earlier_iteration else ""
        return f"{self.operation}{of} at {self.place}{back}"


@dataclass(frozen=True)
class MemoryOperation:
    operation: str
    tensor: str | None
    place: Place
    traits: Mapping[str, Trait]
    waits_for: tuple[Reference, ...]
    chain: int
    """Memory operations that must be done one after another before it, within one iteration."""

    @property
    def described(self) -> dict[str, Trait]:
        return {**self.traits, "tensor": self.tensor}


@dataclass(frozen=True)
class TraitChange:
    trait: str
    before: Trait
    after: Trait


@dataclass(frozen=True)
class AccessChange:
    """A load or store that changed how it accesses memory, or that only one version has."""

    before: MemoryOperation | None
    after: MemoryOperation | None
    changed: tuple[TraitChange, ...] = ()


@dataclass(frozen=True)
class ChainChange:
    """A memory operation of both versions that waits for something else."""

    before: MemoryOperation
    after: MemoryOperation
    gained: tuple[Reference, ...]
    lost: tuple[Reference, ...]
    """In the places of the version before."""

    def __str__(self) -> str:
        """As a sentence, e.g. ``store of y at line 31 now waits for load of x at line 28``."""
        said = []
        if self.gained:
            said.append("now waits for " + ", ".join(map(str, self.gained)))
        if self.lost:
            said.append("waits no longer for " + ", ".join(f"{one} (before)" for one in self.lost))
        if self.before.chain != self.after.chain:
            word = "longer" if self.after.chain > self.before.chain else "shorter"
            said.append(f"its chain is {word}: {self.before.chain} → {self.after.chain}")
        joint = " " if self.gained or self.lost else ": "
        return f"{named(self.after)}{joint}" + "; ".join(said)


@dataclass(frozen=True)
class Comparison:
    """What differs. ``identical``: the same operations with the same operands, wherever they stand."""

    identical: bool
    operations_before: int
    operations_after: int
    lines: tuple[LineChange, ...]
    accesses: tuple[AccessChange, ...]
    chains: tuple[ChainChange, ...]
    hints: tuple[TraitChange, ...]
    """Of the kernel as a whole, e.g. ``occupancy``."""
    reordered: Place | None
    """Where only order or operands differ: the first such line of the version after."""


def named(access: MemoryOperation) -> str:
    return str(Reference(access.operation, access.tensor, access.place))


def compare(before: Version, after: Version) -> Comparison:
    """Everything that differs between two kernels."""
    a, b = _Read(before), _Read(after)
    lines = aligned(before.source, after.source, a.first_line, b.first_line)
    if not before.source or not after.source:  # then equal numbers are the best guess
        lines = {line: line for place in a.by_place for line in (place.line, place.helper_line or 0)}
    same = {place: _moved(place, lines) for place in a.by_place}
    pairs = _paired(a, b, same)
    changed_lines, chains = tuple(_lines(a, b, same)), tuple(_chains(a, b, pairs))
    changed_accesses = tuple(_accesses(a, b, pairs))
    hints = _differences(_flat(before.entry), _flat(after.entry))
    reordered = accesses.first_difference(before.entry, after.entry, (before.globals, after.globals))
    told = bool(changed_lines or changed_accesses or chains or hints)
    return Comparison(
        identical=reordered is None and not hints,
        operations_before=sum(map(len, a.by_place.values())),
        operations_after=sum(map(len, b.by_place.values())),
        lines=changed_lines,
        accesses=changed_accesses,
        chains=chains,
        hints=hints,
        reordered=None if told or reordered is None else b.place(reordered),
    )


class _Read:
    """One version, with its operations by place and its memory operations described."""

    def __init__(self, version: Version) -> None:
        entry = version.entry
        self.first_line = entry.location.line if entry.location else 0
        self._file = entry.location.file if entry.location else None
        self._text = version.source.splitlines()
        self.by_place: dict[Place, list[Op]] = defaultdict(list)
        for op in entry.walk():
            if op.location is not None or op.results:  # not the ends of regions that the text leaves out
                self.by_place[self.place(op)].append(op)
        self.chains = TokenChains(entry)
        self._definitions = accesses.Definitions(entry, version.tensors)
        self.memory = {
            op: MemoryOperation(
                direction(op), self._definitions.tensor(op), self.place(op), accesses.traits(op, self._definitions),
                self.references(self.chains.waits(op)), self.chains.length(op),
            )
            for op in self.chains.ops
        }  # fmt: skip

    def place(self, op: Op) -> Place:
        if (own := op.location) is None:
            return Place(0)
        line = own.outermost.line
        while own.caller is not None and own.file != self._file:
            own = own.caller
        return Place(line, own.line if own.caller is not None else None)

    def source(self, place: Place | None) -> str:
        number = (place.helper_line or place.line) if place else 0
        return self._text[number - 1].strip() if 0 < number <= len(self._text) else ""

    def counted(self, place: Place | None) -> Counter[tuple[str, str, str]]:
        """Operations by name, type and details: how memory is accessed is compared on its own."""
        counted: Counter[tuple[str, str, str]] = Counter()
        for op in self.by_place.get(place, ()) if place is not None else ():
            kinds = [kind for kind in op.result_types if not isinstance(kind, TokenType)]
            kind = kinds[0] if kinds else accesses.moved_type(op)
            details = "" if op.name.endswith("_tko") else accesses.details(op)
            counted[op.name, type_text(kind) if kind is not None else "", details] += 1
        return counted

    def references(self, waits: Sequence[Wait]) -> tuple[Reference, ...]:
        return tuple(
            Reference(direction(op), self._definitions.tensor(op), self.place(op), wait.earlier_iteration)
            for wait in waits
            for op in (wait.op,)
        )


def _moved(place: Place, lines: Mapping[int, int]) -> Place | None:
    if place.line == 0:
        return place
    helper = lines.get(place.helper_line) if place.helper_line is not None else None
    if place.line not in lines or (place.helper_line is not None and helper is None):
        return None
    return Place(lines[place.line], helper)


def _lines(a: _Read, b: _Read, same: Mapping[Place, Place | None]) -> Iterator[LineChange]:
    """Changed lines in the order of ``b``; removed ones where they were."""
    matched = {new for new in same.values() if new is not None}
    rows: list[tuple[tuple[float, int], Place | None, Place | None]] = []
    rows += [(place.order, None, place) for place in b.by_place if place not in matched]
    position = 0.0
    for old in sorted(a.by_place, key=lambda place: place.order):
        moved = same[old]
        here = moved if moved in b.by_place else None
        position = here.line if here else position
        rows.append((here.order if here else (position + 0.5, old.order[1]), old, here))
    for _, one, other in sorted(rows, key=lambda row: row[0]):
        before, after = a.counted(one), b.counted(other)
        changes = tuple(
            OperationChange(*key, before[key], after[key])
            for key in dict.fromkeys([*before, *after])
            if before[key] != after[key]
        )
        if changes:
            yield LineChange(one, other, a.source(one), b.source(other), changes)


def _paired(a: _Read, b: _Read, same: Mapping[Place, Place | None]) -> dict[Op, Op]:
    """Memory operations of both versions: by line and array, then by line, then by array, in order."""
    pairs: dict[Op, Op] = {}
    for by in ((True, True), (True, False), (False, True)):
        taken = set(pairs.values())
        waiting: dict[object, list[Op]] = defaultdict(list)
        for op, one in b.memory.items():
            if op not in taken and (key := _matching(one, one.place, *by)) is not None:
                waiting[key].append(op)
        for op, one in a.memory.items():
            if op not in pairs and (alike := waiting.get(_matching(one, same.get(one.place), *by))):
                pairs[op] = alike.pop(0)
    return pairs


def _matching(one: MemoryOperation, place: Place | None, line: bool, array: bool) -> object:
    """What a memory operation of the other version must have in common with ``one``; None where it is not known."""
    if (line and place is None) or (array and one.tensor is None):
        return None
    return one.operation, place if line else None, one.tensor if array else None


def _accesses(a: _Read, b: _Read, pairs: Mapping[Op, Op]) -> Iterator[AccessChange]:
    """In the order of the version after, then what is gone."""
    before = {other: op for op, other in pairs.items()}
    for op, one in b.memory.items():
        if op not in before:
            yield AccessChange(None, one)
        elif changed := _differences(a.memory[before[op]].described, one.described):
            yield AccessChange(a.memory[before[op]], one, changed)
    yield from (AccessChange(one, None) for op, one in a.memory.items() if op not in pairs)


def _chains(a: _Read, b: _Read, pairs: Mapping[Op, Op]) -> Iterator[ChainChange]:
    """Waits are compared by the operation, not by its line: a line that only shifted changes nothing. Nor does one that
    is still waited for by way of another."""
    for op, other in sorted(pairs.items(), key=lambda pair: pair[1].text_line):
        still = {(pairs.get(wait.op, wait.op), wait.earlier_iteration) for wait in a.chains.all_before(op)}
        now = {(wait.op, wait.earlier_iteration) for wait in b.chains.all_before(other)}
        gained = [w for w in b.chains.waits(other) if (w.op, w.earlier_iteration) not in still]
        lost = [w for w in a.chains.waits(op) if (pairs.get(w.op, w.op), w.earlier_iteration) not in now]
        before, after = a.memory[op], b.memory[other]
        if gained or lost or before.chain != after.chain:
            yield ChainChange(before, after, b.references(gained), a.references(lost))


def _differences(before: Mapping[str, Trait], after: Mapping[str, Trait]) -> tuple[TraitChange, ...]:
    return tuple(
        TraitChange(name, before.get(name), after.get(name))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    )


def _flat(entry: KernelEntry) -> dict[str, Trait]:
    return {
        hint if architecture == "default" else f"{architecture}.{hint}": value
        for architecture, hints in entry.hints.items()
        for hint, value in hints.items()
    }
