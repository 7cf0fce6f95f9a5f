"""Generates the code of a row operation for rows that do not fit into one tile.

Each level of reductions gets a loop over tiles. The outputs get the last loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol

from tilewright.specialists.writing.expression import Expression, Operand
from tilewright.specialists.writing.forms import KernelForm
from tilewright.specialists.writing.statements import IDENTITY, levels, of_the_row

ROW_TILES = (8192, 4096, 16384)
"""The tile sizes of a row operation. Rows of more columns get the kernel with loops. The first is shipped."""
PARTIAL = {"sum": "sums", "max": "maxima", "min": "minima"}
"""The name of the accumulators of each reduction."""


def other_code(tile: str, columns: str) -> str:
    """Returns a constraint of a space. It refuses a tile size if the shipped one gives the same kernel and tile."""
    shipped = ROW_TILES[0]
    return f"lambda {tile}, {columns}: {tile} == {shipped} or {columns} > min({tile}, {shipped})"


class RowStatements(Protocol):
    """The methods for long rows that a language adds to `statements.Statements`."""

    form: KernelForm
    bound: dict[Expression, str]
    taken: set[str]
    indent: str
    inf: str
    combined: Mapping[str, str]
    """The expression of each reduction that combines two partial results."""

    def add(self, line: str) -> None: ...
    def text(self, expression: Expression) -> str: ...
    def assigned(self, expression: Expression, text: str) -> str: ...
    def variable(self, wanted: str) -> str: ...
    def inside(self, op: str, values: Expression) -> str: ...
    def accumulator(self, start: str) -> str: ...
    def reduced(self, op: str, values: str, expression: Expression) -> str: ...

    @abstractmethod
    def store(self, operand: Operand, value: Expression) -> None:
        """Adds the store of one output."""

    @abstractmethod
    def enter_loop(self) -> None:
        """Adds the head of a loop over the tiles of a row."""


def long_row(body: RowStatements) -> None:
    """Adds the loops and the stores."""
    for stage in levels(body.form):
        _loop(body, stage)
    inner = [(operand, value) for operand, value in body.form.computation.outputs if body.form.varies(value)]
    outer = [(operand, value) for operand, value in body.form.computation.outputs if not body.form.varies(value)]
    _before_the_loop(body, [value for _, value in inner])
    for operand, value in outer:
        body.store(operand, value)
    if inner:
        body.enter_loop()
        for operand, value in inner:
            body.store(operand, value)


def _before_the_loop(body: RowStatements, wanted: list[Expression]) -> None:
    """Assigns values that are the same for the whole row and that the loop needs."""
    for value in of_the_row(body.form, wanted, body.bound):
        text = body.text(value)
        if value not in body.bound:
            body.assigned(value, text)


def _loop(body: RowStatements, stage: tuple[Expression, ...]) -> None:
    """Adds the loop that computes the reductions of one level. Its accumulators are as wide as a tile."""
    _before_the_loop(body, [each.operands[0] for each in stage])
    partial = {each: body.variable(PARTIAL[each.op]) for each in stage}
    for each, name in partial.items():
        body.add(f"{name} = {body.accumulator(IDENTITY[each.op].format(inf=body.inf))}")
    before, taken, indent = dict(body.bound), set(body.taken), body.indent
    body.enter_loop()
    for each, name in partial.items():
        body.add(f"{name} = {body.combined[each.op].format(name, body.inside(each.op, each.operands[0]))}")
    body.indent, body.bound, body.taken = indent, before, taken
    for each, name in partial.items():
        body.assigned(each, body.reduced(each.op, name, each))
