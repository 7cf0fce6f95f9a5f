"""Reads where the loops of a program are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class SourceLoop(NamedTuple):
    """A loop or a comprehension: the lines that run in each pass, and the function that it is in."""

    file: str
    function: str
    first: int
    last: int

    def has(self, file: str, line: int) -> bool:
        return file == self.file and self.first <= line <= self.last

    def inside(self, other: SourceLoop) -> bool:
        return self != other and other.has(self.file, self.first) and other.has(self.file, self.last)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def loops_of(root: Path, files: Iterable[str]) -> Iterator[SourceLoop]:
    """Yields the loops of files below a folder. A file that cannot be read has none."""
    for file in files:
        with suppress(OSError, SyntaxError, ValueError):
            yield from _loops(file, ast.parse((root / file).read_text(encoding="utf-8")), "<module>")


def _loops(file: str, tree: ast.AST, function: str) -> Iterator[SourceLoop]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            last = node.body[-1].end_lineno or node.body[-1].lineno
            yield SourceLoop(file, function, node.body[0].lineno, last)
        elif isinstance(node, COMPREHENSIONS):
            yield SourceLoop(file, function, node.lineno, node.end_lineno or node.lineno)
        inner = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        yield from _loops(file, node, inner)
