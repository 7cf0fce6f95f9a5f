"""Rows of a tensor that are computed one at a time and stacked → computed together.

    rows = []                                       def row(t):
    for t in times:                                     f = torch.exp(frequencies)
        f = torch.exp(frequencies)                      return torch.cos(t * f)
        rows.append(torch.cos(t * f))
    out = torch.stack(rows)                         out = torch.vmap(row)(times)

Pieces of equal length, ``torch.stack([data[i : i + n] for i in starts])``, are read by one index.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.broken_lines import fitted
from tilewright.program.reading.flow import after, before, loads, scope_of
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.program.reading.numbers import is_number
from tilewright.program.reading.operations import operation
from tilewright.program.reading.purity import METHODS
from tilewright.program.reading.rows import RowLoop, is_tensor, replaced, row_loop
from tilewright.program.reading.slices import indexed
from tilewright.source.source_file import argument

TOGETHER = (METHODS - {"item", "tolist", "int", "split", "unbind", "cuda", "cpu", "size", "dim", "stride", "numel",
                       "ndimension", "unfold", "chunk", "clone"}) | {
    "arange", "cat", "concat", "stack", "outer", "relu", "erf", "softplus", "silu", "gelu", "dot", "einsum", "hypot",
    "atan2", "ones", "zeros", "full", "tensor", "linspace", "deg2rad", "maximum", "minimum",
}  # fmt: skip
"""Operations that do the same to a row and to all rows."""
BRANCHES = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.NamedExpr, ast.JoinedStr, ast.Await)


class RowsTogether(ProgramChange):
    name = "rows_together"
    about = "computes all rows in one call of each operation, instead of one call for each row"
    words = ("loop* over row*", "row by row", "loop* over batch*", "loop* over sample*", "vectori* loop*", "vmap",
             "batch* loop*", "stack* loop*")  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late", "idle")
    gone = (r"aten::(stack|unbind|select|slice)$",)
    order = 22
    absent = "no loop of the program computes rows of a tensor one at a time"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for call in module.file.every(ast.Call):
            if module.called(call) != "torch.stack" or not call.args:
                continue
            try:
                if isinstance(call.args[0], (ast.ListComp, ast.GeneratorExp)):
                    site = _of_comprehension(module, call, call.args[0])
                else:
                    site = _of_loop(module, call)
                if site is not None:
                    yield site
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _out_dims(module: ReadModule, call: ast.Call) -> str:
    dim = argument(call, 1, "dim")
    if len(call.args) + len(call.keywords) > 1 + (dim is not None):
        raise NotSure("its stack has other arguments", call)
    if dim is None or (isinstance(dim, ast.Constant) and dim.value == 0):
        return ""
    if not is_number(module, dim):
        raise NotSure("its stack is along an unknown axis", call)
    return f", out_dims={module.code(dim)}"


def _of_comprehension(
    module: ReadModule, call: ast.Call, inner: ast.ListComp | ast.GeneratorExp
) -> ChangeSite | None:  # fmt: skip
    if len(inner.generators) != 1 or inner.generators[0].ifs:
        return None
    loop = inner.generators[0]
    if not _out_dims(module, call) and (text := indexed(module, inner.elt, loop)) is not None:
        return ChangeSite(call.lineno, "slices of equal length, by one index", (fitted(module, call, text),))
    rows = _rows(module, loop)
    if rows is None:
        return None
    _check(module, rows, [inner.elt], set())
    (name,) = rows.of
    vmap = f"{module.spelled('torch.vmap', call)}(lambda {name}: {module.code(inner.elt)}{_out_dims(module, call)})"
    text = f"{vmap}({module.argument(rows.of[name])})"
    return ChangeSite(call.lineno, "rows", (fitted(module, call, text),))


def _rows(module: ReadModule, loop: ast.For | ast.comprehension) -> RowLoop | None:
    """Returns a loop over the rows of one tensor; None for another loop."""
    rows = row_loop(module, loop)
    if rows is None or len(rows.of) != 1 or rows.index:
        return None
    (whole,) = rows.of.values()
    if not is_tensor(module, whole):
        raise NotSure(f"{module.code(whole)} is not known to be a tensor: its rows may differ in size", whole)
    return rows


def _of_loop(module: ReadModule, call: ast.Call) -> ChangeSite | None:
    name, final = call.args[0], module.statement(call)
    if not isinstance(name, ast.Name):
        return None
    above = list(before(module, final))
    loop = next((each for each in above if isinstance(each, ast.For)), None)
    begin = next((each for each in above if _is_empty_list(each, name.id)), None)
    if loop is None or begin is None or loop.orelse or loop not in after(module, begin) or not loop.body:
        return None
    *body, last = loop.body
    match last:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=kept), attr="append"), args=[value])) if (
            kept == name.id
        ):
            pass
        case _:
            return None
    rows = _rows(module, loop)
    if rows is None:
        return None
    (row,) = rows.of
    names = set()
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=bound)]) if bound not in (row, name.id):
                names.add(bound)
            case _:
                raise NotSure(f"line {statement.lineno} is no operation on a row", statement)
    _check(module, rows, [*(each.value for each in body if isinstance(each, ast.Assign)), value], names)
    uses = [node for node in loads(scope_of(module, call), name.id) if node is not name]
    if len(uses) != 1 or module.statement(uses[0]) is not last:
        raise NotSure(f"the rows in '{name.id}' are read elsewhere, too", call)
    inside = set(ast.walk(loop))
    for each in {row, *names}:
        if use := next((n for n in loads(scope_of(module, call), each) if n not in inside), None):
            raise NotSure(f"line {use.lineno} reads '{each}' of the loop", use)
    function = module.unused(f"{name.id}_row")
    lines = [f"def {function}({row}):", *(f"    {line}" for each in body for line in _lines(module, each)),
             f"    return {module.argument(value)}"]  # fmt: skip
    new = f"{module.spelled('torch.vmap', call)}({function}{_out_dims(module, call)})({module.argument(rows.of[row])})"
    edits: tuple[Edit, ...] = (module.delete(begin), replaced(module, loop, *lines), fitted(module, call, new))
    return ChangeSite(loop.lineno, f"rows {name.id}", edits)


def _lines(module: ReadModule, statement: ast.stmt) -> list[str]:
    code = module.code(statement)
    if "\n" in code:
        raise NotSure("a statement of the loop has several lines", statement)
    return [code]


def _is_empty_list(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=found)], value=ast.List(elts=[])):
            return found == name
    return False


def _check(module: ReadModule, rows: RowLoop, values: list[ast.expr], names: set[str]) -> None:
    """Raises NotSure unless all expressions only compute, and treat each row alike."""
    for node in (each for value in values for each in ast.walk(value)):
        if isinstance(node, ast.Call):
            full, name = module.full(node.func), operation(module, node)[0]
            if full.startswith("math.") and not rows.mentions(node, names):
                continue
            if not name or name not in TOGETHER or (full and not full.startswith("torch.")):
                raise NotSure(f"{module.code(node.func)} is not known to treat rows alike", node)
            if (name == "where" and len(node.args) != 3) or (name == "tensor" and rows.mentions(node, names)):
                raise NotSure(f"{module.code(node)} reads a row", node)
        elif isinstance(node, BRANCHES) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            raise NotSure(f"{module.code(node)} may branch for each row", node)
        elif isinstance(node, ast.Subscript) and rows.mentions(node.slice, names):
            raise NotSure(f"{module.code(node)} picks by a row", node)


CHANGE = RowsTogether()
