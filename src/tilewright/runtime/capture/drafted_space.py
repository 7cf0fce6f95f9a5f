"""The space of a captured task: the constants and hints that it tries, as text for the task file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.records import Value
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.languages import captured_language
from tilewright.space import knobs


def literal(value: object) -> str:
    """Returns a value as text of a task file. ``inf`` and ``nan`` are no names there."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, tuple):
        return f"({''.join(f'{literal(item)}, ' for item in value).rstrip(' ' if len(value) == 1 else ', ')})"
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


@dataclass(frozen=True)
class DraftedSpace:
    """The space of a captured task.

    knobs: the constants that may vary, with the values to try.
    configured: parameters that the configuration must name although they do not vary.
    points: the configurations of an autotuner. If there are any, they replace the product of the knobs' values.
    """

    launch: DescribedLaunch
    knobs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    configured: tuple[str, ...] = ()
    points: tuple[Mapping[str, Value], ...] = ()

    @property
    def constants(self) -> dict[str, tuple[Value, ...]]:
        values = {argument.name: argument.value for argument in self.launch.arguments}
        return {**{name: (values[name],) for name in self.configured}, **self.knobs}

    @property
    def shipped(self) -> dict[str, Value]:
        """The captured configuration."""
        values = {argument.name: argument.value for argument in self.launch.arguments}
        given = {name: value for name, value in self.launch.hints.items() if name in knobs.hints()}
        hints = {name: value for name, value in given.items() if name != "opt_level" or value != 3}
        others = {name: tried[0] for name, tried in self._tried.items() if name not in hints}
        return {**{name: values[name] for name in self.constants}, **hints, **others}

    @property
    def hints(self) -> dict[str, tuple[Value, ...]]:
        shipped = {name: value for name, value in self.shipped.items() if name in knobs.hints()}
        if self.points:
            return {name: tuple(dict.fromkeys((value, *self._listed(name)))) for name, value in shipped.items()}
        return {name: tuple(dict.fromkeys((value, *self._tried.get(name, ())))) for name, value in shipped.items()}

    def text(self) -> Iterator[str]:
        """Yields the lines of the argument ``space`` of a task."""
        constants, hints, shipped = map(literal, (self.constants, self.hints, self.shipped))
        yield from ("    space=tw.Space(", f"        constants={constants},", f"        hints={hints},")
        yield f"        shipped={shipped},"
        if self.points:
            yield "        only=[  # the configurations of its autotuner"
            yield from (f"            {literal(point)}," for point in self._variants())
            yield "        ],"
        elif where := captured_language(self.launch.language).where:
            yield f"        where=[{where}],"
        yield "    ),"

    @property
    def _tried(self) -> Mapping[str, tuple[Value, ...]]:
        return captured_language(self.launch.language).tried

    def _variants(self) -> list[dict[str, Value]]:
        """All points, each with values for the hints that an autotuner does not set."""
        variants = captured_language(self.launch.language).variants
        found: list[dict[str, Value]] = []
        for variant in (variant for point in self.points for variant in variants({**self.shipped, **point})):
            found += [variant] if variant not in found else []
        return found

    def _listed(self, name: str) -> Iterator[Value]:
        return (variant[name] for variant in self._variants() if name in variant)
