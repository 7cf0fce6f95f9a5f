"""`tilewright compare`: the differences between two versions of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import shared, terminal

if TYPE_CHECKING:
    from tilewright.hardware.architectures import Board
    from tilewright.inspect.compare import Side

A = Annotated[str, typer.Argument(metavar="A", help="FILE[:TASK] of the old version.")]
B = Annotated[str, typer.Argument(metavar="B", help="FILE[:TASK] of the new version; may be the same as A.")]
Both = Annotated[
    str | None, typer.Option(metavar="KNOB=VALUE,…", help="The configuration of both; the other knobs are as shipped.")
]
OfA = Annotated[str | None, typer.Option(metavar="KNOB=VALUE,…", help="Knobs for A only.")]
OfB = Annotated[str | None, typer.Option(metavar="KNOB=VALUE,…", help="Knobs for B only.")]


def compare(
    a: A, b: B, config: Both = None, config_a: OfA = None, config_b: OfB = None, workload: shared.OneWorkload = None,
    arch: shared.Arch = None, budget: shared.Budget = shared.DEFAULT_BUDGET, show_all: shared.All = False,
    as_json: shared.AsJson = False,
) -> None:  # fmt: skip
    """Shows what changed between two versions of a kernel: its Tile IR by source line, and its machine code.

    Compares code and measures no time. Needs no GPU. A and B may be two configurations of one task.

    Example: `tilewright compare examples/matmul.py examples/matmul.py --config-b TILE_M=64 --arch sm_90`
    """
    from tilewright.cli import compare_table
    from tilewright.hardware.architectures import default_board
    from tilewright.inspect import compare as comparing
    from tilewright.languages import keep_torch_out
    from tilewright.task.loading import load_task

    with shared.progress(as_json):
        board = default_board(shared.one_architecture(arch, "compare"))
        task = load_task(a).on(board.arch)
        tasks = task, (task if a == b else load_task(b).on(board.arch))
        keep_torch_out()  # only now, because B may import torch
        configs = _joined(config, config_a), _joined(config, config_b)
        before, after = comparing.versions((a, b), tasks, configs, workload)
        _note_if_outside_the_space(before, board)
        _note_if_outside_the_space(after, board)
        result = comparing.compare(before, after, board, seconds=budget)
    if as_json:
        shared.print_json(result.to_json())
    else:
        terminal.stdout().print(compare_table.compared(result, show_all))


def _joined(both: str | None, own: str | None) -> str | None:
    """Returns both texts as one; None for none. An empty one is returned alone: the space refuses it."""
    given = [text for text in (both, own) if text is not None]
    empty = [text for text in given if not text.strip(" ,")]
    return ",".join(empty or given) if given else None


def _note_if_outside_the_space(version: Side, board: Board) -> None:
    """Prints a note if a configuration is outside the space of its task. It is compared nevertheless."""
    task, dims = version.task, version.workload.dims
    if problem := task.space.allows(version.configuration, board.sm, dims):
        terminal.note(f"{version.where} {version.configuration}: outside the space on {board.arch}: {problem}")
