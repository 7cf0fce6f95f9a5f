"""`tilewright capture` and `tilewright captured`: records the kernel launches of a program, and shows the record."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import run, terminal
from tilewright.cli.exit_codes import ended
from tilewright.cli.shared import All, AsJson, group, print_json, write
from tilewright.cli.terminal_table import ROWS
from tilewright.errors import RequestError, StorageError, TilewrightError

if TYPE_CHECKING:
    from tilewright.records import Json
    from tilewright.runtime.capture.pairs import Pair
    from tilewright.runtime.capture.record import Capture, Recorded

FILE = "capture.json"
SETTINGS = run.SETTINGS
NO_LAUNCH = (
    "no launch was recorded: no Python process of the program launched a cuTile or Triton kernel "
    "(those that torch.compile generates are not recorded)"
)

Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="The record.  [default: .tilewright/capture.json]")
]
WithData = Annotated[bool, typer.Option("--data", help="Also store the arrays of the first launch of each kind.")]
Mebibytes = Annotated[int, typer.Option("--data-mib", min=1, help="MiB of arrays that each process may store.")]
Exact = Annotated[bool, typer.Option("--exact", help="Classify every launch; this takes some microseconds each.")]
Top = Annotated[int | None, typer.Option(min=1, help="How many rows are shown.  [default: 10, with --json all]")]
AsArgument = Annotated[Path | None, typer.Argument(metavar="RECORD", hidden=True)]
Number = Annotated[int, typer.Argument(metavar="N", min=1, help="Row of the table.")]
Producer = Annotated[int, typer.Argument(metavar="N", min=1, help="Row of the first kernel.")]
Consumer = Annotated[int, typer.Argument(metavar="NEXT", min=1, help="Row of the kernel that reads its output.")]
To = Annotated[Path, typer.Argument(metavar="FILE.py", help="The task file to write.")]
OfRecord = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="The record.  [default: .tilewright/capture.json]")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]

app = group(
    "captured",
    "Shows the launches that `tilewright capture` recorded: where the time goes, and task files for them.\n\n"
    "Example: `tilewright captured show --json`",
)


def capture(
    command: run.Command, out: Out = None, data: WithData = False, data_mib: Mebibytes = 256, exact: Exact = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Runs a program and records each launch of a cuTile or Triton kernel: arguments, number of launches, and time.

    Then shows how much time each kind of launch took. `tilewright captured task` makes a task file of any row. The exit
    code is the program's. The program's output is not changed; with `--json` it goes to stderr.

    Example: `tilewright capture -- python -m train --steps 20`
    """
    from tilewright.runtime.capture import record as capture_record

    run.check_named(command)
    file = _file(out)
    earlier = _prepared(file, private=out is None)
    code = run.wait_for(command, _environment(file, data_mib if data else 0, exact), as_json)
    try:
        recorded = capture_record.merged(file)
    except (OSError, RequestError) as error:  # a program that failed keeps its exit code
        message = str(error) if isinstance(error, RequestError) else f"cannot write {file}: {error.strerror}"
        raise ended(message, code or StorageError.exit_code, as_json) from error
    if earlier is None or recorded.launches():
        _show(recorded, file, None if as_json else ROWS, as_json)
    else:
        _show_kept(earlier, file, as_json)
    if code:
        raise typer.Exit(code)


@app.command()
def show(
    named: AsArgument = None, record: OfRecord = None, top: Top = None, show_all: All = False, as_json: AsJson = False
) -> None:
    """Shows how much time each kind of launch took, in one row for each kind.

    Example: `tilewright captured show`
    """
    from tilewright.runtime.capture import record as capture_record

    file = _only_file(named, record)
    _show(capture_record.read(file), file, top if top or show_all or as_json else ROWS, as_json)


@app.command()
def pairs(named: AsArgument = None, record: OfRecord = None, as_json: AsJson = False) -> None:
    """Shows kernels whose output only the next kernel reads, and the bytes that one kernel for both would save.

    Loads the kernels. Needs no GPU.

    Example: `tilewright captured pairs`
    """
    from tilewright.cli import capture_table
    from tilewright.runtime.capture import pairs as capture_pairs
    from tilewright.runtime.capture import record as capture_record

    file = _only_file(named, record)
    recorded = capture_record.read(file)
    found = capture_pairs.pairs(recorded)
    if as_json:
        print_json([_pair_as_json(pair) for pair in found.found])
    elif found.found:
        terminal.stdout().print(capture_table.pairs(recorded, found.found))
    else:
        terminal.note(f"{file}: no kernel writes what the launch directly after it reads")
    for kernel, reason in found.unread.items():
        terminal.note(f"{kernel} is in no pair, because it cannot be read: {reason}")


