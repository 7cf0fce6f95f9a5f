"""Breaks an expression that a change writes, if its line would be too long."""

from __future__ import annotations

import ast
import io
import tokenize

from tilewright.program.reading.module import Edit, ReadModule

LONGEST = 120
"""Columns of a line."""


def fitted(module: ReadModule, node: ast.expr, new: str) -> Edit:
    """Makes the edit that gives an expression a new text. If a line would be too long, the text inside of the longest
    brackets gets lines of its own. Raises NotSure like `ReadModule.replace`.
    """
    edit = module.replace(node, new)
    begin = module.text.rfind("\n", 0, edit.start) + 1
    end = module.text.find("\n", edit.end)
    before, after = module.text[begin : edit.start], module.text[edit.end : end if end >= 0 else None].rstrip("\r")
    quoted = any(isinstance(each, ast.JoinedStr) for each in module.above(node))
    if len(before) + len(new) + len(after) <= LONGEST or "\n" in new or quoted:
        return edit
    return Edit(edit.start, edit.end, _broken(new, before[: len(before) - len(before.lstrip())]))


def _broken(text: str, indentation: str) -> str:
    pairs = _brackets(text)
    if not pairs:
        return text
    first, last, commas = max(pairs, key=lambda pair: pair[1] - pair[0])
    inside = text[first + 1 : last]
    if not inside.strip():
        return text
    deeper = f"{indentation}    "
    lines = [inside]
    if len(deeper) + len(inside) > LONGEST:
        ends = [*commas, last]
        lines = [text[a + 1 : b].strip() for a, b in zip([first, *commas], ends, strict=True)]
        lines = [f"{each}," if place < len(commas) else each for place, each in enumerate(lines)]
        lines = [_broken(each, deeper) if len(deeper) + len(each) > LONGEST else each for each in lines]
    body = "".join(f"{deeper}{line}\n" for line in lines)
    return f"{text[: first + 1]}\n{body}{indentation}{text[last:]}"


def _brackets(text: str) -> list[tuple[int, int, list[int]]]:
    """Returns the outermost pairs of brackets of an expression of one line: where they open and close, and where the
    commas between their parts are.
    """
    found, depth, first, commas = [], 0, 0, list[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        at = token.start[1]
        if token.type != tokenize.OP:
            continue
        if token.string in "([{":
            first, commas = (at, []) if depth == 0 else (first, commas)
            depth += 1
        elif token.string in ")]}":
            depth -= 1
            if depth == 0:
                found.append((first, at, commas))
        elif token.string == "," and depth == 1:
            commas.append(at)
    return found
