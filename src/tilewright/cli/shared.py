"""Code that several commands share: options, loading a task, progress, interruptions, and writing files and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tilewright.cli import completion, parameters, terminal
from tilewright.cli.exit_codes import INTERRUPTED
from tilewright.cli.interruption import Interrupted
from tilewright.errors import RequestError, StorageError

if TYPE_CHECKING:
    from tilewright.executors.base import Executor
    from tilewright.executors.local import Local
    from tilewright.ledger.agent_runs import AgentLedger
    from tilewright.ledger.codec import Encodable
    from tilewright.ledger.ledger import Ledger
    from tilewright.ledger.tunings import TuneLedger
    from tilewright.progress import Progress
    from tilewright.records import Json, Workload
    from tilewright.task.task import Task

DEFAULT_BUDGET = 10.0
"""The default of `compile`, repeated here so that `--help` does not import that module."""

_FILE = "A task file, and which of its tasks."
_AS_GPU = "[default: the GPU's, else sm_90]"

Where = Annotated[str, typer.Argument(metavar="FILE[:TASK]", help=_FILE, autocompletion=completion.task_files)]
Archs = Annotated[
    str | None,
    typer.Option("--arch", metavar="A,B", help=f"Architectures.  {_AS_GPU}", autocompletion=completion.architectures),
]
Arch = Annotated[
    str | None, typer.Option(metavar="A", help=f"Architecture.  {_AS_GPU}", autocompletion=completion.architectures)
]
_ONLY = "Only this configuration; the other knobs are as shipped. May be given several times."
Configs = Annotated[list[str] | None, typer.Option("--config", metavar="KNOB=VALUE,…", help=_ONLY)]
L2 = Annotated[
    Literal["cold", "warm"], completion.one_of("--l2", "cold", "warm", help="The L2 cache before each launch.")
]
How = Annotated[
    Literal["graph", "eager"],
    completion.one_of("--launch", "graph", "eager", help="How production launches the kernel."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over, and do not resume an interrupted run.")]
_EACH, _FIRST = "A workload. May be given several times.  [default: all]", "The workload.  [default: the task's first]"
Workloads = Annotated[
    list[str] | None, typer.Option("--workload", metavar="NAME", help=_EACH, autocompletion=completion.workloads)
]
OneWorkload = Annotated[str | None, typer.Option(metavar="NAME", help=_FIRST, autocompletion=completion.workloads)]
Jobs = Annotated[int | None, typer.Option(min=1, help="How many compilers run at a time.  [default: the cores]")]
Budget = Annotated[float, typer.Option(min=0.01, help="Processor time of the compiler for one candidate, in seconds.")]
All = Annotated[bool, typer.Option("--all", help="Show every row, not only the best ten and a count of the others.")]
HERE = "local"
_ON = "Where candidates run: local, ray[:ADDRESS], slurm[:PARTITION], ssh:HOST."
_EACH_ON = f"{_ON} May be given several times: each kind of GPU gets its own results."
Ons = Annotated[list[str] | None, typer.Option("--on", metavar="WHERE", help=f"{_EACH_ON}  [default: local]")]
On = Annotated[str, typer.Option("--on", metavar="WHERE", help=_ON)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]


class _GroupApp(typer.Typer):
    """Makes each command of a group a `parameters.Command`, as the other commands are."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, cls=parameters.Command, **options)


def group(name: str, about: str) -> typer.Typer:
    """Returns the app of a group of commands, such as `tilewright tuned`."""
    settings = {"help_option_names": ["-h", "--help"]}
    app = _GroupApp(name=name, cls=parameters.Group, help=about, rich_markup_mode="markdown", context_settings=settings)
    app.callback(invoke_without_command=True)(help_without_a_command)
    return app


