"""TW501: hints of a task's space that change no machine code (X-09). Loads and compiles task files.

Each hint is varied alone around a few configurations of the first workload. It is a no-op only where its values
give one machine code everywhere; values that repeat another's everywhere are named one by one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import default_board
from tilewright.languages import keep_torch_out
from tilewright.lint.findings import Finding
from tilewright.lint.rules import NO_OP_HINT
from tilewright.records import Configuration, MachineCode, Value
from tilewright.source.source_file import SourceFile
from tilewright.task.loading import load_task
from tilewright.task.task import Task

CENTRES = 3
"""Configurations around which each hint is varied: the shipped one, and others from the space."""


def no_op_hints(file: SourceFile, arch: str | None) -> Iterator[Finding]:
    """The findings for one file; none where it holds no task. Raises what loading and compiling raise."""
    if "tilewright" not in {origin.split(".")[0] for origin in file.imports.values()}:
        return
    if not any(file.dotted(call.func) == "tilewright.Task" for call in file.every(ast.Call)):
        return
    keep_torch_out()
    for task in _tasks(file):
        yield from _of_task(file, task, arch or "sm_90")


def _tasks(file: SourceFile) -> Iterator[Task]:
    """Each task that the file binds to a name at its top."""
    for node in file.tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if file.dotted(node.value.func) == "tilewright.Task" and isinstance(node.targets[0], ast.Name):
            yield load_task(f"{file.path}:{node.targets[0].id}")


def _of_task(file: SourceFile, task: Task, arch: str) -> Iterator[Finding]:
    board, workload = default_board(arch), task.selected(None)[0]
    space = task.space
    number = int(arch.removeprefix("sm_"))
    every = space.configurations(number, workload.dims)
    centres = tuple(dict.fromkeys((every[0], *every[:: max(1, len(every) // CENTRES)])))[:CENTRES]
    for hint in space.hints:
        values = space.known_values(hint)
        rows = [tuple(centre.replace(**{hint: value}) for value in values) for centre in centres]
        codes = _codes(task, [Unit(workload, one, board) for one in dict.fromkeys(c for row in rows for c in row)])
        told = _told(values, [[codes.get(one) for one in row] for row in rows])
        if told:
            around = f"{len(rows)} configuration{'s' if len(rows) != 1 else ''}"
            message = f"task {task.name}: {hint} {told}, around {around} of workload {workload.name} on {arch}"
            yield NO_OP_HINT.at(file, _place(file, hint), message)


def _codes(task: Task, units: Sequence[Unit]) -> dict[Configuration, str]:
    """The machine code of each configuration that compiles."""
    return {
        one.unit.configuration: one.code.code_hash
        for one in compile_all(task, units)
        if isinstance(one.code, MachineCode)
    }


def _told(values: Sequence[Value], rows: Sequence[Sequence[str | None]]) -> str:
    """What a hint's values do: "" where each makes a difference somewhere, or where too little compiled."""
    whole = [row for row in rows if None not in row]
    if not whole or len(values) < 2:
        return ""
    if all(len(set(row)) == 1 for row in whole):
        return "changes no machine code at all"
    repeats = []
    for index, value in enumerate(values):
        for before in range(index):
            if all(row[index] == row[before] for row in whole):
                repeats.append(f"{_shown(value)} is the same code as {_shown(values[before])}")
                break
    return "; ".join(repeats)


def _shown(value: Value) -> str:
    return "automatic" if value is None else str(value)


def _place(file: SourceFile, hint: str) -> ast.AST:
    """Where the file names the hint first."""
    for node in file.nodes:
        if isinstance(node, ast.Constant) and node.value == hint:
            return node
        if isinstance(node, ast.keyword) and node.arg == hint:
            return node.value
    return file.tree
