"""Defines the space of a task with several implementations: the configurations of each, marked with its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, zip_longest

from tilewright.errors import SpaceError, UnknownChoice
from tilewright.records import Configuration, Value
from tilewright.space.space import Space

IMPLEMENTATION = "implementation"
"""The knob that names the implementation. It is the first knob of each configuration."""


class SpaceUnion(Space):
    """The spaces of several implementations of one operation.

    A configuration has the knob ``implementation`` and the knobs of that implementation only. The first implementation
    ships, with its shipped configuration.

    spaces: by name of the implementation, at least one.
    """

    def __init__(self, spaces: Mapping[str, Space]) -> None:
        self.spaces = dict(spaces)
        for name, space in self.spaces.items():
            if IMPLEMENTATION in space.knobs:
                raise SpaceError(f"the space of implementation '{name}' has a knob '{IMPLEMENTATION}'; rename it")
        self.constants = {IMPLEMENTATION: tuple(self.spaces)} | _values(each.constants for each in self.spaces.values())
        self.hints = _values(each.hints for each in self.spaces.values())
        self.knobs = (*self.constants, *self.hints)
        self.shipped, self.shipped_for = self.every_shipped[0], {}
        self.where = tuple(predicate for each in self.spaces.values() for predicate in each.where)
        self.include, self.only = (), None

    def __new__(cls, *_: object) -> SpaceUnion:
        return object.__new__(cls)

    def __repr__(self) -> str:
        return f"SpaceUnion({self.spaces})"

    @property
    def every_shipped(self) -> tuple[Configuration, ...]:
        return tuple(_marked(name, space.shipped) for name, space in self.spaces.items())

    def on(self, arch: str) -> SpaceUnion:
        spaces = {name: space.on(arch) for name, space in self.spaces.items()}
        return self if all(spaces[name] is space for name, space in self.spaces.items()) else SpaceUnion(spaces)

    @property
    def points(self) -> int:
        return sum(space.points + len(space.include) for space in self.spaces.values())

    def each(self, arch: int, dims: Mapping[str, Value]) -> Iterator[Configuration]:
        """Yields what `configurations` returns. The implementations take turns, so the first ones are of all."""
        return self._in_turn(space.each(arch, dims) for space in self.spaces.values())

    def drawn(self, count: int, arch: int, dims: Mapping[str, Value], seed: int) -> tuple[Configuration, ...]:
        share = -(-count // len(self.spaces))
        return tuple(self._in_turn(each.drawn(share, arch, dims, seed) for each in self.spaces.values()))[:count]

    def declares(self, config: Configuration) -> bool:
        name, rest = split_off(config)
        return name in self.spaces and self.spaces[name].declares(rest)

    def allows(self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]) -> str | None:
        name, rest = split_off(config)
        return self.space_of(name).allows(rest, arch, dims)

    def dropped(self, arch: int, dims: Mapping[str, Value]) -> tuple[str, ...]:
        return tuple(f"{name}: {line}" for name, space in self.spaces.items() for line in space.dropped(arch, dims))

    def parse(self, text: str) -> Configuration:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        named = [part for part in parts if "=" in part and part.partition("=")[0].strip() == IMPLEMENTATION]
        if not parts:
            return super().parse(text)  # which refuses it
        if len(named) > 1:
            raise SpaceError(f"'{IMPLEMENTATION}' is given twice in '{text}'")
        name = named[0].partition("=")[2].strip() if named else self._first
        others = [part for part in parts if part not in named]
        space = self.space_of(name)
        return _marked(name, space.parse(",".join(others)) if others else space.shipped)

    def split(self, config: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, Value]]:
        name, rest = split_off(config)
        return self.space_of(name).split(rest)

    def neighbours(
        self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]
    ) -> tuple[Configuration, ...]:
        name, rest = split_off(config)
        return tuple(_marked(name, near) for near in self.space_of(name).neighbours(rest, arch, dims))

    def knobs_of(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        own = self.space_of(values[IMPLEMENTATION]).knobs if IMPLEMENTATION in values else ()
        return (IMPLEMENTATION, *own)

    def known_values(self, name: str) -> tuple[Value, ...]:
        if name == IMPLEMENTATION:
            return tuple(self.spaces)
        owners = [space for space in self.spaces.values() if name in space.knobs]
        return tuple(dict.fromkeys(chain.from_iterable(space.known_values(name) for space in owners)))

    def space_of(self, name: Value) -> Space:
        """Returns the space of an implementation. Raises UnknownChoice for another name."""
        if name not in self.spaces:
            raise UnknownChoice("implementation", str(name), self.spaces)
        return self.spaces[str(name)]

    @property
    def _first(self) -> str:
        return next(iter(self.spaces))

    def _in_turn(self, found: Iterator[Iterable[Configuration]]) -> Iterator[Configuration]:
        for turn in zip_longest(*found):
            yield from (_marked(name, each) for name, each in zip(self.spaces, turn, strict=True) if each is not None)

    def _completed(self, given: Mapping[str, Value]) -> Configuration:
        name, rest = split_off(given)
        name = name if IMPLEMENTATION in given else self._first
        return _marked(name, self.space_of(name).chosen(rest)[0])


def split_off(config: Mapping[str, Value]) -> tuple[str, Configuration]:
    """Returns the name of the implementation ("" if the configuration names none), and its own configuration."""
    others = {knob: value for knob, value in config.items() if knob != IMPLEMENTATION}
    return str(config.get(IMPLEMENTATION, "")), Configuration.of(others)


def implementation_of(config: Mapping[str, Value]) -> str:
    """Returns the name of the implementation; "" for a task with only one."""
    return split_off(config)[0]


def _marked(name: str, config: Configuration) -> Configuration:
    return Configuration(((IMPLEMENTATION, name), *config.items_))


def _values(lists: Iterator[Mapping[str, tuple[Value, ...]]]) -> dict[str, tuple[Value, ...]]:
    """Joins the values of each knob."""
    joined: dict[str, dict[Value, None]] = {}
    for each in lists:
        for name, values in each.items():
            joined.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in joined.items()}
