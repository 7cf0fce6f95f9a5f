"""Inserts lines into the text of a user's file. Its other lines are not changed."""

from __future__ import annotations

import ast
import re


def free_name(text: str, wanted: str) -> str:
    """Returns ``wanted``. If the text contains that word anywhere, adds a number."""
    used, name, number = set(re.findall(r"\w+", text)), wanted, 1
    while name in used:
        number += 1
        name = f"{wanted}_{number}"
    return name


def after_imports(text: str, added: str) -> str:
    """Returns the text with lines inserted after its docstring and the imports at its top."""
    body = ast.parse(text).body
    line = 0
    for number, node in enumerate(body):
        docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not isinstance(node, ast.Import | ast.ImportFrom):
            break
        line = node.end_lineno or line
    lines = text.splitlines(keepends=True)
    if line and not lines[line - 1].endswith("\n"):
        lines[line - 1] += "\n"
    return _with_ends(text, [*lines[:line], *added.splitlines(keepends=True), *lines[line:]])


def at_begin(text: str, function: ast.FunctionDef, added: str) -> str:
    """Returns the text with lines inserted at the start of a function's body, after its docstring.

    added: lines without indentation. They get the indentation of the body.
    """
    lines = text.splitlines(keepends=True)
    body = function.body[1:] if ast.get_docstring(function) else function.body
    at, column = body[0].lineno - 1, body[0].col_offset
    begin = lines[at].encode()[:column].decode()
    indent, rest = begin, []
    if begin.strip():  # the body is on the line of ``def``
        indent = " " * (function.col_offset + 4)
        rest = [begin.rstrip() + "\n"]
        lines[at] = indent + lines[at].encode()[column:].decode()
    inserted = [f"{indent}{line}" for line in added.splitlines(keepends=True)]
    return _with_ends(text, [*lines[:at], *rest, *inserted, *lines[at:]])


def _with_ends(before: str, lines: list[str]) -> str:
    """Joins lines with the line ends of the original text."""
    end = "\r\n" if "\r\n" in before else "\n"
    return "".join(re.sub(r"\r?\n$", end, line) for line in lines)
