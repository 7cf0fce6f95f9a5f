"""Defines the space of a kernel's configurations: their order, their constraints, and reasons for forbidden ones.

The search, the command line and the launch wrapper check all constraints with `Space.allows`. The rules of every space:

- The configuration shipped today is always the first, even if a rule forbids it. `allows` still returns the problem.
- A tile size (a constant named TILE… or BLOCK…, see `knobs`) is a power of two.
- ``num_ctas`` is above 1 only on `knobs.CLUSTER_ARCHITECTURES`.
- The predicates in ``where`` hold.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from tilewright.errors import SpaceError, UnknownChoice, choices
from tilewright.records import Configuration, Value
from tilewright.space import knobs
from tilewright.space.predicates import Predicate

Choice: TypeAlias = str | Mapping[str, Value]
"""A configuration as a caller writes it: ``"TILE_M=128,occupancy=2"``, or a mapping of knob to value."""

MOST_POINTS = 1_000_000  # a larger product is not listed
DRAWS = 50
"""How many points are drawn for each configuration that `Space.drawn` is to return, at most."""
TESTED = 5000
"""How many points `Space.dropped` tests for one value, at most. Then the value counts as used."""


class Space:
    """The knobs of a kernel and the constraints between them.

    constants: maps a knob to its values, which are passed to the kernel.
    hints: maps a hint in `knobs.hints` to its values, which are passed to the compiler. None lets the compiler choose.
    shipped: the configuration in production today, with a value for every knob.
    shipped_for: maps an architecture such as ``sm_90`` to the shipped values that differ there.
    where: predicates. Their parameters are knobs, workload dimensions or ``arch`` (an int such as 90).
    include: extra points. Missing knobs take their shipped values.
    only: points that replace the product of the knob lists. Missing knobs take their shipped values.
    Raises `SpaceError`.
    """

    def __new__(cls, **options: object) -> Space:
        known = ("constants", "hints", "shipped", "shipped_for", "where", "include", "only")
        if unknown := [name for name in options if name not in known]:
            raise SpaceError(f"Space has no option '{unknown[0]}'; {choices(unknown[0], known)}")
        return super().__new__(cls)

    def __init__(
        self,
        *,
        constants: Mapping[str, Sequence[Value]] = MappingProxyType({}),
        hints: Mapping[str, Sequence[Value]] = MappingProxyType({}),
        shipped: Mapping[str, Value],
        shipped_for: Mapping[str, Mapping[str, Value]] = MappingProxyType({}),
        where: Sequence[Callable[..., bool]] = (),
        include: Sequence[Mapping[str, Value]] = (),
        only: Sequence[Mapping[str, Value]] | None = None,
    ):
        self.constants = _lists("constants", constants)
        self.hints = _lists("hints", hints)
        self._check_names()
        self.knobs = (*self.constants, *self.hints)
        self.shipped = self._shipped(shipped)
        self._refuse_bad_tiles()
        self._shipped_by_default, self.shipped_for = self.shipped, self._shipped_for(shipped_for)
        self.where = tuple(Predicate(function) for function in _listed("where", where, "functions"))
        self.include = self._points("include", include)
        self.only = None if only is None else self._points("only", only)
        if self.only == ():
            raise SpaceError("only= is empty; list at least one configuration, or leave only= out")

    @staticmethod
    def checked(obj: object) -> Space:
        """Returns ``obj`` if it is a `Space`. Otherwise raises SpaceError with the fix."""
        if isinstance(obj, Space):
            return obj
        if obj is None:
            raise SpaceError("space is None; pass tilewright.Space(constants=…, hints=…, shipped=…)")
        fix = "pass tilewright.Space(…)"
        if isinstance(obj, Mapping):
            fix = "pass tilewright.Space(constants={…}, hints={…}, shipped={…})"
        elif isinstance(obj, (Iterator, Sequence)) and not isinstance(obj, str):
            fix = "pass tilewright.Space(only=[…], …), with a list of configurations"
        raise SpaceError(f"space is {_kind(obj)}; {fix}")

    def __repr__(self) -> str:
        lists = ", ".join(f"{name}={list(values)}" for name, values in self._declared().items())
        return f"Space({lists}, shipped='{self.shipped}')"

    @property
    def every_shipped(self) -> tuple[Configuration, ...]:
        """The shipped configuration; with several implementations (`union.SpaceUnion`), that of each."""
        return (self.shipped,)

    def on(self, arch: str) -> Space:
        """Returns the space as it is on ``arch``, such as ``sm_90``: with the configuration that ships there."""
        own = self.shipped_for.get(arch, self._shipped_by_default)
        if own == self.shipped:
            return self
        there = copy.copy(self)
        there.shipped = own
        return there

    @property
    def points(self) -> int:
        """The number of points before constraints, without those in ``include``."""
        return len(self.only) if self.only is not None else math.prod(map(len, self._declared().values()))

    def configurations(self, arch: int, dims: Mapping[str, Value]) -> tuple[Configuration, ...]:
        """Returns the configurations to try on ``sm_<arch>``: the shipped one, then the others that the space allows.
        The others keep the order of the declaration. The last knob varies fastest."""
        if self.points > MOST_POINTS:
            raise SpaceError(f"the knob lists span {self.points:,} configurations; shorten them or use only=[…]")
        return tuple(self.each(arch, dims))

    def each(self, arch: int, dims: Mapping[str, Value]) -> Iterator[Configuration]:
        """Yields what `configurations` returns, one by one, so that a large space takes no memory."""
        listed = dict.fromkeys((self.shipped, *self.include, *(self.only or ())))
        rest = () if self.only is not None else self._product(self._declared())
        for config in itertools.chain(listed, (config for config in rest if config not in listed)):
            if config == self.shipped or self.allows(config, arch, dims) is None:
                yield config

    def drawn(self, count: int, arch: int, dims: Mapping[str, Value], seed: int) -> tuple[Configuration, ...]:
        """Returns the shipped configuration, then random others that the space allows, without listing the space.

        count: how many to return. There are fewer if the constraints refuse most of the points.
        """
        rng, found, seen = random.Random(seed), [self.shipped], {self.shipped}
        lists = self._declared()
        for _ in range(DRAWS * count):
            if len(found) >= count:
                break
            if self.only is not None:
                config = rng.choice(self.only)
            else:
                config = Configuration.of({name: rng.choice(values) for name, values in lists.items()})
            if config not in seen and self.allows(config, arch, dims) is None:
                found.append(config)
            seen.add(config)
        return tuple(found)

    def declares(self, config: Configuration) -> bool:
        """Returns whether the space lists this point. `neighbours` may have others. Constraints are not tested."""
        if config == self.shipped or config in self.include:
            return True
        if self.only is not None:
            return config in self.only
        return config.keys() == set(self.knobs) and all(config[name] in each for name, each in self._declared().items())

    def restored(self, values: Mapping[str, Value]) -> Configuration | None:
        """Returns stored values as a configuration, with its knobs in their order.

        Returns None if the names are not those of the space, or if a value is not declared with its type: 2.0 and True
        equal 2 and 1, but are other constants. Constraints are not tested.
        """
        names = self.knobs_of(values)
        if values.keys() != {*names}:
            return None
        found = Configuration.of({name: values[name] for name in names})
        typed = all(repr(value) in map(repr, self.known_values(name)) for name, value in found.items())
        return found if typed else None

    def allows(self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]) -> str | None:
        """Returns None if the configuration may be tried on ``sm_<arch>``, else the reason in one line."""
        return next(self._problems(config, arch, dims), None)

    def dropped(self, arch: int, dims: Mapping[str, Value]) -> tuple[str, ...]:
        """Returns a line for each declared value that no configuration for ``sm_<arch>`` has.

        The line has the reason, such as ``TILE=1000 is not a power of two of at least 1; …``.
        """
        reasons = []
        for name, values in self._declared().items():
            for value in values:
                why = self.allows(self.shipped.replace(**{name: value}), arch, dims)
                if why and not self._any_has(name, value, arch, dims):
                    text = f"{name}={knobs.spell(value)}"
                    reasons.append(why if why.startswith(text) else f"{text}: {why}")
        return tuple(reasons)

    def _any_has(self, name: str, value: Value, arch: int, dims: Mapping[str, Value]) -> bool:
        """Returns whether a configuration has this value of a knob, or whether that takes too long to find out."""
        points: Iterable[Configuration] = (*self.include, *(self.only or ()))
        if self.only is None:
            points = itertools.chain(points, self._product({**self._declared(), name: (value,)}))
        mine = enumerate(config for config in points if config[name] == value)
        tested = (at >= TESTED or self.allows(config, arch, dims) is None for at, config in mine)
        return self.shipped[name] == value or any(tested)

    def parse(self, text: str) -> Configuration:
        """Reads a configuration such as ``"TILE_M=128,occupancy=auto"``. Missing knobs take their shipped values.
        Raises `UnknownChoice` for an unknown knob, `SpaceError` for a bad value or a text without a knob."""
        given: dict[str, Value] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (word.strip() for word in part.partition("="))
            if not equals:
                raise SpaceError(f"'{part}' is not of the form knob=value; for example: {self.shipped}")
            if name not in self.knobs:
                raise UnknownChoice("knob", name, self.knobs)
            if name in given:
                raise SpaceError(f"'{name}' is given twice in '{text}'")
            given[name] = self._read(name, value)
        if not given and self.knobs:
            raise SpaceError(
                f"'{text}' names no knob; give knob=value, with commas between several; knobs: {', '.join(self.knobs)}"
            )
        return self.shipped.replace(**given)

    def chosen(self, given: Choice | Sequence[Choice] | None) -> tuple[Configuration, ...]:
        """Returns the configurations that a caller gives; () for None. Missing knobs take their shipped values.

        given: a string as for `parse`, a mapping of knob to value, or a list of strings and mappings.
        """
        listed = () if given is None else (given,) if isinstance(given, (str, Mapping)) else given
        return tuple(self.parse(each) if isinstance(each, str) else self._completed(each) for each in listed)

    def _completed(self, given: Mapping[str, Value]) -> Configuration:
        return self.shipped.replace(**self._point("config", given))

    def split(self, config: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, Value]]:
        """Splits a configuration into constants for the kernel and hints for the compiler. Omits hints of None."""
        for problem in self._name_problems(config):
            raise SpaceError(problem)
        hints = {name: config[name] for name in self.hints}
        return (
            {name: config[name] for name in self.constants},
            {name: value for name, value in hints.items() if value is not None},
        )

    def neighbours(
        self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]
    ) -> tuple[Configuration, ...]:
        """Returns the allowed configurations that differ from ``config`` in one knob by one step (`knobs.steps`,
        `knobs.hint_steps`)."""
        for problem in self._name_problems(config):
            raise SpaceError(problem)
        centre = Configuration.of({name: config[name] for name in self.knobs})
        near = (centre.replace(**{name: value}) for name in self.knobs for value in self._steps(name, centre[name]))
        return tuple(dict.fromkeys(c for c in near if c != centre and self.allows(c, arch, dims) is None))

    def knobs_of(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Returns the knobs of a configuration with these values; all knobs, except in a `union.SpaceUnion`."""
        return self.knobs

    def known_values(self, name: str) -> tuple[Value, ...]:
        """Returns the values of a knob, without duplicates: declared, shipped, in ``include`` and in ``only``."""
        points = (self.shipped, *self.include, *(self.only or ()))
        return tuple(dict.fromkeys((*self._declared()[name], *(point[name] for point in points))))

    def _declared(self) -> dict[str, tuple[Value, ...]]:
        return {**self.constants, **self.hints}

    def _steps(self, name: str, value: Value) -> tuple[Value, ...]:
        known = self.known_values(name)
        return knobs.hint_steps(name, value, known) if name in self.hints else knobs.steps(value, known)

    def _read(self, name: str, text: str) -> Value:
        if name in self.hints:
            return knobs.read_hint(name, text)
        value = knobs.read(name, text, self.known_values(name))
        if value != self.shipped[name] and (problem := knobs.tile_problem(name, value)):
            raise SpaceError(problem)
        return value

    @staticmethod
    def _product(lists: Mapping[str, Sequence[Value]]) -> Iterator[Configuration]:
        return (Configuration.of(dict(zip(lists, point, strict=True))) for point in itertools.product(*lists.values()))

    def _name_problems(self, config: Mapping[str, Value]) -> Iterator[str]:
        for name in config:
            if name not in self.knobs:
                yield self._no_knob(name)
        for name in self.knobs:
            if name not in config:
                yield f"knob '{name}' is missing; name all of: {', '.join(self.knobs)}"

    def _no_knob(self, name: str) -> str:
        return f"'{name}' is no knob of this space; {choices(name, self.knobs)}"

    def _problems(self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]) -> Iterator[str]:
        yield from self._name_problems(config)
        problems = [knobs.tile_problem(name, config[name]) for name in self.constants]
        problems += [knobs.hint_problem(name, config[name]) for name in self.hints]
        if "num_ctas" in self.hints:
            problems.append(knobs.cluster_problem(config["num_ctas"], arch))
        yield from filter(None, problems)
        if not self.where:
            return
        known = {**config, **dims, "arch": arch}
        for name in dims:
            if name in config or name == "arch":
                other = "the architecture" if name == "arch" else "a knob"
                raise SpaceError(f"'{name}' is both a dimension and {other}; rename the dimension")
        yield from filter(None, (predicate.why_not(known) for predicate in self.where))

    def _check_names(self) -> None:
        for name in self.hints:
            if name not in knobs.hints():
                raise SpaceError(f"unknown hint '{name}'; {choices(name, knobs.hints())}")
            if name in self.constants:
                raise SpaceError(f"'{name}' is both a constant and a hint; declare it once")
            for value in self.hints[name]:
                if problem := knobs.hint_problem(name, value):
                    raise SpaceError(f"hints: {problem}")
        for name, values in self.constants.items():
            if odd := [value for value in values if isinstance(value, str) and not value.isprintable()]:
                raise SpaceError(f"constants: the value {odd[0]!r} of '{name}' has characters that cannot be printed")
            if not str(name).isidentifier() or name == "arch":
                raise SpaceError(f"constants: '{name}' cannot name a knob; use a kernel parameter's name")

    def _refuse_bad_tiles(self) -> None:
        """Raises SpaceError for a listed tile size that no kernel can have, unless it ships today."""
        for name, values in self.constants.items():
            for value in values:
                if value != self.shipped[name] and (problem := knobs.tile_problem(name, value)):
                    raise SpaceError(f"constants: {problem}")

    def _shipped(self, shipped: object) -> Configuration:
        point = self._point("shipped", shipped)
        for problem in self._name_problems(point):
            raise SpaceError(f"shipped: {problem}")
        return Configuration.of({name: point[name] for name in self.knobs})

    def _shipped_for(self, given: object) -> dict[str, Configuration]:
        if not isinstance(given, Mapping):
            raise SpaceError(f"shipped_for= is {_kind(given)}; give a mapping of architecture to knobs with values")
        for arch in given:
            if not isinstance(arch, str) or not re.fullmatch(r"sm_\d+", arch):
                raise SpaceError(f"shipped_for: {arch!r} is no architecture; write it as 'sm_90'")
        return {
            arch: self.shipped.replace(**self._point(f"shipped_for['{arch}']", point)) for arch, point in given.items()
        }

    def _points(self, where: str, points: object) -> tuple[Configuration, ...]:
        listed = enumerate(_listed(where, points, "configurations"))
        return tuple(self.shipped.replace(**self._point(f"{where}[{i}]", point)) for i, point in listed)

    def _point(self, where: str, point: object) -> dict[str, Value]:
        if not isinstance(point, Mapping):
            raise SpaceError(f"{where} is {_kind(point)}; give a mapping of knob to value")
        for name, value in point.items():
            if name not in self.knobs:
                raise SpaceError(f"{where}: {self._no_knob(name)}")
            knobs.check_value(f"{where}['{name}']", value)
            if name in self.hints and (problem := knobs.hint_problem(name, value)):
                raise SpaceError(f"{where}: {problem}")
        return dict(point)


def _lists(where: str, lists: object) -> dict[str, tuple[Value, ...]]:
    if not isinstance(lists, Mapping):
        raise SpaceError(f"{where}= is {_kind(lists)}; give a mapping of knob to list of values")
    checked = {}
    for name, values in lists.items():
        place = f"{where}['{name}']"
        listed = _listed(place, values, "values")
        if not listed:
            raise SpaceError(f"{place} is empty; list at least one value")
        for value in listed:
            knobs.check_value(place, value)
        checked[name] = tuple(dict.fromkeys(listed))
    return checked


def _listed(where: str, given: object, what: str) -> tuple[Any, ...]:
    """Returns a list, tuple or range as a tuple. Raises SpaceError for other types (a set has no fixed order)."""
    if isinstance(given, (list, tuple, range)):
        return tuple(given)
    raise SpaceError(f"{where} is {_kind(given)}; give a list of {what}")


def _kind(thing: object) -> str:
    if isinstance(thing, Mapping):
        return "a dictionary"
    if thing is None:
        return "None"
    name = "string" if isinstance(thing, str) else type(thing).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
