"""Finds where a program makes its models, and the code that defines them.

It also finds models in attributes of ``self``, of classes in other files, and of functions that return a new model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.program.reading.flow import after, changes_name
from tilewright.program.reading.module import ReadModule
from tilewright.source.source_file import returned

MOVED = ("to", "cuda", "eval", "train", "float")
CONTAINERS = ("torch.nn.Sequential",)


@dataclass(frozen=True)
class MadeModel:
    """A statement ``model = Net(…).to(device)`` in the file ``module``."""

    module: ReadModule
    statement: ast.Assign
    target: ast.Name | ast.Attribute
    value: ast.expr

    @property
    def name(self) -> str:
        return ast.unparse(self.target)

    def calls(self, *names: str) -> bool:
        """Returns whether the code that makes the model calls one of these functions, given by full name."""
        return any(module.called(node) in names for module, node in _code(self.module, self.value))


def made_models(module: ReadModule) -> Iterator[MadeModel]:
    """Yields the assignments of a file that make a model, in the order of the text.

    If the class of a `torch.nn.Module` assigns a module to an attribute, ``self.layer = Net(…)``, that module is a part
    of a model, and is not yielded.
    """
    for statement in module.file.every(ast.Assign):
        match statement:
            case ast.Assign(targets=[(ast.Name() | ast.Attribute(value=ast.Name())) as target], value=value):
                owner = module.class_of(statement)
                part = owner is not None and isinstance(target, ast.Attribute) and is_module(module, owner)
                if not part and makes_model(module, value):
                    yield MadeModel(module, statement, target, value)


def last_of_making(made: MadeModel, wrappers: tuple[str, ...] = ()) -> ast.stmt:
    """Returns the last of the statements that make a model: those that move it, change its mode, or bind it again.

    A statement that calls one of ``wrappers``, and all after it, do not count.
    """
    module, last = made.module, made.statement
    found: ast.stmt = last
    for each in after(module, last):
        if not isinstance(each, (ast.Assign, ast.AnnAssign, ast.Expr)):
            break  # a loop or another block may run the model
        if any(module.called(node) in wrappers for node in ast.walk(each)):
            break
        if isinstance(each, (ast.Assign, ast.Expr)) and (changes_name(each, made.name) or _moves(each, made.name)):
            found = each
    return found


def _moves(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=found, attr="to" | "cuda" | "eval" | "train"))):
            return ast.unparse(found) == name
    return False


def _bare(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MOVED:
        value = value.func.value
    return value


def makes_model(module: ReadModule, value: ast.expr, depth: int = 5) -> bool:
    """Returns whether a value is a new model: ``Net(…)``, ``Net(…).cuda().eval()``, or a call of a function whose
    ``return`` statements make models. If they return a variable, its assignment makes the model."""
    value = _bare(value)
    if not isinstance(value, ast.Call):
        return False
    if module.full(value.func) in CONTAINERS:
        return True
    match module.defined(value.func):
        case (file, ast.ClassDef() as owner):
            return is_module(file, owner)
        case (file, ast.FunctionDef(decorator_list=[]) as function) if depth:
            values = returned(function)
            return bool(values) and all(makes_model(file, each, depth - 1) for each in values)
    return False


def _code(module: ReadModule, value: ast.AST) -> Iterator[tuple[ReadModule, ast.AST]]:
    """Yields each node of the expression, and of the classes, functions and values that it names, directly or through
    others."""
    waiting, seen = [(module, value)], {value}
    for file, start in waiting:
        for node in ast.walk(start):
            yield file, node
            if isinstance(node, (ast.Name, ast.Attribute)) and (found := file.defined(node)) and found[1] not in seen:
                seen.add(found[1])
                waiting.append(found)


def is_module(module: ReadModule, owner: ast.ClassDef, depth: int = 5) -> bool:
    """Returns whether a class is a `torch.nn.Module`, also through other classes of the program."""
    for base in owner.bases:
        if module.full(base) == "torch.nn.Module":
            return True
        found = module.defined(base) if depth else None
        if found is not None and isinstance(found[1], ast.ClassDef) and is_module(found[0], found[1], depth - 1):
            return True
    return False
