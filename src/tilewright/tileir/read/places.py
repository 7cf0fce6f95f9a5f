"""Reads source locations in the text of Tile IR: ``loc(#loc7)`` after an operation, and definitions such as
``#loc7 = …``, which are called aliases."""

from __future__ import annotations

import re
from dataclasses import replace

from tilewright.tileir.read.scanner import Scanner
from tilewright.tileir.read.tree import Location

_DEFINITION = re.compile(r"^#([\w$.\-]+) = (.*)\n?", re.MULTILINE)
_ALIAS = re.compile(r"#([\w$.\-]+)")
_NUMBER = re.compile(r"\d{1,18}")
_SKIPPED = re.compile(r'[^<>"]+|"(?:[^"\\\n]|\\.)*"')


class Places:
    """The aliases in the text of a module. `body` is the text with an empty line in place of each alias."""

    def __init__(self, text: str) -> None:
        self._aliases = {found[1]: found.span(2) for found in _DEFINITION.finditer(text)}
        self._known: dict[str, Location | None] = {}
        self._open: set[str] = set()
        self._text = Scanner(text)
        self.body = _DEFINITION.sub("\n", text)

    def check(self) -> None:
        """Reads every alias of a location, used or not. Raises ReadError for a malformed or unknown alias."""
        for name, (start, _) in self._aliases.items():
            if self._text.text.startswith(("loc(", "#cuda_tile.di_loc<"), start):
                self._aliased(name, self._text)
            elif not self._text.text.startswith("#cuda_tile.di_", start):
                raise self._text.error(f"unknown alias '#{name}'", start)

    def read(self, scanner: Scanner) -> Location | None:
        """Reads the ``loc(…)`` that may follow an operation. Returns None if it is absent or unknown."""
        return self._enclosed(scanner) if scanner.accept("loc") else None

    def _enclosed(self, scanner: Scanner) -> Location | None:
        scanner.expect("(")
        found = self._place(scanner)
        scanner.expect(")")
        return found

    def _place(self, scanner: Scanner) -> Location | None:
        if scanner.accept("unknown"):
            return None
        if scanner.sees('"'):  # ``"file":line:column``, or ``"name"``, which may be followed by a location
            file = scanner.string()
            if scanner.accept(":"):
                line = int(scanner.need(_NUMBER, "a line number")[0])
                scanner.expect(":")
                return Location(file, line, int(scanner.need(_NUMBER, "a column")[0]))
            return self._enclosed(scanner) if scanner.sees("(") else None
        if scanner.accept("callsite"):
            scanner.expect("(")
            callee = self._place(scanner)
            scanner.expect("at")
            caller = self._place(scanner)
            scanner.expect(")")
            return _called(callee, caller)
        if scanner.accept("fused"):
            if scanner.accept("<"):
                self._skip_to_close(scanner)
            places = scanner.several("[]", lambda: self._place(scanner))
            return next((place for place in places if place), None)
        if scanner.accept("#cuda_tile.di_loc"):
            scanner.expect("<")
            found = self._place(scanner)
            scanner.expect("in")
            # The scope is an alias, or ``#cuda_tile.di_subprogram<…>`` with other scopes inside.
            scanner.need(_ALIAS, "a scope")
            if scanner.accept("<"):
                self._skip_to_close(scanner)
            scanner.expect(">")
            return found
        if scanner.sees("loc"):
            return self.read(scanner)
        start, name = scanner.at, scanner.need(_ALIAS, "a place in the source")[1]
        if name not in self._aliases:
            raise scanner.error(f"#{name} is not defined", start)
        return self._aliased(name, scanner)

    def _aliased(self, name: str, scanner: Scanner) -> Location | None:
        if name not in self._known:
            if name in self._open:
                raise scanner.error(f"#{name} is defined by itself")
            self._open.add(name)
            start, end = self._aliases[name]
            before, self._text.at = self._text.at, start
            self._known[name] = self._place(self._text)
            if self._text.at < end:
                raise self._text.error(f"'#{name}' has text after the location")
            self._text.at = before
            self._open.discard(name)
        return self._known[name]

    def _skip_to_close(self, scanner: Scanner) -> None:
        depth = 1
        while depth:
            if scanner.accept("<"):
                depth += 1
            elif scanner.accept(">"):
                depth -= 1
            else:
                scanner.need(_SKIPPED, "the end of a scope")


def _called(callee: Location | None, caller: Location | None) -> Location | None:
    """Returns the location ``callee``, with ``caller`` as the last caller in its chain of callers."""
    if callee is None:
        return caller
    return replace(callee, caller=_called(callee.caller, caller) if callee.caller else caller)
