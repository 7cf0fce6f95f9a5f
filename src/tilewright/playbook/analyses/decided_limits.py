"""Says with which constants a mask's limit lies outside of a loop. The code for such a limit is not compiled.

if STAGE == 1:
    end = m * TILE        the limit m * TILE + WINDOW - N + 2 is behind this end, unless WINDOW - N + 2 < 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from tilewright.playbook.analyses.constants import constant_parameters
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, range_of, reaching
from tilewright.playbook.analyses.loop_bounds import Part, all_of
from tilewright.playbook.analyses.masked_tiles import EQUALS, MaskLimit, negated
from tilewright.playbook.analyses.positions import LoopPositions, Total
from tilewright.source.syntax import Expression, Function, Source, dotted

NEVER = "False"
Known = list[tuple[tuple[str, ...], Total]]
"""The values of a bound in the branches that assign it, each with the tests of its branch."""


class DecidedLimits:
    """The limits of the masks of one loop beside the loop's own bounds."""

    def __init__(self, source: Source, function: Function, loop: cst.For) -> None:
        self.source, self.loop = source, loop
        self.positions = LoopPositions(source, function, loop)
        self.constants = constant_parameters(source, function) - set(names_assigned(function))
        first, *others = range_of(loop)
        self.start: Known = list(self._values(first)) if others else [((), Total({}))]
        self.end: Known = list(self._values(others[0] if others else first))

    def matters(self, limit: MaskLimit) -> tuple[str, ...]:
        """Returns the conditions without which a limit cuts no iteration off, beside its guards; `NEVER` among them if
        it never does."""
        found = list[str]()
        for tests, gap in self._gaps(limit, self.end if limit.is_end else self.start):
            beyond, short = _sides(gap)
            if beyond.constant is None:
                found.append(" or ".join([negated(all_of(tests))] * bool(tests) + [f"{beyond} < {short}"]))
            elif gap.constant is not None and gap.constant >= 0:
                found.append(negated(all_of(tests)) if tests else NEVER)
        return tuple(dict.fromkeys(found))

    def empties(self, limit: MaskLimit) -> Iterator[Part]:
        """Yields the conditions with which a limit leaves no iteration without masks: those of most tiles."""
        for tests, gap in self._gaps(limit, self.start if limit.is_end else self.end):
            beyond, short = _sides(gap)
            names = {name for product in gap.products for name in product}
            if names and names <= self.positions.extents and beyond.constant is not None:
                yield (*limit.guards, *tests), f"{beyond} <= {short}"

    def _gaps(self, limit: MaskLimit, bounds: Known) -> Iterator[tuple[tuple[str, ...], Total]]:
        """Yields how far a limit is beyond a bound, where constants say it, and the tests beside its guards."""
        at = limit.exact(fully=True)
        parts = [part for guard in limit.guards for part in _conjuncts(guard)]
        for tests, value in bounds if at is not None else ():
            gap = at + -value if limit.is_end else value + -at  # type: ignore[operator]
            known = {name for product in gap.products for name in product} <= self.constants
            if known and not any(_exclude(test, part) for test in tests for part in parts):
                yield tuple(test for test in tests if test not in parts), gap

    def _values(self, bound: Expression) -> Iterator[tuple[tuple[str, ...], Total]]:
        block = self.source.parent(self.loop)
        if isinstance(bound, cst.Name) and reaching(self.source, bound.value, self.loop) is None:
            assert isinstance(block, cst.IndentedBlock)
            yield from self._last(block.body[: block.body.index(self.loop)], bound.value, (), ())
        elif (total := self._total(bound)) is not None:
            yield (), total

    def _last(
        self, statements: Sequence[cst.CSTNode], name: str, held: tuple[str, ...], failed: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], Total]]:
        """Yields the values that statements may leave in a name. held, failed: the tests of the branches around."""
        last = next((each for each in reversed(statements) if names_assigned(each)[name]), None)
        match last:
            case cst.If(test=test, body=body, orelse=orelse) if names_read(test) <= self.constants:
                text = self.source.code(test)
                yield from self._last(body.body, name, (*held, text), failed)
                other = orelse.body.body if isinstance(orelse, cst.Else) else [orelse] if orelse is not None else []
                yield from self._last(other, name, held, (*failed, text))
            case cst.SimpleStatementLine(body=[cst.Assign(targets=[target], value=value)]):
                total = self._total(value) if dotted(target.target) == name else None
                if total is not None:
                    rest = (negated(each) for each in failed if not any(_exclude(each, test) for test in held))
                    yield (*held, *rest), total

    def _total(self, node: Expression) -> Total | None:
        position = self.positions.of(node)
        return None if position is None or position.spans else position.total


def _sides(gap: Total) -> tuple[Total, Total]:
    """Returns two sums without negative factors whose difference is ``gap``."""
    positive = Total({product: times for product, times in gap.products.items() if times > 0})
    return positive, positive + -gap


def _conjuncts(guard: str) -> list[str]:
    """Returns tests that all hold if ``guard`` does."""
    return [guard] if any(each in guard for each in ("(", " or ", " if ")) else guard.split(" and ")


def _exclude(first: str, second: str) -> bool:
    """Returns whether two tests never hold together, as ``A == 1`` and ``A == 2``."""
    if first == negated(second) or second == negated(first):
        return True
    mine, theirs = EQUALS.fullmatch(first), EQUALS.fullmatch(second)
    return mine is not None and theirs is not None and mine[1] == theirs[1] and int(mine[2]) != int(theirs[2])