@app.command()
def task(number: Number, to: To, record: OfRecord = None, force: Force = False, as_json: AsJson = False) -> None:
    """Writes a task file for row N, for `tilewright tune`, `check` and `optimize`. Needs no GPU.

    The task's reference is the captured kernel itself, so "correct" means "as captured". The kernel runs on small
    shapes to find out which tile sizes may change. This takes some seconds.

    Example: `tilewright captured task 1 attention_task.py`
    """
    from tilewright.cli.capture_table import launches
    from tilewright.runtime.capture import record as capture_record
    from tilewright.runtime.capture.task_file import task_text

    _check_new(to, force)
    file = _file(record)
    whole = capture_record.read(file)
    _check_own(to, whole)
    recorded = capture_record.chosen(whole, number)
    time = f", {recorded.total_us / 1e3:.3g} ms on the GPU" if recorded.total_us else ""
    often = "once" if recorded.count == 1 else f"{launches(recorded)} times"
    heading = f"`{recorded.launch.kernel}`, recorded in {file.name}: launched {often}{time}."
    write(to, task_text(recorded, to.parent.resolve(), heading=heading))
    if as_json:
        print_json({"file": str(to), "task": recorded.launch.kernel})
    else:
        terminal.note(f"wrote {to}; next: tilewright check {to}")
        _note_pairs(whole, file, number)


