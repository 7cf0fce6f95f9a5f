"""Reads loops over the rows of tensors: ``for x in xs``, ``for x, y in zip(xs, ys)``, ``for i in range(len(xs))``."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass

from tilewright.program.reading.flow import changes_name
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.program.reading.operations import operation
from tilewright.program.reading.purity import METHODS, is_pure_call
from tilewright.source.source_file import Binding, argument, returned, stored

OF_TENSORS = ("device", "shape", "dtype", "ndim", "is_cuda")
ONLY_TENSORS = ("cpu", "cuda", "detach", "item", "unsqueeze", "softmax", "log_softmax", "backward", "gather")
"""Names of methods that only tensors have."""
LISTS = ("tolist", "numpy", "split", "chunk", "unbind")
"""Operations whose results are lists or arrays of NumPy, or pieces of several sizes."""


@dataclass(frozen=True)
class RowLoop:
    """A loop over rows. ``of``: name of a row → the expression of the tensor with all rows. ``index``: the variable
    that holds the row's number.
    """

    module: ReadModule
    loop: ast.For | ast.comprehension
    of: dict[str, ast.expr]
    index: str = ""
    count: ast.expr | None = None
    """The argument of the range, if the loop goes over numbers."""

    @property
    def targets(self) -> set[str]:
        return {*self.of, *([self.index] if self.index else [])}

    @property
    def end(self) -> int:
        return getattr(self.loop, "end_lineno", 0) or 0

    def mentions(self, node: ast.AST, more: Container[str] = ()) -> bool:
        names = (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        return any(name in self.targets or name in more for name in names)

    def whole(self, node: ast.expr) -> str | None:
        """If an expression is one row (``x`` or ``xs[i]``), returns the text of the tensor that holds all rows; else
        None.
        """
        match node:
            case ast.Name(id=name) if name in self.of:
                return self.module.operand(self.of[name])
            case ast.Subscript(value=rows, slice=ast.Name(id=name)) if name == self.index and self.index:
                check_rows(self.module, rows, self.loop)
                text = self.module.operand(rows)
                return (
                    text if self._counts(rows) else f"{text}[:{self.module.code(self.count)}]" if self.count else None
                )
        return None

    def _counts(self, rows: ast.expr) -> bool:
        """Returns whether the end of the range is ``len(rows)``, ``rows.size(0)`` or ``rows.shape[0]`` of the same
        ``rows``.
        """
        match self.count:
            case ast.Call(func=ast.Name(id="len"), args=[counted]):
                pass
            case ast.Call(func=ast.Attribute(value=counted, attr="size"), args=[ast.Constant(value=0)]):
                pass
            case ast.Subscript(value=ast.Attribute(value=counted, attr="shape"), slice=ast.Constant(value=0)):
                pass
            case _:
                return False
        return self.module.code(counted) == self.module.code(rows)


def row_loop(module: ReadModule, loop: ast.For | ast.comprehension) -> RowLoop | None:
    """Returns the loop if it may go over the rows of tensors; else None. Raises NotSure if it provably does not.

    A loop over a parameter, or over the result of an unknown function, may go over rows: `is_tensor` decides.
    """
    match loop.target, loop.iter:
        case ast.Name(id=index), ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]):
            if not module.is_builtin(loop.iter.func, "range"):
                return None
            return RowLoop(module, loop, {}, index, count)
        case ast.Tuple(elts=names), ast.Call(func=ast.Name(id="zip") as function, args=given, keywords=[]):
            named = [each.id for each in names if isinstance(each, ast.Name)]
            if not module.is_builtin(function, "zip") or not len(named) == len(names) == len(given):
                return None
            of: dict[str, ast.expr] = dict(zip(named, given, strict=True))
        case ast.Name(id=name), (ast.Name() | ast.Attribute() | ast.Call()) as rows:
            of = {name: rows}
        case _:
            return None
    for each in of.values():
        check_rows(module, each, loop)
    return RowLoop(module, loop, of)


def check_rows(module: ReadModule, rows: ast.expr, loop: ast.For | ast.comprehension) -> None:
    """Raises NotSure if an expression is provably no tensor, or may have another value at its second use."""
    if not isinstance(rows, (ast.Name, ast.Attribute, ast.Call)):
        raise NotSure(f"{module.code(rows)} is not followed", rows)
    for call in (each for each in ast.walk(rows) if isinstance(each, ast.Call)):
        method = isinstance(call.func, ast.Attribute) and call.func.attr in METHODS and call.func.attr not in LISTS
        if not is_pure_call(module, call) or (not method and not module.called(call).startswith("torch.")):
            raise NotSure(f"{module.code(call)} may give other rows each time", call)
    values = module.file.values(rows) if isinstance(rows, ast.Name) else [rows]
    for value in values:
        kinds = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp, ast.GeneratorExp, ast.Tuple)
        name = operation(module, value)[0] if isinstance(value, ast.expr) else ""
        listed = isinstance(value, ast.Call) and module.is_builtin(value.func, "list", "sorted", "range", "zip", "map")
        if isinstance(value, kinds) or name in LISTS or listed or module.called(value).startswith("numpy."):
            raise NotSure(f"{module.code(rows)} is no tensor", rows)
    body = loop.body if isinstance(loop, ast.For) else []
    names = {each.id for each in ast.walk(rows) if isinstance(each, ast.Name)} - stored(loop.target)
    if any(changes_name(statement, name) for statement in body for name in names):
        raise NotSure(f"the loop changes {module.code(rows)}", rows)


def replaced(module: ReadModule, loop: ast.stmt, *lines: str) -> Edit:
    """Makes the edit that puts lines in the place of a statement, with its indentation. Raises NotSure."""
    start, stop = module.insert_before(loop).start, module.delete(loop).end
    indentation = module.text[start : module.span(loop)[0]]
    return Edit(start, stop, "".join(f"{indentation}{line}\n" for line in lines))


def is_tensor(module: ReadModule, node: ast.expr, depth: int = 4) -> bool:
    """Returns whether the text shows, by the way an expression is made or used, that it is a tensor.

    For a parameter, all calls of its function in the program must show it.
    """
    if depth == 0:
        return False
    if isinstance(node, ast.Compare):
        return any(is_tensor(module, each, depth) for each in (node.left, *node.comparators))
    if isinstance(node, ast.BinOp):
        return is_tensor(module, node.left, depth) or is_tensor(module, node.right, depth)
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        return is_tensor(module, node.operand, depth)
    name, args = operation(module, node)
    if name in ONLY_TENSORS:
        return True
    if name and (module.called(node).startswith("torch.") or (args and is_tensor(module, args[0], depth))):
        return name not in LISTS
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    return _is_used_as_tensor(module, node) or (isinstance(node, ast.Name) and _is_bound_to_tensor(module, node, depth))


def _is_used_as_tensor(module: ReadModule, node: ast.Name | ast.Attribute) -> bool:
    text = module.code(node)

    def same(each: ast.AST) -> bool:
        return isinstance(each, (ast.Name, ast.Attribute)) and module.code(each) == text

    for each in ast.walk(module.file.scope(node)):
        match each:
            case ast.Attribute(value=value, attr=attr) if attr in OF_TENSORS and same(value):
                return attr != "shape" or isinstance(module.parent(each), ast.Subscript)
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in ONLY_TENSORS and same(value):
                return True
            case ast.Call(args=[ast.Subscript(value=first) | first, *_]) if same(first):
                if module.called(each).startswith("torch.nn.functional."):
                    return True
            case ast.arg(arg=arg, annotation=ast.expr() as kind) if arg == text:
                return module.full(kind) in ("torch.Tensor", "torch.LongTensor", "torch.FloatTensor")
    return False


def _is_bound_to_tensor(module: ReadModule, node: ast.Name, depth: int) -> bool:
    bound = module.file.bindings(node.id, node)
    if len(bound) == 1 and bound[0].kind == "parameter":
        given = list(_given(module, node))
        return bool(given) and all(value is not None and is_tensor(each, value, depth - 1) for each, value in given)
    values = [(each.kind, _part(module, each, node.id) if each.kind == "part" else each.value) for each in bound]
    others = [(kind, value) for kind, value in values if value is None or not _reads(value, node.id)]
    return bool(others) and all(
        isinstance(value, ast.expr) and kind in ("value", "part") and is_tensor(module, value, depth - 1)
        for kind, value in others
    )


def _reads(node: ast.AST, name: str) -> bool:
    """Returns whether a value reads the name: after ``x = x * 2``, a tensor is still a tensor."""
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _part(module: ReadModule, binding: Binding, name: str) -> ast.expr | None:
    """For ``a, b = made()``, returns the expression in ``made``'s return statement that ``name`` (``a`` or ``b``) gets.
    None if the source does not show it.
    """
    match binding.place:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call(func=ast.Name() as called)):
            function = module.file.value(called)
        case _:
            return None
    at = next((n for n, each in enumerate(names) if isinstance(each, ast.Name) and each.id == name), None)
    results = returned(function) if isinstance(function, ast.FunctionDef) else []
    if at is None or len(results) != 1 or not isinstance(results[0], ast.Tuple) or len(results[0].elts) != len(names):
        return None
    return results[0].elts[at]


def _given(module: ReadModule, name: ast.Name) -> Iterator[tuple[ReadModule, ast.expr | None]]:
    """Yields the expressions that the program's calls pass for a parameter, each with its file; None for a call that
    does not show it.
    """
    function = module.function_of(name)
    if function is None or module.class_of(function) is not None:
        return
    places = [each.arg for each in function.args.args]
    for each in module.program:
        for call in each.file.every(ast.Call):
            if isinstance(call.func, ast.Name) and call.func.id == function.name and name.id in places:
                yield each, argument(call, places.index(name.id), name.id)
