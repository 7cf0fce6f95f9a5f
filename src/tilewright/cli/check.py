"""`tilewright check`: checks whether a kernel is correct."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli import shared, terminal

DEFAULT_SECONDS = 120.0
"""The default of `verify.planning`, repeated here so that `--help` does not import that module."""

EngineName = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="interpreter or gpu.  [default: the GPU if any]")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the inputs and of the hidden shapes.  [default: drawn]")]
_CASE = "Run only this case, in the form that a failing check prints: M=100,N=33;data=large;seed=17"
CaseText = Annotated[str | None, typer.Option("--case", metavar="CASE", help=_CASE)]
Quick = Annotated[bool, typer.Option("--quick", help="Check only the workloads, reduced in size, on small integers.")]
_SECONDS = "Time limit in seconds; after it, no further case starts. A workload at full size has its own limit."
Seconds = Annotated[float, typer.Option(min=0.01, help=_SECONDS)]

Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 if only reduced shapes could be checked.")]


def check(
    context: typer.Context,
    where: shared.Where, workload: shared.Workloads = None, config: shared.Configs = None, arch: shared.Arch = None,
    engine: EngineName = None, seed: Seed = None, case: CaseText = None, quick: Quick = False,
    seconds: Seconds = DEFAULT_SECONDS, strict: Strict = False, on: shared.On = shared.HERE,
    show_all: shared.All = False, as_json: shared.AsJson = False,
) -> None:  # fmt: skip
    """Checks whether the kernel is correct, on hostile shapes, data and memory, on the GPU or on the interpreter.

    Exit code 0 if the kernel is correct, 1 if it is incorrect, 3 if it could not be verified. If only reduced shapes
    could be run, the exit code is 0, or 1 with `--strict`.

    Example: `tilewright check examples/rms_norm.py --workload odd --engine interpreter`
    """
    shared.run_elsewhere(context, on, where)

    from tilewright.cli import check_table
    from tilewright.compile.compile import refuse_broken_task
    from tilewright.verify.cases import requested
    from tilewright.verify.check import check as checked
    from tilewright.verify.schedule import board_here, engine_name
    from tilewright.verify.verdict import all_to_json, beside, worst

    with shared.progress(as_json) as progress:
        name = engine_name(engine)
        task = shared.loaded(where)
        only, seed = requested(task, workload, case, seed, quick)
        configurations, architecture = task.space.chosen(config), shared.one_architecture(arch, "check")
        refuse_broken_task(
            task, board_here(name, architecture), task.selected(workload), configurations or task.space.every_shipped
        )
        verdicts = checked(
            task, engine=name, arch=architecture, configurations=configurations,
            workloads=workload or (), case=only, seed=seed, quick=quick, seconds=seconds, progress=progress,
        )  # fmt: skip
    options = [*(("--engine", engine) if engine else ()), *(("--arch", arch) if arch else ())]
    if as_json:
        shared.print_json(all_to_json(verdicts, where, options))
    else:
        console = terminal.stdout()
        for number, verdict in enumerate(verdicts):
            place = beside(where, verdict) if number else where
            console.print(check_table.checked(verdict, place, options, show_all), crop=False)
    reduced = "correct on reduced shapes"
    codes = {"correct": 0, reduced: int(strict), "unverified": 3, "incorrect": 1}
    if worst(verdicts) == reduced and not as_json:
        why = next(verdict.reason for verdict in verdicts if verdict.verdict == reduced)
        terminal.note(f"not checked at the workloads' full size: {why}")
    if code := codes[worst(verdicts)]:
        raise typer.Exit(code)
