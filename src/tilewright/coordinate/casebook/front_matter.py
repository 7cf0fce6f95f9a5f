"""Reads the front matter of a Markdown file: the part of YAML that casebooks use.

Mappings and lists by indentation, lists in brackets, text in quotes, numbers, true, false and null, text over several
lines (``|`` and ``>``), comments. No anchors, tags or several documents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.records import Json

_KEY = re.compile(r"(?P<key>[\w.-]+|\"[^\"]*\"|'[^']*'):(?:\s+(?P<value>.*))?$")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None, "~": None, "": None}


class FrontMatterError(ValueError):
    """One line: what cannot be read, and where."""


@dataclass(frozen=True)
class _Line:
    number: int
    indent: int
    text: str


def split(text: str) -> tuple[dict[str, Json], str]:
    """Returns the fields and the body of a Markdown text. Raises FrontMatterError."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        raise FrontMatterError("line 1: no front matter; the file must begin with ---")
    end = next((n for n, line in enumerate(lines[1:], 1) if line.strip() in ("---", "...")), None)
    if end is None:
        raise FrontMatterError(f"line {len(lines)}: the front matter has no end (---)")
    reader = _Fields(lines[1:end])
    fields = reader.block(0) if reader.lines else {}
    if not isinstance(fields, dict):
        raise FrontMatterError("line 2: the front matter is a list, not fields")
    if reader.lines:
        raise FrontMatterError(f"line {reader.lines[0].number}: unexpected indentation")
    return fields, "\n".join(lines[end + 1 :])


def body_of(text: str) -> str:
    """Returns the body of a text whose front matter may be broken."""
    parts = re.split(r"^---\s*$", text, maxsplit=2, flags=re.MULTILINE)
    return parts[2] if len(parts) == 3 and not parts[0].strip() else text


class _Fields:
    """The lines that are not yet read."""

    def __init__(self, texts: list[str]):
        self.raw = texts
        self.lines = [
            _Line(n, len(text) - len(text.lstrip()), text.strip())
            for n, text in enumerate(texts, 2)
            if text.strip() and not text.strip().startswith("#")
        ]

    def block(self, indent: int) -> Json:
        """Reads all lines of at least this indentation as a mapping or a list."""
        first = self.lines[0]
        if "\t" in self.raw[first.number - 2][: first.indent]:
            raise FrontMatterError(f"line {first.number}: a tab in the indentation")
        return self._list(first.indent) if first.text.startswith("- ") or first.text == "-" else self._map(first.indent)

    def _map(self, indent: int) -> dict[str, Json]:
        found: dict[str, Json] = {}
        while self.lines and self.lines[0].indent == indent and not self.lines[0].text.startswith("- "):
            line = self.lines.pop(0)
            match = _KEY.match(line.text)
            if match is None:
                raise FrontMatterError(f"line {line.number}: '{line.text[:40]}' is no 'key: value'")
            key = match["key"].strip("\"'")
            if key in found:
                raise FrontMatterError(f"line {line.number}: the field '{key}' is there twice")
            found[key] = self._value(match["value"] or "", line)
        return found

    def _value(self, text: str, line: _Line) -> Json:
        text = _uncommented(text)
        if text in ("|", ">", "|-", ">-"):
            return self._long_text(line, "\n" if text[0] == "|" else " ")
        if text:
            return scalar(text, line.number)
        below = self.lines[0] if self.lines else None
        deeper = below is not None and below.indent > line.indent
        listed = below is not None and below.indent == line.indent and below.text.startswith("- ")
        return self.block(line.indent) if deeper or listed else None

    def _long_text(self, line: _Line, join: str) -> str:
        texts = []
        while self.lines and self.lines[0].indent > line.indent:
            texts.append(self.lines.pop(0).text)
        return join.join(texts)

    def _list(self, indent: int) -> list[Json]:
        found: list[Json] = []
        while self.lines and self.lines[0].indent == indent and self.lines[0].text[:2] in ("- ", "-"):
            line = self.lines.pop(0)
            rest = line.text[1:].strip()
            if _KEY.match(rest) and not rest.startswith(("[", "{")):
                inner = indent + len(line.text) - len(line.text[1:].lstrip())
                self.lines.insert(0, _Line(line.number, inner, rest))
                found.append(self._map(inner))
            else:
                found.append(self._value(rest, line))
        return found


def _uncommented(text: str) -> str:
    """Returns the text without a comment at its end: a # after a space, outside of quotes."""
    quote = ""
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'" and (at == 0 or text[at - 1] in " ,[{:"):
            quote = sign
        elif sign == "#" and (at == 0 or text[at - 1].isspace()):
            return text[:at].strip()
    return text.strip()


def scalar(text: str, line: int) -> Json:
    """Reads a value that stands on one line."""
    if text.startswith("["):
        if not text.endswith("]"):
            raise FrontMatterError(f"line {line}: the list '{text[:40]}' has no end")
        return [scalar(part, line) for part in _parts(text[1:-1])]
    if text.startswith("{"):
        if not text.endswith("}"):
            raise FrontMatterError(f"line {line}: the mapping '{text[:40]}' has no end")
        pairs = (part.partition(":") for part in _parts(text[1:-1]))
        return {key.strip().strip("\"'"): scalar(value.strip(), line) for key, _, value in pairs}
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0]:
            raise FrontMatterError(f"line {line}: the text {text[:40]} has no end")
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1].replace('\\"', '"')
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.match(text):
        return float(text) if any(sign in text for sign in ".eE") else int(text)
    return text


def _parts(text: str) -> list[str]:
    """Splits at the commas that are not within brackets or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[]{}":
            depth += 1 if sign in "[{" else -1
        elif sign == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [part for part in [*parts, text[start:].strip()] if part]
