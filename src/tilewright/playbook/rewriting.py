"""Defines entries that rewrite single places of tile code. One walk of the source serves `sites` and `apply`.

source → places, each with its rewrites by value → those that the facts allow: sites
source, site, value → the place that begins there → its rewrite to the value
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import libcst as cst

from tilewright.playbook.analyses.task_code import own_kernel
from tilewright.playbook.base import Entry, KernelFacts, NotApplicable, Site, Values, refusal, unless_refused
from tilewright.records import Value
from tilewright.source.parsed import Node
from tilewright.source.syntax import Function, Line, Source


@dataclass(frozen=True, eq=False)
class Rewritable(Generic[Node]):
    """A place that begins where ``node`` begins; ``what`` describes it in a few words.

    ``rewrites`` maps each value to a function that returns the changed text, or raises `NotApplicable`.
    """

    node: Node
    what: str
    rewrites: Mapping[Any, Callable[[], str]]

    def site(self, source: Source, why: str = "", values: Values = ()) -> Site:
        """Makes the site of this place. ``values``: those to try; by default all."""
        return Site.at(source, self.node, self.what, values or tuple(self.rewrites), why=why)


AnyPlace = TypeVar("AnyPlace", bound=Rewritable[Any])


class Rewriting(Entry, Generic[AnyPlace]):
    """An entry whose `places` are found in the source alone. `sites` may choose among them by the facts.

    missing: why a site at which no place begins is refused.
    needs_launch: whether only the launched kernel is changed, and only if its launch is in the same file.
    most: the most sites of a source.
    """

    missing: str
    needs_launch = False
    most: int | None = None

    @abstractmethod
    def places(self, source: Source, function: Function) -> Iterable[AnyPlace]:
        """Yields the places of a function that the entry can change. Raises `NotApplicable` if it understands none."""

    def found(self, source: Source, facts: KernelFacts) -> list[AnyPlace]:
        """Returns the places in all functions that the entry may change."""
        names = [own_kernel(facts, source)] if self.needs_launch else source.tile_code
        functions = [source.functions[name] for name in names if name]
        places = (unless_refused(lambda each: list(self.places(source, each)), function) for function in functions)
        return [place for found in places for place in found or ()]

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        return [place.site(source) for place in self.found(source, facts)[: self.most]]

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        def each_rewrite(function: Function) -> None:
            for place in self.places(source, function):
                for rewrite in place.rewrites.values():
                    rewrite()

        if (kernel := facts.kernel) not in source.kernels:
            return ""
        helpers = sorted({*source.called_by([kernel])} - {kernel}) if not self.needs_launch else []
        return next(filter(None, (refusal(each_rewrite, source.functions[name]) for name in (kernel, *helpers))), "")

    def apply(self, source: Source, site: Site, value: Value) -> str:
        # Several places may begin at one position.
        places = [each for each in self.places(source, site.function(source)) if each.what == site.what]
        nodes = {place.node: place for place in places}
        rewrites = nodes[site.node(source, nodes, self.missing)].rewrites
        if value not in rewrites:
            known = ", ".join(map(str, rewrites))
            raise site.refused(source, f"'{value}' is no change of this {site.what}; known: {known}")
        return rewrites[value]()


def starting_with(*lines: cst.BaseStatement) -> Callable[[cst.CSTNode], cst.CSTNode]:
    """Returns the change of a block that puts ``lines`` at its start, after its docstring."""

    def changed(block: cst.CSTNode) -> cst.CSTNode:
        if not isinstance(block, cst.IndentedBlock):
            raise NotApplicable("a block that is written on one line takes no further statement")
        match block.body:
            case [cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString())]), *_]:
                return block.with_changes(body=[block.body[0], *lines, *block.body[1:]])
        return block.with_changes(body=[*lines, *block.body])

    return changed


def preceded(statements: Sequence[cst.CSTNode], node: cst.CSTNode) -> cst.FlattenSentinel[cst.CSTNode]:
    """Returns ``statements`` and the statement that they precede. The comments above it stay above all."""
    first = statements[0].with_changes(leading_lines=getattr(node, "leading_lines", ()))
    return cst.FlattenSentinel([first, *statements[1:], node.with_changes(leading_lines=())])


def moved_up(source: Source, statement: Line, above: cst.BaseStatement) -> str:
    """Returns the text with ``statement`` moved to before the statement ``above``. An emptied block gets ``pass``."""
    block = source.parent(statement)
    alone = isinstance(block, cst.IndentedBlock) and len(block.body) == 1
    left = cst.FlattenSentinel([Line([cst.Pass()])] if alone else [])
    return source.replaced({above: lambda new: cst.FlattenSentinel([statement, new]), statement: left})
