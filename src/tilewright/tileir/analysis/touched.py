"""Which arrays a kernel reads and which it writes, from its Tile IR: every access, back to the parameters.

The answer is conservative: an array that is named may be untouched in this launch (a branch not taken); one that is not
named is never touched. An address that cannot be followed counts as reading and writing every array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.languages.base import Argument, ListArgument
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.read.tree import KernelEntry
from tilewright.tileir.run.slicing import flows

ORIGIN = {"make_tensor_view": "base", "offset": "ptr", "extract": "source"}
"""Of an operation that makes an address of another one, the operand that is it; the others only count or index."""
LIST, ARRAY = 0, 1
"""Loads between a parameter and an address made of it: the memory of a list holds addresses, which are loaded first."""


@dataclass(frozen=True)
class TouchedArrays:
    """Names of arrays. What an atomic operation does counts as both."""

    read: frozenset[str]
    written: frozenset[str]


def touched(entry: KernelEntry, arguments: Sequence[Argument]) -> TouchedArrays:
    """``arguments``: as `Language.arguments` gives them, one for each parameter of ``entry``."""
    every = frozenset(name for one in arguments for name in _names(one))
    if len(arguments) != len(entry.parameters):
        return TouchedArrays(every, every)
    origins = _Origins(entry, arguments)
    read: set[str] = set()
    written: set[str] = set()
    for op in entry.walk():
        if (place := op.address) is None:
            continue
        names, kind = origins.arrays(place), direction(op)
        if kind != "store":
            read |= every if names is None else names
        if kind != "load":
            written |= every if names is None else names
    return TouchedArrays(frozenset(read), frozenset(written))


class _Origins:
    def __init__(self, entry: KernelEntry, arguments: Sequence[Argument]) -> None:
        self._arguments = {name: one for (name, _), one in zip(entry.parameters, arguments, strict=True)}
        self._made = {name: op for op in entry.walk() for name in op.results if not op.regions}
        self._carried: dict[str, set[str]] = {}
        for op in entry.walk():
            for targets, sources in flows(op):
                for target in targets:
                    self._carried.setdefault(target, set()).update(sources)

    def arrays(self, place: str) -> frozenset[str] | None:
        """The arrays that an address may lie in; none for a list's own memory; None if unknown."""
        found: set[str] = set()
        waiting, seen = [(place, 0)], set()  # type: list[tuple[str, int]], set[tuple[str, int]]
        while waiting:
            value, loads = here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            if value in self._arguments:
                argument = self._arguments[value]
                if isinstance(argument, (ArraySpec, ListArgument)):
                    expected = ARRAY if isinstance(argument, ListArgument) else 0
                    if loads == expected:
                        found.update(_names(argument))
                    elif (expected, loads) != (ARRAY, LIST):
                        return None
            else:
                waiting += [(before, loads + step) for before, step in self._before(value)]
        return frozenset(found)

    def _before(self, value: str) -> Iterator[tuple[str, int]]:
        """The values that an address was made of, and whether a load lies between."""
        yield from ((source, 0) for source in self._carried.get(value, ()))
        made = self._made.get(value)
        if made is None:
            return
        if (place := made.address) is not None:
            yield place, 1
        elif made.name in ORIGIN:
            yield made.operands[ORIGIN[made.name]][0], 0
        else:
            yield from ((name, 0) for names in made.operands.values() for name in names)


def _names(argument: Argument) -> Iterator[str]:
    rows = argument.rows if isinstance(argument, ListArgument) else ((argument,),)
    return (entry.name for row in rows for entry in row if isinstance(entry, ArraySpec))
