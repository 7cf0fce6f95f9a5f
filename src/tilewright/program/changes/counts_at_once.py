"""A loop that counts rows for which a comparison holds → one comparison of all rows, read once.

for p, y in zip(predictions, labels):
    if p.item() == y.item():                        hits += int((predictions == labels).sum())
        hits += 1
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal, TypeAlias

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.numbers import axis, is_number
from tilewright.program.reading.operations import operation
from tilewright.program.reading.rows import ONLY_TENSORS, RowLoop, is_tensor, replaced, row_loop

Kind: TypeAlias = Literal["rows", "test", "number"]
SAME = ("item", "detach", "cpu", "clone")
CASTS = {"int": "long", "float": "double", "bool": "bool"}
COMPARED = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class CountsAtOnce(ProgramChange):
    name = "counts_at_once"
    about = "compares all rows in one kernel and reads one count, instead of waiting for the GPU at each row"
    words = ("count* row*", "accuracy loop*", "loop* over prediction*", "per sample loop*", "vectori* accuracy")
    findings = ("host-sync", "host-late", "short-kernels", "idle")
    gone = (r"aten::item|_local_scalar_dense|aten::select$|aten::unbind$",)
    order = 21
    absent = "no loop of the program counts rows of a tensor"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for loop in module.file.every(ast.For):
            counted = _counted(loop)
            if counted is None or loop.orelse:
                continue
            try:
                rows = row_loop(module, loop)
                if rows is not None:
                    yield _site(module, rows, *counted)
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _counted(loop: ast.For) -> tuple[str, ast.expr, list[ast.stmt]] | None:
    """Returns the counter's name, the test, and the statements before the test; None if the loop does other
    work, too.
    """
    *first, last = loop.body
    if not all(isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) for each in first):
        return None
    match last:
        case ast.If(test=test, body=[ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=one)], orelse=[]):
            return (name, test, first) if isinstance(one, ast.Constant) and one.value == 1 else None
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=ast.Call(args=[test]) as call):
            whole = isinstance(call.func, ast.Name) and call.func.id in ("int", "bool")
            return (name, test, first) if whole and isinstance(test, (ast.Compare, ast.BoolOp)) else None
        case ast.AugAssign(
            target=ast.Name(id=name), op=ast.Add(),
            value=ast.Call(func=ast.Attribute(value=ast.Compare() as test, attr="item"), args=[]),
        ):  # fmt: skip
            return name, test, first
    return None


def _site(module: ReadModule, rows: RowLoop, name: str, test: ast.expr, first: list[ast.stmt]) -> ChangeSite:
    scope = module.file.scope(rows.loop)
    begins = module.file.bindings(name, rows.loop)
    if name in module.declared_global or not begins or any(
        not isinstance(each.place, ast.AugAssign) and not is_number(module, each.value) for each in begins
    ):  # fmt: skip
        raise NotSure(f"'{name}' is not known to begin as a number", rows.loop)
    inner = {each.targets[0].id: each.value for each in first if isinstance(each, ast.Assign)
             and isinstance(each.targets[0], ast.Name)}  # fmt: skip
    if len(inner) != len(first) or name in inner:
        raise NotSure("a name is bound twice in the loop", rows.loop)
    own = {*rows.targets, *inner}
    after = (n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id in own and n.lineno > rows.end)
    if (
        use := next((n for n in after if isinstance(n.ctx, ast.Load) and not _rebound(module, n, rows)), None)
    ) is not None:
        raise NotSure(f"line {use.lineno} reads '{use.id}' of the loop", rows.loop)
    assert isinstance(rows.loop, ast.For)
    together = _Together(module, rows, inner)
    text = together.test(test)
    if not together.seen:
        raise NotSure("the text does not show that its rows are of a tensor", rows.loop)
    return ChangeSite(rows.loop.lineno, f"count {name}", (replaced(module, rows.loop, f"{name} += int({text}.sum())"),))


def _rebound(module: ReadModule, node: ast.Name, rows: RowLoop) -> bool:
    """Returns whether a read gets its value from a binding after the loop."""
    return any(
        getattr(binding.place, "lineno", 0) > rows.end for binding in module.file.bindings(node.id, node)
    ) and not any(isinstance(each, ast.If) for each in module.above(node))


class _Together:
    """Turns expressions over one row into expressions over all rows. Raises NotSure for unknown expressions."""

    def __init__(self, module: ReadModule, rows: RowLoop, inner: dict[str, ast.expr]) -> None:
        self.module, self.rows, self.inner = module, rows, inner
        self.seen = False
        """Whether something shows that a row is of a tensor."""

    def test(self, node: ast.expr) -> str:
        """Returns a comparison of all rows, in parentheses."""
        match node:
            case ast.BoolOp(op=op, values=values):
                return f"({(' & ' if isinstance(op, ast.And) else ' | ').join(map(self.test, values))})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(~{self.test(operand)})"
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                sides, kinds = zip(*map(self.value, (left, right)), strict=True)
                if "rows" not in kinds:
                    raise NotSure(f"{self.module.code(node)} is no test of a row", node)
                exact = "number" in kinds and any(self._is_read(each) for each in (left, right))
                one, other = (
                    f"{_flat(side)}{'.double()' if exact else ''}" if kind == "rows" else side
                    for side, kind in zip(sides, kinds, strict=True)
                )
                return f"({one} {COMPARED[type(op)]} {other})"
        if isinstance(node, ast.Compare):
            raise NotSure(f"{self.module.code(node)} is no comparison of two numbers", node)
        name, args = operation(self.module, node)
        if name == "item" and isinstance(args[0], (ast.Compare, ast.BoolOp)):
            return self.test(args[0])
        text, kind = self.value(node)
        if kind == "number":
            raise NotSure(f"{self.module.code(node)} is no test of a row", node)
        return f"{_flat(text)}.bool()"

    def _is_read(self, node: ast.expr) -> bool:
        """Returns whether the host reads the row. Then Python compares it in float64."""
        calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
        return any(
            operation(self.module, call)[0] == "item" or self.module.is_builtin(call.func, "float") for call in calls
        )

    def value(self, node: ast.expr) -> tuple[str, Kind]:
        if isinstance(node, ast.Name) and node.id in self.inner:
            return self.value(self.inner[node.id])
        if isinstance(node, (ast.Compare, ast.BoolOp)) and self.rows.mentions(node, self.inner):
            return self.test(node), "rows"
        if (whole := self.rows.whole(node)) is not None:
            rows = self.rows.of[node.id] if isinstance(node, ast.Name) else getattr(node, "value", node)
            self.seen = self.seen or is_tensor(self.module, rows)
            return whole, "rows"
        if not self.rows.mentions(node, self.inner):
            if isinstance(node, ast.Name) or is_number(self.module, node):
                return self.module.operand(node), "number"
            raise NotSure(f"{self.module.code(node)} is not known to be the same for each row", node)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            for builtin, method in CASTS.items():
                if self.module.is_builtin(node.func, builtin):
                    text, _ = self.value(node.args[0])
                    return f"{text}.{method}()", "rows"
        name, args = operation(self.module, node)
        self.seen = self.seen or name in ONLY_TENSORS
        if name in SAME and len(args) == 1 and isinstance(node, ast.Call) and not node.keywords:
            return self.value(args[0])
        if name in ("argmax", "argmin") and isinstance(node, ast.Call):
            text, _ = self.value(args[0])
            given = [*args[1:], *(k.value for k in node.keywords if k.arg == "dim")]
            if len(given) == len(args) - 1 + len(node.keywords) and (not given or axis(given[0]) == -1):
                return (f"{text}.{name}(-1)" if given else f"{text}.flatten(1).{name}(1)"), "rows"
        raise NotSure(f"{self.module.code(node)} is not known for all rows", node)


def _flat(text: str) -> str:
    """Returns an expression that puts all rows on one axis. Each row has a single element, because it is compared with
    a scalar.
    """
    return text if text.endswith((".flatten()", ".argmax(1)", ".argmin(1)")) else f"{text}.flatten()"


CHANGE = CountsAtOnce()
