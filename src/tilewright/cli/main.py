"""The command line: thin adapters over `inspecting`, `checks`, `comparing`, `tuning` and `doctor`.

Results go to stdout, everything else to stderr; with ``--json`` stdout holds one JSON value and
nothing else. Exit codes: 0 done, 1 the answer is no (an incorrect kernel, a workload for which no
configuration works), 2 the request is wrong, 3 this machine cannot do it, 130 interrupted.
A mistake of the person who asks is one line that starts with ``error:``, also when it is in the task
file; a traceback means a mistake of ours. What a command needs is imported when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import __version__
from tilewright.cli import capture as cli_capture
from tilewright.cli import check as cli_check
from tilewright.cli import compare as cli_compare
from tilewright.cli import lint as cli_lint
from tilewright.cli import optimize as cli_optimize
from tilewright.cli import report as cli_report
from tilewright.cli import run as cli_run
from tilewright.cli import terminal
from tilewright.cli import transfer as cli_transfer
from tilewright.cli import tuned as cli_tuned
from tilewright.cli.shared import (
    DEFAULT_BUDGET,
    L2,
    Arch,
    Archs,
    AsJson,
    Budget,
    Config,
    Fresh,
    How,
    Interrupted,
    Jobs,
    OneWorkload,
    Where,
    Workloads,
    architectures,
    loaded,
    print_json,
    resumable,
    task_speaks_to_stderr,
)
from tilewright.errors import RequestError, TilewrightError

if TYPE_CHECKING:
    from tilewright.ledger.results import Store
    from tilewright.records import TuningResult
    from tilewright.task.task import Task

INTERRUPTED = 130
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the file system that a person can mend."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Any wrong option or argument. Where typer keeps it depends on typer's version."""

