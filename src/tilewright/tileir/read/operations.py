"""Reads operations without regions. `syntax.TABLE` has a line for each operation. The parts of the line are read one
after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilewright.tileir.read import literals
from tilewright.tileir.read.places import Places
from tilewright.tileir.read.scanner import Scanner, T
from tilewright.tileir.read.syntax import CHOICES, DEFAULT, TABLE, WORD, Part, parts_of
from tilewright.tileir.read.tree import Attribute, Op, PointerType, Region, TensorViewType, TileType, TokenType, Type
from tilewright.tileir.read.type_reader import read_type

Value: TypeAlias = tuple[str, Type]
"""A value's name and type. The name is unique in the kernel entry."""


@dataclass
class Reading:
    """The state of reading a kernel entry: the position in the text, and the values that are defined there.

    Two regions may use one name for two values. The second value then gets a number (``%arg3@2``), so that names are
    unique.
    """

    scanner: Scanner
    places: Places
    scopes: list[dict[str, Value]] = field(default_factory=lambda: [{}])
    times_defined: dict[str, int] = field(default_factory=dict)

    def value(self) -> Value:
        start = self.scanner.at
        name = self.scanner.value()
        if not (value := self._find(name)):
            raise self.scanner.error(f"{name} is not defined here", start)
        return value

    def values(self) -> list[Value]:
        return self._listed(self.value) if self.scanner.sees("%") else []

    def types(self) -> list[Type]:
        return self._listed(lambda: read_type(self.scanner))

    def _listed(self, read: Callable[[], T]) -> list[T]:
        found = [read()]
        while self.scanner.accept(","):
            found.append(read())
        return found

    def _find(self, name: str) -> Value | None:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def define(self, name: str, type_: Type, start: int) -> str:
        """Defines a value in the innermost scope. Returns its unique name."""
        if self._find(name):
            raise self.scanner.error(f"{name} is defined twice", start)
        self.times_defined[name] = times = self.times_defined.get(name, 0) + 1
        unique = name if times == 1 else f"{name}@{times}"
        self.scopes[-1][name] = (unique, type_)
        return unique

    def check(self, value: Value, type_: Type, start: int) -> None:
        """Raises ReadError if the type in the text is not the type of the value."""
        if value[1] != type_:
            raise self.scanner.error(f"{value[0]} is {value[1]}, not {type_}", start)


@dataclass
class Draft:
    """An operation that is being read. ``names``: the names of its results. ``results``: the types of the results by
    position."""

    name: str
    names: list[str]
    start: int
    line: int
    operands: dict[str, list[Value]] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    results: dict[int, Type] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)

    def finish(self, reading: Reading) -> Op:
        """Reads the location, defines the results, and returns the operation. Raises ReadError if the number of result
        names differs from the number of result types."""
        if len(self.results) != len(self.names):
            message = f"'{self.name}' has {len(self.results)} results, but {len(self.names)} are named"
            raise reading.scanner.error(message, self.start)
        types = tuple(self.results[place] for place in sorted(self.results))
        location = reading.places.read(reading.scanner)
        return Op(
            self.name,
            tuple(reading.define(name, type_, self.start) for name, type_ in zip(self.names, types, strict=True)),
            types,
            {name: tuple(value for value, _ in values) for name, values in self.operands.items()},
            {name: tuple(type_ for _, type_ in values) for name, values in self.operands.items()},
            self.attributes,
            tuple(self.regions),
            location,
            self.line,
        )


def read_plain(reading: Reading, draft: Draft) -> Op:
    """Reads the rest of an operation without regions, after its name. Raises ReadError if the name is unknown."""
    if draft.name == "constant":
        value, tile = literals.read_constant(reading.scanner, lambda: read_tile(reading.scanner))
        draft.attributes["value"], draft.results[0] = value, tile
    elif draft.name == "make_tensor_view":
        _make_tensor_view(reading, draft)
    elif draft.name not in TABLE:
        raise reading.scanner.error(f"unknown operation '{draft.name}'", draft.start)
    else:
        parts, types = parts_of(TABLE[draft.name])
        for part in parts:
            _read_part(reading, draft, part)
        if draft.name == "load_ptr_tko":
            _tell_padding_from_mask(reading, draft)
        _read_types(reading, draft, types)
    return draft.finish(reading)


def _tell_padding_from_mask(reading: Reading, draft: Draft) -> None:
    """Decides whether a load's only optional operand is the mask or the padding value, and renames the operand.

    The text writes both in the same position, so the operand's type decides. Raises ReadError for a load of booleans,
    because there the mask and the padding value have the same type.
    """
    mask, padding = draft.operands["mask"], draft.operands["paddingValue"]
    if not mask or padding:
        return
    kind, source = mask[0][1], draft.operands["source"][0][1]
    element = source.element if isinstance(source, TileType) else None
    pointee = element.pointee if isinstance(element, PointerType) else None
    if pointee == "i1":
        raise reading.scanner.error("a load of booleans: its mask and its padding value look alike", draft.start)
    if isinstance(kind, TileType) and kind.element == pointee:
        draft.operands["mask"], draft.operands["paddingValue"] = padding, mask


