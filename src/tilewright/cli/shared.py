"""What the commands of the command line share: options, and from text to task and from value to JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tilewright.cli import completion, terminal
from tilewright.cli.exit_codes import INTERRUPTED, TERMINATED
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.ledger.codec import Encodable
    from tilewright.records import Workload
    from tilewright.task.task import Task

DEFAULT_BUDGET = 10.0
"""The default of `compile`, repeated here so that `--help` does not import it."""

Where = Annotated[
    str,
    typer.Argument(
        metavar="FILE[:TASK]", help="A task file, and which of its tasks.", autocompletion=completion.task_files
    ),
]
Archs = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="A,B",
        help="Architectures.  [default: the GPU's, else sm_90]",
        autocompletion=completion.architectures,
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        metavar="A", help="Architecture.  [default: the GPU's, else sm_90]", autocompletion=completion.architectures
    ),
]
Config = Annotated[
    str | None, typer.Option(metavar="KNOB=VALUE,…", help="Only this configuration; the other knobs are as shipped.")
]
L2 = Annotated[
    Literal["cold", "warm"], completion.one_of("--l2", "cold", "warm", help="The L2 cache before each launch.")
]
How = Annotated[
    Literal["graph", "eager"],
    completion.one_of("--launch", "graph", "eager", help="How production launches the kernel."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over, and do not resume an interrupted run.")]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help="A workload. May be given several times.  [default: all]",
        autocompletion=completion.workloads,
    ),
]
OneWorkload = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which one.  [default: the task's first]", autocompletion=completion.workloads),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="How many compilers run at a time.  [default: the cores]")]
Budget = Annotated[float, typer.Option(min=0.01, help="Time limit of the compiler for one candidate, in seconds.")]
All = Annotated[bool, typer.Option("--all", help="Show every row, not only the best ten and a count of the others.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


def help_without_a_command(context: typer.Context) -> None:
    """For a group of commands, as its callback."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def architectures(text: str | None) -> tuple[str, ...]:
    """The named ones, each once; without a name the GPU's, else the default, which is said."""
    from tilewright.hardware.architectures import ARCHITECTURES, architecture

    if text is None:
        return (default_architecture(),)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise RequestError(f"--arch names no architecture; known: {', '.join(ARCHITECTURES)}")
    return tuple(architecture(name).name for name in names)


def one_architecture(text: str | None, command: str) -> str:
    """For a command that takes a single one."""
    names = architectures(text)
    if len(names) != 1:
        raise RequestError(f"--arch names {len(names)} architectures; {command} takes one")
    return names[0]


def default_architecture() -> str:
    from tilewright.hardware.architectures import ARCHITECTURES, DEFAULT_ARCH
    from tilewright.hardware.gpu import detect

    gpu = detect()
    if gpu is not None and gpu.arch in ARCHITECTURES:
        return gpu.arch
    why = f"no compiler for this machine's GPU ({gpu.arch})" if gpu else "no GPU here"
    terminal.note(f"{why}: using {DEFAULT_ARCH}; choose with --arch")
    return DEFAULT_ARCH


def loaded(where: str) -> Task:
    from tilewright.task.loading import load_task

    return load_task(where)


def say_what_is_dropped(task: Task, arch: int, workloads: Iterable[Workload]) -> None:
    """A note for each value of the space that no configuration has, as a tile size that is no power of two."""
    for line in dict.fromkeys(line for workload in workloads for line in task.space.dropped(arch, workload.dims)):
        terminal.note(f"left out on sm_{arch}: {line}")


@contextmanager
def task_speaks_to_stderr(as_json: bool) -> Iterator[None]:
    """A task file may print; with ``--json`` stdout is not the place for it."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def write(path: Path, text: str, mode: Literal["w", "x"] = "w", parents: bool = False) -> None:
    """Raises RequestError where the file cannot be written, or, with ``x``, exists. ``parents``: makes the folder."""
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RequestError(f"{path} exists; choose another name, or remove it") from None
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def print_json(value: Encodable) -> None:
    """With escapes where stdout's encoding lacks a character, so that none is lost."""
    from tilewright.ledger.codec import to_json

    plain = to_json(value)
    text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(plain, indent=2, allow_nan=False)
    print(text)


STORED = "what was finished is stored, run the same command to resume"
RESUME = f"interrupted; {STORED}"


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""

    code = TERMINATED

    def __str__(self) -> str:
        return "terminated"


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, with what becomes of the work."""

    def __init__(self, said: str, code: int):
        super().__init__(said)
        self.code = code


@contextmanager
def resumable(stored: bool, fresh: bool) -> Iterator[None]:
    """Ctrl-C or SIGTERM inside the block says what becomes of the work."""
    try:
        yield
    except KeyboardInterrupt as signal:
        what = str(signal) or "interrupted"
        how = STORED.replace("command", "command without --fresh") if fresh else STORED
        raise Interrupted(f"{what}; {how}" if stored else what, getattr(signal, "code", INTERRUPTED)) from None