app = typer.Typer(
    name="tilewright",
    help="Make GPU tile kernels fast, and prove it.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

DEFAULT_TOP = 10
DEFAULT_TIE_BAND = 0.01
"""As `tuning.RACED` and `rules.Policy` have them; `--help` imports neither."""

Lines = Annotated[bool, typer.Option("--lines", help="The work of each source line, counted in Tile IR.")]
Top = Annotated[int, typer.Option(min=1, help="How many of the best predicted are raced.")]
TieBand = Annotated[float, typer.Option(help="Share of the time that is worth no change of winner.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Of the inputs and the race.  [default: drawn]")]
StorePath = Annotated[Path | None, typer.Option(metavar="PATH", help="Results.  [default: .tilewright/results.db]")]
NoStore = Annotated[bool, typer.Option("--no-store", help="Keep no results.")]


@app.callback(invoke_without_command=True)
def _tilewright(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        print(f"tilewright {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


# inspect ------------------------------------------------------------------------------------------


@app.command()
def inspect(
    where: Where,
    arch: Archs = None,
    config: Config = None,
    workload: OneWorkload = None,
    jobs: Jobs = None,
    budget: Budget = DEFAULT_BUDGET,
    lines: Lines = False,
    as_json: AsJson = False,
) -> None:
    """What the machine code of each configuration says. Needs no GPU.

    Registers, spills, stack, shared memory, tensor path, and a predicted time against the roofline.
    With `--lines`, instead, the work that each line of the source does in one configuration.

    Example: `tilewright inspect examples/matmul.py --arch sm_90,sm_100 --config TILE_M=128,TILE_N=256`
    """
    if lines:
        _count_lines(where, arch, config, workload, as_json)
        return
    from tilewright.cli import tables
    from tilewright.inspect import inspect as inspecting
    from tilewright.languages import keep_torch_out

    with task_speaks_to_stderr(as_json), terminal.progress(quiet=as_json) as progress:
        archs = architectures(arch)
        task = loaded(where)
        keep_torch_out()
        chosen = task.space.parse(config) if config is not None else None
        if chosen is not None:
            _say_what_is_not_allowed(task, archs, chosen, workload)
        rows = inspecting.inspect(
            task, archs, config=chosen, workload=workload, jobs=jobs, seconds=budget, progress=progress
        )
    if as_json:
        print_json([row.to_json() for row in rows])
    else:
        terminal.stdout().print(tables.inspected(rows))


def _count_lines(where: str, arch: str | None, config: str | None, workload: str | None, as_json: bool) -> None:
    from tilewright.cli import lines_table as count_tables
    from tilewright.hardware.architectures import default_board
    from tilewright.inspect.work import count
    from tilewright.languages import keep_torch_out

    with task_speaks_to_stderr(as_json):
        archs = architectures(arch)
        if len(archs) != 1:
            raise RequestError(f"--arch names {len(archs)} architectures; --lines takes one")
        task = loaded(where)
        keep_torch_out()
        chosen = task.space.parse(config) if config is not None else None
        asked = task.selected([workload] if workload else None)[0]
        work = count(task, asked, default_board(archs[0]), chosen)
    if as_json:
        print_json(count_tables.to_json(work, asked))
    else:
        terminal.stdout().print(count_tables.counted(work, asked))


def _say_what_is_not_allowed(task: Task, archs: Sequence[str], config: Any, workload: str | None) -> None:
    """What the space would not try is still compiled when asked for by name: that is how one sees why."""
    from tilewright.hardware.architectures import architecture

    dims = task.selected([workload] if workload else None)[0].dims
    for arch in archs:
        if problem := task.space.allows(config, architecture(arch).number, dims):
            terminal.note(f"outside the space on {arch}: {problem}")


# compare ------------------------------------------------------------------------------------------

app.command()(cli_compare.compare)


# check --------------------------------------------------------------------------------------------

app.command()(cli_check.check)


# tune ---------------------------------------------------------------------------------------------


@app.command()
def tune(
    where: Where,
    arch: Arch = None,
    workload: Workloads = None,
    budget: Budget = DEFAULT_BUDGET,
    jobs: Jobs = None,
    top: Top = DEFAULT_TOP,
    l2: L2 = "cold",
    launch: How = "graph",
    tie_band: TieBand = DEFAULT_TIE_BAND,
    seed: Seed = None,
    fresh: Fresh = False,
    store: StorePath = None,
    no_store: NoStore = False,
    as_json: AsJson = False,
) -> None:
    """The best configuration for each workload, with its evidence.

    With a GPU the survivors are verified and raced; without one they are predicted, not measured.

    Example: `tilewright tune examples/fmha.py --workload causal --top 8`
    """
    from tilewright.worker.session import early_session

    session = early_session()  # before all else: its process imports torch meanwhile

    from tilewright.hardware.gpu import detect
    from tilewright.languages import keep_torch_out
    from tilewright.race.rules import Policy
    from tilewright.tune import tune as tuning

    policy = Policy(l2=l2, launch=launch, tie_band=tie_band, seed=seed or 0)
    target = tuning.target_of(arch, detect())
    if target.note:
        terminal.note(target.note)
    kept = _kept(store, no_store)
    speaks = task_speaks_to_stderr(as_json)
    bar, worker = terminal.progress(quiet=as_json), session or nullcontext()
    with resumable(not no_store), speaks, kept as results, worker, bar as progress:
        task = loaded(where)
        keep_torch_out()
        result = tuning.tune(
            task, arch=arch, workloads=workload, policy=policy, top=top, jobs=jobs, seconds=budget,
            seed=seed, store=results, fresh=fresh, session=session, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(tuning.to_json(result))
        if not result.measured:
            terminal.note("predicted, not measured")
    else:
        _print_tuned(result, target.note, results)
    if any(one.best is None for one in result.workloads):
        raise typer.Exit(1)


def _print_tuned(result: TuningResult, note: str | None, results: Store | None) -> None:
    from tilewright.cli import tables

    console, machine = terminal.stdout(), result.machine
    console.print(f"{result.task} on {machine.gpu or machine.arch}, {machine.host}")
    console.print(tables.tuned(result))
    if results is not None:
        console.print(f"stored as run {result.run} in {results.path}")
    console.print(f"{result.seconds['total']:.1f} s in all")
    if not result.measured:
        console.print(note or "no GPU here")
        console.print("predicted, not measured")


def _kept(store: Path | None, no_store: bool) -> Any:
    from tilewright.ledger.results import Store

    if no_store and store is not None:
        raise RequestError("--store and --no-store exclude each other; give one of them")
    return nullcontext(None) if no_store else Store(store)


# optimize -----------------------------------------------------------------------------------------

app.command()(cli_optimize.optimize)


# report -------------------------------------------------------------------------------------------

app.command()(cli_report.report)


# run ----------------------------------------------------------------------------------------------

app.command(context_settings=cli_run.SETTINGS)(cli_run.run)


# capture ------------------------------------------------------------------------------------------

app.command(context_settings=cli_capture.SETTINGS)(cli_capture.capture)
app.add_typer(cli_capture.app, name="captured")


# tuned --------------------------------------------------------------------------------------------

app.add_typer(cli_tuned.app, name="tuned")


# lint ---------------------------------------------------------------------------------------------

app.command()(cli_lint.lint)


# transfer -----------------------------------------------------------------------------------------

app.command()(cli_transfer.transfer)


# doctor -------------------------------------------------------------------------------------------


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What works on this machine, and how to fix what does not.

    Exit code 0 where everything works that inspecting and predicting need; a GPU is not among it.

    Example: `tilewright doctor`
    """
    from tilewright.cli import doctor as examination
    from tilewright.cli import tables

    checks = examination.examine()
    if as_json:
        print_json(examination.to_json(checks))
    else:
        console = terminal.stdout()
        console.print(tables.checks(checks))
        console.print(f"\n{examination.verdict(checks)}")
    if not examination.healthy(checks):
        raise typer.Exit(3)


# From outcome to exit code ------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code."""
    terminal.give_stdout_stand_ins()
    try:
        code = int(app(args=arguments, prog_name="tilewright", standalone_mode=False) or 0)
        sys.stdout.flush()
        return _failed("interrupted", INTERRUPTED, prefix="") if code == INTERRUPTED else code
    except (Interrupted, KeyboardInterrupt, typer.Abort) as interruption:
        return _failed(str(interruption) or "interrupted", INTERRUPTED, prefix="")
    except TilewrightError as error:
        return _failed(str(error), error.exit_code)
    except UsageError as error:
        return _failed(_usage(error), 2)
    except BrokenPipeError:
        _give_up_stdout()
        return 0  # who reads has seen enough
    except (Exception, SystemExit) as error:
        return _unforeseen(error)


def _usage(error: Exception) -> str:
    """typer's own words, and where the choices stand."""
    said = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")
    context = getattr(error, "ctx", None)  # of the innermost command
    return f"{said.rstrip('.')}; see {context.command_path if context else 'tilewright'} --help"


def _unforeseen(error: Exception | SystemExit) -> int:
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return _unwritable(error)
    if place := _place_in_task(error):
        return _failed(f"{place}: {type(error).__name__}: {error}", 2)
    if isinstance(error, SystemExit):  # typer's, where stdout went away
        return 0
    traceback.print_exception(error)
    return _failed("this is a mistake in Tilewright, not in your task; `tilewright doctor` may tell more", 1)


def _unwritable(error: OSError) -> int:
    if error.filename is None:  # it may be stdout that is full
        _give_up_stdout()
    file = f" ({error.filename})" if error.filename else ""
    fix = "free some space" if error.errno in DISK_FULL else "choose a place that you can write"
    return _failed(f"{error.strerror}{file}: {fix}; TMPDIR and TILEWRIGHT_HOME name the places", 3)


def _place_in_task(error: BaseException) -> str | None:
    """``ops.py:12`` where the exception came out of the task's own code, otherwise None."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_of_task(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line}"


def _is_of_task(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("tilewright_task_")


def _failed(text: str, code: int, prefix: str = "error: ") -> int:
    line = " ".join(text.split())
    print(f"{prefix}{line}", file=sys.stderr, flush=True)
    return code


def _give_up_stdout() -> None:
    """What is still in its buffer cannot be written; without this Python would say so at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
