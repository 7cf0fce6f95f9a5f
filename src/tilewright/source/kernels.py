"""Finds the languages in which a file has kernels, and whether the file is a program, from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tilewright.source import cutile, triton
from tilewright.source.source_file import SourceFile

CUTE_DSL = ("cutlass.cute.kernel", "cutlass.cute.jit")
"""The decorators of functions in CuTe DSL."""


def kernels_by_language(file: SourceFile) -> Mapping[str, tuple[str, ...]]:
    """Returns the names of the file's kernels, by language."""
    found = {
        "cutile": tuple(kernel.name for kernel in cutile.kernels(file)),
        "triton": tuple(node.name for node in triton.kernels(file)),
        "cute-dsl": tuple(_decorated(file, CUTE_DSL)),
    }
    return {language: names for language, names in found.items() if names}


def _decorated(file: SourceFile, decorators: tuple[str, ...]) -> list[str]:
    names = []
    for node in file.functions:
        called = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
        if any(file.dotted(one) in decorators for one in called):
            names.append(node.name)
    return names


def is_program(file: SourceFile) -> bool:
    """Returns whether a file is a program: it has ``if __name__ == "__main__"``, or it trains a model."""
    guarded = any(
        isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == "__name__"
        for node in file.nodes
    )
    trains = any(isinstance(call.func, ast.Attribute) and call.func.attr == "backward" for call in file.every(ast.Call))
    return guarded or trains
