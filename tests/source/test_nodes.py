"""The nodes below a node are a slice of all nodes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tilewright.source.source_file import SourceFile, own

FILE = SourceFile.read(Path(ast.__file__).with_name("bisect.py"))


@pytest.mark.parametrize("kind", [ast.Call, ast.Name, ast.stmt, ast.Constant, ast.FunctionDef, ast.Pass])
def test_what_lies_below_each_node_is_what_a_walk_finds(kind: type[ast.AST]) -> None:
    assert any(FILE.every(kind))
    for node in FILE.nodes:
        found = list(FILE.every(kind, node))
        assert len(found) == len(set(found))
        assert set(found) == {one for one in ast.walk(node) if isinstance(one, kind)}


def test_a_node_of_no_file_is_walked() -> None:
    made = ast.parse("f(g(x))")
    assert [call.func.id for call in FILE.every(ast.Call, made) if isinstance(call.func, ast.Name)] == ["f", "g"]


def test_a_function_owns_what_is_not_in_inner_functions() -> None:
    text = "def f():\n    a()\n    def g():\n        b()\n    return [c(), lambda: d()]\n"
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert [ast.unparse(call) for call in own(function, ast.Call)] == ["a()", "c()"]
