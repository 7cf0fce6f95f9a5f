"""Loads tiles again after a reduction or a loop, in place of keeping them in registers meanwhile.

    v = load(x)                         v = load(x)
    total = sum(v * v)                  total = sum(v * v)
    store(y, v * rsqrt(total))    →     v = load(x)
                                        store(y, v * rsqrt(total))

A reduction needs the whole tile before the first element of its result. So all that is read before and after it is in
registers at once. What repeats is the definition of a tile: a load, and operations on it that round as before if they
run again (`absorbed`). Sums, and results of reductions, matrix products and loops are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import libcst as cst

from tilewright.playbook.analyses.absorbed import Products
from tilewright.playbook.analyses.chunk_loops import plain_target
from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, parameters
from tilewright.playbook.analyses.stages import Kernel
from tilewright.playbook.analyses.tile_shapes import ELEMENTWISE, FILLED, REDUCTIONS, SCANS, Shapes, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Line

HELD = (*REDUCTIONS, *SCANS, "argmax", "argmin", "reduce", "scan")
"""Functions that combine the elements of a tile."""
LIGHT = (
    *(each for each in ELEMENTWISE if each not in ("add", "sub", "fma")), *FILLED, "load", "gather", "astype",
    "reshape", "broadcast_to", "expand_dims", "permute", "transpose", "arange", "bitcast",
)  # fmt: skip
LIGHT_METHODS = ("astype", "reshape", "permute", "transpose")
_SUMS = (cst.Add, cst.Subtract)


def reloaded(kernel: Kernel) -> cst.BaseSuite:
    """Returns the body of the kernel in which tiles are loaded again. Raises `NotApplicable` if none is held over a
    reduction or a loop."""
    again = _Again(kernel)
    body = kernel.function.body.visit(again)
    if not again.repeated:
        raise NotApplicable(f"{kernel.function.name.value} holds no loaded tile over a reduction or a loop")
    assert isinstance(body, cst.BaseSuite)
    return body


class _Again(cst.CSTTransformer):
    """Repeats the definitions of tiles in each segment of a block that reads them. A reduction or a loop ends a
    segment."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.source, self.function, self.repeated = kernel.source, kernel.function, 0
        self.effects = Effects(kernel.source, kernel.function)
        self.shapes = Shapes(kernel.source, kernel.function)
        self.products = Products(kernel.source, kernel.function)
        self.assigned = names_assigned(kernel.function)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        if not isinstance(self.source.parent(original_node), (cst.For, cst.FunctionDef)):
            return updated_node
        light = self._light(original_node)
        names: dict[cst.BaseStatement, str] = {line: name for name, line in light.items()}
        statements = [each for each in original_node.body if isinstance(each, cst.BaseStatement)]
        new = dict(zip(statements, updated_node.body, strict=True))
        body, known, written = list[cst.CSTNode](), dict[str, Line](), set[str]()
        for segment in self._segments(statements):
            needed, ready = _needed_in(segment, names), set[str]()
            for statement in segment:
                name = names.get(statement, "")
                if name:
                    known[name] = light[name]
                if name and name not in needed:
                    continue  # a later segment reads it, and begins with its definition
                for each in _missing(statement, known, ready | {name}):
                    body.append(known[each] if each not in written else known[each].with_changes(leading_lines=()))
                    self.repeated += 1
                    ready.add(each)
                    written.add(each)
                body.append(new[statement])
                ready.add(name)
                written.add(name)
        return updated_node.with_changes(body=body)

    def _segments(self, statements: Sequence[cst.BaseStatement]) -> Iterator[list[cst.BaseStatement]]:
        segment = list[cst.BaseStatement]()
        for each in statements:
            segment.append(each)
            calls = self.source.every(cst.Call, each)
            if isinstance(each, cst.For) or any(tile_call(self.source, call) in HELD for call in calls):
                yield segment
                segment = []
        yield segment

    def _light(self, block: cst.IndentedBlock) -> dict[str, Line]:
        """Returns the tiles of a block that may be computed again, with their definitions, in order."""
        read, found = set[str](), dict[str, Line]()
        for statement in block.body:
            read |= names_read(statement)
            name = plain_target(statement)
            # A name that is read above its definition has its value from the last iteration there.
            if name and name not in read and isinstance(statement, Line) and self._is_light(block, statement, name):
                found[name] = statement
        return {name: line for name, line in found.items() if self._is_loaded(name, found)}

    def _is_light(self, block: cst.IndentedBlock, line: Line, name: str) -> bool:
        """Returns whether a line defines a tile that has the same value if the line runs again later in its block."""
        given, everywhere = parameters(self.function), self.source.every(cst.Name, self.function)
        here = [each for each in self.source.every(cst.Name, block) if each.value == name]
        only_here = len(here) == sum(each.value == name for each in everywhere)
        once = self.assigned[name] == 1 and name not in given and len(here) > 1
        calls = self.source.every(cst.Call, line)
        return (
            once and only_here
            and self.shapes.of(cst.Name(name)) != ()
            and all(map(self._is_repeatable, calls)) and not self._is_summed(line)
            and not self.products.is_absorbed(name)
            and all(self._is_steady(block, each, given) for each in names_read(line))
        )  # fmt: skip

    def _is_repeatable(self, call: cst.Call) -> bool:
        name = tile_call(self.source, call)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) and not name else ""
        return name in LIGHT or method in LIGHT_METHODS

    def _is_summed(self, line: Line) -> bool:
        """Returns whether a line adds tiles. Indices of a load are integers, whose sums are not rounded."""
        sums = [each for each in self.source.every(cst.BinaryOperation, line) if isinstance(each.operator, _SUMS)]
        return any(not self._is_index(each, line) for each in sums)

    def _is_index(self, node: cst.CSTNode, line: Line) -> bool:
        around = itertools.takewhile(lambda above: above is not line, self.source.parents(node))
        return any(isinstance(above, cst.Call) and self.effects.is_load(above) for above in around)

    def _is_steady(self, block: cst.IndentedBlock, name: str, given: Collection[str]) -> bool:
        """Returns whether a name has one value in each run of a block, from its definition on."""
        if not names_assigned(block)[name]:
            return True
        lines = [line for line in block.body if isinstance(line, Line) and names_assigned(line)[name]]
        return len(lines) == self.assigned[name] == 1 and name not in given

    def _is_loaded(self, name: str, light: Mapping[str, Line]) -> bool:
        loads = any(self.effects.is_load(call) for call in self.source.every(cst.Call, light[name]))
        return loads or any(self._is_loaded(each, light) for each in names_read(light[name]) & light.keys())


def _needed_in(segment: Sequence[cst.BaseStatement], names: Mapping[cst.BaseStatement, str]) -> set[str]:
    """Returns the names that the statements of a segment read, without what only postponed definitions read."""
    needed = set[str]()
    for statement in reversed(segment):
        name = names.get(statement, "")
        if not name or name in needed:
            needed |= names_read(statement)
    return needed


def _missing(statement: cst.CSTNode, known: Mapping[str, Line], ready: Collection[str]) -> list[str]:
    """Returns the tiles that a statement reads and that are not at hand, and those that they need, in order."""
    found, waiting = set[str](), [*names_read(statement)]
    while waiting:
        name = waiting.pop()
        if name in known and name not in ready and name not in found:
            found.add(name)
            waiting += names_read(known[name])
    return [name for name in known if name in found]
