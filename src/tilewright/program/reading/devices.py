"""Says which expressions name a device that is, or may be, a GPU."""

from __future__ import annotations

import ast

from tilewright.program.reading.module import ReadModule


def is_device(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether an expression is a device that may be a GPU: ``"cuda"``, ``device``, ``x.device``."""
    values = module.file.values(node) if isinstance(node, ast.Name) else ()
    if values:
        return all(_names_device(module, value) for value in values)
    return _names_device(module, node)


def _names_device(module: ReadModule, node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str() as text):
            return text.startswith("cuda")
        case ast.IfExp(body=body, orelse=orelse):
            return _names_device(module, body) or _names_device(module, orelse)
        case ast.Call(args=[first, *_]) if module.called(node) == "torch.device":
            return _names_device(module, first)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.lower().endswith("device") and not module.full(node)
    return False
