"""The output of `tilewright tune`: a table for each kind of GPU, the config file of the task, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tilewright.cli import shared, terminal
from tilewright.cli.exit_codes import NO
from tilewright.errors import MachineError, TilewrightError
from tilewright.records import Json, TuningResult
from tilewright.tune.advice import TuningAdvice, advice
from tilewright.tune.shrink import shrink as shrunk_to
from tilewright.tune.tune import refuse_without_code

if TYPE_CHECKING:
    from tilewright.hardware.architectures import Board
    from tilewright.ledger.tunings import TuneLedger
    from tilewright.task.task import Task
    from tilewright.tune.run import GpuKind


@dataclass
class TuneOutput:
    """What the user asked to be shown. ``where``: the task. ``into``: the folder of its config file."""

    where: str
    shrink: bool
    into: Path | None
    results: TuneLedger | Literal[False]
    show_all: bool
    as_json: bool
    _noted: set[str] = field(default_factory=set)

    def print(
        self, task: Task, kinds: Sequence[GpuKind], found: Sequence[TuningResult | MachineError],
        workload: Sequence[str] | None,
    ) -> int:  # fmt: skip
        """Prints the results for each kind of GPU, and returns the exit code.

        Raises the error if there is only one kind of GPU, and it has no result.
        """
        shown: list[dict[str, Json]] = []
        code = 0
        for kind, result in zip(kinds, found, strict=True):
            board = kind.target.board
            try:
                if isinstance(result, MachineError):
                    raise result
                shown.append(self._one(task.on(board.arch), result, kind, workload))
                code = max(code, NO if any(each.best is None for each in result.workloads) else 0)
            except TilewrightError as error:
                if len(found) == 1:
                    raise
                terminal.note(f"no result for {kind.name}: {error}")
                shown.append({"gpu": kind.name, "error": str(error)})
                code = max(code, error.exit_code)
        if self.as_json:
            shared.print_json(shown[0] if len(found) == 1 else {"task": task.name, "each": [*shown]})
        return code

    def _one(self, task: Task, result: TuningResult, kind: GpuKind, workload: Sequence[str] | None) -> dict[str, Json]:
        """Prints one result, or returns it as JSON."""
        board = kind.target.board
        known = advice(task, task.selected(workload)[0], board)
        for line in [str(known), *known.missing] if known else []:
            if line not in self._noted:
                terminal.note(line)
            self._noted.add(line)
        refuse_without_code(result)
        if self.as_json:
            return self._json(task, result, board, known)
        print_tables(result, kind.target.note, self.results, self.show_all)
        self._ending(task, result, board, known)
        return {}

    def _json(self, task: Task, result: TuningResult, board: Board, known: TuningAdvice | None) -> dict[str, Json]:
        from tilewright.tune.as_json import to_json

        shown = to_json(result) | {"advice": known.to_json() if known else None}
        if self.shrink:
            shown["shrunk"] = [dict(kept.configuration) for kept in shrunk_to(result).kept]
        if self.into is not None:
            from tilewright.runtime.dispatch.table import write_table

            shown["file"] = write_table(task, result, board, self.into).file
        if not result.measured:
            terminal.note("predicted, not measured")
        return shown

    def _ending(self, task: Task, result: TuningResult, board: Board, known: TuningAdvice | None) -> None:
        from tilewright.cli.tune_ending import last_line, next_steps, shrunk_space

        if self.into is not None:
            from tilewright.runtime.dispatch.table import write_table

            print(*write_table(task, result, board, self.into).lines, sep="\n")
        shrunk = shrunk_space(shrunk_to(result), task.space, len(result.workloads)) if self.shrink else ()
        for line in shrunk:
            terminal.stdout().print(line, soft_wrap=True, markup=False, highlight=False)  # code is not wrapped
        for line in [*next_steps(result, known, self.where, self.shrink), last_line(result)]:
            terminal.stdout().print(line, markup=False, highlight=False)


def print_tables(result: TuningResult, note: str | None, results: TuneLedger | Literal[False], show_all: bool) -> None:
    """Prints the tables of all workloads, where they are stored, and whether they are measured."""
    from tilewright.cli.tune_table import tuned

    console, machine = terminal.stdout(), result.machine
    console.print(f"{result.task} on {machine.gpu or machine.arch}, {machine.host}")
    console.print(tuned(result, show_all))
    if results:
        console.print(
            f"stored as run {result.run} in {results.path}" if results.is_there()
            else f"not stored: {results.path} was removed during the run"
        )  # fmt: skip
    console.print(f"{result.seconds['total']:.1f} s in all")
    if not result.measured:
        console.print(note or "no GPU here")
        console.print("predicted, not measured")
