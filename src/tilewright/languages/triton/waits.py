"""Reads from PTX whether the threads of a block wait for each other between two accesses to global memory.

In Triton's language only `tl.debug_barrier` promises such a wait. A reduction within a warp has none, and Triton's
passes move loads across reductions and products, which have no side effects. Whether there is a wait depends on the
layouts, `num_warps` and the architecture. So it is read from the code of Triton's compiler: the two accesses are
ordered if every path from the first to the second has a ``bar.sync`` of the whole block. ptxas keeps this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tilewright.languages.base import How, Place

_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_LABEL = re.compile(r"(\$[\w$]+):")
_JUMP = re.compile(r"(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$[\w$]+)")
_WAIT = re.compile(r"(?:bar\.sync|barrier\.sync(?:\.aligned)?|bar\.cta\.sync|barrier\.cta\.sync(?:\.aligned)?)\s+0\s*;")
_END = re.compile(r"(?:ret|exit)\s*;")
_UNKNOWN = re.compile(r"brx\.|call|setmaxnreg|(?:bar|barrier)(?:\.cta)?\.(?:sync|arrive)(?:\.aligned)?\s+(?:[1-9]|%)")
"""Instructions that this reader cannot follow: indirect jumps, calls, and barriers of a part of the block."""
_ACCESS = re.compile(r"(?:@!?%\w+\s+)?(ld|st|atom|red|cp)\.[\w.:]*global[\w.:]*")
_HOW: dict[str, How] = {"ld": "reads", "st": "writes", "atom": "updates", "red": "updates"}


@dataclass(frozen=True)
class _Step:
    """One relevant instruction. ``how``: the kind of an access. ``asynchronous``: it may end after later
    instructions."""

    kind: Literal["access", "wait", "jump", "end"]
    how: How = "reads"
    place: Place = ("", 0)
    asynchronous: bool = False
    label: str = ""
    falls_through: bool = True


@dataclass
class WaitsInPtx:
    """The accesses, waits and jumps of a kernel's PTX."""

    text: str = field(repr=False)
    in_cluster: bool = False
    """Whether several blocks run one program. The barrier of one block does not order accesses of the others."""

    def __post_init__(self) -> None:
        self._labels: dict[str, int] = {}
        self._known = not self.in_cluster and not any(_UNKNOWN.match(line) for line in self._lines())
        self._steps = list(self._read())

    def between(self, first: tuple[How, Place], second: tuple[How, Place]) -> bool:
        """Returns whether all threads wait between an access of ``first`` and any later access of ``second``.

        Returns False if the PTX does not show it.
        """
        starts, ends = self._accesses(*first), self._accesses(*second)
        if not (self._known and starts and ends) or any(self._steps[at].asynchronous for at in starts):
            return False
        return not self._reached([at + 1 for at in starts]) & set(ends)

    def _accesses(self, how: How, place: Place) -> list[int]:
        return [
            at
            for at, step in enumerate(self._steps)
            if step.kind == "access" and step.how == how and step.place == place
        ]

    def _reached(self, starts: list[int]) -> set[int]:
        """Returns the steps that a thread can reach from ``starts`` without passing a wait."""
        reached, left = set[int](), starts
        while left:
            at = left.pop()
            if at in reached or at >= len(self._steps):
                continue
            reached.add(at)
            step = self._steps[at]
            if step.kind == "jump":
                left.append(self._labels[step.label])
            if step.kind == "access" or (step.kind == "jump" and step.falls_through):
                left.append(at + 1)
        return reached

    def _lines(self) -> Iterator[str]:
        return (line.strip() for line in self.text.splitlines())

    def _read(self) -> Iterator[_Step]:
        files = {int(number): path.rsplit("/", 1)[-1] for number, path in _FILE.findall(self.text)}
        place, count = ("", 0), 0
        for line in self._lines():
            if found := _LOC.match(line):
                place = files.get(int(found[1]), ""), int(found[2])
            elif found := _LABEL.match(line):
                self._labels[found[1]] = count
            elif (step := _step(line, place)) is not None:
                count += 1
                yield step


def _step(line: str, place: Place) -> _Step | None:
    if _WAIT.match(line):
        return _Step("wait")
    if _END.match(line):
        return _Step("end")
    if found := _JUMP.match(line):
        return _Step("jump", label=found[2], falls_through=found[1] is not None)
    if found := _ACCESS.match(line):
        # the copy engine (cp.async.bulk) reads and writes at any time; cp.async only reads
        return _Step("access", _HOW.get(found[1], "reads"), place, asynchronous=found[1] == "cp")
    return None
