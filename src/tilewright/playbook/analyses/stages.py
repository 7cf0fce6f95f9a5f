"""Cuts the body of a kernel into the statements that one output needs, and those that its other outputs need.

Statements that both need run in both stages. So each statement of the kernel must store to a parameter, or compute a
value from arrays that the kernel never writes. Everything else is refused: atomic operations, returns, loads of what
the kernel stores. `reloading` repeats statements of the same kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.absorbed import Products
from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, parameters, target_names
from tilewright.playbook.analyses.tile_shapes import Shapes, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Function, Line, Source, dotted

STORES = ("store", "scatter")
_SIMPLE = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Pass)


@dataclass(frozen=True, eq=False)
class Kernel:
    """The function of a kernel, in which each statement stores to a parameter or only computes a value.

    outputs: the parameters that it stores to, each with its stores, in the order of the text.
    """

    source: Source
    function: Function
    outputs: Mapping[str, tuple[Line, ...]]

    @property
    def statements(self) -> list[cst.BaseStatement]:
        """The statements of the body, without the docstring."""
        body = [each for each in self.function.body.body if isinstance(each, cst.BaseStatement)]
        return body[len(self.docstring) :]

    @property
    def docstring(self) -> list[cst.BaseStatement]:
        return [each for each in self.function.body.body[:1] if isinstance(each, Line) and _is_text(each)]


def understood(source: Source, name: str) -> Kernel:
    """Returns the parts of a kernel. Raises `NotApplicable` with the statement that is not understood."""
    function = source.functions[name]
    effects, found = Effects(source, function), dict[str, list[Line]]()
    if source.every(cst.NamedExpr, function):
        raise NotApplicable(f"{name} has an assignment inside of an expression")
    for suite in source.every(cst.BaseSuite, function):  # type: ignore[type-abstract]
        if not isinstance(suite, cst.IndentedBlock):
            raise NotApplicable(f"{name} has a block that is written on one line")
        for each in suite.body:
            if problem := _problem(source, function, effects, each):
                raise NotApplicable(f"{source.name}:{source.place(each)[0]}: {name} {problem}")
            if isinstance(each, Line) and (output := _stored(source, effects, each)):
                found.setdefault(output, []).append(each)
    return Kernel(source, function, {output: tuple(lines) for output, lines in found.items()})


def _problem(source: Source, function: Function, effects: Effects, statement: cst.CSTNode) -> str:
    """Returns why a statement cannot run again, or only for some outputs; "" if it can."""
    match statement:
        case cst.If() | cst.For(orelse=None, asynchronous=None):
            if not all(map(effects.is_pure, _heads(statement))):
                return "has a branch or a loop whose head is not understood"
            if isinstance(statement, cst.For) and _is_read_outside(source, function, statement):
                return f"reads {source.code(statement.target)} after its loop"
            return ""
        case cst.SimpleStatementLine() if (output := _stored(source, effects, statement)) is not None:
            known = output in parameters(function) and not names_assigned(function)[output]
            return "" if known else "stores to something else than a parameter"
        case cst.SimpleStatementLine():
            if (_is_computed(statement) and effects.is_pure(statement)) or _is_docstring(function, statement):
                return ""
    return f"does more than compute values and store them: {_first_words(source, statement)}"


def _heads(statement: cst.If | cst.For) -> Iterator[cst.BaseExpression]:
    """Yields what a loop runs over, or the tests of a branch, with those of its ``elif``."""
    below: cst.CSTNode | None = statement
    while isinstance(below, cst.If):
        yield below.test
        below = below.orelse
    if isinstance(statement, cst.For):
        yield statement.iter


def _is_read_outside(source: Source, function: Function, loop: cst.For) -> bool:
    """Returns whether the function uses the variable of a loop outside of all loops with this variable."""
    names = set(target_names(loop.target))
    loops = [each for each in source.every(cst.For, function) if names & set(target_names(each.target))]
    inside = {id(node) for each in loops for node in source.every(cst.Name, each)}
    return any(node.value in names and id(node) not in inside for node in source.every(cst.Name, function))


def _is_docstring(function: Function, line: Line) -> bool:
    return line is function.body.body[0] and _is_text(line)


def _first_words(source: Source, node: cst.CSTNode) -> str:
    lines = [line for line in source.code(node).splitlines() if line.strip() and not line.strip().startswith("#")]
    return lines[0].strip() if lines else ""


def _stored(source: Source, effects: Effects, line: Line) -> str | None:
    """Returns the first argument of a store, as text; None for another statement."""
    match line.body:
        case [cst.Expr(value=cst.Call() as call)] if tile_call(source, call) in STORES and call.args:
            if all(effects.is_pure(arg.value) for arg in call.args):
                return dotted(call.args[0].value)
    return None


def _is_computed(line: Line) -> bool:
    """Returns whether a line only assigns names, so that their names are all that it changes."""
    return all(isinstance(each, _SIMPLE) and not _writes_element(each) for each in line.body)


def _writes_element(statement: cst.BaseSmallStatement) -> bool:
    targets = [each.target for each in statement.targets] if isinstance(statement, cst.Assign) else []
    if isinstance(statement, (cst.AnnAssign, cst.AugAssign)):
        targets = [statement.target]
    return any(_is_element(target) for target in targets)


def _is_element(target: cst.CSTNode) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_is_element(element.value) for element in target.elements)
    return not isinstance(target, cst.Name)


def _is_text(statement: cst.CSTNode) -> bool:
    match statement:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString())]):
            return True
    return False


@dataclass(frozen=True, eq=False)
class Cut:
    """The statements that both stages begin with, the stage of one output, and the stage of the other outputs.

    repeated: the number of lines that are in both stages."""

    shared: tuple[cst.BaseStatement, ...]
    stages: tuple[tuple[cst.BaseStatement, ...], tuple[cst.BaseStatement, ...]]
    repeated: int


def by_output(kernel: Kernel, output: str) -> Cut:
    """Cuts a kernel into the stage of ``output`` and that of its other outputs. Raises `NotApplicable` unless each of
    them leaves out a statement that the other needs."""
    source, name = kernel.source, kernel.function.name.value
    if output not in kernel.outputs or len(kernel.outputs) < 2:
        raise NotApplicable(f"{name} has no other output than {', '.join(kernel.outputs)}")
    every = {each for each in source.every(Line, kernel.function.body) if not _is_text(each)}
    stores = {each for lines in kernel.outputs.values() for each in lines}
    own = set(kernel.outputs[output])
    mine, others = _needed(kernel, own), _needed(kernel, stores - own)
    others = _needed(kernel, (stores - own) | (every - mine - others))  # what nothing needs stays, with its comments
    if not (mine - others) - stores or not (others - mine) - stores:
        raise NotApplicable(
            f"{name} needs all that it computes for {output} for its other outputs, too, or the reverse"
        )
    _refuse_absorbed(kernel, mine, others)
    shapes, shared = Shapes(source, kernel.function), list[cst.BaseStatement]()
    for each in kernel.statements:
        scalars = isinstance(each, Line) and all(shapes.of(cst.Name(one)) == () for one in names_assigned(each))
        if not scalars or each not in mine & others:
            break
        shared.append(each)
    left = kernel.statements[len(shared) :]
    stages = tuple(
        tuple(_only(each, lines) for each in left if _holds(source, each, lines)) for lines in (mine, others)
    )
    assert len(stages) == 2
    return Cut(tuple(shared), (stages[0], stages[1]), len(mine & others))


def _refuse_absorbed(kernel: Kernel, mine: Collection[Line], others: Collection[Line]) -> None:
    """Raises `NotApplicable` if both stages compute a product that a sum reads: if one of them reads it less often than
    the kernel did, its rounding changes. The compiler knows more of what is read than the text shows."""
    products, name = Products(kernel.source, kernel.function), kernel.function.name.value
    both = [each for each in mine if each in others]
    for shared in sorted({each for line in both for each in names_assigned(line)}):
        if products.is_absorbed(shared):
            raise NotApplicable(f"{name} adds up the product {shared} in two stages, which might round it differently")


def _needed(kernel: Kernel, roots: Collection[Line]) -> set[Line]:
    """Returns the lines that compute what ``roots`` read, or that decide whether they run, and ``roots`` themselves.

    A line that assigns a name is needed wherever the name is read: the order of the statements plays no part."""
    source, stores = kernel.source, {each for lines in kernel.outputs.values() for each in lines}
    lines = [each for each in source.every(Line, kernel.function.body) if each not in stores and not _is_text(each)]
    assigned = {line: set(names_assigned(line)) for line in lines}
    found, read = set(roots), set[str]()
    while True:
        before = len(found), len(read)
        for line in found:
            read |= names_read(line)
            for above in source.parents(line):
                if isinstance(above, (cst.For, cst.If)):
                    read |= names_read(above.iter if isinstance(above, cst.For) else above.test)
        found |= {line for line in lines if assigned[line] & read}
        if (len(found), len(read)) == before:
            return found


def _holds(source: Source, statement: cst.BaseStatement, lines: Collection[Line]) -> bool:
    return statement in lines or any(each in lines for each in source.every(Line, statement))


def _only(statement: cst.BaseStatement, lines: Collection[Line]) -> cst.BaseStatement:
    """Returns a statement with only ``lines`` of the lines inside."""
    if isinstance(statement, Line):
        return statement
    only = statement.visit(_Only(lines))
    assert isinstance(only, cst.BaseStatement)
    return only


class _Only(cst.CSTTransformer):
    def __init__(self, lines: Collection[Line]) -> None:
        super().__init__()
        self.lines = lines

    def leave_SimpleStatementLine(
        self, original_node: Line, updated_node: Line
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        return updated_node if original_node in self.lines else cst.RemoveFromParent()

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node if updated_node.body else updated_node.with_changes(body=[Line([cst.Pass()])])

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For | cst.RemovalSentinel:
        return cst.RemoveFromParent() if _is_empty(updated_node.body) else updated_node

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | cst.RemovalSentinel:
        gone = _is_empty(updated_node.body) and updated_node.orelse is None
        return cst.RemoveFromParent() if gone else updated_node

    def leave_Else(self, original_node: cst.Else, updated_node: cst.Else) -> cst.Else:
        gone: cst.Else = cst.RemoveFromParent()  # type: ignore[assignment]  # libcst allows it for this field, too
        return gone if _is_empty(updated_node.body) else updated_node


def _is_empty(body: cst.BaseSuite) -> bool:
    return all(isinstance(each, Line) and isinstance(each.body[0], cst.Pass) for each in body.body)
