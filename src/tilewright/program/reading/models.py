"""Finds where a program makes its models. It also finds models in attributes of ``self``, and of classes in other
files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.program.reading.module import ReadModule

MOVED = ("to", "cuda", "eval", "train", "float")
CONTAINERS = ("torch.nn.Sequential",)


@dataclass(frozen=True)
class MadeModel:
    """A statement ``model = Net(…).to(device)``. ``files``: those that define the classes of the model."""

    statement: ast.Assign
    target: ast.Name | ast.Attribute
    value: ast.expr
    files: tuple[ReadModule, ...]

    @property
    def name(self) -> str:
        return ast.unparse(self.target)


def made_models(module: ReadModule) -> Iterator[MadeModel]:
    """Yields the assignments of a file that make a model, in the order of the text.

    A module that another module makes in its constructor is a part of that one, not a model.
    """
    for statement in module.file.every(ast.Assign):
        match statement:
            case ast.Assign(targets=[(ast.Name() | ast.Attribute(value=ast.Name())) as target], value=value):
                files = model_files(module, value)
                owner = module.class_of(statement)
                part = owner is not None and isinstance(target, ast.Attribute) and is_module(module, owner)
                if files is not None and not part:
                    yield MadeModel(statement, target, value, files)


def _bare(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MOVED:
        value = value.func.value
    return value


def model_files(module: ReadModule, value: ast.expr) -> tuple[ReadModule, ...] | None:
    """Returns the files that define the model of ``Net(…)`` or ``Net(…).cuda().eval()``; None if the value is provably
    not a model.
    """
    value = _bare(value)
    if not isinstance(value, ast.Call):
        return None
    if module.full(value.func) in CONTAINERS:
        return (module,)
    found = module.defined(value.func)
    if found is None or not isinstance(found[1], ast.ClassDef) or not is_module(found[0], found[1]):
        return None
    return (found[0], *(each for each in found[0].beside.values() if each is not found[0]))


def is_module(module: ReadModule, owner: ast.ClassDef, depth: int = 5) -> bool:
    """Returns whether a class is a `torch.nn.Module`, also through other classes of the program."""
    for base in owner.bases:
        if module.full(base) == "torch.nn.Module":
            return True
        found = module.defined(base) if depth else None
        if found is not None and isinstance(found[1], ast.ClassDef) and is_module(found[0], found[1], depth - 1):
            return True
    return False
