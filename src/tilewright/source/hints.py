"""What the configurations of a search carry, read from the text of the list or of its generator."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.source.module import DEPTH, Module, returned

WRAPPERS = {"list", "tuple", "sorted", "reversed"}
CONTAINERS = (ast.List, ast.Tuple)
COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp)
Record: TypeAlias = dict[str, ast.expr]


@dataclass
class Configurations:
    """``records`` as the text builds them: field → expression. ``whole``: whether these are all."""

    records: list[Record] = field(default_factory=list)
    whole: bool = True

    @property
    def fields(self) -> set[str]:
        return {name for record in self.records for name in record}


def configurations(module: Module, space: ast.expr | None) -> Configurations:
    """The records that make up a search space; without any where the text does not show them."""
    found = Configurations()
    if space is None:
        found.whole = False
    else:
        _collect(module, space, found, DEPTH)
    return found


def _values(module: Module, name: ast.Name, found: Configurations) -> tuple[ast.AST, ...]:
    values = module.values(name)
    found.whole = found.whole and bool(values)
    return values


def _collect(module: Module, node: ast.AST, found: Configurations, depth: int) -> None:
    """The records of something that is iterated over."""
    if not depth:
        found.whole = False
    elif isinstance(node, ast.Name):
        for value in _values(module, node, found):
            _collect(module, value, found, depth - 1)
    elif isinstance(node, CONTAINERS):
        for element in node.elts:
            _record(module, element, found, depth - 1)
    elif isinstance(node, COMPREHENSIONS):
        target = node.generators[0].target
        if isinstance(node.elt, ast.Name) and isinstance(target, ast.Name) and node.elt.id == target.id:
            _collect(module, node.generators[0].iter, found, depth - 1)
        else:
            _record(module, node.elt, found, depth - 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        _collect(module, node.left, found, depth - 1)
        _collect(module, node.right, found, depth - 1)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        _collect(module, node.value, found, depth - 1)
    elif isinstance(node, ast.Call) and module.dotted(node.func) in WRAPPERS and node.args:
        _collect(module, node.args[0], found, depth - 1)
    elif isinstance(node, ast.Call):
        _collect_from_function(module, node, found, depth)
    else:
        found.whole = False


def _collect_from_function(module: Module, call: ast.Call, found: Configurations, depth: int) -> None:
    functions = [
        value
        for value in module.values(call.func)
        if isinstance(value, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    ]
    if not functions:
        found.whole = False
    for function in functions:
        yields = list(module.every(ast.Yield, function))
        for one in yields:
            if one.value is not None:
                _record(module, one.value, found, depth - 1)
        for more in module.every(ast.YieldFrom, function):
            _collect(module, more.value, found, depth - 1)
        if not yields:
            for value in returned(function):
                _collect(module, value, found, depth - 1)


def _record(module: Module, node: ast.AST, found: Configurations, depth: int) -> None:
    """One configuration: a call with keywords, a dictionary, or a call of a function that makes one."""
    if not depth:
        found.whole = False
    elif isinstance(node, ast.Name):
        for value in _values(module, node, found):
            _record(module, value, found, depth - 1)
    elif isinstance(node, ast.Starred):
        _collect(module, node.value, found, depth - 1)
    elif isinstance(node, ast.Dict):
        keyed = zip(node.keys, node.values, strict=True)
        found.records.append({str(k.value): v for k, v in keyed if isinstance(k, ast.Constant)})
    elif isinstance(node, ast.Call):
        _record_of_call(module, node, found, depth)
    else:
        found.whole = False


def _record_of_call(module: Module, call: ast.Call, found: Configurations, depth: int) -> None:
    made_by = module.value(call.func)
    if isinstance(made_by, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        for value in returned(made_by):
            _record(module, value, found, depth - 1)
        return
    record = {one.arg: one.value for one in call.keywords if one.arg is not None}
    if isinstance(made_by, ast.ClassDef):
        record |= dict(zip(_fields(made_by), call.args, strict=False))
    found.records.append(record)
    if any(one.arg is None for one in call.keywords) or (call.args and len(record) == len(call.keywords)):
        found.whole = False


def _fields(cls: ast.ClassDef) -> Iterator[str]:
    for statement in cls.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
