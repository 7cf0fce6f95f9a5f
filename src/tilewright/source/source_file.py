"""Reads a Python file without running it: text, syntax tree, imports and scopes.

`SourceFile` reads a file, and `source_of_object` reads a function or class of this process. A name is resolved through
imports (`import cuda.tile as ct`) and through the assignments in the text. If the text does not show the value of a
name, the result is empty.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from types import CodeType
from typing import Literal, TypeAlias

from tilewright.errors import RequestError
from tilewright.source.nodes import Node, Nodes, below, children

Named: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
BindingKind: TypeAlias = Literal["value", "part", "parameter", "function", "class", "other"]

BINDING_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.Name)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

remembered = lru_cache(maxsize=4)
"""Decorator that caches the results of a function for the last four `SourceFile`s."""

DEPTH = 8
"""The most steps that are followed from a name to its value."""
TOO_DEEP = "its expressions are nested too deep to be followed"
"""The message if Python's recursion limit is reached, for example by a sum of 900 terms."""


def not_text(path: Path) -> str:
    """Returns why a file cannot be decoded as text, and the fix. Raises OSError."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return f"not UTF-8 text (byte 0x{error.object[error.start]:02x} in line {line}); save it as UTF-8"
    return "declared to be in an encoding that is unknown or wrong; save it as UTF-8 and remove the declaration"


@dataclass(frozen=True)
class Binding:
    """One way in which a name gets its value.

    place: the node that gives the value, such as an assignment.
    value: the assigned expression, the function or the class. If the kind is "part", the whole expression that is
        unpacked into several names.
    """

    kind: BindingKind
    value: ast.AST | None
    place: ast.AST


class SourceFile:
    """One parsed file.

    first_line: the number of the text's first line; more than 1 if the text is a part of a file.

    Raises SyntaxError or ValueError for text that is not Python, RecursionError for text that is nested too deep.
    """

    def __init__(self, path: Path, text: str, first_line: int = 1) -> None:
        self.path = path
        self.text = text
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python shows these warnings when the user runs the file
            try:
                self.tree = ast.parse(text)
            except MemoryError as error:  # the parser's own stack is full
                raise RecursionError(TOO_DEEP) from error
        if first_line > 1:
            ast.increment_lineno(self.tree, first_line - 1)
        self._nodes = Nodes(self.tree)
        self.nodes = self._nodes.every
        """All nodes, each before those below it."""

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Reads the file at ``path`` in the encoding that it declares. Raises OSError, and the errors of the class."""
        with tokenize.open(path) as opened:
            return cls(path, opened.read())

    @classmethod
    def requested(cls, path: Path) -> SourceFile:
        """Reads a file that the user named. Raises RequestError if the file cannot be read."""
        try:
            return cls.read(path)
        except OSError as error:
            raise RequestError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RequestError(f"{path} is {not_text(path)}") from error
        except SyntaxError as error:
            if error.lineno is None and "missing encoding" in error.msg:
                raise RequestError(f"{path} is {not_text(path)}") from error
            place = f"{path}:{error.lineno}" if error.lineno else str(path)
            raise RequestError(f"{place}: {error.msg}; it must be a Python file") from error
        except ValueError as error:
            raise RequestError(f"{path}: {error}; it must be a Python file") from error

    # Places -------------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> tuple[Named, ...]:
        """All named functions, in the order of the text."""
        found = self._nodes.of_classes(ast.FunctionDef, ast.AsyncFunctionDef)
        return tuple(node for node in found if isinstance(node, Named))

    def every(self, kind: type[Node], inside: ast.AST | None = None) -> Iterator[Node]:
        """Yields all nodes of one class in the order of `nodes`: in the whole file, or below ``inside``."""
        return self._nodes.of_class(kind, inside)

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._nodes.parents.get(node)

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yields the nodes around ``node``, from the nearest to the module, each with its child that contains ``node``.

        Leaves out a function if ``node`` is in its decorators or defaults, because these run outside the function.
        """
        child = node
        while (parent := self._nodes.parents.get(child)) is not None:
            if not isinstance(parent, Named) or child in parent.body:
                yield parent, child
            child = parent

    def within(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yields the same pairs as `above`, but only for nodes inside the innermost named function."""
        return takewhile(lambda pair: not isinstance(pair[0], Named), self.above(node))

    def scope(self, node: ast.AST) -> Scope:
        """Returns the innermost function that evaluates ``node``; the file if there is none."""
        return next((parent for parent, _ in self.above(node) if isinstance(parent, Function)), self.tree)

    def owner(self, node: ast.AST) -> Named | None:
        """Returns the innermost named function that evaluates ``node``; None at the top of the file or of a class."""
        return next((parent for parent, _ in self.above(node) if isinstance(parent, Named)), None)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, with the same line numbers as in the syntax tree.

        Unlike `str.splitlines`, Python does not end a line at a form feed.
        """
        return self.text.split("\n")

    # Names --------------------------------------------------------------------------------------------

    @cached_property
    def imports(self) -> dict[str, str]:
        """The dotted origin of each imported name of this file. The origin of a relative import begins with a dot."""
        return _origins(self._nodes.of_classes(ast.Import, ast.ImportFrom))

    @cached_property
    def packages(self) -> set[str]:
        """The top-level packages that the file imports from."""
        return {origin.split(".")[0] for origin in self.imports.values()}

    @property
    def packages_at_top(self) -> set[str]:
        """The packages that are imported when the file is loaded. Imports inside functions do not count."""
        return {origin.split(".")[0] for origin in _origins(self.tree.body).values()} - {""}

    def dotted(self, node: ast.AST | None) -> str:
        """Returns the full name of a name or attribute: ``cuda.tile.launch`` for ``ct.launch``; "" for other nodes."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imports.get(node.id, node.id))
        return ".".join(reversed(parts))

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """The calls of the file by the full name of what is called, as `dotted` gives it."""
        calls: dict[str, list[ast.Call]] = {}
        for call in self.every(ast.Call):
            calls.setdefault(self.dotted(call.func), []).append(call)
        return calls

    @cached_property
    def _bindings(self) -> dict[ast.AST, dict[str, list[Binding]]]:
        bindings: dict[ast.AST, dict[str, list[Binding]]] = {}

        def bind(scope: ast.AST, name: str, binding: Binding) -> None:
            bindings.setdefault(scope, {}).setdefault(name, []).append(binding)

        for node in self._nodes.of_classes(*BINDING_NODES):
            if isinstance(node, Named):
                bind(self.scope(node), node.name, Binding("function", node, node))
            elif isinstance(node, ast.ClassDef):
                bind(self.scope(node), node.name, Binding("class", node, node))
            elif isinstance(node, ast.arg):
                bind(self._nodes.parents[self._nodes.parents[node]], node.arg, Binding("parameter", None, node))
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bind(self.scope(node), node.id, self._bound_by(node))
        return bindings

    def _bound_by(self, name: ast.Name) -> Binding:
        whole: ast.AST = name
        parent = self._nodes.parents[name]
        while isinstance(parent, (ast.Tuple, ast.List, ast.Starred)):
            whole, parent = parent, self._nodes.parents[parent]
        value = parent.value if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) else None
        if value is None:
            return Binding("other", None, parent)
        targets, values = elements(whole), elements(value)
        if len(targets) == len(values) and name in targets:
            return Binding("value", values[targets.index(name)], parent)
        return Binding("value" if whole is name else "part", value, parent)

    def bindings(self, name: str, at: ast.AST) -> tuple[Binding, ...]:
        """Returns all bindings of a name in the nearest scope around ``at`` that binds the name."""
        scope: Scope = self.scope(at)
        while name not in self._bindings.get(scope, {}):
            if isinstance(scope, ast.Module):
                return ()
            scope = self.scope(scope)
        return tuple(self._bindings[scope][name])

    def at_top(self, name: str) -> tuple[Binding, ...]:
        """Returns all bindings of a name at the top of the file."""
        return tuple(self._bindings.get(self.tree, {}).get(name, ()))

    def values(self, node: ast.AST | None, depth: int = DEPTH) -> tuple[ast.AST, ...]:
        """Returns all values that ``node`` may have.

        The values of a name are the expressions, functions or classes that are bound to the name. The only value of any
        other expression is the expression itself. The result is empty for None, and if the text does not show all
        values (for example of a parameter).
        """
        if not isinstance(node, ast.Name):
            return () if node is None else (node,)
        values: list[ast.AST] = []
        for binding in self.bindings(node.id, node):
            if binding.value is None or binding.kind == "part" or not depth:
                return ()
            values.extend(self.values(binding.value, depth - 1))
        return tuple(values)

    def value(self, node: ast.AST | None) -> ast.AST | None:
        """Returns the only element of `values`; None if there are several or none."""
        values = self.values(node)
        return values[0] if len(values) == 1 else None

    def function(self, node: ast.AST | None) -> Function | None:
        """Returns the function that is the only value of an expression; None if there is another value."""
        value = self.value(node)
        return value if isinstance(value, Function) else None

    def calls_of(self, function: Named) -> tuple[tuple[ast.Call, ...], bool]:
        """Returns the calls of a function in this file, and whether its name is also used without a call."""
        calls, passed_on = [], False
        for name in self._loads.get(function.name, ()):
            if not any(binding.value is function for binding in self.bindings(name.id, name)):
                continue
            parent = self.parent(name)
            if isinstance(parent, ast.Call) and parent.func is name:
                calls.append(parent)
            else:
                passed_on = True
        return tuple(calls), passed_on

    @cached_property
    def _loads(self) -> dict[str, list[ast.Name]]:
        loads: dict[str, list[ast.Name]] = {}
        for name in self.every(ast.Name):
            if isinstance(name.ctx, ast.Load):
                loads.setdefault(name.id, []).append(name)
        return loads


