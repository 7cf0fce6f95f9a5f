"""One file of a user's program: its syntax tree, the full names of what it calls, and edits of its text.

An edit replaces a range of characters; everything outside of the range stays byte-identical. A name means torch's
function only if all imports of the file that bind it agree, and nothing else binds it at its use.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tilewright.source.source_file import SourceFile, not_text

Function = ast.FunctionDef | ast.AsyncFunctionDef
WIDTH = 110
"""A written line that would be longer is broken."""


class NotSure(Exception):
    """Raised if a place resembles one that the change applies to, but the source does not show that the change is
    correct. The message says why.
    """

    def __init__(self, reason: str, node: ast.AST) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, int(getattr(node, "lineno", 1))


@dataclass(frozen=True)
class Edit:
    """The characters from ``start`` to ``end`` become ``new``. Lines in ``new`` end in a line feed."""

    start: int
    end: int
    new: str

    def overlaps(self, other: Edit) -> bool:
        """Returns whether the edits differ, and both change the same character or one is inside the other."""
        return self != other and self.start < other.end and other.start < self.end


class ReadModule:
    """The syntax tree of one file, and its text. ``unreadable`` says why nothing can be changed; else it is empty."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text, self.unreadable = path, text, ""
        self.beside: dict[str, ReadModule] = {}
        """The user's other files that this one imports, by the names with which it does: ``.model`` is relative."""
        self.program: tuple[ReadModule, ...] = (self,)
        """All files of the program that are known."""
        try:
            self.file = SourceFile(path, text)
        except (SyntaxError, ValueError, RecursionError) as error:
            self.file = SourceFile(path, "")
            self.unreadable = f"{path.name} is not valid Python: {error}"
        if "\r" in text.replace("\r\n", ""):
            self.unreadable = f"{path.name} has line ends of an unknown kind"

    @classmethod
    def read(cls, path: Path) -> ReadModule:
        """Reads a file. A file that is not UTF-8 is marked unreadable. Raises OSError."""
        try:
            with path.open("rb") as file:
                encoding = tokenize.detect_encoding(file.readline)[0]
            if encoding == "utf-8":
                return cls(path, path.read_bytes().decode())
            why = f"in the encoding {encoding}; only plain UTF-8 is changed: save it as that"
        except (SyntaxError, UnicodeDecodeError):
            why = not_text(path)
        module = cls(path, "")
        module.unreadable = f"{path.name} is {why}"
        return module

    # Text ---------------------------------------------------------------------------------------------

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.text.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        return starts

    def _offset(self, line: int, column: int) -> int:
        """Returns the index of a place in the text, in characters. The syntax tree counts columns in bytes."""
        start = self._starts[line - 1]
        whole = self.text[start : self._starts[line] - 1]
        return start + (column if whole.isascii() else len(whole.encode()[:column].decode()))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Returns where the text of an expression or statement begins and ends, in characters."""
        assert isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def code(self, node: ast.AST) -> str:
        """Returns the text of a node. For a node that is not from the file, the text is generated."""
        if not hasattr(node, "lineno"):
            return ast.unparse(node)
        start, end = self.span(node)
        return self.text[start:end].replace("\r\n", "\n")

    def operand(self, node: ast.AST) -> str:
        """Returns the text of an expression, in parentheses if a following operator or dot would bind to only a part of
        it.
        """
        plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant))
        return self.code(node) if plain else f"({self.code(node)})"

    def argument(self, node: ast.AST) -> str:
        """Returns the text of an expression as one argument of a call."""
        loose = (ast.Tuple, ast.NamedExpr, ast.GeneratorExp, ast.Yield, ast.Lambda, ast.IfExp)
        return f"({self.code(node)})" if isinstance(node, loose) else self.code(node)

    def replace(self, node: ast.AST, new: str) -> Edit:
        """Makes the edit that gives an expression a new text.

        Raises NotSure for an expression in an f-string if Python (before 3.12) does not know its place.
        """
        if any(isinstance(each, ast.JoinedStr) for each in self.above(node)):
            try:
                found = ast.dump(ast.parse(f"({self.code(node)})", mode="eval").body)
            except SyntaxError:
                found = ""
            if found != ast.dump(node):
                raise NotSure("its place in the f-string is not known", node)
        return Edit(*self.span(node), new)

    def delete(self, statement: ast.stmt) -> Edit:
        """Makes the edit that deletes a statement with its lines and the comment behind it.

        Raises NotSure if it shares a line with another statement.
        """
        start, end = self.span(statement)
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.decorator_list:
            raise NotSure("the statement is decorated", statement)
        line = self.text.rfind("\n", 0, start) + 1
        stop = self.text.find("\n", end)
        stop = len(self.text) if stop < 0 else stop + 1
        behind = self.text[end:stop].strip()
        if self.text[line:start].strip() or (behind and not behind.startswith("#")):
            raise NotSure("several statements are on one line", statement)
        return Edit(line, stop, "")

    def insert_before(self, statement: ast.stmt, *lines: str) -> Edit:
        """Makes the edit that adds lines above a statement (and its decorators), with its indentation.

        Raises NotSure if the statement does not begin its line.
        """
        decorators = getattr(statement, "decorator_list", [])
        first = decorators[0].lineno if decorators else statement.lineno
        start = self._starts[first - 1]
        indentation = self.text[start : self._offset(first, statement.col_offset)]
        if indentation.strip():
            raise NotSure("several statements are on one line", statement)
        return Edit(start, start, "".join(f"{indentation}{line}\n" for line in lines))

    def insert_after(self, statement: ast.stmt, *lines: str) -> Edit:
        """Makes the edit that adds lines below a statement, with its indentation. Raises NotSure like
        `insert_before`.
        """
        end = self.span(statement)[1]
        stop = self.text.find("\n", end)
        behind = self.text[end : stop if stop >= 0 else len(self.text)].strip()
        if behind and not behind.startswith("#"):
            raise NotSure("several statements are on one line", statement)
        first = self.insert_before(statement).start
        indentation = (
            self.text[first : self._offset(statement.lineno, statement.col_offset)]
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
            else " " * statement.col_offset
        )
        new = "".join(f"{indentation}{line}\n" if line else "\n" for line in lines)
        return Edit(stop + 1, stop + 1, new) if stop >= 0 else Edit(len(self.text), len(self.text), f"\n{new}")

    def wrap(self, statements: list[ast.stmt], line: str) -> tuple[Edit, ...]:
        """Makes the edits that put statements of one block below a line such as ``with torch.no_grad():``.

        Raises NotSure like `insert_before`, and for a string of several lines, which cannot be indented.
        """
        for node in (node for statement in statements for node in ast.walk(statement)):
            text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
            if text and "\n" in self.code(node):
                raise NotSure("a string of several lines cannot be indented", node)
        header = self.insert_before(statements[0], line)
        edits, at, end = [], header.start, self.span(statements[-1])[1]
        while at < end:
            stop = self.text.find("\n", at)
            stop = len(self.text) if stop < 0 else stop
            if self.text[at:stop].strip():
                edits.append(Edit(at, at, "    "))
            at = stop + 1
        return Edit(header.start, header.start, header.new + edits[0].new), *edits[1:]

    def add_argument(self, call: ast.Call, argument: str) -> Edit:
        """Makes the edit that adds a last argument to a call. Raises NotSure if its argument is a generator without
        parentheses.
        """
        end = self.span(call)[1] - 1
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not given:
            return Edit(end, end, argument)
        if any(isinstance(each, ast.GeneratorExp) for each in given):
            raise NotSure("its argument is a generator", call)
        last = max(self.span(each)[1] for each in given)
        closed = re.match(r"(\s*\))*", self.text[last:end])
        place = last + (closed.end() if closed else 0)
        return Edit(place, place, f", {argument}")

    def added(self, call: ast.Call, argument: str) -> str:
        """Returns the text of a call with one more argument."""
        edit, start = self.add_argument(call, argument), self.span(call)[0]
        code = self.text[start : self.span(call)[1]]
        return code[: edit.start - start] + edit.new + code[edit.start - start :]

    def edited(self, edits: Iterable[Edit]) -> str:
        """Returns the whole text with the edits made. Edits must not overlap; edits at the same place keep
        their order.
        """
        pieces, at, windows = [], 0, "\r\n" in self.text
        for edit in sorted(dict.fromkeys(edits), key=lambda each: (each.start, each.end)):
            assert edit.start >= at, "edits overlap"
            pieces += [self.text[at : edit.start], edit.new.replace("\n", "\r\n") if windows else edit.new]
            at = edit.end
        return "".join((*pieces, self.text[at:]))

    # Names --------------------------------------------------------------------------------------------

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        """Maps each name to all full names that the imports of this file bind to it."""
        found: dict[str, set[str]] = {}
        for node in self.file.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    if isinstance(node, ast.ImportFrom):
                        name, origin = alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
                    else:
                        top = alias.name.split(".")[0]
                        name, origin = alias.asname or top, alias.name if alias.asname else top
                    found.setdefault(name, set()).add(origin)
        return found

    @cached_property
    def declared_global(self) -> set[str]:
        nodes = (node for node in self.file.nodes if isinstance(node, (ast.Global, ast.Nonlocal)))
        return {name for node in nodes for name in node.names}

    def _origin(self, name: str, at: ast.AST) -> str:
        origins = self._imports.get(name, set())
        if len(origins) != 1 or name in self.declared_global or self.file.bindings(name, at):
            return ""
        return next(iter(origins))

    def full(self, node: ast.AST | None) -> str:
        """Returns the full name of what an expression names: ``torch.nn.functional.softmax`` for ``F.softmax``.

        Empty for another expression, and for a name that is bound by anything other than one import.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or not (origin := self._origin(node.id, node)):
            return ""
        return ".".join((origin, *reversed(parts)))

    def called(self, node: ast.AST | None) -> str:
        """Returns the full name of the function that a call calls; empty for another expression."""
        return self.full(node.func) if isinstance(node, ast.Call) else ""

    def is_builtin(self, node: ast.AST | None, *names: str) -> bool:
        """Returns whether an expression is one of these built-in names, and the file does not rebind it."""
        return (
            isinstance(node, ast.Name)
            and node.id in names
            and not self._imports.get(node.id)
            and not self.file.bindings(node.id, node)
        )

    def defined(self, node: ast.AST | None) -> tuple[ReadModule, ast.AST] | None:
        """Returns the file and the value of a name that has one value, in this file or in one that it imports; else
        None.
        """
        value = self.file.value(node)
        if value is not None and not isinstance(value, (ast.Name, ast.Attribute)):
            return self, value
        module, _, name = self.full(node).rpartition(".")
        other = self.beside.get(module)
        bound = other.file.at_top(name) if other is not None else ()
        if other is None or len(bound) != 1 or bound[0].value is None or bound[0].kind == "part":
            return None
        return other, bound[0].value

    def spelled(self, name: str, at: ast.AST) -> str:
        """Returns how the file can write a full name at a place: ``F.softmax``. Raises NotSure if it cannot."""
        best = ""
        for statement in self.file.tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                for alias in statement.names:
                    here = alias.asname or alias.name.split(".")[0]
                    origin = self._origin(here, at)
                    if origin and (name == origin or name.startswith(f"{origin}.")) and len(origin) > len(best):
                        best, text = origin, here + name[len(origin) :]
        if not best:
            raise NotSure(f"the file does not import {name.split('.')[0]} at its top", at)
        return text

    def importing(self, name: str, at: ast.AST) -> tuple[str, tuple[Edit, ...]]:
        """Returns how the file can write a full name such as ``functools.lru_cache``, with the edit that imports it, if
        that is needed. Raises NotSure if the name of the package is taken."""
        try:
            return self.spelled(name, at), ()
        except NotSure:
            package = name.split(".")[0]
        if any(isinstance(node, ast.Name) and node.id == package for node in self.file.nodes):
            raise NotSure(f"the name '{package}' is taken", at)
        imports = (each for each in self.file.tree.body if isinstance(each, (ast.Import, ast.ImportFrom)))
        first = next((each for each in imports if getattr(each, "module", "") != "__future__"), None)
        if first is None:
            raise NotSure("the file imports nothing at its top", at)
        return name, (self.insert_before(first, f"import {package}"),)

    # Places -------------------------------------------------------------------------------------------

    def unused(self, name: str) -> str:
        """Returns a name that no variable of the file has: this one, with underscores added if necessary."""
        used = {node.id for node in self.file.nodes if isinstance(node, ast.Name)}
        while name in used:
            name += "_"
        return name

    def line_of(self, edit: Edit) -> int:
        """Returns the line, from 1, at which an edit begins."""
        return self.text.count("\n", 0, edit.start) + 1

    def place(self, node: ast.AST) -> str:
        """Returns ``file:line`` of a node."""
        return f"{self.path.name}:{getattr(node, 'lineno', 1)}"

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.file.parent(node)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Returns the innermost statement around a node."""
        above: ast.AST | None = node
        while above is not None and not isinstance(above, ast.stmt):
            above = self.file.parent(above)
        assert isinstance(above, ast.stmt)
        return above

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around a node, from the nearest to the module."""
        above = self.file.parent(node)
        while above is not None:
            yield above
            above = self.file.parent(above)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Returns the innermost class around a node."""
        return next((each for each in self.above(node) if isinstance(each, ast.ClassDef)), None)

    def function_of(self, node: ast.AST) -> Function | None:
        """Returns the innermost named function around a node."""
        return next((each for each in self.above(node) if isinstance(each, Function)), None)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yields the calls of functions with these full names, in the order of the text."""
        return (node for node in self.file.every(ast.Call) if self.full(node.func) in names)
