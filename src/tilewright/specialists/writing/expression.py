"""Describes a computation over arrays, independently of the language: a graph of operations on tensors with named
extents.

The readers of references build the graph, and the writer of each language turns it into text. An extent is the name of
a dimension, or 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.errors import RequestError

Shape: TypeAlias = tuple[str | int, ...]
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
FLOATS = ("float32", "bfloat16", "float16")
REDUCTIONS = ("sum", "max", "min")


class OutsideForms(RequestError):
    """No kernel can be generated for the computation, because it has none of the supported forms. A language model or a
    person must write the kernel.
    """


@dataclass(frozen=True, eq=False)
class Expression:
    """One operation. In one `Graph`, equal operations are the same object.

    op: one of these:
        ``input``, ``number``, ``transpose``, and ``product`` of two matrices;
        ``extent``, the size of a dimension; ``index``, the coordinate along a dimension;
        ``expand``, which inserts an axis of extent 1; ``drop``, which removes the last axis, of extent 1;
        one of `REDUCTIONS` of the last axis, which keeps extent 1;
        the name or sign of an element-wise function.
    value: the name of an input or dimension, the number, the axis of ``expand``, or None.
    dtype: the dtype of an input; ``bool`` for tests, ``int64`` for indices, otherwise ``float``.
    """

    op: str
    operands: tuple[Expression, ...]
    shape: Shape
    value: str | float | int | None = None
    dtype: str = "float"


class Graph:
    """Builds expressions, and remembers their names in the reference."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Expression] = {}
        self.names: dict[Expression, str] = {}

    def make(
        self, op: str, operands: Sequence[Expression] = (), shape: Shape | None = None,
        value: str | float | None = None, dtype: str = "float",
    ) -> Expression:  # fmt: skip
        """Returns the expression. By default its shape is the broadcast shape of the operands."""
        shape = broadcast([each.shape for each in operands]) if shape is None else shape
        key = (op, tuple(map(id, operands)), shape, type(value), value)
        if key not in self._known:
            self._known[key] = Expression(op, tuple(operands), shape, value, dtype)
        return self._known[key]

    def number(self, value: float) -> Expression:
        return self.make("number", value=value)

    def apply(self, op: str, *operands: Expression | float) -> Expression:
        """Applies an element-wise function or sign."""
        dtype = "bool" if op in (*COMPARISONS, "&", "|", "not") else "float"
        return self.make(op, [self.lifted(each) for each in operands], dtype=dtype)

    def lifted(self, value: Expression | float) -> Expression:
        return value if isinstance(value, Expression) else self.number(value)

    def reduce(self, op: str, of: Expression) -> Expression:
        """Reduces the last axis. The axis stays, with extent 1."""
        return self.make(op, [of], (*of.shape[:-1], 1))


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Returns the broadcast shape of several shapes, as in NumPy. Raises OutsideForms if they do not fit."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    extents = []
    for axis in zip(*padded, strict=True):
        names = dict.fromkeys(extent for extent in axis if extent != 1)
        if len(names) > 1:
            raise OutsideForms(f"the shapes {' and '.join(map(spelled, shapes))} do not broadcast by their names")
        extents.append(next(iter(names), 1))
    return tuple(extents)


def spelled(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def below(expressions: Sequence[Expression]) -> Iterator[Expression]:
    """Yields the expressions and all their direct and indirect operands. Each expression comes once, after its
    operands."""
    seen: set[Expression] = set()
    open_ = [(each, False) for each in reversed(expressions)]
    while open_:
        expression, ready = open_.pop()
        if ready:
            yield expression
        elif expression not in seen:
            seen.add(expression)
            open_.append((expression, True))
            open_ += [(each, False) for each in reversed(expression.operands)]


@dataclass(frozen=True)
class Operand:
    """A tensor of the computation."""

    name: str
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Computation:
    """The computation of a reference. ``notes``: remarks for its author, such as a formula that was made numerically
    stable.
    """

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[tuple[Operand, Expression], ...]
    graph: Graph
    notes: tuple[str, ...] = field(default=())

    @property
    def results(self) -> tuple[Expression, ...]:
        return tuple(expression for _, expression in self.outputs)

    @property
    def operations(self) -> int:
        """The number of element-wise operations and reductions."""
        left_out = ("input", "number", "extent", "index", "expand", "drop", "transpose", "product")
        return sum(each.op not in left_out for each in below(self.results))
