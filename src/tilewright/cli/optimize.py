"""`tilewright optimize`: makes a kernel faster, one change at a time."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tilewright.cli import shared, terminal
from tilewright.cli.completion import one_of
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.progress import Progress

DEFAULT_ITERATIONS, DEFAULT_MINUTES, DEFAULT_PATIENCE = 25, 10.0, 10
"""The defaults of `optimize.options`, repeated here so that `--help` does not import that module."""
ANSWER_SECONDS, PROPOSALS, FAILURES = 300.0, 10, 3
"""The defaults of `optimize.proposing.asked`."""

PolicyName = Annotated[
    Literal["default", "base"],
    one_of(
        "--policy",
        "default",
        "base",
        help="base tries the playbook strictly by its priority list, and stops earlier: after a gain under 2 %, or "
        "two iterations without a gain.",
    ),
]
Iterations = Annotated[int, typer.Option(min=0, help="The most changes that are tried.")]
Minutes = Annotated[float, typer.Option(min=0.1, help="Time limit of one iteration, in minutes.")]
StopAfter = Annotated[
    float | None, typer.Option(min=0.0, metavar="MINUTES", help="Begin no iteration after this many minutes.")
]
Patience = Annotated[int, typer.Option(min=1, help="Stop after this many iterations in a row without a gain.")]
Lossy = Annotated[
    bool, typer.Option("--allow-lossy", help="Also try changes that round differently: exp2, approximate division.")
]
Test = Annotated[
    str | None,
    typer.Option("--test", metavar="COMMAND", help="Keep only what passes these tests of yours: 'pytest tests'."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be tried, with the reasons, and end.")]
SlowerElsewhere = Annotated[
    bool, typer.Option("--allow-slower-elsewhere", help="Keep what is predicted slower on other architectures.")
]
Changes = Annotated[
    list[Path] | None,
    typer.Option("--change", metavar="FILE", help="A patch or a rewritten file to try first. May be repeated."),
]
_ENTRIES = ", ".join(sorted(path.stem for path in Path(__file__).parents[1].glob("playbook/entries/[a-z]*.py")))
"""The names of the playbook's entries, read from file names: importing the playbook takes too long for `--help`."""
_ONLY = f"Only this entry of the playbook. May be repeated. Entries: {_ENTRIES}."
Only = Annotated[list[str] | None, typer.Option("--only", metavar="ENTRY", help=_ONLY)]
_PROPOSE = (
    "A command, or model:PROVIDER:NAME, that is asked for changes after the playbook was tried. It gets JSON on stdin, "
    "and prints a patch in JSON."
)
Propose = Annotated[str | None, typer.Option("--propose", metavar="COMMAND", help=_PROPOSE)]
ProposeOnly = Annotated[bool, typer.Option("--propose-only", help="Leave the playbook out; only ask the proposer.")]
ProposeSeconds = Annotated[float, typer.Option(min=0.1, help="Time limit of one answer of the proposer.")]
ProposeAttempts = Annotated[int, typer.Option(min=1, help="The most proposals; --iterations does not count them.")]
ProposeFailures = Annotated[
    int, typer.Option(min=1, help="Stop asking after this many unusable answers in a row: none, no patch, refused.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the inputs and of the races.  [default: drawn]")]


def optimize(
    context: typer.Context,
    where: shared.Where, arch: shared.Arch = None, workload: shared.Workloads = None, policy: PolicyName = "default",
    iterations: Iterations = DEFAULT_ITERATIONS, minutes: Minutes = DEFAULT_MINUTES,
    stop_after: StopAfter = None,
    patience: Patience = DEFAULT_PATIENCE, allow_lossy: Lossy = False,
    allow_slower_elsewhere: SlowerElsewhere = False, test: Test = None, dry_run: DryRun = False,
    change: Changes = None, only: Only = None,
    propose: Propose = None, propose_only: ProposeOnly = False, propose_seconds: ProposeSeconds = ANSWER_SECONDS,
    propose_attempts: ProposeAttempts = PROPOSALS, propose_failures: ProposeFailures = FAILURES,
    budget: shared.Budget = shared.DEFAULT_BUDGET, jobs: shared.Jobs = None, l2: shared.L2 = "cold",
    launch: shared.How = "graph", seed: Seed = None, fresh: shared.Fresh = False,
    on: shared.On = shared.HERE, show_all: shared.All = False, as_json: shared.AsJson = False,
) -> None:  # fmt: skip
    """Makes the kernel faster. Each change is verified, measured, and then kept or reverted.

    Works on a separate branch; your files do not change. Without a GPU the gains are predicted.

    Example: `tilewright optimize examples/naive/rms_norm.py`
    """
    asks = "--propose asks a command of this machine, which is not there; fix: run it here, or leave --propose out"
    shared.run_elsewhere(context, on, where, change or (), refused=asks if propose is not None else "")
    session = shared.early_session()

    from tilewright.cli import optimize_plan
    from tilewright.hardware.gpu import detect
    from tilewright.hardware.machine import target_of
    from tilewright.ledger.ledger import Ledger
    from tilewright.optimize import optimized
    from tilewright.optimize.broken_code import refuse_broken_code
    from tilewright.optimize.loop import optimize as optimized_by
    from tilewright.optimize.options import Options
    from tilewright.optimize.planned import planned
    from tilewright.optimize.project_tests import ProjectTests
    from tilewright.optimize.proposing import asked
    from tilewright.optimize.proposing.command import words_of
    from tilewright.race.rules import Policy

    if propose_only and propose is None:
        raise RequestError("--propose-only needs --propose COMMAND")
    if test is not None:
        ProjectTests(test, minutes * 60)  # it refuses a command that cannot be started, also in a dry run
    if propose is not None:
        words_of(propose)
    with (
        Ledger() as ledger, shared.resumable(ledger, fresh), session or nullcontext(), shared.progress(as_json) as bars,
    ):  # fmt: skip
        options = Options(
            policy=policy, iterations=iterations, minutes=minutes,
            stop_after=math.inf if stop_after is None else stop_after, patience=patience, lossy=allow_lossy,
            slower_elsewhere=allow_slower_elsewhere, test=test or "",
            changes=tuple(path.absolute() for path in change or ()), jobs=jobs, seconds=budget, only=tuple(only or ()),
            propose=None if propose is None else asked.Propose(
                propose, propose_seconds, propose_attempts, propose_failures, propose_only
            ),
        )  # fmt: skip
        board = target_of(arch, detect()).board
        task = shared.loaded(where).on(board.arch)
        refuse_broken_code(task, board, workload, ledger.path.parent)
        plan = planned(task, arch=arch, workloads=workload, options=options, ledger=ledger) if dry_run else None
        if plan is None:
            result = optimized_by(
                task, arch=arch, workloads=workload, options=options, policy=Policy(l2=l2, launch=launch),
                seed=seed, ledger=ledger, fresh=fresh, session=session,
                progress=bars if as_json else _with_iterations(bars),
            )  # fmt: skip
    if plan is not None:
        return optimize_plan.show(plan, as_json, show_all)
    if as_json:
        shared.print_json(optimized.to_json(result))
    else:
        from tilewright.cli import optimize_table

        console = terminal.stdout()
        for part in optimize_table.optimized(result, where, show_all):
            console.print(part)


def _with_iterations(bars: Progress) -> Progress:
    """Returns a `Progress` that also prints a line for each finished iteration. The line stays on the terminal."""

    def report(stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == "iteration":
            terminal.stderr().print(f"{done:>3}  {note}", soft_wrap=True)
        else:
            bars(stage, done, total, note)

    return report
