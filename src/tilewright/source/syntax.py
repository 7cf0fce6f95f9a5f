"""Changes a kernel's source with libcst, which keeps format and comments.

A `Source` never changes: `Source.changed` replaces nodes and returns a new `Source`. The modules `source_file` and
`values` resolve imports and values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeAlias

import libcst as cst

from tilewright.errors import TaskError
from tilewright.source.parsed import Node, Parsed, children
from tilewright.source.source_file import SourceFile
from tilewright.source.values import Known, value_of_text

Function = cst.FunctionDef
Expression = cst.BaseExpression
Line = cst.SimpleStatementLine
Replacement: TypeAlias = cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]
Changes: TypeAlias = Mapping[cst.CSTNode, Replacement | Callable[[cst.CSTNode], Replacement]]
"""Maps a node to its replacement. A statement may be replaced by several statements, or by none.

If the replacement is a function, the function is called with the node, after the changes inside the node.
"""


_parsed_text = lru_cache(64)(Parsed)  # every playbook entry reads the text of the best version so far


@dataclass(frozen=True)
class Source:
    """The text of one file. ``name`` is the name of the file, for messages."""

    name: str
    text: str

    @property
    def _parsed(self) -> Parsed:
        try:
            return _parsed_text(self.text)
        except cst.ParserSyntaxError as error:
            raise TaskError(f"{self.name}:{error.editor_line}: not valid Python") from error

    @property
    def module(self) -> cst.Module:
        return self._parsed.module

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        """Returns the line (from 1) and the column (from 0) where ``node`` begins."""
        return self._parsed.place(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parsed.parent(node)

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields the nodes around ``node``, from the nearest to the module."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def every(self, kind: type[Node], inside: cst.CSTNode | None = None) -> list[Node]:
        """Returns all nodes of one class in the order of the text, below ``inside`` or in the whole file."""
        parsed = self._parsed
        if inside is None or inside is parsed.module:
            own = [parsed.module] if isinstance(parsed.module, kind) else []
            return [*own, *(node for part in parsed.parts for node in part.every(kind))]
        if (part := parsed.part_of(inside)) is None:
            return [node for node in _walk(inside) if isinstance(node, kind)]
        return part.every(kind, inside)

    def changed(self, changes: Changes) -> Source:
        """Returns the source with the nodes in ``changes`` replaced."""
        return Source(self.name, self.replaced(changes))

    def replaced(self, changes: Changes) -> str:
        """Returns the text with the nodes in ``changes`` replaced."""
        changed = self.module.visit(_Swap(changes, self._parsed.parent))
        assert isinstance(changed, cst.Module)
        return self._parsed.code(changed)

    # Functions and calls --------------------------------------------------------------------------

    @cached_property
    def functions(self) -> dict[str, Function]:
        """The functions at the top of the file."""
        return {part.name.value: part for part in self.module.body if isinstance(part, cst.FunctionDef)}

    @cached_property
    def kernels(self) -> dict[str, Function]:
        """The functions that are decorated with ``ct.kernel``, with or without hints."""
        return {name: kernel for name, kernel in self.functions.items() if self.kernel_decorator(kernel) is not None}

    def kernel_decorator(self, function: Function) -> cst.Decorator | None:
        """Returns the decorator ``@ct.kernel`` of a function; None if the function is not a kernel."""
        for decorator in function.decorators:
            called = decorator.decorator
            if self._is_tile(called.func if isinstance(called, cst.Call) else called, "kernel"):
                return decorator
        return None

    @cached_property
    def tile_code(self) -> dict[str, Function]:
        """The kernels, and the functions of this file that kernels call, in the order of the text."""
        reached = self.called_by(set(self.kernels))
        return {name: function for name, function in self.functions.items() if name in reached}

    def called_by(self, names: Iterable[str]) -> set[str]:
        """Returns ``names`` and the names of all functions of this file that these functions call, also indirectly."""
        open_ = list(names)
        reached = set(open_)
        while open_:
            for call in self.every(cst.Call, self.functions[open_.pop()]):
                name = dotted(call.func)
                if name in self.functions and name not in reached:
                    reached.add(name)
                    open_.append(name)
        return reached

    @cached_property
    def _file(self) -> SourceFile:
        """The text as a `SourceFile`, which resolves imports."""
        return SourceFile(Path(self.name), self.text)

    @cached_property
    def tile_module(self) -> str:
        """The name of ``cuda.tile`` in this file, usually ``ct``."""
        return next((name for name, origin in self._file.imports.items() if origin == "cuda.tile"), "cuda.tile")

    def origin(self, called: str) -> str:
        """Returns the full name of a name in this file: ``cuda.tile.load`` for ``ct.load``."""
        first, _, rest = called.partition(".")
        return f"{self._file.imports.get(first, first)}.{rest}".rstrip(".")

    def tile_name(self, called: str) -> str:
        """Returns the name in cuda.tile: ``load`` for ``ct.load`` or an imported ``load``; "" for other names."""
        whole = self.origin(called)
        if whole.startswith("cuda.tile."):
            return whole.removeprefix("cuda.tile.")
        return called if called in self._star_imported and called not in self.functions else ""

    @cached_property
    def _star_imported(self) -> Collection[str]:
        """The names that ``from cuda.tile import *`` binds in this file."""
        if "cuda.tile.*" not in self._file.imports.values():
            return ()
        import cuda.tile

        return tuple(map(str, cuda.tile.__all__))

    def spelled(self, name: str) -> str:
        """Returns the text by which this file can refer to ``name`` of cuda.tile: ``ct.load``, or an imported ``load``.

        Returns "" if the file cannot refer to it.
        """
        imported = self._file.imports
        if self.tile_module in imported or "cuda" in imported.values():
            return f"{self.tile_module}.{name}"
        everything = name if "cuda.tile.*" in imported.values() else ""
        return next((here for here, origin in imported.items() if origin == f"cuda.tile.{name}"), everything)

    def _is_tile(self, called: cst.CSTNode, *names: str) -> bool:
        """Returns whether the called expression is one of these names of cuda.tile."""
        return self.tile_name(dotted(called)) in names

    def calls(self, *names: str, inside: cst.CSTNode | None = None) -> list[cst.Call]:
        """Returns the calls of ``ct.<name>``, for any of the names, below ``inside`` (default: in all tile code)."""
        roots = [inside] if inside is not None else list(self.tile_code.values())
        return [call for root in roots for call in self.every(cst.Call, root) if self._is_tile(call.func, *names)]

    def calls_named(self, name: str, inside: cst.CSTNode | None = None) -> list[cst.Call]:
        """Returns the calls of ``name`` and ``<module>.<name>`` below ``inside`` (default: in the whole file)."""
        return [call for call in self.every(cst.Call, inside) if dotted(call.func).split(".")[-1] == name]

    def function_of(self, node: cst.CSTNode) -> str:
        """Returns the name of the top-level function around ``node``; "" outside of all functions."""
        around = (node, *self.parents(node))
        return next((outer.name.value for outer in reversed(around) if isinstance(outer, cst.FunctionDef)), "")

    def function_around(self, node: cst.CSTNode) -> Function:
        """Returns the top-level function around ``node``, which is inside of one."""
        return self.functions[self.function_of(node)]


class _Swap(cst.CSTTransformer):
    def __init__(self, changes: Changes, parent: Callable[[cst.CSTNode], cst.CSTNode | None]) -> None:
        super().__init__()
        self.changes = {id(node): new for node, new in changes.items()}
        self.around = set[cst.CSTNode]()
        for node in changes:
            above = parent(node)
            while above is not None and above not in self.around:
                self.around.add(above)
                above = parent(above)

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self.around  # libcst copies what is visited

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> object:  # type: ignore[override]
        new = self.changes.get(id(original_node), updated_node)
        return new(updated_node) if callable(new) else new


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in children(node):
        yield from _walk(child)


def is_newer_syntax(path: Path) -> bool:
    """Returns whether libcst can parse a file. Its parser knows the syntax of newer versions of Python."""
    try:
        cst.parse_module(path.read_bytes())
    except (cst.ParserSyntaxError, OSError, ValueError, RecursionError):
        return False
    return True


def dotted(node: cst.CSTNode) -> str:
    """Returns the text of a name or attribute, such as ``ct.load``; "" for any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr.value}"
    return ""


