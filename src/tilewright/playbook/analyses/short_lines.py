"""Breaks the lines of a change that became too long, as a formatter would: hanging indents inside brackets.

Only lines that the change wrote are broken. Elements share one indented line where they fit there, and get a line each
otherwise. An expression without brackets around it gets parentheses. The code means the same afterwards.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from itertools import pairwise

LIMIT = 119
"""Characters of a line."""
INDENT = " " * 4
OPERATORS = (("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("|",), ("&",), ("+", "-"), ("*", "/", "//", "%"))
"""Those that bind the least come first: a line is broken before them."""
OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call)
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")


def with_short_lines(before: str, after: str) -> str:
    """The text ``after`` a change with its lines under 120 characters; those of ``before`` stay as they are."""
    kept = set(before.splitlines())
    meaning = None
    while (row := _too_long(after, kept)) is not None:
        meaning = meaning or ast.dump(ast.parse(after))
        line = after.splitlines()[row]
        new = _broken(after, row)
        lines = after.splitlines(keepends=True)
        ending = lines[row][len(line) :]
        changed = "".join([*lines[:row], *(one + ending for one in new), *lines[row + 1 :]])
        if len(new) > 1 and _means(changed) == meaning:
            after = changed
        else:
            kept.add(line)  # nothing to break at
    return after


def _too_long(text: str, kept: set[str]) -> int | None:
    rows = enumerate(text.splitlines())
    return next((row for row, line in rows if len(line) > LIMIT and line not in kept), None)


def _means(text: str) -> str | None:
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return None


@dataclass(frozen=True)
class BracketToken:
    """A token of one line. ``depth`` counts the brackets around it; a bracket itself stands inside."""

    text: str
    start: int
    end: int
    depth: int


def _broken(text: str, row: int) -> list[str]:
    """The lines that take the place of one; a comment at its end stays at the end."""
    line, tokens = text.splitlines()[row], _tokens(text, row)
    if tokens and tokens[-1].text.startswith("#"):
        comment = tokens.pop()
        code = line[: comment.start].rstrip()
        *others, last = _code_broken(text, row, code, tokens)
        return [*others, f"{last}  {comment.text}"] if others else [line]
    return _code_broken(text, row, line, tokens)


def _code_broken(text: str, row: int, line: str, tokens: list[BracketToken]) -> list[str]:
    if not tokens:
        return [line]
    indent = line[: tokens[0].start]
    outside = min(token.depth - (token.text in CLOSING) for token in tokens)
    if outside > 0 and tokens[0].text not in CLOSING:  # inside brackets that an earlier line opens
        elements = _split(line, tokens, outside)
        if len(elements) > 1:
            return _listed(elements, indent, closed=_closes(text, row))
        if operands := _operands(line, tokens, outside):
            return [indent + operand for operand in operands]
    if outside == 0 and (value := _unbracketed(text, row, line)) is not None:
        start, end = value
        return [f"{line[:start]}(", f"{indent}{INDENT}{line[start:end]}", f"{indent}){line[end:]}"]
    pair = _last_pair(tokens)
    if pair is None:
        return [line]
    inside = [token for token in tokens if pair[0].end <= token.start < pair[1].start]
    content = line[pair[0].end : pair[1].start].strip()
    elements = _split(line, inside, pair[0].depth)
    one_line = len(indent + INDENT + content) <= LIMIT and not content.endswith(",")
    body = [indent + INDENT + content] if one_line or len(elements) < 2 else _listed(elements, indent + INDENT, True)
    return [line[: pair[0].end], *body, indent + line[pair[1].start :]]


def _tokens(text: str, row: int) -> list[BracketToken]:
    """The tokens that begin on one line, an f-string as one."""
    found: list[BracketToken] = []
    depth = strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        strings += name in ("FSTRING_START", "TSTRING_START")
        quoted = strings > 0
        strings -= name in ("FSTRING_END", "TSTRING_END")
        if not quoted and token.type == tokenize.OP and token.string in OPENING:
            depth += 1
        if token.start[0] == row + 1 and not quoted and token.string.strip():
            found.append(BracketToken(token.string, token.start[1], token.end[1], depth))
        if not quoted and token.type == tokenize.OP and token.string in CLOSING:
            depth -= 1
        if token.start[0] > row + 1:
            break
    return found


def _split(line: str, tokens: list[BracketToken], depth: int) -> list[str]:
    """The elements between the commas at one depth."""
    if not tokens:
        return []
    commas = [token for token in tokens if token.text == "," and token.depth == depth]
    starts = [tokens[0].start, *(comma.end for comma in commas)]
    ends = [*(comma.start for comma in commas), tokens[-1].end]
    return [part for start, end in zip(starts, ends, strict=True) if (part := line[start:end].strip())]


def _operands(line: str, tokens: list[BracketToken], depth: int) -> list[str]:
    """The line broken before its operators that bind the least, or before the methods that are called on calls."""
    here = [token for token in tokens[1:] if token.depth == depth]
    dots = [dot.start for before, dot in pairwise(tokens) if dot.text == "." and before.text in CLOSING]
    levels = [[token.start for token in here if token.text in level] for level in OPERATORS]
    for places in (*levels, [dot for dot in dots if dot in {token.start for token in here}]):
        if places:
            edges = [tokens[0].start, *places, len(line)]
            return [line[start:end].rstrip() for start, end in pairwise(edges)]
    return []


def _listed(elements: list[str], indent: str, closed: bool) -> list[str]:
    """A line for each element. The last one gets a comma where a bracket closes after it."""
    lines = [f"{indent}{element}," for element in elements]
    return lines if closed else [*lines[:-1], lines[-1].removesuffix(",")]


def _closes(text: str, row: int) -> bool:
    """Whether a comma may follow the line: it has one, or a bracket closes on the next line."""
    lines = text.splitlines()
    following = lines[row + 1].strip() if row + 1 < len(lines) else ""
    return lines[row].rstrip().endswith(",") or following[:1] in CLOSING


def _last_pair(tokens: list[BracketToken]) -> tuple[BracketToken, BracketToken] | None:
    """The last bracket that opens and closes on the line, around something and inside no other such."""
    pairs: list[tuple[BracketToken, BracketToken]] = []
    opened: list[BracketToken] = []
    for token in tokens:
        if token.text in OPENING:
            opened.append(token)
        elif token.text in CLOSING and opened:
            pairs.append((opened.pop(), token))
    filled = (pair for pair in reversed(pairs) if pair[1].start > pair[0].end)
    return min(filled, key=lambda pair: pair[0].depth, default=None)


def _unbracketed(text: str, row: int, line: str) -> tuple[int, int] | None:
    """Where an operation without brackets around it stands on the line: a value, a result or a condition."""
    for statement in ast.walk(ast.parse(text)):
        value = getattr(statement, "value", None) or getattr(statement, "test", None)
        if not isinstance(statement, ast.stmt) or statement.lineno != row + 1 or not isinstance(value, OPERATIONS):
            continue
        start, end = (len(line.encode()[:place].decode()) for place in (value.col_offset, value.end_col_offset or 0))
        chain = isinstance(value, ast.Call) and not _calls_on_calls(value) > 1
        rest = line[end:].strip()
        if value.end_lineno == row + 1 and rest in ("", ":") and not chain:
            return start, end
    return None


def _calls_on_calls(value: ast.expr) -> int:
    """How many methods are called on what a call returns: 2 in ``a(x).b(y).c(z)``."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return _calls_on_calls(value.func.value) + isinstance(value.func.value, ast.Call)
    return 0
