"""Finds the arrays that a kernel reads and writes, by following the address of every access back to the parameters.

The result is conservative. An array in the result may be untouched in this launch, for example because a branch is not
taken. An array that is not in the result is never touched. An access with an unknown address counts for every array.
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
"""Maps an operation that makes an address from another address to the operand with the other address."""
LIST, ARRAY = 0, 1
"""Number of loads between a list parameter and an address. The list's own memory has 0, an array in the list has 1."""


@dataclass(frozen=True)
class TouchedArrays:
    """The names of the arrays that a kernel reads and writes. An atomic operation counts as both."""

    read: frozenset[str]
    written: frozenset[str]


def touched(entry: KernelEntry, arguments: Sequence[Argument]) -> TouchedArrays:
    """Returns the arrays that ``entry`` reads and writes.

    arguments: the result of `Language.arguments`, one for each parameter.
    """
    every = frozenset(name for argument in arguments for name in _names(argument))
    if len(arguments) != len(entry.parameters):
        return TouchedArrays(every, every)
    origins = Origins(entry, arguments)
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


class Origins:
    """Follows an address in a kernel back to the arrays that it may point into."""

    def __init__(self, entry: KernelEntry, arguments: Sequence[Argument]) -> None:
        self._arguments = dict(zip((name for name, _ in entry.parameters), arguments, strict=True))
        self._made = {name: op for op in entry.walk() for name in op.results if not op.regions}
        self._carried: dict[str, set[str]] = {}
        for op in entry.walk():
            for targets, sources in flows(op):
                for target in targets:
                    self._carried.setdefault(target, set()).update(sources)

    def arrays(self, place: str) -> frozenset[str] | None:
        """Returns the names of the arrays into which the address ``place`` may point.

        The result is empty for a list's own memory, and None if the arrays are unknown.
        """
        found: set[str] = set()
        waiting, seen = [(place, 0)], set()  # type: list[tuple[str, int]], set[tuple[str, int]]
        while waiting:
            value, loads = item = waiting.pop()
            if item in seen:
                continue
            seen.add(item)
            if value not in self._arguments:
                waiting += [(before, loads + step) for before, step in self._before(value)]
                continue
            argument = self._arguments[value]
            if isinstance(argument, (ArraySpec, ListArgument)):
                expected = ARRAY if isinstance(argument, ListArgument) else 0
                if loads == expected:
                    found.update(_names(argument))
                elif (expected, loads) != (ARRAY, LIST):
                    return None
        return frozenset(found)

    def _before(self, value: str) -> Iterator[tuple[str, int]]:
        """Yields the values from which ``value`` is made, each with the number of loads between the two (0 or 1)."""
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