def source_of_object(thing: CodeType | type) -> SourceFile | None:
    """Returns the source of a function's code, or of a class of this process, with the file's line numbers.

    None if there is no source (typed in or generated), or if the source is only a part of a statement (a lambda).
    """
    try:
        lines, first = _lines_of_function(thing) or inspect.getsourcelines(thing)
        return SourceFile(Path(), textwrap.dedent("".join(lines)), first)
    except (OSError, SyntaxError, TypeError):
        return None


def _lines_of_function(thing: CodeType | type) -> tuple[list[str], int] | None:
    """Returns the result of `inspect.getsourcelines` for the code of a ``def``; None for other code.

    This function is faster: `inspect` would resolve the path of every loaded module, which takes 30 ms.
    """
    if isinstance(thing, type):
        return None
    linecache.checkcache(thing.co_filename)
    lines = linecache.getlines(thing.co_filename)[thing.co_firstlineno - 1 :]
    if not lines or not lines[0].lstrip().startswith(("@", "def ", "async def ")):
        return None
    return inspect.getblock(lines), thing.co_firstlineno


def _origins(nodes: Iterable[ast.AST]) -> dict[str, str]:
    origins = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                origins[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{'.' * node.level}{node.module or ''}.{alias.name}"
    return origins


# Helpers for syntax -----------------------------------------------------------------------------------


def argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    """Returns an argument of a call, by position or by name; None if it is missing, or behind a star (``*args``)."""
    if position < len(call.args):
        hidden = any(isinstance(before, ast.Starred) for before in call.args[: position + 1])
        return None if hidden else call.args[position]
    return keywords(call).get(keyword)


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}


