"""Breaks lines that a change made too long, as a formatter would: with indented lines inside brackets.

Only lines that the change wrote are broken. The elements inside a bracket share one indented line if they fit there;
otherwise each gets its own line. An expression without brackets around it gets parentheses. The meaning of the code
stays the same.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from itertools import pairwise

LIMIT = 119  # the most characters of a line
INDENT = " " * 4
OPERATORS = (("or",), ("and",), ("==", "!=", "<", "<=", ">", ">="), ("|",), ("&",), ("+", "-"), ("*", "/", "//", "%"))
"""The operators before which a line is broken, in groups. The group with the lowest precedence comes first."""
OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call)
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")


def with_short_lines(before: str, after: str) -> str:
    """Returns the text ``after`` a change, with long lines broken unless the text ``before`` contains them."""
    kept = set(before.splitlines())
    meaning = None
    while long := [row for row, line in enumerate(after.splitlines()) if len(line) > LIMIT and line not in kept]:
        meaning = meaning or _meaning(after)
        lines = after.splitlines(keepends=True)
        line = after.splitlines()[long[0]]
        new = _broken(after, long[0])
        lines[long[0]] = "".join(part + lines[long[0]][len(line) :] for part in new)
        if len(new) > 1 and _meaning("".join(lines)) == meaning:
            after = "".join(lines)
        else:
            kept.add(line)  # the line cannot be broken
    return after


def on_one_line(text: str) -> str:
    """Returns an expression that may have line breaks as one line."""
    return ast.unparse(ast.parse(f"({text})", mode="eval")) if "\n" in text else text


def _meaning(text: str) -> str | None:
    """Returns the syntax tree as a string; None if ``text`` is not valid Python."""
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return None


@dataclass(frozen=True)
class BracketToken:
    """A token of one line, from column ``start`` to ``end``.

    ``depth`` counts the brackets around the token; for a bracket, the bracket itself is counted, too.
    """

    text: str
    start: int
    end: int
    depth: int


def _broken(text: str, row: int) -> list[str]:
    """Returns the lines that replace line ``row`` of ``text``. A comment goes to the end of the last line."""
    line, tokens = text.splitlines()[row], _tokens(text, row)
    if not tokens or not tokens[-1].text.startswith("#"):
        return _code_broken(text, row, line, tokens)
    comment = tokens.pop()
    *others, last = _code_broken(text, row, line[: comment.start].rstrip(), tokens)
    return [*others, f"{last}  {comment.text}"] if others else [line]


def _code_broken(text: str, row: int, line: str, tokens: list[BracketToken]) -> list[str]:
    """Returns the lines that replace ``line``, which is the line ``row`` without its comment.

    If an earlier line opened a bracket around ``line``, breaks between elements or operands. Otherwise puts parentheses
    around its value, or, if no value needs them, breaks inside its last pair of brackets.
    """
    if not tokens:
        return [line]
    indent = line[: tokens[0].start]
    outside = min(token.depth - (token.text in CLOSING) for token in tokens)
    if outside > 0 and tokens[0].text not in CLOSING:  # an earlier line opens the brackets around it
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
    """Returns the tokens that begin on one line. Tokens inside an f-string are left out."""
    found: list[BracketToken] = []
    depth = strings = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        strings += name in ("FSTRING_START", "TSTRING_START")
        quoted = strings > 0
        strings -= name in ("FSTRING_END", "TSTRING_END")
        bracket = token.string if token.type == tokenize.OP and not quoted else ""
        depth += bracket in OPENING
        if token.start[0] == row + 1 and not quoted and token.string.strip():
            found.append(BracketToken(token.string, token.start[1], token.end[1], depth))
        depth -= bracket in CLOSING
        if token.start[0] > row + 1:
            break
    return found


def _split(line: str, tokens: list[BracketToken], depth: int) -> list[str]:
    """Returns the strings between the commas at bracket depth ``depth``."""
    if not tokens:
        return []
    commas = [token for token in tokens if token.text == "," and token.depth == depth]
    starts = [tokens[0].start, *(comma.end for comma in commas)]
    ends = [*(comma.start for comma in commas), tokens[-1].end]
    return [part for start, end in zip(starts, ends, strict=True) if (part := line[start:end].strip())]


def _operands(line: str, tokens: list[BracketToken], depth: int) -> list[str]:
    """Returns the line broken before its operators of lowest precedence, or before methods called on a call's result.

    Considers only the bracket depth ``depth``. Empty if there are no such operators and methods.
    """
    here = [token for token in tokens[1:] if token.depth == depth]
    dots = [dot.start for before, dot in pairwise(tokens) if dot.text == "." and before.text in CLOSING]
    levels = [[token.start for token in here if token.text in level] for level in OPERATORS]
    for places in (*levels, [dot for dot in dots if dot in {token.start for token in here}]):
        if places:
            edges = [tokens[0].start, *places, len(line)]
            return [line[start:end].rstrip() for start, end in pairwise(edges)]
    return []


def _listed(elements: list[str], indent: str, closed: bool) -> list[str]:
    """Returns a line for each element. The last one has a comma only if a bracket closes after it."""
    lines = [f"{indent}{element}," for element in elements]
    return lines if closed else [*lines[:-1], lines[-1].removesuffix(",")]


def _closes(text: str, row: int) -> bool:
    """Returns whether a comma may end the line: the line has one already, or the next line closes a bracket."""
    lines = text.splitlines()
    following = lines[row + 1].strip() if row + 1 < len(lines) else ""
    return lines[row].rstrip().endswith(",") or following[:1] in CLOSING


def _last_pair(tokens: list[BracketToken]) -> tuple[BracketToken, BracketToken] | None:
    """Returns the outermost non-empty pair of brackets that opens and closes on the line. If there are several, returns
    the last."""
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
    """Returns start and end (columns) of a value or condition on the line that has no brackets around it."""
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
    """Counts the methods that are called on a call's result: 2 in ``a(x).b(y).c(z)``."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return _calls_on_calls(value.func.value) + isinstance(value.func.value, ast.Call)
    return 0