def argument(call: cst.Call, name: str, place: int | None = None) -> cst.BaseExpression | None:
    """Returns the value of a call's argument, by keyword or by its position (from 0); None if it is not given."""
    return next((arg.value for index, arg in enumerate(call.args) if _is_argument(arg, index, name, place)), None)


def _is_argument(arg: cst.Arg, index: int, name: str, place: int | None) -> bool:
    if arg.keyword is not None:
        return arg.keyword.value == name
    return not arg.star and index == place


def keywords(call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Returns the keyword arguments of a call."""
    return {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}


def with_argument(call: cst.Call, name: str, value: str | None, place: int | None = None) -> cst.Call:
    """Returns the call with one argument set to ``value``. The value None removes the argument.

    name, place: the argument's keyword, and its position (from 0) if it may be passed by position.
    """
    new = None if value is None else cst.parse_expression(value)
    args = list(call.args)
    at = next((index for index, arg in enumerate(args) if _is_argument(arg, index, name, place)), None)
    if at is None:
        args = args if new is None else _appended(args, keyword(name, new))
    elif new is not None:
        args[at] = args[at].with_changes(value=new)
    else:
        gone = args.pop(at)
        if args and at == len(args):  # the new last argument gets the comma and space of the removed one
            args[-1] = args[-1].with_changes(comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg)
    # All but the last argument need a comma.
    alone = [arg for arg in args[:-1] if not isinstance(arg.comma, cst.Comma)]
    return call.with_changes(args=[arg.with_changes(comma=SPACED) if arg in alone else arg for arg in args])


def _appended(args: list[cst.Arg], new: cst.Arg) -> list[cst.Arg]:
    """Returns the arguments and a new last argument, with commas and spaces as between the others."""
    if not args:
        return [new]
    last = args[-1]
    ending = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    between = args[-2].comma if len(args) > 1 and isinstance(args[-2].comma, cst.Comma) else SPACED
    return [*args[:-1], last.with_changes(comma=between, whitespace_after_arg=NOTHING), ending]


SPACED = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
NOTHING = cst.SimpleWhitespace("")


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    tight = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))
    return cst.Arg(value=value, keyword=cst.Name(name), equal=tight)


def number(node: cst.BaseExpression | None) -> int | float | None:
    """Returns the value of a literal number with its sign; None for any other expression."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inside = number(node.expression)
        return None if inside is None else -inside
    if isinstance(node, (cst.Integer, cst.Float)):
        return node.evaluated_value
    return None


def literal(node: cst.BaseExpression) -> Known:
    """Returns the value of an expression, as `value_of_text` computes it."""
    return value_of_text(cst.Module([]).code_for_node(node))


def elements(node: cst.BaseExpression | None) -> list[cst.BaseExpression] | None:
    """Returns the elements of a tuple or list display without stars; None for any other expression."""
    if not isinstance(node, (cst.Tuple, cst.List)):
        return None
    if any(isinstance(element, cst.StarredElement) for element in node.elements):
        return None
    return [element.value for element in node.elements]
