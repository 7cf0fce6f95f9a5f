"""Finds the functions of a program that are called repeatedly."""

from __future__ import annotations

import ast

from tilewright.program.reading.module import Function, ReadModule


def called_often(module: ReadModule) -> set[str]:
    """Returns ``forward`` and the names of the program's functions that are called in a loop, or by another such
    function.
    """
    found = {"forward", "__call__", "__getitem__"}
    while True:
        more = set(found)
        for each in module.program:
            for call in each.file.every(ast.Call):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                within = {f.name for f in each.above(call) if isinstance(f, Function)}
                if within & found or any(
                    isinstance(a, (ast.For, ast.While, ast.comprehension)) for a in each.above(call)
                ):
                    more.add(name)
        if more == found:
            return found - {"__init__"}
        found = more