def help_without_a_command(context: typer.Context) -> None:
    """Prints the help of a group of commands if no command is named."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def architectures(text: str | None) -> tuple[str, ...]:
    """Returns the architectures in ``text``, without duplicates. For None, returns the architecture of
    `default_architecture`.
    """
    from tilewright.hardware.architectures import ARCHITECTURES, architecture

    if text is None:
        return (default_architecture(),)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise RequestError(f"--arch names no architecture; known: {', '.join(ARCHITECTURES)}")
    return tuple(architecture(name).name for name in names)


def one_architecture(text: str | None, command: str) -> str:
    """Returns the one architecture that ``text`` names. Raises RequestError if it names several."""
    names = architectures(text)
    if len(names) != 1:
        raise RequestError(f"--arch names {len(names)} architectures; {command} takes one")
    return names[0]


def default_architecture() -> str:
    """Returns the GPU's architecture. If no GPU can be used, prints a note and returns `DEFAULT_ARCH`."""
    from tilewright.hardware.architectures import ARCHITECTURES, DEFAULT_ARCH
    from tilewright.hardware.gpu import detect

    gpu = detect()
    if gpu is not None and gpu.arch in ARCHITECTURES:
        return gpu.arch
    why = f"no compiler for this machine's GPU ({gpu.arch})" if gpu else "no GPU here"
    terminal.note(f"{why}: using {DEFAULT_ARCH}; choose with --arch")
    return DEFAULT_ARCH


def early_session() -> Local | None:
    """Starts the worker process if there is a GPU. Commands call this before their other imports.

    The worker imports its modules, among them torch if the task needs it, while the command imports its own.
    """
    from tilewright.worker.early import early_worker

    process = early_worker()

    from tilewright.executors.local import local

    return local(process)


def elsewhere(on: str) -> Executor | None:
    """Returns the executor that ``--on`` names; None for this machine. Raises UnknownChoice for an unknown name."""
    if on == HERE:
        return None
    from tilewright.executors import executor_on

    executor = executor_on(on)
    executor.say = terminal.note
    return executor


def run_elsewhere(
    context: typer.Context, on: str, where: str | None = None, paths: Iterable[Path | None] = (), refused: str = "",
    files: bool = True, store: Path | None = None,
) -> None:  # fmt: skip
    """Runs this command as a whole where ``--on`` says, and ends it with the exit code. Returns for this machine.

    where: the task.
    paths: other files that the command reads or writes.
    refused: why the command cannot run elsewhere as it was given; "" if it can.
    files, store: as in `executors.base.Executor.command`.
    """
    executor = elsewhere(on)
    words, given = _without_on(context.obj or ())  # None where a test calls the application without words
    if given > 1:
        raise RequestError(f"--on is given {given} times; only tune takes several places; fix: name one")
    if executor is None:
        return
    if where is not None:
        from tilewright.task.loading import load_task

        load_task(where)  # a mistake in the task is found here
    if refused:
        raise RequestError(f"--on {on}: {refused}")
    with executor:
        code = executor.command(words, where, list(filter(None, paths)), files, store)
    raise typer.Exit(code)


def _without_on(words: Sequence[str]) -> tuple[list[str], int]:
    """Returns the words of a command without ``--on``, and how often it is given. A program's own words, after ``--``,
    stay."""
    ours = list(takewhile(lambda word: word != "--", words))
    given = [word for word in ours if word == "--on" or word.startswith("--on=")]
    kept = [word for word, before in zip(ours, ("", *ours), strict=False) if before != "--on" and word not in given]
    return [*kept, *words[len(ours) :]], len(given)


def loaded(where: str) -> Task:
    """Loads the task ``FILE[:TASK]``, and then prevents imports of torch by front ends in this process.

    Prints a note if the version of a language is not tested, or if implementations are left out.
    """
    from tilewright.languages import cautions, load

    task = load(where)
    for line in (*cautions(), *task.left_out):
        terminal.note(line)
    return task


