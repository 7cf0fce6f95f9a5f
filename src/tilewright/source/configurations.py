"""Reads the configurations in a Python file from its syntax, without running the file.

For Triton, `read` finds each ``triton.Config(…)`` and the kernel whose decorator uses it: ``@triton.autotune``, or a
decorator of another library. The configuration may pass through variables, comprehensions, loops and functions that
return lists. For cuTile, `read` finds `Space`, and ``SimpleNamespace(…)`` and dictionaries with a tile size. If a
condition is known only when the file runs, both branches are read, and a note says so.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.errors import RequestError, UnknownChoice
from tilewright.source import values
from tilewright.source.cutile import HINTS
from tilewright.source.source_file import TOO_DEEP, Named, SourceFile, argument, keywords, parameters, remembered
from tilewright.source.values import MOST_VALUES, Known, Names, Unread, called_name
from tilewright.space.knobs import is_tile

KernelLanguage: TypeAlias = Literal["triton", "cutile"]

TRITON_ARGUMENTS = ("kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "pre_hook", "ir_override")
"""The positional parameters of ``triton.Config``, in order (triton 3.9)."""


@dataclass(frozen=True)
class Written:
    """One configuration in a file. ``fields``: pairs of name and value, because a name may occur twice."""

    line: int
    fields: tuple[tuple[str, Known], ...]


@dataclass(frozen=True)
class Listed:
    """The configurations of one kernel, or of one function or variable that lists them."""

    name: str
    line: int
    configurations: tuple[Written, ...]
    notes: tuple[str, ...]
    """Sentences about facts that are known only if the file runs."""
    most: int
    """The most configurations that one run of the file makes: of two branches, the longer list counts."""

    @property
    def unread(self) -> bool:
        """Whether some value is known only if the file runs."""
        fields = (value for written in self.configurations for _, value in written.fields)
        return any(isinstance(value, Unread) for value in fields)


def tuned_by(file: SourceFile, decorator: ast.Call) -> Listed:
    """Returns the configurations of a decorator ``@triton.autotune(…)``.

    Raises RequestError for more than 100,000 configurations.
    """
    return _triton_reader(file).tuned(decorator).listed("", decorator.lineno)


def read(path: Path, language: KernelLanguage, name: str | None = None) -> tuple[Listed, ...]:
    """Returns all lists of configurations in the file, or only the list of the function or variable ``name``.

    Raises RequestError if the file cannot be read or has no configurations, UnknownChoice for an unknown name.
    """
    try:
        reader = _ConfigurationReader(SourceFile.requested(path), language)
        lists = reader.lists()
        named = None if name is None else reader.named(name)
    except RecursionError as error:
        raise RequestError(f"{path}: {TOO_DEEP}; give a file that contains only the configurations") from error
    if not lists and (left := reader.not_reached()):
        raise RequestError(f"{path}: no triton.Config(…) could be read; not reached: {_lines(left)}")
    if not lists:
        what = "triton.Config(…)" if language == "triton" else "SimpleNamespace(TILE_M=…) or tilewright.Space(…)"
        raise RequestError(f"{path} contains no configuration: there is no {what} in it")
    if name is None:
        return lists
    chosen = next((listed for listed in lists if listed.name == name), named)
    if chosen is None:
        raise UnknownChoice(f"list of configurations in {path}:", name, [listed.name for listed in lists])
    return (chosen,)


def not_reached(path: Path) -> str:
    """Returns the lines of each ``triton.Config(…)`` in a file that `read` does not reach, in words; "" if none."""
    reader = _ConfigurationReader(SourceFile.requested(path), "triton")
    reader.lists()
    return _lines(reader.not_reached())


def _lines(numbers: Sequence[int]) -> str:
    return f"{len(numbers)} in line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}" if numbers else ""


@dataclass
class _Walk:
    """Walks through syntax trees and collects the configurations in them."""

    file: SourceFile
    language: KernelLanguage
    written: list[Written] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    nodes: set[ast.AST] = field(default_factory=set)
    """The nodes that were read as configurations."""
    most: int = 0
    followed: Mapping[str, ast.AST] = field(default_factory=dict)
    """The functions and values at the top of the file that are read where their names are used."""
    top: Names = field(default_factory=dict)
    seen: set[ast.AST] = field(default_factory=set)

    def listed(self, name: str, line: int) -> Listed:
        return Listed(name, line, tuple(self.written), tuple(self.notes), self.most)

    def undecided(self, condition: ast.expr) -> None:
        note = f"only running the file can decide `{ast.unparse(condition)}`; here all branches are taken"
        self.notes[note] = None

    def visit_all(self, nodes: Iterable[ast.AST], names: Names) -> None:
        rest = list(nodes)
        while rest:
            node = rest.pop(0)
            if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Return, ast.Continue)):
                self.visit_branches(node.test, node.body, (*node.orelse, *rest), names)
                return
            self.visit(node, names)

    def visit(self, node: ast.AST, names: Names) -> None:
        if isinstance(node, (ast.Call, ast.Dict)) and (written := self.configurations(node, names)) is not None:
            self.nodes.add(node)
            self.written += written
            self.most += len(written)
            if len(self.written) > MOST_VALUES:
                raise RequestError(f"line {node.lineno} gives more than {MOST_VALUES} configurations")
        elif isinstance(node, ast.Name):
            value = self.followed.get(node.id)
            if value is not None and value not in self.seen:
                self.seen.add(value)
                self.visit(value, self.top)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            self.visit_all((loop.iter for loop in node.generators), names)
            for inner in values.looped(node.generators, names, self.undecided):
                self.visit(node.elt, inner)
        elif isinstance(node, ast.For):
            self.visit(node.iter, names)
            for bound in values.rounds(node.target, node.iter, names):
                self.visit_all(node.body, {**names, **bound})
        elif isinstance(node, ast.If):
            self.visit_branches(node.test, node.body, node.orelse, names)
        elif isinstance(node, ast.IfExp):
            self.visit_branches(node.test, [node.body], [node.orelse], names)
        elif isinstance(node, Named):
            hidden = {parameter.arg for parameter in parameters(node)}
            outer = {name: value for name, value in names.items() if name not in hidden}
            self.visit_all(node.body, {**outer, **values.assigned(node.body)})
        else:
            self.visit_all(ast.iter_child_nodes(node), names)

    def visit_branches(self, test: ast.expr, body: Iterable[ast.AST], orelse: Iterable[ast.AST], names: Names) -> None:
        holds = values.value_of(test, names)
        if not isinstance(holds, Unread):
            self.visit_all(body if holds else orelse, names)
            return
        before, most = len(self.nodes), self.most
        self.visit_all(body, names)
        in_body, self.most = self.most, most
        self.visit_all(orelse, names)
        self.most = max(self.most, in_body)
        if len(self.nodes) > before:
            self.undecided(test)

    def configurations(self, node: ast.Call | ast.Dict, names: Names) -> list[Written] | None:
        """Returns the configurations that ``node`` contains: one, or all of a `Space`; None for any other node."""
        if isinstance(node, ast.Dict):
            fields = _mapping(values.value_of(node, names))
            simple = not any(isinstance(value, (list, dict)) for value in fields.values())
            is_configuration = self.language == "cutile" and any(map(is_tile, fields)) and simple
            return [Written(node.lineno, tuple(fields.items()))] if is_configuration else None
        if _is_triton_config(self.file, node):
            return [_of_triton(node, names)] if self.language == "triton" else []
        if self.language == "triton":
            return None
        if called_name(node) == "Space":
            return self.of_space(node, names)
        fields = values.arguments(node, names)
        has_knob = any(map(is_tile, fields)) or not fields.keys().isdisjoint(HINTS)
        if not has_knob or not called_name(node).endswith(("Namespace", "Config", "Configuration")):
            return None
        return [Written(node.lineno, tuple(fields.items()))]

    def of_space(self, node: ast.Call, names: Names) -> list[Written] | None:
        """Returns the points of a `Space`, without applying its predicates, because these are functions."""
        given = values.arguments(node, names)
        shipped = _mapping(given.get("shipped"))
        if not shipped:
            return None
        if "where" in given:
            self.notes["the predicates of the space are not applied; here all points of the space are taken"] = None
        points = [_mapping(point) for point in _list(given.get("include"))]
        if given.get("only") is not None:
            points += [_mapping(point) for point in _list(given["only"])]
        else:
            lists = {**_mapping(given.get("constants")), **_mapping(given.get("hints"))}
            product = itertools.product(*map(_list, lists.values()))
            points += [dict(zip(lists, point, strict=True)) for point in itertools.islice(product, MOST_VALUES)]
        return [Written(node.lineno, tuple({**shipped, **point}.items())) for point in (shipped, *points)]


def _is_triton_config(file: SourceFile, node: ast.Call) -> bool:
    *origin, last = file.dotted(node.func).split(".")
    return last == "Config" and "triton" in origin  # the name `triton` counts also without an import


class _ConfigurationReader:
    def __init__(self, file: SourceFile, language: KernelLanguage):
        self._file = file
        self._language = language
        self._names = values.assigned(file.tree.body)
        self._functions = {node.name: node for node in file.functions}
        self._reached_nodes: set[ast.AST] = set()

    def lists(self) -> tuple[Listed, ...]:
        """Returns the lists that kernels of the file use, then all other lists."""
        lists: list[Listed] = []
        used: set[ast.AST] = set()
        for function in self._file.functions:
            for decorator in function.decorator_list:
                every = self._language == "triton"  # a library may have its own decorator, as flash-linear-attention
                if isinstance(decorator, ast.Call) and (every or called_name(decorator) == "autotune"):
                    walk = self.tuned(decorator)
                    used |= walk.nodes
                    lists.append(walk.listed(function.name, function.lineno))
        for statement in self._file.tree.body:
            if not used.intersection(ast.walk(statement)):
                lists.append(self._walked([statement]).listed(_name_of(statement), statement.lineno))
        return tuple(listed for listed in lists if listed.configurations)

    def not_reached(self) -> list[int]:
        """Returns the lines of each ``triton.Config(…)`` that no walk has reached so far."""
        written = (node for node in self._file.every(ast.Call) if _is_triton_config(self._file, node))
        return sorted(node.lineno for node in written if node not in self._reached_nodes)

    def named(self, name: str) -> Listed | None:
        """Returns the list of the function or variable ``name``; None if it contains no configuration."""
        node = self._functions.get(name) or self._names.get(name)
        listed = self._walked([node]).listed(name, node.lineno) if node is not None else None
        return listed if listed and listed.configurations else None

    def tuned(self, decorator: ast.Call) -> _Walk:
        """Reads the configurations of a decorator: its ``configs``, or all arguments if these contain none."""
        configs = argument(decorator, 0, "configs")
        walk = self._walked([] if configs is None else [configs], follows=True)
        if configs is None or not walk.written:
            configs = decorator
            walk = self._walked([*decorator.args, *(keyword.value for keyword in decorator.keywords)])
        calls = self._file.every(ast.Call, configs)
        if "prune_configs_by" in keywords(decorator) or any(called_name(call) == "filter" for call in calls):
            walk.notes["a function of the file drops some configurations when it runs; here all are taken"] = None
        return walk

    def _walked(self, nodes: Iterable[ast.AST], *, follows: bool = False) -> _Walk:
        walk = _Walk(self._file, self._language, top=self._names)
        if follows:
            walk.followed = {**self._names, **self._functions}
        walk.visit_all(nodes, self._names)
        self._reached_nodes |= walk.nodes
        return walk


@remembered
def _triton_reader(file: SourceFile) -> _ConfigurationReader:
    return _ConfigurationReader(file, "triton")


def _of_triton(node: ast.Call, names: Names) -> Written:
    given = values.arguments(node, names, TRITON_ARGUMENTS)
    meta = given.pop("kwargs", {})
    inner = meta.items() if isinstance(meta, dict) else [("kwargs", meta)]
    return Written(node.lineno, (*((str(name), value) for name, value in inner), *given.items()))


def _mapping(value: Known) -> dict[str, Known]:
    """Returns ``value`` if it is a dictionary whose keys are all strings; otherwise an empty dictionary."""
    if not isinstance(value, dict):
        return {}
    names = {name: inner for name, inner in value.items() if isinstance(name, str)}
    return names if len(names) == len(value) else {}


def _list(value: Known) -> list[Known]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _name_of(statement: ast.stmt) -> str:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return statement.name
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return f"line_{statement.lineno}"