def own(function: Function | ast.Module, kind: type[Node]) -> Iterator[Node]:
    """Yields the nodes of one class in a function's body, without those in inner functions and classes."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else [*reversed(function.body)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            yield node
        if not isinstance(node, SCOPES):
            waiting.extend(reversed(children(node)))


def returned(function: ast.AST | None) -> tuple[ast.expr, ...]:
    """Returns the expressions that a function returns or yields; none for another node."""
    if isinstance(function, ast.Lambda):
        return (function.body,)
    if not isinstance(function, Named):
        return ()
    nodes: list[ast.Return | ast.Yield] = [*own(function, ast.Return), *own(function, ast.Yield)]
    return tuple(node.value for node in nodes if node.value is not None)


def parameters(function: Function) -> tuple[ast.arg, ...]:
    """Returns the positional parameters, then the keyword-only parameters."""
    return (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yields the name and the value of each assignment ``name = value`` among the nodes."""
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def elements(node: ast.AST | None) -> list[ast.expr]:
    """Returns the elements of a tuple or list display; none for another node."""
    return list(node.elts) if isinstance(node, (ast.Tuple, ast.List)) else []


def stored(node: ast.AST) -> set[str]:
    """Returns the names that are assigned below ``node``."""
    return {name.id for name in below(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}


def names(node: ast.AST) -> set[str]:
    """Returns the names that are read below ``node``."""
    return {name.id for name in below(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)}