def note_dropped_values(task: Task, arch: int, workloads: Sequence[Workload]) -> None:
    """Prints a note for each value that no configuration may have. An example is a tile size that is no power of two.

    Workloads that drop a value for the same reason share one note. If other workloads keep the value, the note names
    the workloads that drop it.
    """
    left_out: dict[str, list[str]] = {}
    for workload in workloads:
        for line in task.space.dropped(arch, workload.dims):
            reason, fails, _ = line.partition(" does not hold for ")  # the values of this knob differ by workload
            left_out.setdefault(reason + fails.removesuffix(" for "), []).append(workload.name)
    for reason, names in left_out.items():
        only = f" for {', '.join(names)}" if len(names) < len(workloads) else ""
        terminal.note(f"left out on sm_{arch}{only}: {reason}")


@contextmanager
def progress(as_json: bool) -> Iterator[Progress]:
    """Shows progress. With ``--json``, shows no progress, and sends the output of a task file to stderr."""
    with ExitStack() as stack:
        if as_json:
            stack.enter_context(redirect_stdout(sys.stderr))
        yield stack.enter_context(terminal.progress(quiet=as_json))


def write(path: Path, text: str, mode: Literal["w", "x"] = "w", parents: bool = False) -> None:
    """Writes a text file. Raises RequestError if that fails.

    mode: ``x`` refuses to overwrite a file.
    parents: whether to make missing folders.
    """
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RequestError(f"{path} exists; choose another name, or remove it") from None
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def print_rows(rows: Iterable[dict[str, Json]]) -> None:
    """Prints a JSON list with one line for each row, as each row is made."""
    before = "["
    for row in rows:
        print(f"{before}\n  {_one_line(row)}", end="")
        before = ","
    print("\n]" if before == "," else "[]")


def _one_line(row: dict[str, Json]) -> str:
    try:
        return _dumped(row)
    except ValueError:  # a damaged entry has a number that JSON has not
        from tilewright.ledger.codec import to_json

        return _dumped({name: to_json(value) for name, value in row.items()})


def print_json(value: Encodable) -> None:
    """Prints JSON."""
    from tilewright.ledger.codec import to_json

    print(_dumped(to_json(value), indent=2))


def _dumped(value: Json, indent: int | None = None) -> str:
    """Returns JSON in which a character that stdout's encoding lacks is escaped. Raises ValueError for an infinity."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=indent, allow_nan=False)
    return text


@contextmanager
def resumable(ledger: TuneLedger | Ledger | AgentLedger | Literal[False], fresh: bool) -> Iterator[None]:
    """Turns Ctrl-C or SIGTERM inside the block into `Interrupted`. The message says what is stored and how to continue.

    ledger: the ledger of the run; False if nothing is stored.
    """
    try:
        yield
    except KeyboardInterrupt as signal:
        message = f"{str(signal) or 'interrupted'}; {_kept(ledger, fresh)}"
        raise Interrupted(message, getattr(signal, "code", INTERRUPTED)) from None


def _kept(ledger: TuneLedger | Ledger | AgentLedger | Literal[False], fresh: bool) -> str:
    if not ledger:
        return "nothing is stored (--no-store)"
    if ledger.present and not ledger.is_there():
        return f"nothing is stored: {ledger.path} was removed during the run"
    try:
        finished, complete = ledger.stored()
    except StorageError as error:
        return f"what is stored cannot be read: {error}"
    if complete:
        return f"the run is complete and stored, see it with tilewright report {ledger.present}"
    compiled = ledger.compiled()
    if not finished and not compiled:
        return f"no {ledger.part} was finished, the same command starts over"
    parts = f"{finished or 'no'} finished {ledger.part}{'s' * (finished != 1)}"
    candidates = f" and {compiled} compiled candidate{'s' * (compiled != 1)}" if compiled else ""
    are = "is" if finished == 1 and not compiled else "are"
    return f"{parts}{candidates} {are} stored, run the same command{' without --fresh' * fresh} to resume"
