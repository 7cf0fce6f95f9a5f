"""Finds which parts of the editable files a proposer may change, and which are protected.

The task (`Task(…)`) splits its files. Whatever its launch and its space use is open: the kernel, the launch function,
and the functions and constants that they use. Whatever its other arguments use is protected: reference, tensors,
workloads, precision. So is what both use. Other statements belong to neither, and a proposer may not change them.

This reads the text only. It says early and clearly what is wrong with a proposal, and records attempts to tamper. It is
not what protects a verdict: the baseline's task is always the judge, and a version runs in a process of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tilewright.task.task import Task

OPEN_ARGUMENTS = ("launch", "space", "implementations")
"""The arguments of a task that a version may change."""
_FIELDS = tuple(field.name for field in fields(Task))

Place = tuple[Path, str]
"""A name that is bound at the top of a file."""


@dataclass(frozen=True)
class Regions:
    """``protected``: for each file, the protected names and the argument of the task that uses each. ``open``: for each
    file, the names that a proposer may change."""

    protected: Mapping[Path, Mapping[str, str]]
    open: Mapping[Path, frozenset[str]]


class Module:
    """The top-level statements of one file."""

    def __init__(self, path: Path, text: str) -> None:
        """Raises SyntaxError if the text is not Python."""
        self.path = path
        self.statements = [each for each in ast.parse(text).body if not is_docstring(each)]
        self.bound: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            for name in bound_names(statement):
                self.bound.setdefault(name, []).append(statement)
        self.imported = {name for each in self.statements for name in _imports(each)}
        """Names that are bound by an import."""

    @property
    def tasks(self) -> list[ast.Call]:
        """The calls that make a task."""
        nodes = (node for each in self.statements for node in ast.walk(each))
        return [node for node in nodes if isinstance(node, ast.Call) and is_task(node)]


def regions_of(texts: Mapping[Path, str], task_file: Path | None, kernels: Iterable[str]) -> Regions:
    """Returns the regions of the editable files.

    texts: the texts of the editable files.
    task_file: the file with the task, which may be none of them.
    kernels: the names of the launched kernels, which are always open.
    """
    modules = {path: Module(path, text) for path, text in texts.items()}
    if task_file is not None and task_file not in modules and task_file.is_file():
        modules[task_file] = Module(task_file, task_file.read_text())
    every = _Reach(modules)
    fixed: dict[Place, str] = {}
    launches: set[Place] = {(path, name) for path in texts for name in kernels if name in modules[path].bound}
    for module in modules.values():
        for call in module.tasks:
            for argument, value in arguments(call):
                found = every.used(module, value)
                if argument in OPEN_ARGUMENTS:
                    launches |= found
                else:
                    fixed |= {place: argument for place in every.closure(found) if place not in fixed}
        fixed |= {(module.path, name): "task" for name in _names_of_tasks(module)}
    for place in launches:
        fixed.pop(place, None)
    opened = every.closure(launches) - set(fixed)
    alone = not any(module.tasks for module in modules.values())  # a file without a task: all of it may be edited
    return Regions(
        {path: {name: why for (at, name), why in fixed.items() if at == path} for path in texts},
        {
            path: frozenset(modules[path].bound if alone else (n for at, n in opened if at == path))
            - modules[path].imported
            for path in texts
        },
    )


class _Reach:
    """Follows names through the files."""

    def __init__(self, modules: Mapping[Path, Module]) -> None:
        self.modules = modules
        self._by_stem = {path.stem: path for path in modules}

    def used(self, module: Module, node: ast.AST) -> set[Place]:
        """Returns the places whose names the node uses."""
        found = set()
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                found |= self._linked(module, each.value.id, each.attr)
            if isinstance(each, ast.Name) and each.id in module.bound:
                found |= {(module.path, each.id), *self._linked(module, each.id, "")}
        return found

    def closure(self, places: Iterable[Place]) -> set[Place]:
        """Returns the places, and all that they use."""
        found, left = set[Place](), list(places)
        while left:
            path, name = place = left.pop()
            if place in found or name not in self.modules[path].bound:
                continue
            found.add(place)
            for statement in self.modules[path].bound[name]:
                if not any(is_task(node) for node in ast.walk(statement)):
                    left += self.used(self.modules[path], statement)
        return found

    def _linked(self, module: Module, name: str, attribute: str) -> set[Place]:
        """Returns the place in another file that a name, or an attribute of a module, is imported from."""
        found = set()
        for statement in module.bound.get(name, ()):
            stem, inner = "", attribute
            if isinstance(statement, ast.ImportFrom):
                alias = next((each for each in statement.names if (each.asname or each.name) == name), None)
                whole = (statement.module or "").rpartition(".")[2]
                stem, inner = (whole, alias.name) if alias and whole in self._by_stem else (name, attribute)
            elif isinstance(statement, ast.Import):
                alias = next((each for each in statement.names if (each.asname or each.name) == name), None)
                stem = alias.name.rpartition(".")[2] if alias else ""
            elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):  # tw.editable("ops")
                text = next((str(each.value) for each in statement.value.args if isinstance(each, ast.Constant)), "")
                stem = Path(text).stem if text.endswith(".py") else text.rpartition(".")[2]
            if stem in self._by_stem and inner:
                found.add((self._by_stem[stem], inner))
        return found


def is_docstring(statement: ast.stmt) -> bool:
    """Returns whether a statement is only a text, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def is_task(node: ast.AST) -> bool:
    """Returns whether a node is the call ``Task(…)``."""
    called = node.func if isinstance(node, ast.Call) else None
    return getattr(called, "attr", getattr(called, "id", "")) == "Task"


def arguments(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yields the arguments of ``Task(…)`` with their names. A nested task is left out: it has its own arguments."""
    named = [*zip(_FIELDS, call.args, strict=False), *((each.arg or "**", each.value) for each in call.keywords)]
    for name, value in named:
        if not is_task(value):
            yield name, value


def bound_names(statement: ast.stmt) -> list[str]:
    """Returns the names that a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    names = list(_imports(statement))
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.append(node.id)
    return list(dict.fromkeys(names))


def _imports(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement) if not isinstance(statement, ast.FunctionDef | ast.ClassDef) else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _names_of_tasks(module: Module) -> Sequence[str]:
    tasks = [each for each in module.statements if any(is_task(node) for node in ast.walk(each))]
    return [name for each in tasks for name in bound_names(each)]
