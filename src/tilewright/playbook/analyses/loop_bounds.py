"""Writes the bounds of a loop from the masks in it: of the iterations that see something, or that see everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import range_of
from tilewright.playbook.analyses.iterations import NotKnown, Sums, sums
from tilewright.playbook.analyses.masked_tiles import MaskedTile, MaskLimit, loops_with_masks, negated
from tilewright.playbook.base import KernelFacts
from tilewright.source.syntax import Function, Source, dotted

Part: TypeAlias = tuple[tuple[str, ...], str]
"""The guards of an expression, and the expression: it counts only where all guards hold."""


@dataclass(frozen=True)
class LoopBound:
    """One end of a range of iterations, as the least or the greatest of several expressions.

    parts: the first has no guards.
    """

    function: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The bound as one expression."""
        value = self.parts[0][1]  # cuTile's min takes two numbers
        for guards, part in self.parts[1:]:
            smaller = f"{self.function}({value}, {part})"
            value = f"({smaller} if {all_of(guards)} else {value})" if guards else smaller
        return value

    def statements(self, name: str) -> Iterator[str]:
        """Yields the statements that assign the bound to ``name``."""
        yield f"{name} = {LoopBound(self.function, tuple(part for part in self.parts if not part[0])).text}"
        for guards, part in self.parts:
            if guards:
                yield f"if {all_of(guards)}:\n    {name} = {self.function}({name}, {part})"

    @property
    def is_plain(self) -> bool:
        return not any(guards for guards, _ in self.parts)

    @property
    def is_new(self) -> bool:
        """Whether there is more than the loop's own bound."""
        return len(self.parts) > 1

    @property
    def test(self) -> str:
        """The condition without which this is the loop's own bound; "" if there is none."""
        guards = dict.fromkeys(all_of(guards) for guards, _ in self.parts[1:])
        return "" if "" in guards else " or ".join(guards)


def all_of(guards: Sequence[str]) -> str:
    """Returns the condition that all guards hold."""
    return " and ".join(f"({each})" if " or " in each or " if " in each else each for each in guards)


@dataclass(frozen=True)
class Header:
    """The header of a loop: ``for name in range(start, end, step)``."""

    name: str
    start: str
    end: str
    step: str

    @classmethod
    def of(cls, source: Source, loop: cst.For) -> Header:
        texts = [source.code(each) for each in range_of(loop)]
        start, end = ("0", texts[0]) if len(texts) == 1 else texts[:2]
        return cls(dotted(loop.target), start, end, texts[2] if len(texts) > 2 else "1")

    def after(self, bound: str) -> str:
        """Returns the first value from ``bound`` on that the variable takes; it may be less than the start."""
        if self.is_single:
            return bound
        start, step = (
            text if text.isidentifier() or text.isdigit() else f"({text})" for text in (self.start, self.step)
        )
        if start == "0":
            return f"({bound} + {step} - 1) // {step} * {step}"
        return f"{start} + ({bound} - {start} + {step} - 1) // {step} * {step}"

    def iterations(self, start: LoopBound, end: LoopBound) -> str:
        """Returns the number of iterations between two bounds, as an expression."""
        first = self.after(f"({start.text})") if start.is_new else f"({start.text})"
        return f"max(0, cdiv(({end.text}) - ({first}), {self.step}))"

    def over(self, loop: cst.For, start: str, end: str) -> cst.For:
        """Returns a loop with other bounds, without the comments above it."""
        first = [] if start == "0" and self.is_single else [start]
        bounds = ", ".join([*first, end, *([] if self.is_single else [self.step])])
        return loop.with_changes(iter=cst.parse_expression(f"range({bounds})"), leading_lines=())

    @property
    def whole(self) -> tuple[LoopBound, LoopBound]:
        return greatest(self.start, ()), least(self.end, ())

    @property
    def is_single(self) -> bool:
        return self.step == "1"


def least(first: str, limits: Iterable[Part]) -> LoopBound:
    return LoopBound("min", (((), first), *others_of(first, limits)))


def greatest(first: str, limits: Iterable[Part]) -> LoopBound:
    return LoopBound("max", (((), first), *others_of(first, limits)))


def others_of(first: str, limits: Iterable[Part]) -> list[Part]:
    """Returns the distinct limits other than ``first``. One that holds with a guard and without it loses the guard."""
    kept = [limit for limit in dict.fromkeys(limits) if limit[1] != first]
    for place, (guards, text) in enumerate(kept):
        for guard in guards:
            rest = tuple(each for each in guards if each != guard)
            opposite = next(
                (each for each in kept if each[1] == text and set(each[0]) == {*rest, negated(guard)}), None
            )
            if opposite is not None:
                others = [each for each in kept if each not in (kept[place], opposite)]
                return others_of(first, [*others, (rest, text)])
    return kept


def guarded(limits: Iterable[MaskLimit], *, fully: bool) -> Iterator[Part]:
    """Yields the guards and the bound of each limit (`MaskLimit.bound`)."""
    return ((limit.guards, limit.bound(fully=fully)) for limit in limits)


def masked_if(tiles: Iterable[MaskedTile]) -> str:
    """Returns the condition with which a loop computes a mask in each iteration."""
    return " or ".join(dict.fromkeys(all_of(tile.guards) or "True" for tile in tiles if not tile.onsets))


def placed(source: Source, loop: cst.For, statements: Sequence[cst.BaseStatement]) -> str:
    """Returns the text with ``statements`` in place of a loop. The comments above the loop stay above them."""
    first = statements[0].with_changes(leading_lines=loop.leading_lines)
    return source.replaced({loop: cst.FlattenSentinel([first, *statements[1:]])})


def masked_loops(source: Source, facts: KernelFacts) -> Iterator[tuple[Function, cst.For, Sequence[MaskedTile]]]:
    """Yields the loops with masked tiles of the launched kernel and its helpers."""
    if facts.kernel not in source.kernels:
        return
    for name in sorted(source.called_by([facts.kernel]), key=list(source.functions).index):
        for loop, tiles in loops_with_masks(source, source.functions[name]):
            yield source.functions[name], loop, tiles


def counted(source: Source, facts: KernelFacts, function: Function, loop: cst.For, *ranges: str) -> Sums | None:
    """Returns the number of iterations of each range over the blocks of all launches. None if it is not known."""
    place = function.name.value, source.place(loop)[0]
    try:
        return sums(source, facts.kernel, facts.launches, place, ranges)
    except NotKnown:
        return None
