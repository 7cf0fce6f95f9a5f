"""The space of configurations of a kernel: what may be tried, in which order, and why not the rest.

`Space.allows` is the one place where constraints stand: the search prunes with it, the command line and the launch
wrapper validate with it. The rules that every space obeys:

- the configuration shipped today is always there, and first, even where a rule forbids it; `allows` still says what is
  wrong with it;
- a tile size is a power of two (by convention a constant named TILE… or BLOCK…, see `knobs`);
- ``num_ctas`` above 1 only where clusters pay: sm_90, 100, 103, 107, 110;
- what the author's predicates say.

The number of configurations has no limit, because compiling is parallel and has a time budget.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tilewright.errors import SpaceError, UnknownChoice, choices
from tilewright.records import Configuration, Value
from tilewright.space import knobs
from tilewright.space.predicates import Predicate

MOST_POINTS = 1_000_000
"""A product larger than this is refused: it is a typing error rather than a space."""

_NO_KNOBS: Mapping[str, Sequence[Value]] = MappingProxyType({})
_NO_HINTS: Mapping[str, Sequence[int | None]] = MappingProxyType({})


class Space:
    """The knobs of a kernel and the constraints between them.

    ``constants`` are passed to the kernel, ``hints`` to the compiler (`knobs.HINTS`; None lets the compiler choose).
    ``shipped`` is the configuration in production today and names every knob. ``where`` are predicates that take knobs,
    workload dimensions and ``arch`` (an int like 90) by parameter name. ``include`` are extra points; ``only`` is a
    list that replaces the product of the knob lists. Points of both take what they do not name from ``shipped``.

    A knob with one known value is fixed: `neighbours` leaves it alone. Raises `SpaceError`.
    """

    def __new__(cls, **options: object) -> Space:
        known = ("constants", "hints", "shipped", "where", "include", "only")
        if unknown := [name for name in options if name not in known]:
            raise SpaceError(f"Space has no option '{unknown[0]}'; {choices(unknown[0], known)}")
        return super().__new__(cls)

    def __init__(
        self,
        *,
        constants: Mapping[str, Sequence[Value]] = _NO_KNOBS,
        hints: Mapping[str, Sequence[int | None]] = _NO_HINTS,
        shipped: Mapping[str, Value],
        where: Sequence[Callable[..., bool]] = (),
        include: Sequence[Mapping[str, Value]] = (),
        only: Sequence[Mapping[str, Value]] | None = None,
    ):
        self.constants = _lists("constants", constants)
        self.hints = _lists("hints", hints)
        self._check_names()
        self.knobs = (*self.constants, *self.hints)
        self.shipped = self._shipped(shipped)
        self.where = tuple(Predicate(function) for function in _listed("where", where, "functions"))
        self.include = self._points("include", include)
        self.only = None if only is None else self._points("only", only)
        if self.only == ():
            raise SpaceError("only= is empty; list at least one configuration, or leave only= out")

    @staticmethod
    def checked(obj: object) -> Space:
        """``obj`` if it is a `Space`; else raises an error that says what was given and how to fix it."""
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

    def configurations(self, arch: int, dims: Mapping[str, Value]) -> tuple[Configuration, ...]:
        """Everything worth trying on ``sm_<arch>``: the shipped one first, then the allowed rest.

        In the order of the declaration, the last knob varying fastest. Never empty.
        """
        rest = self.only if self.only is not None else self._product()
        tried = (config for config in (*self.include, *rest) if self.allows(config, arch, dims) is None)
        return tuple(dict.fromkeys((self.shipped, *tried)))

    def allows(self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]) -> str | None:
        """None where the configuration may be tried on ``sm_<arch>``, else the reason in one line."""
        problems = itertools.chain(
            self._name_problems(config), self._value_problems(config, arch), self._where_problems(config, arch, dims)
        )
        return next(problems, None)

    def dropped(self, arch: int, dims: Mapping[str, Value]) -> tuple[str, ...]:
        """The declared values that no configuration for ``sm_<arch>`` has, each with its reason in one line, such as
        ``TILE=1000 is not a power of two of at least 1; …``."""
        tried = self.configurations(arch, dims)
        reasons = []
        for name, values in self._declared().items():
            for value in values:
                why = self.allows(self.shipped.replace(**{name: value}), arch, dims)
                if why and all(config[name] != value for config in tried):
                    text = f"{name}={knobs.spell(value)}"
                    reasons.append(why if why.startswith(text) else f"{text}: {why}")
        return tuple(reasons)

    def parse(self, text: str) -> Configuration:
        """Read ``"TILE_M=128,occupancy=auto"``; knobs not named are as shipped.

        Raises `UnknownChoice` for a knob that the space lacks, `SpaceError` for a bad value.
        """
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
        return self.shipped.replace(**given)

    def split(self, config: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, int]]:
        """What goes to the kernel, and what goes to the compiler (without what it chooses itself)."""
        for problem in self._name_problems(config):
            raise SpaceError(problem)
        hints = {name: config[name] for name in self.hints}
        return (
            {name: config[name] for name in self.constants},
            {name: value for name, value in hints.items() if isinstance(value, int)},
        )

    def neighbours(
        self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]
    ) -> tuple[Configuration, ...]:
        """The allowed configurations that differ from ``config`` in one knob by one step.

        Tile sizes and other powers of two halve and double, to at most one step outside the known values; other numbers
        step to the adjacent known values; booleans flip; a hint also goes to and from the compiler's choice.
        """
        for problem in self._name_problems(config):
            raise SpaceError(problem)
        centre = Configuration.of({name: config[name] for name in self.knobs})
        steps = ((name, value) for name in self.knobs for value in self._steps(name, centre[name]))
        near = (centre.replace(**{name: value}) for name, value in steps)
        return tuple(dict.fromkeys(c for c in near if c != centre and self.allows(c, arch, dims) is None))

    def known_values(self, name: str) -> tuple[Value, ...]:
        """Declared, then shipped, included and listed values of one knob, without duplicates."""
        points = (self.shipped, *self.include, *(self.only or ()))
        return _unique((*self._declared()[name], *(point[name] for point in points)))

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

    def _product(self) -> Iterator[Configuration]:
        lists = self._declared()
        points = math.prod(len(values) for values in lists.values())
        if points > MOST_POINTS:
            raise SpaceError(f"the knob lists span {points:,} configurations; shorten them or use only=[…]")
        values = itertools.product(*lists.values())
        return (Configuration.of(dict(zip(lists, point, strict=True))) for point in values)

    def _name_problems(self, config: Mapping[str, Value]) -> Iterator[str]:
        for name in config:
            if name not in self.knobs:
                yield self._no_knob(name)
        for name in self.knobs:
            if name not in config:
                yield f"knob '{name}' is missing; name all of: {', '.join(self.knobs)}"

    def _no_knob(self, name: str) -> str:
        return f"'{name}' is no knob of this space; {choices(name, self.knobs)}"

    def _value_problems(self, config: Mapping[str, Value], arch: int) -> Iterator[str]:
        for name in self.constants:
            if problem := knobs.tile_problem(name, config[name]):
                yield problem
        for name in self.hints:
            if problem := knobs.hint_problem(name, config[name]):
                yield problem
        if "num_ctas" in self.hints and (problem := knobs.cluster_problem(config["num_ctas"], arch)):
            yield problem

    def _where_problems(self, config: Mapping[str, Value], arch: int, dims: Mapping[str, Value]) -> Iterator[str]:
        if not self.where:
            return
        known = {**config, **dims, "arch": arch}
        for name in dims:
            if name in config or name == "arch":
                other = "the architecture" if name == "arch" else "a knob"
                raise SpaceError(f"'{name}' is both a dimension and {other}; rename the dimension")
        for predicate in self.where:
            if problem := predicate.why_not(known):
                yield problem

    def _check_names(self) -> None:
        for name in self.hints:
            if name not in knobs.HINTS:
                raise SpaceError(f"unknown hint '{name}'; {choices(name, knobs.HINTS)}")
            if name in self.constants:
                raise SpaceError(f"'{name}' is both a constant and a hint; declare it once")
            for value in self.hints[name]:
                if problem := knobs.hint_problem(name, value):
                    raise SpaceError(f"hints: {problem}")
        for name in self.constants:
            if not str(name).isidentifier() or name == "arch":
                raise SpaceError(f"constants: '{name}' cannot name a knob; use a kernel parameter's name")

    def _shipped(self, shipped: object) -> Configuration:
        point = self._point("shipped", shipped)
        for problem in self._name_problems(point):
            raise SpaceError(f"shipped: {problem}")
        return Configuration.of({name: point[name] for name in self.knobs})

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
    return {name: _values(f"{where}['{name}']", values) for name, values in lists.items()}


def _values(where: str, values: object) -> tuple[Value, ...]:
    listed = _listed(where, values, "values")
    if not listed:
        raise SpaceError(f"{where} is empty; list at least one value")
    for value in listed:
        knobs.check_value(where, value)
    return _unique(listed)


def _listed(where: str, given: object, what: str) -> tuple[Any, ...]:
    """``given`` as a tuple if it is a list, tuple or range; no other thing has an order that lasts."""
    if isinstance(given, (list, tuple, range)):
        return tuple(given)
    raise SpaceError(f"{where} is {_kind(given)}; give a list of {what}")


def _unique(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(values))


def _kind(thing: object) -> str:
    if isinstance(thing, Mapping):
        return "a dictionary"
    if thing is None:
        return "None"
    name = "string" if isinstance(thing, str) else type(thing).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
