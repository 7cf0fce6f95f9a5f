"""Finds the layers that a module's class assigns to its attributes: ``self.drop = nn.Dropout(0.1)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.reading.module import ReadModule
from tilewright.source.source_file import elements

PURE = frozenset(
    f"torch.nn.{name}"
    for name in (
        "Linear", "LayerNorm", "RMSNorm", "Dropout", "GELU", "SiLU", "ReLU", "Tanh", "Sigmoid", "Softmax", "Identity",
        "Conv1d", "Conv2d", "Conv3d", "Embedding", "GroupNorm", "Flatten", "Unflatten", "AvgPool2d", "MaxPool2d",
    )
)  # fmt: skip
"""Layers that do not change their input tensors (unless ``inplace=True``)."""


def is_self(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether an expression is the first parameter of the method around it."""
    function = module.function_of(node)
    if function is None or module.class_of(function) is None or not isinstance(node, ast.Name):
        return False
    return bool(function.args.args) and function.args.args[0].arg == node.id and not _rebound(function, node.id)


def _rebound(function: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(function))


def settings(module: ReadModule, attribute: ast.AST) -> list[ast.expr] | None:
    """Returns all values that the class gives to the attribute ``self.name``; None if the source does not show them.

    A buffer's value is the tensor given to ``register_buffer``.
    """
    if not isinstance(attribute, ast.Attribute) or not is_self(module, attribute.value):
        return None
    owner = module.class_of(attribute)
    if owner is None:
        return None
    found = []
    for node in _written(module, owner, attribute.attr):
        if node is None:
            return None
        found.append(node)
    return found or None


def _written(module: ReadModule, owner: ast.ClassDef, name: str) -> Iterator[ast.expr | None]:
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(attr=found, ctx=ast.Store() | ast.Del()) if found == name:
                yield _assigned(module.statement(node), node)
            case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=found), value, *_]):
                if found == name:
                    yield value
            case ast.Call(func=ast.Name(id="setattr")):
                yield None
            case ast.Subscript(value=ast.Attribute(attr=found), ctx=ast.Store() | ast.Del()) if found == name:
                yield None
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=found), attr=method)) if found == name:
                if method.endswith("_") and not method.endswith("__"):
                    yield None
    if any(_sets_from_outside(module, node, name) for node in module.file.every(ast.Attribute)):
        yield None
    for statement in owner.body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if isinstance(target, ast.Name) and target.id == name:
                yield _assigned(statement, target)


def _sets_from_outside(module: ReadModule, node: ast.Attribute, name: str) -> bool:
    return node.attr == name and not isinstance(node.ctx, ast.Load) and not is_self(module, node.value)


def _assigned(statement: ast.stmt, target: ast.expr) -> ast.expr | None:
    """Returns the value that ``target = value`` or ``a, target = x, value`` assigns to the target; None for other
    statements.
    """
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    whole, value = statement.targets[0], statement.value
    if whole is target:
        return value
    targets, values = elements(whole), elements(value)
    return values[targets.index(target)] if target in targets and len(targets) == len(values) else None


def layer_call(module: ReadModule, attribute: ast.AST) -> ast.Call | None:
    """Returns the call of ``torch.nn.…`` that makes the layer ``self.name``; None if the attribute is also
    set to something else.
    """
    values = settings(module, attribute)
    if values is None or len(values) != 1 or not isinstance(values[0], ast.Call):
        return None
    return values[0]


def layer_of(module: ReadModule, attribute: ast.AST) -> str:
    """Returns the full name of the layer ``self.name`` if its call changes no tensor; else an empty text."""
    call = layer_call(module, attribute)
    if call is None or any(keyword.arg == "inplace" for keyword in call.keywords):
        return ""
    name = module.full(call.func)
    return name if name in PURE else ""
