"""Compares two versions of a kernel's Tile IR, by line of the kernel's source.

Operations are counted by line, name and type. Memory operations are matched one to one, first by line, then by the
array that they access. For matched operations, the comparison shows how they access memory, and for which operations
they wait.
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
    """A version of a kernel.

    source: the text of its source file.
    tensors: maps the parameter with an array's address (the name has a ``%``) to the name of the array.
    """

    entry: KernelEntry
    source: str = ""
    tensors: Mapping[str, str] = field(default_factory=dict)
    globals: tuple[Global, ...] = ()


@dataclass(frozen=True)
class Place:
    """A position in the kernel's source. ``line``: the line in the kernel, 0 if unknown.

    helper_line: the line in a helper function, if ``line`` calls a helper function of the same file.
    """

    line: int
    helper_line: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.line, self.helper_line or 0

    def __str__(self) -> str:
        within = f" (in line {self.helper_line})" if self.helper_line is not None else ""
        return f"line {self.line}{within}"


@dataclass(frozen=True)
class OperationChange:
    """The number of times that a line has an operation, in the old and in the new version.

    type: the type of the operation's first result, or of the tile that the operation stores.
    details: the attributes that differ from their defaults, e.g. ``value=128``.
    """

    operation: str
    type: str
    details: str
    before: int
    after: int


@dataclass(frozen=True)
class LineChange:
    """A line whose operations differ. ``before`` or ``after`` is None if the old or new version lacks the line."""

    before: Place | None
    after: Place | None
    source_before: str
    source_after: str
    operations: tuple[OperationChange, ...]


@dataclass(frozen=True)
class Reference:
    """A memory operation for which another memory operation waits."""

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
    """A memory operation of one version.

    chain: the number of memory operations that must run one after another before this operation, in one iteration.
    """

    operation: str
    tensor: str | None
    place: Place
    traits: Mapping[str, Trait]
    waits_for: tuple[Reference, ...]
    chain: int

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
    """A memory operation that only one version has, or that accesses memory differently in the two versions."""

    before: MemoryOperation | None
    after: MemoryOperation | None
    changed: tuple[TraitChange, ...] = ()


@dataclass(frozen=True)
class ChainChange:
    """A memory operation whose waits differ between the two versions.

    gained, lost: the operations for which only the new or only the old version waits. The lines in ``lost`` are lines
    of the old version.
    """

    before: MemoryOperation
    after: MemoryOperation
    gained: tuple[Reference, ...]
    lost: tuple[Reference, ...]

    def __str__(self) -> str:
        """Returns a sentence, e.g. ``store of y at line 31 now waits for load of x at line 28``."""
        parts = []
        if self.gained:
            parts.append("now waits for " + ", ".join(map(str, self.gained)))
        if self.lost:
            parts.append("waits no longer for " + ", ".join(f"{lost} (before)" for lost in self.lost))
        if self.before.chain != self.after.chain:
            word = "longer" if self.after.chain > self.before.chain else "shorter"
            parts.append(f"its chain is {word}: {self.before.chain} → {self.after.chain}")
        joint = " " if self.gained or self.lost else ": "
        return f"{named(self.after)}{joint}" + "; ".join(parts)


@dataclass(frozen=True)
class Comparison:
    """The differences of two kernels.

    identical: whether the kernels have the same operations with the same operands and hints.
    hints: changed hints of the whole kernel, e.g. ``occupancy``.
    reordered: if only the order or the operands of operations differ, the first different line of the new version.
    """

    identical: bool
    operations_before: int
    operations_after: int
    lines: tuple[LineChange, ...]
    accesses: tuple[AccessChange, ...]
    chains: tuple[ChainChange, ...]
    hints: tuple[TraitChange, ...]
    reordered: Place | None


def named(access: MemoryOperation) -> str:
    return str(Reference(access.operation, access.tensor, access.place))


def compare(before: Version, after: Version) -> Comparison:
    """Returns all differences between two kernels."""
    a, b = _Indexed(before), _Indexed(after)
    lines = aligned(before.source, after.source, a.first_line, b.first_line)
    if not before.source or not after.source:  # assume that the numbers of the lines have not changed
        lines = {line: line for place in a.by_place for line in (place.line, place.helper_line or 0)}
    same = {place: _moved(place, lines) for place in a.by_place}
    pairs = _paired(a, b, same)
    changes = tuple(_lines(a, b, same)), tuple(_accesses(a, b, pairs)), tuple(_chains(a, b, pairs))
    hints = _differences(_flat(before.entry), _flat(after.entry))
    first = accesses.first_difference(before.entry, after.entry, (before.globals, after.globals))
    count_a, count_b = (sum(map(len, version.by_place.values())) for version in (a, b))
    reordered = b.place(first) if first is not None and not any((*changes, hints)) else None
    return Comparison(first is None and not hints, count_a, count_b, *changes, hints, reordered)


class _Indexed:
    """One version, with its operations by place, and the descriptions of its memory operations."""

    def __init__(self, version: Version) -> None:
        entry = version.entry
        self.first_line = entry.location.line if entry.location else 0
        self._file = entry.location.file if entry.location else None
        self._text = version.source.splitlines()
        self.by_place: dict[Place, list[Op]] = defaultdict(list)
        for op in entry.walk():
            if op.location is not None or op.results:  # skips terminators that the text omits
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
        """Counts operations by name, type and details. The details of memory operations are omitted, because they are
        compared elsewhere."""
        counted: Counter[tuple[str, str, str]] = Counter()
        for op in self.by_place.get(place, ()) if place is not None else ():
            kinds = [kind for kind in op.result_types if not isinstance(kind, TokenType)]
            kind = kinds[0] if kinds else accesses.moved_type(op)
            details = "" if op.name.endswith("_tko") else accesses.details(op)
            counted[op.name, type_text(kind) if kind is not None else "", details] += 1
        return counted

    def references(self, waits: Sequence[Wait]) -> tuple[Reference, ...]:
        return tuple(
            Reference(direction(w.op), self._definitions.tensor(w.op), self.place(w.op), w.earlier_iteration)
            for w in waits
        )


def _moved(place: Place, lines: Mapping[int, int]) -> Place | None:
    """Returns the same place in the other version; None if the other version has no such place.

    lines: maps a line to the line in the other version.
    """
    if place.line == 0:
        return place
    helper = lines.get(place.helper_line) if place.helper_line is not None else None
    if place.line not in lines or (place.helper_line is not None and helper is None):
        return None
    return Place(lines[place.line], helper)


def _lines(a: _Indexed, b: _Indexed, same: Mapping[Place, Place | None]) -> Iterator[LineChange]:
    """Yields changed lines in the order of ``b``, and removed lines between their former neighbours."""
    matched = {new for new in same.values() if new is not None}
    rows: list[tuple[tuple[float, int], Place | None, Place | None]] = []
    rows += [(place.order, None, place) for place in b.by_place if place not in matched]
    position = 0.0
    for old in sorted(a.by_place, key=lambda place: place.order):
        moved = same[old]
        here = moved if moved in b.by_place else None
        position = here.line if here else position
        rows.append((here.order if here else (position + 0.5, old.order[1]), old, here))
    for _, old_place, new_place in sorted(rows, key=lambda row: row[0]):
        before, after = a.counted(old_place), b.counted(new_place)
        keys = (key for key in dict.fromkeys([*before, *after]) if before[key] != after[key])
        if changes := tuple(OperationChange(*key, before[key], after[key]) for key in keys):
            yield LineChange(old_place, new_place, a.source(old_place), b.source(new_place), changes)


def _paired(a: _Indexed, b: _Indexed, same: Mapping[Place, Place | None]) -> dict[Op, Op]:
    """Pairs the memory operations of both versions, in three passes, each in the order of the text.

    The first pass pairs operations with equal line and array, the second with equal line, the third with equal array.
    """
    pairs: dict[Op, Op] = {}
    for by in ((True, True), (True, False), (False, True)):
        paired = set(pairs.values())
        waiting: dict[object, list[Op]] = defaultdict(list)
        for op, access in b.memory.items():
            if op not in paired and (key := _pairing_key(access, access.place, *by)) is not None:
                waiting[key].append(op)
        for op, access in a.memory.items():
            if op not in pairs and (alike := waiting.get(_pairing_key(access, same.get(access.place), *by))):
                pairs[op] = alike.pop(0)
    return pairs


def _pairing_key(access: MemoryOperation, place: Place | None, line: bool, array: bool) -> object:
    """Returns a key that is equal for both operations of a pair; None if the line or the array is unknown.

    line, array: whether the line, and whether the array, are part of the key.
    """
    if (line and place is None) or (array and access.tensor is None):
        return None
    return access.operation, place if line else None, access.tensor if array else None


def _accesses(a: _Indexed, b: _Indexed, pairs: Mapping[Op, Op]) -> Iterator[AccessChange]:
    """Yields changed accesses in the order of the new version, then removed accesses."""
    before = {new: old for old, new in pairs.items()}
    for op, access in b.memory.items():
        if op not in before:
            yield AccessChange(None, access)
        elif changed := _differences(a.memory[before[op]].described, access.described):
            yield AccessChange(a.memory[before[op]], access, changed)
    yield from (AccessChange(access, None) for op, access in a.memory.items() if op not in pairs)


def _chains(a: _Indexed, b: _Indexed, pairs: Mapping[Op, Op]) -> Iterator[ChainChange]:
    """Yields the operations whose waits changed.

    The comparison uses operations, not lines, so a shifted line is no change. A direct wait that became an indirect
    wait, through a third operation, is no change either.
    """
    for old, new in sorted(pairs.items(), key=lambda pair: pair[1].text_line):
        formerly = {(pairs.get(w.op, w.op), w.earlier_iteration) for w in a.chains.all_before(old)}
        now = {(w.op, w.earlier_iteration) for w in b.chains.all_before(new)}
        gained = [w for w in b.chains.waits(new) if (w.op, w.earlier_iteration) not in formerly]
        lost = [w for w in a.chains.waits(old) if (pairs.get(w.op, w.op), w.earlier_iteration) not in now]
        before, after = a.memory[old], b.memory[new]
        if gained or lost or before.chain != after.chain:
            yield ChainChange(before, after, b.references(gained), a.references(lost))


def _differences(before: Mapping[str, Trait], after: Mapping[str, Trait]) -> tuple[TraitChange, ...]:
    traits = ((name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after]))
    return tuple(TraitChange(name, old, new) for name, old, new in traits if old != new)


def _flat(entry: KernelEntry) -> dict[str, Trait]:
    """Returns the values of the kernel's hints by name. A hint for one architecture is named ``sm_100.occupancy``."""
    return {
        hint if architecture == "default" else f"{architecture}.{hint}": value
        for architecture, hints in entry.hints.items()
        for hint, value in hints.items()
    }
