"""Lines are inserted into a user's file without a change of the others."""

from __future__ import annotations

import ast

import pytest

from tilewright.specialists.hot.inserting import after_imports, at_begin, free_name

HEADS = [
    "",
    '"""About."""\n',
    '"""About."""\n\nfrom __future__ import annotations\nimport os\n',
    "# comment\nimport a\n",
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_imports_come_after_imports(head: str, end: str) -> None:
    text = f"{head}x = 1\nimport later\n".replace("\n", end)
    changed = after_imports(text, "import new\n")
    assert changed.replace(f"import new{end}", "", 1) == text and changed.count("\n") == changed.count(end)
    names = [node.names[0].name for node in ast.parse(changed).body if isinstance(node, ast.Import)]
    assert names[-2:] == ["new", "later"]


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        ("def f(x):\n    return x\n", "def f(x):\n    first()\n    return x\n"),
        ('def f(x):\n    """é"""\n    return x\n', 'def f(x):\n    """é"""\n    first()\n    return x\n'),
        ("def f(x): return x\n", "def f(x):\n    first()\n    return x\n"),
        ("def f(x):\n\treturn x\n", "def f(x):\n\tfirst()\n\treturn x\n"),
    ],
)
def test_a_body_gets_a_first_line(function: str, changed: str) -> None:
    node = ast.parse(function).body[0]
    assert isinstance(node, ast.FunctionDef) and at_begin(function, node, "first()\n") == changed
    ast.parse(changed)


def test_a_name_that_is_used_is_not_taken() -> None:
    assert free_name("x = fast", "fast") == "fast_2" and free_name("fast fast_2", "fast") == "fast_3"
    assert free_name("faster", "fast") == "fast"
