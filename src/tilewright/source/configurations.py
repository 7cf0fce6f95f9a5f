"""The configurations that a Python file writes down, found by syntax: nothing of the file runs.

For Triton: every ``triton.Config(…)``, gathered by the kernel whose ``@triton.autotune`` reaches it, also
through variables, comprehensions, loops and functions that return lists. For cuTile: ``SimpleNamespace(…)``
and dictionaries that name a tile size, and `Space`. Branches whose condition only running the file can
tell are all taken, and said.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tilewright.errors import RequestError, UnknownChoice
from tilewright.source.reading import TOO_DEEP, text_of, tree_of
from tilewright.source.values import (
    MOST_VALUES,
    Names,
    Unread,
    arguments,
    assigned,
    called_name,
    passes,
    rounds,
    value_of,
)
from tilewright.space.knobs import HINTS, is_tile

Language: TypeAlias = Literal["triton", "cutile"]

TRITON_ARGUMENTS = ("kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "pre_hook", "ir_override")
"""Of ``triton.Config``, in their order (triton 3.9)."""

_RECORDS = ("SimpleNamespace", "Namespace")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Written:
    """One configuration as the file has it: pairs, since a name may stand in it twice."""

    line: int
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Listed:
    """The configurations of one kernel, or of one function or variable that lists them."""

    name: str
    line: int
    configurations: tuple[Written, ...]
    notes: tuple[str, ...]
    """What reading alone could not tell."""


def read(file: Path, language: Language, name: str | None = None) -> tuple[Listed, ...]:
    """All lists of configurations in ``file``, or the one of the function or variable ``name``.

    Raises `RequestError` where the file cannot be read or holds none, `UnknownChoice` for the name.
    """
    try:
        return _read(file, language, name)
    except RecursionError as error:
        raise RequestError(f"{file}: {TOO_DEEP}; give a file of the configurations alone") from error


def _read(file: Path, language: Language, name: str | None) -> tuple[Listed, ...]:
    reader = _Reader(_parsed(file), language)
    found = reader.lists()
    if not found:
        what = "triton.Config(…)" if language == "triton" else "SimpleNamespace(TILE_M=…) or tilewright.Space(…)"
        raise RequestError(f"{file} writes down no configuration: there is no {what} in it")
    if name is None:
        return found
    chosen = next((one for one in found if one.name == name), None) or reader.named(name)
    if chosen is None:
        raise UnknownChoice(f"list of configurations in {file}:", name, [one.name for one in found])
    return (chosen,)


def _parsed(file: Path) -> ast.Module:
    try:
        return tree_of(text_of(file))
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from error
    except SyntaxError as error:
        place = f"{file}:{error.lineno}" if error.lineno else str(file)
        raise RequestError(f"{place}: {error.msg}; it must be a Python file") from error
    except ValueError as error:
        raise RequestError(f"{file}: {error}; it must be a Python file") from error


@dataclass
class _Visit:
    """What one walk found."""

    written: list[Written] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    calls: set[int] = field(default_factory=set)
    """Identities of the nodes that are configurations."""


class _Reader:
    def __init__(self, module: ast.Module, language: Language):
        self._module = module
        self._language = language
        self._names = assigned(module.body)
        self._functions = {node.name: node for node in ast.walk(module) if isinstance(node, _FUNCTIONS)}
        imports = [node for node in ast.walk(module) if isinstance(node, (ast.Import, ast.ImportFrom))]
        self._triton = {"triton"} | {a.asname for i in imports for a in i.names if a.name == "triton" and a.asname}
        self._config = {
            alias.asname or alias.name
            for node in imports
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton"
            for alias in node.names
            if alias.name == "Config"
        }

    def lists(self) -> tuple[Listed, ...]:
        """Kernels first, as they are tuned; then what no kernel of the file reaches."""
        found, claimed = [], set()
        for function in self._functions.values():
            for decorator in function.decorator_list:
                if isinstance(decorator, ast.Call) and called_name(decorator) == "autotune":
                    seen = self._tuned(decorator)
                    claimed |= seen.calls
                    found.append(_listed(function.name, function.lineno, seen))
        for statement in self._module.body:
            if not any(id(node) in claimed for node in ast.walk(statement)):
                seen = self._walked([statement])
                found.append(_listed(_name_of(statement), statement.lineno, seen))
        return tuple(one for one in found if one.configurations)

    def named(self, name: str) -> Listed | None:
        """What the function or the variable ``name`` lists, though a kernel uses it."""
        node = self._functions.get(name) or self._names.get(name)
        listed = _listed(name, node.lineno, self._walked([node])) if node is not None else None
        return listed if listed and listed.configurations else None

    def _tuned(self, decorator: ast.Call) -> _Visit:
        given = {keyword.arg: keyword.value for keyword in decorator.keywords}
        listed = given.get("configs") or (decorator.args[0] if decorator.args else None)
        seen = self._walked(self._reached(listed)) if listed is not None else _Visit()
        pruned = "prune_configs_by" in given
        if listed is not None:
            pruned |= any(isinstance(n, ast.Call) and called_name(n) == "filter" for n in ast.walk(listed))
        if pruned:
            seen.notes["a function of the file drops some of them when it runs; here all are taken"] = None
        return seen

    def _reached(self, start: ast.expr) -> list[ast.AST]:
        """The expression, and what the names in it stand for."""
        nodes: list[ast.AST] = [start]
        for node in nodes:
            for inner in ast.walk(node):
                other = isinstance(inner, ast.Name) and (self._functions.get(inner.id) or self._names.get(inner.id))
                if isinstance(other, ast.AST) and not any(other is one for one in nodes):
                    nodes.append(other)
        return nodes

    def _walked(self, nodes: Sequence[ast.AST]) -> _Visit:
        seen = _Visit()
        for node in nodes:
            for written in self._visit(node, dict(self._names), seen):
                seen.written.append(written)
                if len(seen.written) > MOST_VALUES:
                    raise RequestError(f"line {written.line} gives more than {MOST_VALUES} configurations")
        return seen

    def _visit(self, node: ast.AST, names: Names, seen: _Visit) -> Iterator[Written]:
        if isinstance(node, (ast.Call, ast.Dict)) and (found := self._configurations(node, names, seen)) is not None:
            seen.calls.add(id(node))
            yield from found
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            yield from self._comprehended(node.elt, node.generators, names, seen)
        elif isinstance(node, ast.For):
            for bound in rounds(node.target, node.iter, names):
                yield from self._all(node.body, {**names, **bound}, seen)
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield from self._branches(node, names, seen)
        elif isinstance(node, _FUNCTIONS):
            parameters = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            inner = {name: value for name, value in names.items() if name not in parameters}
            yield from self._all(node.body, {**inner, **assigned(node.body)}, seen)
        else:
            yield from self._all(ast.iter_child_nodes(node), names, seen)

    def _all(self, nodes: Any, names: Names, seen: _Visit) -> Iterator[Written]:
        for node in nodes:
            yield from self._visit(node, names, seen)

    def _comprehended(
        self, element: ast.expr, loops: list[ast.comprehension], names: Names, seen: _Visit
    ) -> Iterator[Written]:
        if not loops:
            yield from self._visit(element, names, seen)
            return
        first, *rest = loops
        for bound in rounds(first.target, first.iter, names):
            inner = {**names, **bound}
            for condition in first.ifs:
                if isinstance(value_of(condition, inner), Unread):
                    seen.notes[_undecided(condition)] = None
            if passes(first.ifs, inner):
                yield from self._comprehended(element, rest, inner, seen)

    def _branches(self, node: ast.If | ast.IfExp, names: Names, seen: _Visit) -> Iterator[Written]:
        holds = value_of(node.test, names)
        bodies = [node.body, node.orelse]
        chosen = bodies if isinstance(holds, Unread) else [node.body if holds else node.orelse]
        before = len(seen.calls)
        for body in chosen:
            yield from self._all(body if isinstance(body, list) else [body], names, seen)
        if isinstance(holds, Unread) and len(seen.calls) > before:
            seen.notes[_undecided(node.test)] = None

    def _configurations(self, node: ast.Call | ast.Dict, names: Names, seen: _Visit) -> list[Written] | None:
        """What ``node`` writes down, or None where it is no configuration."""
        if self._language == "triton":
            is_one = isinstance(node, ast.Call) and self._is_triton(node.func)
            return [_of_triton(node, names)] if is_one and isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and self._is_triton(node.func):
            return []  # of the other language
        if isinstance(node, ast.Call) and called_name(node) == "Space":
            return _of_space(node, names, seen)
        if isinstance(node, ast.Call):
            called, given = called_name(node), arguments(node, names)
            is_record = called in _RECORDS or called.endswith(("Config", "Configuration"))
            if not (is_record and (_names_a_tile(given) or not HINTS.keys().isdisjoint(given))):
                return None
        else:
            whole = value_of(node, names)
            given = whole if isinstance(whole, dict) else {}
            if not _names_a_tile(given) or any(isinstance(one, (list, dict)) for one in given.values()):
                return None
        return [Written(node.lineno, tuple(given.items()))]

    def _is_triton(self, called: ast.expr) -> bool:
        if isinstance(called, ast.Name):
            return called.id in self._config
        root = called
        while isinstance(root, ast.Attribute):
            root = root.value
        is_config = isinstance(called, ast.Attribute) and called.attr == "Config"
        return is_config and isinstance(root, ast.Name) and root.id in self._triton


def _of_triton(node: ast.Call, names: Names) -> Written:
    given = arguments(node, names, TRITON_ARGUMENTS)
    meta = given.pop("kwargs", {})
    inner = meta.items() if isinstance(meta, dict) else [("kwargs", meta)]
    return Written(node.lineno, (*((str(name), value) for name, value in inner), *given.items()))


def _of_space(node: ast.Call, names: Names, seen: _Visit) -> list[Written] | None:
    """The points that a `Space` lists; its predicates are functions and are not applied."""
    given = arguments(node, names)
    lists = {**_mapping(given.get("constants")), **_mapping(given.get("hints"))}
    shipped = _mapping(given.get("shipped"))
    if not shipped:
        return None
    if "where" in given:
        seen.notes["the predicates of the space are not applied; here all its points are taken"] = None
    points = [_mapping(one) for one in _list(given.get("include"))]
    if given.get("only") is not None:
        points += [_mapping(one) for one in _list(given["only"])]
    else:
        listed = [_list(values) for values in lists.values()]
        product = itertools.islice(itertools.product(*listed), MOST_VALUES)
        points += [dict(zip(lists, values, strict=True)) for values in product]
    return [Written(node.lineno, tuple({**shipped, **point}.items())) for point in (shipped, *points)]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _names_a_tile(given: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in given) and any(map(is_tile, given))


def _listed(name: str, line: int, seen: _Visit) -> Listed:
    return Listed(name, line, tuple(seen.written), tuple(seen.notes))


def _name_of(statement: ast.stmt) -> str:
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return statement.name
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return f"line_{statement.lineno}"


def _undecided(condition: ast.expr) -> str:
    return f"whether `{ast.unparse(condition)}` holds shows only when the file runs; here all branches are taken"