def _read_part(reading: Reading, draft: Draft, part: Part) -> None:
    scanner, name = reading.scanner, part.name
    if part.sign == "":
        scanner.expect(name)
    elif part.sign == "%":
        draft.operands[name] = reading.values() if part.many else [reading.value()]
    elif part.sign == ",%":
        values = draft.operands[name] = []
        while (part.many or not values) and scanner.accept(","):
            values.append(reading.value())
    elif part.sign == "token":
        present = scanner.accept("token")
        if present:
            scanner.expect("=")
        draft.operands[name] = [reading.value()] if present else []
    else:
        draft.attributes[name] = _attribute(scanner, part)


def _attribute(scanner: Scanner, part: Part) -> Attribute:
    if part.sign == "!":
        return scanner.accept(part.default or part.name)
    if part.sign == "#":
        return scanner.integer()
    if part.sign == "$":
        return _choice(scanner, part)
    if part.sign == "@":
        return _ATTRIBUTES[part.name](scanner)
    if not scanner.accept(WORD[part.name]):
        return part.default or DEFAULT[part.name]
    scanner.expect("<")
    choice = _choice(scanner, part)
    scanner.expect(">")
    return choice


def _choice(scanner: Scanner, part: Part) -> str | None:
    choices = CHOICES[part.name]
    choice = next((choice for choice in choices if scanner.accept(choice)), None)
    if choice is None and not part.optional:
        raise scanner.error(f"expected one of {', '.join(choices)}")
    return choice


def _inbounds(scanner: Scanner) -> tuple[bool, ...]:
    if not scanner.accept("inbounds"):
        return ()
    scanner.expect("=")
    return scanner.several("[]", lambda: literals.read_flag(scanner))


_ATTRIBUTES: Mapping[str, Callable[[Scanner], Attribute]] = {
    "inbounds": _inbounds,
    "optimization_hints": lambda scanner: literals.read_hints(scanner) if scanner.accept("optimization_hints") else {},
    "permutation": lambda scanner: scanner.several("[]", scanner.integer),
    "predicate": literals.read_assumption,
    "message": Scanner.string, "str": Scanner.string, "name": Scanner.symbol,
}  # fmt: skip


def _read_types(reading: Reading, draft: Draft, line: str) -> None:
    """Reads the types of an operation in the order that ``line`` of the table gives. Checks the operands' types, and
    keeps the results' types."""
    if not line:  # operations on tokens have no types in the text
        draft.results = dict.fromkeys(range(len(draft.names)), TokenType())
        return
    left, _, right = line.removeprefix("?").partition("->")
    before = _expanded(draft, left)
    if before or not (line.startswith("?") or line.startswith("->")):
        reading.scanner.expect(":")
    _read_slots(reading, draft, before)
    if right:
        reading.scanner.expect("->")
        _read_slots(reading, draft, _expanded(draft, right))


def _expanded(draft: Draft, slots: str) -> list[list[int | Value]]:
    """Returns a list for each type in the text. The list has the results (by position) and operands of this type."""
    found: list[list[int | Value]] = []
    for slot in filter(None, (slot.strip() for slot in slots.split(","))):
        if slot == "all":
            found.extend([list(range(len(draft.names)))] if draft.names else [])
        elif slot[-1] in "?*":
            found.extend([value] for value in draft.operands[slot[:-1]])
        elif slot[-1] == "+":
            values = draft.operands[slot[:-1]]
            agreeing = len({type_ for _, type_ in values}) == 1
            found.extend([list(values)] if agreeing else [[value] for value in values])
        else:
            found.append([])
            for name in slot.split("/"):
                found[-1].extend([int(name)] if name.isdigit() else draft.operands[name])
    return found


def _read_slots(reading: Reading, draft: Draft, slots: list[list[int | Value]]) -> None:
    for place, slot in enumerate(slots):
        if place:
            reading.scanner.expect(",")
        start, type_ = reading.scanner.at, read_type(reading.scanner)
        for part in slot:
            if isinstance(part, int):
                draft.results[part] = type_
            else:
                reading.check(part, type_, start)


def read_tile(scanner: Scanner) -> TileType:
    start, type_ = scanner.at, read_type(scanner)
    if not isinstance(type_, TileType):
        raise scanner.error("expected a tile", start)
    return type_


def _make_tensor_view(reading: Reading, draft: Draft) -> None:
    """Reads ``%base, shape = [%n, 64], strides = [64, 1] : tile<i64> -> tensor_view<…>``. The numbers must equal those
    in the type."""
    scanner = reading.scanner
    draft.operands["base"] = [reading.value()]
    written = {}
    for operand, word in (("dynamicShape", "shape"), ("dynamicStrides", "strides")):
        scanner.expect(",", word, "=")
        items = scanner.several("[]", lambda: reading.value() if scanner.sees("%") else scanner.integer())
        draft.operands[operand] = [item for item in items if not isinstance(item, int)]
        written[operand] = tuple(item if isinstance(item, int) else None for item in items)
    scanner.expect(":")
    start, type_ = scanner.at, read_type(scanner)
    dynamic = draft.operands["dynamicShape"] + draft.operands["dynamicStrides"]
    if dynamic:
        for value in dynamic:
            reading.check(value, type_, start)
        scanner.expect("->")
        start, type_ = scanner.at, read_type(scanner)
    if not isinstance(type_, TensorViewType):
        raise scanner.error("expected a tensor_view", start)
    if (written["dynamicShape"], written["dynamicStrides"]) != (type_.shape, type_.strides):
        raise scanner.error("the shape and strides differ from the type", start)
    draft.results[0] = type_
