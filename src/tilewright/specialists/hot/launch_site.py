"""Changes the configuration with which a user's file launches a kernel: tile sizes, and hints of the compiler."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.records import Value
from tilewright.source import cutile, triton
from tilewright.source.source_file import Function, Named, SourceFile, keywords, parameters
from tilewright.space import knobs

Edit = tuple[ast.AST, str]
"""A node and the text that replaces the node. An empty ``ast.Tuple`` marks a place for insertion."""


class NotWritable(RequestError):
    """The text does not show the place where a knob of the configuration is set."""


def with_configuration(path: Path, kernel: str, language: str, changes: Mapping[str, Value]) -> str:
    """Returns the text of a file whose only launch of ``kernel`` uses these values.

    A tile size is changed at the assignment of a number to its name, so that a grid with this name changes, too. A
    number in the launch itself is changed only if the grid is a function. Raises NotWritable if the text shows no such
    place.
    """
    file = SourceFile.requested(path)
    hints = {name: value for name, value in changes.items() if name in knobs.hints()}
    edits = [_constant(file, kernel, name, value) for name, value in changes.items() if name not in hints]
    if hints:
        edits += _cutile_hints(file, kernel, hints) if language == "cutile" else _triton_options(file, kernel, hints)
    return _edited(file, edits)


def _triton_launch(file: SourceFile, kernel: str) -> triton.TritonLaunch:
    found = [each for each in triton.launches(file) if each.kernel.node.name == kernel]
    if len(found) != 1 or not found[0].is_whole or found[0].kernel.tuner is not None:
        raise NotWritable(f"{file.path.name} has {len(found)} plain launches of {kernel}, not one")
    return found[0]


def _passed(file: SourceFile, kernel: str, name: str) -> tuple[ast.expr | None, bool]:
    """Returns the expression that a launch passes for a parameter, and whether its grid is a function."""
    if any(each.node.name == kernel for each in triton.kernels(file).values()):
        launch = _triton_launch(file, kernel)
        grid = launch.call.func.slice if isinstance(launch.call.func, ast.Subscript) else None
        return launch.passed.get(name), isinstance(file.value(grid), Function)
    sites = [
        each for each in cutile.launches(file) if [one.name for one in cutile.kernels_of(file, each.kernel)] == [kernel]
    ]
    if len(sites) != 1:
        raise NotWritable(f"{file.path.name} has {len(sites)} launches of {kernel}, not one")
    (node,) = (each.node for each in cutile.kernels(file) if each.name == kernel)
    names, given = [each.arg for each in parameters(node)], file.value(sites[0].arguments)
    at = names.index(name) if name in names else -1
    plain = isinstance(given, ast.Tuple | ast.List) and not any(isinstance(each, ast.Starred) for each in given.elts)
    return (given.elts[at] if plain and 0 <= at < len(given.elts) else None), False  # type: ignore[union-attr]


def _constant(file: SourceFile, kernel: str, name: str, value: Value) -> Edit:
    given, follows = _passed(file, kernel, name)
    number = file.value(given)
    if not isinstance(number, ast.Constant) or (number is given and not follows):
        raise NotWritable(f"{file.path.name} does not show where {name} of {kernel} is set for launch and grid")
    return number, repr(value)


def _triton_options(file: SourceFile, kernel: str, hints: Mapping[str, Value]) -> list[Edit]:
    launch = _triton_launch(file, kernel)
    return _keywords(launch.call, {name: file.value(each) for name, each in keywords(launch.call).items()}, hints)


def _cutile_hints(file: SourceFile, kernel: str, hints: Mapping[str, Value]) -> list[Edit]:
    if any(kernel in ast.unparse(each.call) for each in cutile.hinted(file)):
        raise NotWritable(f"the hints of {kernel} are set beside its decorator")
    (node,) = (each.node for each in cutile.kernels(file) if each.name == kernel)
    decorator = _decorator(file, node)
    if isinstance(decorator, ast.Call):
        return _keywords(decorator, dict(keywords(decorator)), hints)
    given = ", ".join(f"{name}={value!r}" for name, value in hints.items() if value is not None)
    return [(decorator, f"{ast.unparse(decorator)}({given})")] if given else []


def _keywords(call: ast.Call, given: Mapping[str, ast.AST | None], hints: Mapping[str, Value]) -> list[Edit]:
    """Changes keywords of a call, and adds missing ones. Only a missing keyword may have the value None."""
    edits: list[Edit] = []
    added = "".join(f", {name}={value!r}" for name, value in hints.items() if name not in given and value is not None)
    for name in hints.keys() & given.keys():
        node = given[name]
        if not isinstance(node, ast.Constant) or hints[name] is None:
            raise NotWritable(f"line {call.lineno} sets {name} in a way that is not changed")
        edits.append((node, repr(hints[name])))
    if added:
        edits.append((_before_end(call), added if call.args or call.keywords else added.removeprefix(", ")))
    return edits


def _decorator(file: SourceFile, node: Named) -> ast.expr:
    called = ((each.func if isinstance(each, ast.Call) else each, each) for each in node.decorator_list)
    return next(each for function, each in called if file.dotted(function) == cutile.KERNEL)


def _before_end(call: ast.Call) -> ast.AST:
    """Returns an empty node at the call's closing bracket."""
    place = ast.Tuple([], ast.Load())
    place.lineno = place.end_lineno = call.end_lineno or call.lineno
    place.col_offset = place.end_col_offset = (call.end_col_offset or 1) - 1
    return place


def _edited(file: SourceFile, edits: list[Edit]) -> str:
    lines = [line.encode() for line in file.path.read_bytes().decode("utf-8").splitlines(keepends=True)]
    if len({id(node) for node, _ in edits}) < len(edits):
        raise NotWritable(f"{file.path.name} sets two of the values at one place")
    for node, text in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):  # type: ignore[attr-defined]
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1  # type: ignore[attr-defined]
        if first != last:
            raise NotWritable(f"{file.path.name}:{first + 1}: the text to change is on several lines")
        line = lines[first]
        lines[first] = line[: node.col_offset] + text.encode() + line[node.end_col_offset :]  # type: ignore[attr-defined]
    return b"".join(lines).decode()
