"""`tilewright inspect`: registers, spills and predicted time of each configuration, from its machine code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import shared, terminal
from tilewright.cli.exit_codes import NO
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.records import Configuration, Workload
    from tilewright.task.task import Task

Lines = Annotated[bool, typer.Option("--lines", help="Show the work of each source line, counted in Tile IR.")]


def inspect(
    where: shared.Where, arch: shared.Archs = None, config: shared.Configs = None,
    workload: shared.OneWorkload = None, jobs: shared.Jobs = None, budget: shared.Budget = shared.DEFAULT_BUDGET,
    lines: Lines = False, show_all: shared.All = False, as_json: shared.AsJson = False,
) -> None:  # fmt: skip
    """Shows facts about the machine code of each configuration. Needs no GPU.

    Shows registers, spills, stack, shared memory, tensor path, and a predicted time against the roofline. `--lines`
    shows instead how much work each source line does in one configuration. Exit code 1 if nothing compiled.

    Example: `tilewright inspect examples/matmul.py --arch sm_90,sm_100 --config TILE_M=128,TILE_N=256`
    """
    if lines:
        _count_lines(where, arch, config, workload, as_json)
        return
    from tilewright.cli.candidate_table import inspected
    from tilewright.inspect import inspect as inspecting

    with shared.progress(as_json) as progress:
        archs = shared.architectures(arch)
        task = shared.loaded(where)
        chosen = task.space.chosen(config)
        _note_what_is_left_out(task, archs, chosen, task.selected(workload)[0])
        rows = inspecting.inspect(
            task, archs, config=chosen, workload=workload, jobs=jobs, seconds=budget, progress=progress
        )
    if as_json:
        shared.print_json([row.to_json() for row in rows])
    else:
        terminal.stdout().print(inspected(rows, show_all))
    if not any(row.candidate.code for row in rows):
        raise typer.Exit(NO)


def _count_lines(where: str, arch: str | None, config: list[str] | None, workload: str | None, as_json: bool) -> None:
    """Counts the work of each source line in one configuration, and prints it."""
    from tilewright.cli import lines_table
    from tilewright.hardware.architectures import default_board
    from tilewright.inspect.work import count

    with shared.progress(as_json):
        board = default_board(shared.one_architecture(arch, "--lines"))
        task = shared.loaded(where).on(board.arch)
        chosen = task.space.chosen(config) or (task.space.shipped,)
        if len(chosen) > 1:
            raise RequestError(f"--config is given {len(chosen)} times; --lines takes one configuration")
        asked = task.selected(workload)[0]
        work = count(task, asked, board, chosen[0])
    if as_json:
        shared.print_json(lines_table.to_json(work, asked))
    else:
        terminal.stdout().print(lines_table.counted(work, asked))


def _note_what_is_left_out(
    task: Task, archs: Sequence[str], chosen: Sequence[Configuration], workload: Workload
) -> None:
    """Prints a note for each value that no configuration may have.

    If configurations were ``chosen``, prints instead a note for each configuration outside the space. Such a
    configuration is compiled nevertheless: the result may show why the space excludes it.
    """
    from tilewright.hardware.architectures import architecture

    for arch in archs:
        number = architecture(arch).number
        if not chosen:
            shared.note_dropped_values(task, number, [workload])
        for config in chosen:
            if problem := task.space.allows(config, number, workload.dims):
                terminal.note(f"outside the space on {arch}: {problem}")
