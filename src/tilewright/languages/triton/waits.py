"""Reads from PTX whether the threads of a block wait for each other between two accesses to global memory.

In Triton's language only `tl.debug_barrier` promises such a wait. A reduction within a warp contains no wait. Triton's
passes move loads across reductions and products, because these have no side effects. The existence of a wait depends on
the layouts, `num_warps` and the architecture, so this module reads the code of Triton's compiler. The two accesses are
ordered if every path from the first to the second has a ``bar.sync`` of the whole block. ptxas keeps this order.

Two jumps on the same predicate agree: if a loop is skipped, a later loop with the same bounds is skipped, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tilewright.languages.base import How, Place

_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_INLINE = {"// begin inline asm": True, "// end inline asm": False}
_LABEL = re.compile(r"(\$[\w$]+):")
_JUMP = re.compile(r"(?:@(!?)(%\w+)\s+)?bra(?:\.uni)?\s+(\$[\w$]+)")
_GUARD = re.compile(r"@!?%\w+\s")
_PREDICATE = re.compile(r"%p\d+\b")
_WAIT = re.compile(r"(?:bar\.sync|barrier\.sync(?:\.aligned)?|bar\.cta\.sync|barrier\.cta\.sync(?:\.aligned)?)\s+0\s*;")
_END = re.compile(r"(?:ret|exit)\s*;")
_UNKNOWN = re.compile(r"brx\.|call|setmaxnreg|(?:bar|barrier)(?:\.cta)?\.(?:sync|arrive)(?:\.aligned)?\s+(?:[1-9]|%)")
"""Instructions that this reader cannot follow: indirect jumps, calls, and barriers of a part of the block."""
_ACCESS = re.compile(r"(?:@!?%\w+\s+)?(ld|st|atom|red|cp)\.[\w.:]*global[\w.:]*")
_HOW: dict[str, How] = {"ld": "reads", "st": "writes", "atom": "updates", "red": "updates"}


@dataclass(frozen=True)
class _Step:
    """One relevant instruction.

    how: the kind of an access.
    asynchronous: whether the access may end after later instructions.
    predicate: the predicate on which a jump depends, or which a ``set`` computes. A jump is taken if the predicate is
        ``taken_if``.
    """

    kind: Literal["access", "wait", "jump", "end", "set"]
    how: How = "reads"
    place: Place = ("", 0)
    asynchronous: bool = False
    label: str = ""
    predicate: str = ""
    taken_if: bool = True


@dataclass
class WaitsInPtx:
    """The accesses, waits and jumps of a kernel's PTX."""

    text: str = field(repr=False)
    in_cluster: bool = False
    """Whether several blocks run one program. The barrier of a block does not order the accesses of other blocks."""

    def __post_init__(self) -> None:
        self._labels: dict[str, int] = {}
        self._known = not self.in_cluster and not any(_UNKNOWN.match(line) for line in self._lines())
        self._steps = list(self._read())

    def between(self, first: tuple[How, Place], second: tuple[How, Place]) -> bool:
        """Returns whether all threads wait between an access of ``first`` and any later access of ``second``.

        Returns False if the PTX does not show that they wait.
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
        reached = set[tuple[int, frozenset[tuple[str, bool]]]]()  # a step, and the predicates that are known there
        left = [(at, frozenset[tuple[str, bool]]()) for at in starts]
        while left:
            at, known = left.pop()
            if (at, known) in reached or at >= len(self._steps):
                continue
            reached.add((at, known))
            step = self._steps[at]
            if step.kind == "access":
                left.append((at + 1, known))
            elif step.kind == "set":
                left.append((at + 1, frozenset(each for each in known if each[0] != step.predicate)))
            elif step.kind == "jump":
                left += self._after_jump(at, step, known)
        return {at for at, _ in reached}

    def _after_jump(
        self, at: int, step: _Step, known: frozenset[tuple[str, bool]]
    ) -> Iterator[tuple[int, frozenset[tuple[str, bool]]]]:
        """Yields the step at the jump's label and the step after the jump, without those that a known predicate
        excludes."""
        for value, there in ((step.taken_if, self._labels[step.label]), (not step.taken_if, at + 1)):
            if step.predicate in self._followed:
                if (step.predicate, not value) not in known:
                    yield there, known | {(step.predicate, value)}
            elif step.predicate or value == step.taken_if:
                yield there, known

    def _lines(self) -> Iterator[str]:
        return (line.strip() for line in self.text.splitlines())

    def _read(self) -> Iterator[_Step]:
        files = {int(number): path.rsplit("/", 1)[-1] for number, path in _FILE.findall(self.text)}
        place, count, inline = ("", 0), 0, False
        self._followed = set(_followed(list(self._lines())))
        for line in self._lines():
            if line in _INLINE:
                inline = _INLINE[line]
            elif found := _LOC.match(line):
                if inline:  # LLVM counts the lines of the assembly itself, from the line of the source on
                    continue
                place = files.get(int(found[1]), ""), int(found[2])
            elif found := _LABEL.match(line):
                self._labels[found[1]] = count
            elif (step := _step(line, place) or _set(line, self._followed)) is not None:
                count += 1
                yield step


def _step(line: str, place: Place) -> _Step | None:
    if _WAIT.match(line):
        return _Step("wait")
    if _END.match(line):
        return _Step("end")
    if found := _JUMP.match(line):
        return _Step("jump", label=found[3], predicate=found[2] or "", taken_if=not found[1])
    if found := _ACCESS.match(line):
        # the copy engine (cp.async.bulk) reads and writes at any time; cp.async only reads
        return _Step("access", _HOW.get(found[1], "reads"), place, asynchronous=found[1] == "cp")
    return None


def _followed(lines: list[str]) -> list[str]:
    """Returns the predicates on which several jumps depend, and which exactly one other instruction uses.

    This other instruction computes the predicate and uses no other predicate. Returns at most 8 predicates, because
    each may double the number of paths.
    """
    jumps = Counter(found[2] for line in lines if (found := _JUMP.match(line)) and found[2])
    together = [_named(line) for line in lines]
    named = Counter(name for names in together for name in names)
    alone = {name for names in together if len(names) == 1 for name in names}
    return [name for name, count in jumps.items() if count > 1 and named[name] == 1 and name in alone][:8]


def _named(line: str) -> list[str]:
    """Returns the predicates that an instruction computes or reads, without the predicate that guards it (``@%p``)."""
    return _PREDICATE.findall(_GUARD.sub("", line.partition("//")[0]))


def _set(line: str, followed: set[str]) -> _Step | None:
    """Returns the step that computes one of the predicates ``followed``."""
    names = followed.intersection(_named(line))
    return _Step("set", predicate=names.pop()) if names else None
