"""A searched hint changes no machine code.

Configurations that differ in it alone are one and the same program: the search times it several times and picks noise.
Occupancy 16 and 32 never differed from 8, and 1 never from automatic, in 24 cells of kernel and architecture. Each hint
is varied alone around a few configurations of the first workload; this needs --compile.

Fix: take the hint, or the values that repeat, out of the space.

Sources: tileiras 13.4.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tilewright.lint.rule import LintFinding, Rule
from tilewright.records import MachineCode, Value
from tilewright.source.cutile import tasks
from tilewright.source.source_file import SourceFile

if TYPE_CHECKING:
    from tilewright.task.task import Task

CENTRES = 3
"""Configurations around which each hint is varied: the shipped one, and others from the space."""


class NoOpHint(Rule):
    code = "TW501"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        return iter(())  # the text does not show it

    def compiled_findings(self, file: SourceFile, arch: str) -> Iterator[LintFinding]:
        """None where the file holds no task. Raises what loading and compiling raise."""
        from tilewright.languages import keep_torch_out
        from tilewright.task.loading import load_task

        for node in file.tree.body:
            if isinstance(node, ast.Assign) and node.value in tasks(file) and isinstance(node.targets[0], ast.Name):
                keep_torch_out()
                yield from self._of_task(file, load_task(f"{file.path}:{node.targets[0].id}"), arch)

    def _of_task(self, file: SourceFile, task: Task, arch: str) -> Iterator[LintFinding]:
        from tilewright.compile.compile import Unit, compile_all
        from tilewright.hardware.architectures import default_board

        board, workload = default_board(arch), task.selected(None)[0]
        every = task.space.configurations(int(arch.removeprefix("sm_")), workload.dims)
        centres = tuple(dict.fromkeys((every[0], *every[:: max(1, len(every) // CENTRES)])))[:CENTRES]
        for hint in task.space.hints:
            values = task.space.known_values(hint)
            rows = [tuple(centre.replace(**{hint: value}) for value in values) for centre in centres]
            distinct = dict.fromkeys(configuration for row in rows for configuration in row)
            screened = compile_all(task, [Unit(workload, configuration, board) for configuration in distinct])
            hashes = {
                row.unit.configuration: row.code.code_hash for row in screened if isinstance(row.code, MachineCode)
            }
            repeats = _repeats(values, [[hashes.get(configuration) for configuration in row] for row in rows])
            if repeats:
                around = f"{len(rows)} configuration{'s' if len(rows) != 1 else ''}"
                message = f"task {task.name}: {hint} {repeats}, around {around} of workload {workload.name} on {arch}"
                yield self.at(file, _place(file, hint), message)


RULE = NoOpHint()


def _repeats(values: Sequence[Value], rows: Sequence[Sequence[str | None]]) -> str:
    """What a hint's values do: "" where each makes a difference somewhere, or where too little compiled."""
    whole = [row for row in rows if None not in row]
    if not whole or len(values) < 2:
        return ""
    if all(len(set(row)) == 1 for row in whole):
        return "changes no machine code at all"
    repeats = []
    for index, value in enumerate(values):
        same = (before for before in range(index) if all(row[index] == row[before] for row in whole))
        if (first := next(same, None)) is not None:
            repeats.append(f"{_shown(value)} is the same code as {_shown(values[first])}")
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