@app.command()
def fuse(
    producer: Producer, consumer: Consumer, to: To, record: OfRecord = None, force: Force = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Writes one kernel for two rows of `captured pairs`, and a task file for it. Needs no GPU.

    The kernel is beside the task file. Its outputs equal those of both launches to the bit, on small shapes. The task's
    reference is both captured kernels.

    Example: `tilewright captured fuse 1 2 fused_task.py`
    """
    from tilewright.runtime.capture import record as capture_record
    from tilewright.runtime.capture.fuse import fused_task, kernel_file

    to, file = to.resolve(), _file(record)
    recorded = capture_record.read(file)
    for each in (to, kernel_file(to)):
        _check_new(each, force)
        _check_own(each, recorded)
    made = fused_task(recorded, producer, consumer, to)
    write(to, made.task)
    if as_json:
        times = made.times
        print_json({
            "file": str(to), "kernel": str(kernel_file(to)), "task": made.name, "saved_bytes": made.pair.saved_bytes,
            "board": times.board, "predicted_us": times.fused_us or None, "predicted_apart_us": list(times.apart_us),
            "problem": times.problem,
        })  # fmt: skip
    else:
        terminal.note(f"wrote {kernel_file(to)} and {to}: equal to both launches to the bit, on small shapes")
        terminal.note(str(made.times))
        terminal.note(f"'{made.pair.written}' is no longer written: make sure that no torch operation reads it")
        terminal.note(f"next: tilewright check {to}")


def _note_pairs(capture: Capture, file: Path, row: int) -> None:
    """Prints with which kernels a row could be one kernel, which saves more bytes than a change of one of them."""
    from tilewright.runtime.capture.pairs import pairs

    if not capture.shares_arrays:
        return
    try:
        found = pairs(capture).found
    except TilewrightError as error:  # the task is written, and does not need the order of launches
        terminal.note(f"which kernels could be one is not known: {error}")
        return
    for pair in found:
        if row in (pair.producer, pair.consumer) and not pair.problem:
            what = f"row {pair.consumer} reads all that row {pair.producer} writes directly before it"
            command = f"tilewright captured fuse {pair.producer} {pair.consumer} FILE.py{_option(file)}"
            terminal.note(f"{what}; one kernel for both: {command}")


def _check_new(to: Path, force: bool) -> None:
    """Raises RequestError if a Python file cannot be written there."""
    if to.suffix != ".py":
        example = to / "task" if to.is_dir() else to
        raise RequestError(f"{to} is not a Python file; name one, e.g. {example.with_suffix('.py')}")
    try:
        exists = stat.S_IFMT(to.stat().st_mode)
    except FileNotFoundError:
        exists = 0
    except OSError as error:
        raise RequestError(f"cannot write {to}: {error.strerror}") from error
    if stat.S_ISDIR(exists):
        raise RequestError(f"{to} is a folder; choose another name")
    if exists and not force:
        raise RequestError(f"{to} exists; choose another name, or --force")
    if not to.parent.is_dir():
        raise RequestError(f"no such folder: {to.parent}")


def _check_own(to: Path, capture: Capture) -> None:
    """Raises RequestError if the file has a captured kernel, which --force would replace."""
    for recorded in capture.launches():
        if to.resolve() == Path(recorded.launch.file).resolve():
            raise RequestError(f"{to} is the file of {recorded.launch.kernel}; choose another name")


def _file(given: Path | None) -> Path:
    from tilewright.ledger.file import home

    return (given or home() / FILE).resolve()


def _option(file: Path) -> str:
    """Returns the option that names a record in a command; empty for the default record."""
    return "" if file == _file(None) else f" --record {file}"


def _only_file(named: Path | None, record: Path | None) -> Path:
    """Returns the record. Before --record, some commands took it as an argument, which still works."""
    if named is not None and record is not None:
        raise RequestError(f"two records are named; fix: only --record {record}")
    return _file(record or named)


def _prepared(file: Path, private: bool) -> Capture | None:
    """Returns the earlier record in ``file``; None if there is none. Raises RequestError if ``file`` cannot be
    written."""
    from tilewright.ledger.file import make_private
    from tilewright.runtime.capture import record as capture_record

    other = "choose another file with --out"
    try:
        make_private(file.parent) if private else file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():
            raise RequestError(f"cannot write {file}: it is not a file; {other}")
        if not os.access(file.parent, os.W_OK):
            raise RequestError(f"cannot write into {file.parent}; {other}")
        capture_record.remove_parts(file)
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror}; {other}") from error
    if not capture_record.is_there(file):
        return None
    try:
        return capture_record.read(file)
    except RequestError as error:
        raise RequestError(f"{error}; remove it, or {other}") from None


def _environment(file: Path, data_mib: int, exact: bool) -> dict[str, str]:
    from tilewright.runtime.capture.capture import DATA_VARIABLE, EXACT_VARIABLE, VARIABLE
    from tilewright.runtime.started import python_path

    variables = {**os.environ, "PYTHONPATH": python_path(os.environ), VARIABLE: str(file)}
    if data_mib:
        variables[DATA_VARIABLE] = str(data_mib)
    if exact:
        variables[EXACT_VARIABLE] = "1"
    return variables


def _show(recorded: Capture, file: Path, top: int | None, as_json: bool) -> None:
    from tilewright.cli import capture_table

    if as_json:
        print_json([_as_json(number, kind) for number, kind in enumerate(recorded.launches()[:top], 1)])
    elif recorded.launches():
        terminal.stdout().print(capture_table.captured(recorded, top))
        option = _option(file)
        terminal.note(f"recorded in {file}; a task of a row: tilewright captured task N FILE.py{option}")
        if recorded.shares_arrays:
            terminal.note(
                "some launches share an array with the one before; if one reads its output: "
                f"tilewright captured pairs{option}"
            )
    else:
        terminal.note(NO_LAUNCH)


def _show_kept(earlier: Capture, file: Path, as_json: bool) -> None:
    """Prints that the program launched nothing, and that the earlier record was kept."""
    if as_json:
        print_json([])
    terminal.note(NO_LAUNCH)
    if made := sum(kind.count for kind in earlier.launches()):
        from tilewright.runtime.capture.record import programs

        terminal.note(
            f"{file} was not replaced: it still holds {made} launches of an earlier capture ({programs(earlier.parts)})"
        )


def _pair_as_json(pair: Pair) -> dict[str, Json]:
    from tilewright.ledger.codec import to_json

    fields = {name: value for name, value in to_json(pair).items() if name != "addresses"}
    return {**fields, "saved_bytes": pair.saved_bytes}


def _as_json(number: int, kind: Recorded) -> dict[str, Json]:
    from tilewright.ledger.codec import to_json

    return {
        "n": number, **to_json(kind), "mean_us": kind.gpu.mean_us, "samples": kind.gpu.samples, "at_most": kind.at_most,
        "total_us": kind.total_us, "host_us": kind.host.mean_us,
    }  # fmt: skip
