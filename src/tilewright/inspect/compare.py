"""Implements `tilewright compare`: the differences between two versions of a kernel, in Tile IR and in machine code.

A version is a task with one configuration; both versions may be of one task. Both are compiled for the same GPU model.
No GPU is needed, and no time is measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tilewright.compile.compile import BUDGET_SECONDS, Unit, compile_all, launch_of
from tilewright.errors import RequestError, ToolFailed
from tilewright.hardware.architectures import Board
from tilewright.ledger.codec import Encodable
from tilewright.records import Configuration, Failed, MachineCode, Workload
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.analysis import comparing
from tilewright.tileir.analysis.comparing import Comparison
from tilewright.tileir.run.launching import Launcher, Runnable


@dataclass(frozen=True)
class Side:
    """One version: a task with a configuration and a workload. ``where`` is the task as ``FILE[:TASK]``."""

    where: str
    task: Task
    configuration: Configuration
    workload: Workload

    def __str__(self) -> str:
        return f"{self.where} {self.configuration}, workload {self.workload}"

    def to_json(self) -> dict[str, Encodable]:
        return {
            "where": self.where, "task": self.task.name, "config": dict(self.configuration),
            "workload": self.workload.name, "dims": dict(self.workload.dims),
        }  # fmt: skip


@dataclass(frozen=True)
class VersionComparison:
    """The differences between two versions.

    tile_ir: `Failed` if a version has no Tile IR, such as a kernel in CuTe DSL.
    code_before, code_after: the facts about each version's machine code, or `Failed` if it does not compile.
    grids: the grids of both launches, which are not part of the code.
    """

    before: Side
    after: Side
    board: Board
    tile_ir: Comparison | Failed
    code_before: MachineCode | Failed
    code_after: MachineCode | Failed
    grids: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def same_code(self) -> bool | None:
        """Whether the machine code is identical; None if a version did not compile."""
        a, b = self.code_before, self.code_after
        return None if isinstance(a, Failed) or isinstance(b, Failed) else a.code_hash == b.code_hash

    @property
    def identical(self) -> bool:
        return (isinstance(self.tile_ir, Failed) or self.tile_ir.identical) and self.same_code is True

    def to_json(self) -> dict[str, Encodable]:
        """Returns the value that `compare --json` prints. Scripts rely on these names."""
        sides = {}
        for side, code in (("before", self.code_before), ("after", self.code_after)):
            sides[side] = {"failed": asdict(code)} if isinstance(code, Failed) else _facts(code)
        return {
            "arch": self.board.arch, "board": self.board.name, "identical": self.identical,
            "before": self.before.to_json() | {"grid": list(self.grids[0])},
            "after": self.after.to_json() | {"grid": list(self.grids[1])},
            "tile_ir": {"failed": asdict(self.tile_ir)} if isinstance(self.tile_ir, Failed) else _changes(self.tile_ir),
            "machine_code": {"identical": self.same_code, **sides},
        }  # fmt: skip


def versions(
    wheres: tuple[str, str], tasks: tuple[Task, Task], configs: tuple[str | None, str | None],
    workload: str | None = None,
) -> tuple[Side, Side]:  # fmt: skip
    """Returns both versions. Knobs that are missing in ``configs`` keep the values that the task ships; None: all.

    workload: the name of the workload in both tasks. The default for the first task is its first workload. The default
        for the second task is the workload of the same name, or its first workload if there is none.
    Raises UnknownChoice for an unknown workload or knob, SpaceError for a bad value.
    """
    a, b = tasks
    first = a.workload(workload) if workload else a.selected(None)[0]
    second = workload or (first.name if first.name in b.workloads else next(iter(b.workloads)))
    return (
        Side(wheres[0], a, next(iter(a.space.chosen(configs[0])), a.space.shipped), first),
        Side(wheres[1], b, next(iter(b.space.chosen(configs[1])), b.space.shipped), b.workload(second)),
    )


def compare(before: Side, after: Side, board: Board, *, seconds: float = BUDGET_SECONDS) -> VersionComparison:
    """Compiles two versions for one GPU model and compares them.

    seconds: limit of wall time for a compilation. If a compilation fails or takes longer, only the Tile IR is compared.
        If a version that compiles has no Tile IR, only the machine code is compared.
    Raises RequestError, with the reason, for a version that gives neither.
    """
    units = [Unit(side.workload, side.configuration, board) for side in (before, after)]
    tile_ir: Comparison | Failed
    try:
        tile_ir, grids = compare_tile_ir(before, after, board)
    except ToolFailed as error:
        tile_ir, grids = Failed("tool", str(error).rpartition(": tool: ")[2]), None
    codes: list[MachineCode | Failed]
    try:
        codes = [each.code for each in compile_all([before.task, after.task], units, seconds=seconds)]
    except ToolFailed as error:
        codes = [Failed("tool", str(error))] * 2
    if grids is None:
        if isinstance(tile_ir, Failed) and any(isinstance(code, Failed) for code in codes):
            raise ToolFailed(tile_ir.reason)
        a, b = (launch_of(side.task, unit)[0].grid for side, unit in zip((before, after), units, strict=True))
        grids = a, b
    return VersionComparison(before, after, board, tile_ir, codes[0], codes[1], grids)


def compare_tile_ir(
    before: Side, after: Side, board: Board
) -> tuple[comparing.Comparison, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Compares only the Tile IR, which needs no compiler. Returns the differences and both grids.

    Raises RequestError, with the reason, for a version that gives no Tile IR.
    """
    runnables = [_lowered(name, side, board) for name, side in (("A", before), ("B", after))]
    comparison = comparing.compare(*(_readable(runnable) for runnable in runnables))
    return comparison, (runnables[0].launch.grid, runnables[1].launch.grid)


def _lowered(name: str, version: Side, board: Board) -> Runnable:
    dims = version.workload.dims
    outcome = Launcher(version.task, board).runnable(version.configuration, dims, version.task.arrays(dims))
    if isinstance(outcome, Failed):
        error = ToolFailed if outcome.stage == "tool" else RequestError
        raise error(f"{name} ({version}): {outcome.stage}: {outcome.reason}")
    return outcome


def _readable(runnable: Runnable) -> comparing.Version:
    """Returns the kernel's Tile IR, with its source ("" if it cannot be read) and the names of its arrays."""
    entry = runnable.module.entry()
    parameters = zip(entry.parameters, runnable.arguments, strict=False)
    tensors = {name: value.name for (name, _), value in parameters if isinstance(value, ArraySpec)}
    try:
        source = Path(entry.location.file).read_text() if entry.location else ""
    except (OSError, UnicodeDecodeError):
        source = ""
    return comparing.Version(entry, source, tensors, runnable.module.globals)


def _changes(tile_ir: Comparison) -> dict[str, Encodable]:
    return {**asdict(tile_ir), "chains": [{**asdict(chain), "text": str(chain)} for chain in tile_ir.chains]}


def _facts(code: MachineCode) -> dict[str, Encodable]:
    """Returns the facts about the machine code, under the same names as in `inspect --json`."""
    facts = {name: value for name, value in code.known.items() if name not in ("symbol", "sm")}
    return {**facts, "instruction_mix": facts["mix"]}
