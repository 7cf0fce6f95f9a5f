"""`tilewright tuned …`: a thin adapter over the store of tuned kernels and its tables. `cli` registers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tilewright.cli import terminal
from tilewright.cli.shared import All, AsJson, print_json, task_speaks_to_stderr
from tilewright.errors import RequestError, StorageError, UnknownChoice

if TYPE_CHECKING:
    from tilewright.runtime.store.naming import Kernels
    from tilewright.runtime.store.verifying import Verified
    from tilewright.runtime.store.winners import Unreadable, Winner, Winners

app = typer.Typer(
    name="tuned",
    help="The kernels that programs tuned on this machine: their configurations, and the evidence.\n\n"
    "They lie in `$TILEWRIGHT_TUNED`, or else in `~/.cache/tilewright`. Each command takes `--json`.",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Entry = TypeVar("Entry", bound="Winner | Unreadable")

SECONDS = 2.0
"""As `verifying.SECONDS` has it; `--help` does not import it."""
NEAREST = 3
OF_KERNEL = "Only this kernel; MODULE.NAME where two modules have one of that name."

Kernel = Annotated[str | None, typer.Argument(metavar="[KERNEL]", help=f"{OF_KERNEL}  [default: all]")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="A key, or its beginning.")]
OfKernel = Annotated[str | None, typer.Option("--kernel", metavar="NAME", help=OF_KERNEL)]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this key, or its beginning.")]
Into = Annotated[Path | None, typer.Option("--into", metavar="DIR", help="One file a kernel there.  [default: stdout]")]


@app.callback(invoke_without_command=True)
def _tuned(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_(kernel: Kernel = None, show_all: All = False, as_json: AsJson = False) -> None:
    """One line for each tuned call: arrays, board, configuration, gain over the shipped one.

    Example: `tilewright tuned list`
    """
    from tilewright.runtime.store import evidence

    store = _store()
    kernels, _ = _read(store)
    winners = kernels.of(kernel)
    if as_json:
        print_json([evidence.summary(one) for one in winners])
    elif not winners:
        print(f"nothing is stored in {store.path}")
    else:
        from tilewright.cli import tuned_table as tuned_tables

        terminal.stdout().print(tuned_tables.listed(winners, kernels.called, show_all))


@app.command()
def show(key: Key, as_json: AsJson = False) -> None:
    """All evidence of one tuned call: its key, part by part, and what became of every configuration.

    Example: `tilewright tuned show 3f2a91c0`
    """
    from tilewright.runtime.store.winners import Unreadable

    unreadable: list[Unreadable] = []
    entries: list[Winner | Unreadable] = [*_store().all(unreadable.append)]
    winner = _one([*entries, *unreadable], key)
    if isinstance(winner, Unreadable):
        raise StorageError(winner.problem)
    if as_json:
        print_json(winner)
    else:
        from tilewright.cli import tuned_table as tuned_tables

        terminal.stdout().print(tuned_tables.shown(winner))


@app.command()
def export(
    kernel: Kernel = None,
    into: Into = None,
    python: Annotated[bool, typer.Option("--python", help="A Python module instead of JSON.")] = False,
    as_json: AsJson = False,
) -> None:
    """A config file of a kernel's tuned configurations, to ship in a repository.

    It has the rule by which a row is chosen for other shapes, and is read without the store.

    Example: `tilewright tuned export --into configs/`
    """
    from tilewright.runtime.store import exporting

    kernels, _ = _read(_store())
    chosen: dict[str, list[Winner]] = {}
    for one in kernels.of(kernel):
        chosen.setdefault(kernels.called(one), []).append(one)
    if not chosen:
        raise RequestError("nothing is stored; run the program first")
    if into is None and len(chosen) > 1:
        raise RequestError(f"name one kernel, or a folder with --into; known: {', '.join(chosen)}")
    written = exporting.as_python if python else exporting.as_json
    done = []
    for name, winners in chosen.items():
        if into is not None and not any(one.config is not None for one in winners):
            terminal.note(f"{name}: its configurations have no named fields, left out")
            continue
        table = exporting.config_file_of(winners)
        if (sources := exporting.sources_in(table)) > 1:
            terminal.note(f"{name}: rows of {sources} sources of it; a look-up uses those of its own source alone")
        if into is None:
            print(written(table), end="")
            return
        path = into / (re.sub(r"[^\w.-]+", "_", name) + (".py" if python else ".json"))
        _write(path, written(table))
        done.append({"kernel": name, "rows": len(table["rows"]), "file": str(path)})
    _say(done, as_json, lambda one: f"{one['file']}: {one['rows']} rows of {one['kernel']}")


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="What export wrote.")],
    replace: Annotated[bool, typer.Option("--replace", help="Also where another one stands.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put the rows of exported config files into the store. What stands there is kept.

    Example: `tilewright tuned import configs/softmax.json`
    """
    from tilewright.runtime.store import exporting
    from tilewright.runtime.store.config_file import load

    tables = [load(file) for file in files]  # all are read before any is stored
    found = exporting.import_config_files(tables, _store(), replace=replace)
    for table in tables:
        if left := exporting.for_reading_only(table):
            terminal.note(f"{table.name}: {left} rows of `tilewright run` are for reading only")
    done = [
        {
            "file": one.file,
            "kernel": one.row.kernel,
            "key": one.row.key,
            "outcome": one.outcome,
            "row": one.row.config,
            "stands": one.stored.config,
        }
        for one in found
    ]
    _say(done, as_json, _imported)
    if not replace and any(one["outcome"] == "kept" for one in done):
        terminal.note("where another configuration stands it was kept; --replace takes that of the file")


def _imported(one: dict[str, Any]) -> str:
    head = f"{one['outcome']}: {one['kernel']} {one['key'][:12]} {_fields(one['row'])}"
    return head + (f"; {_fields(one['stands'])} stands" if one["outcome"] == "kept" else "")


@app.command()
def verify(
    kernel: Kernel = None,
    key: OfKey = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Of the race of one entry.")] = SECONDS,
    seed: Annotated[int, typer.Option(min=0, help="Of the data and the rounds.")] = 0,
    show_all: All = False,
    as_json: AsJson = False,
) -> None:
    """Race the stored winners again, here and now: the check after a driver or a compiler changed.

    Exit code 0 where all that can be raced here hold, 1 where one drifted or is wrong, 3 where none can be raced.

    Example: `tilewright tuned verify --json`
    """
    from tilewright.runtime.store.verifying import this_machine
    from tilewright.runtime.store.verifying import verify as verified

    store = _store()
    kernels, _ = _read(store)
    winners = _chosen(kernels, kernel, key)
    if not winners:
        raise RequestError(f"nothing is stored in {store.path}; run the program first")
    with task_speaks_to_stderr(as_json), terminal.progress(quiet=as_json) as progress:
        here, device = this_machine()
        found = list(verified(winners, here, device, seconds=seconds, seed=seed, on_progress=progress))
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        from tilewright.cli import tuned_table as tuned_tables

        terminal.stdout().print(tuned_tables.verified(found, kernels.called, show_all))
        print(_counted(found))
    if code := _exit_code(found):
        raise typer.Exit(code)


def _exit_code(found: Sequence[Verified]) -> int:
    verdicts = {one.verdict for one in found}
    if verdicts & {"drifted", "wrong"}:
        return 1
    return 0 if "holds" in verdicts else 3


def _counted(found: Sequence[Verified]) -> str:
    counts = {name: sum(one.verdict == name for one in found) for name in ("holds", "drifted", "wrong", "cannot")}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


@app.command()
def prune(
    kernel: OfKernel = None,
    key: OfKey = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Tuned before that.")
    ] = None,
    toolkit_not_current: Annotated[
        bool, typer.Option("--toolkit-not-current", help="Tuned with another cuda-tile or tileiras.")
    ] = False,
    missing_source: Annotated[
        bool, typer.Option("--missing-source", help="The kernel is gone or has changed; imports its module.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and keep it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget tuned calls. Several criteria narrow the choice; the next run of a program tunes what it misses.

    Example: `tilewright tuned prune --toolkit-not-current --dry-run`
    """
    if not (kernel or key or older_than is not None or toolkit_not_current or missing_source or everything):
        raise RequestError(
            "nothing says what to forget; give --kernel, --key, --older-than, --toolkit-not-current, "
            "--missing-source or --all"
        )
    from tilewright.runtime.store import evidence
    from tilewright.runtime.store.winners import Unreadable

    criteria = _criteria(older_than, toolkit_not_current, missing_source)
    store = _store()
    kernels, unreadable = _read(store)
    total = len(kernels.winners) + len(unreadable)
    if kernel or criteria:
        unreadable = []  # nobody can tell of them
    entries: list[Winner | Unreadable] = [*kernels.of(kernel), *unreadable]
    with task_speaks_to_stderr(as_json):
        chosen = [
            one for one in (entries if key is None else [_one(entries, key)]) if all(fits(one) for fits in criteria)
        ]
    if not dry_run:
        store.remove(one.key for one in chosen)
    word = "would forget" if dry_run else "forgot"
    if as_json:
        print_json([one if isinstance(one, Unreadable) else evidence.summary(one) for one in chosen])
    else:
        for one in chosen:
            what = one.kernel if isinstance(one, Unreadable) else f"{kernels.called(one)} {evidence.shapes(one)}"
            print(f"{word} {one.key[:12]} {what}")
        print(f"{word} {len(chosen)} of {total}")


def _criteria(older_than: float | None, toolkit_not_current: bool, missing_source: bool) -> list[Callable[[Any], bool]]:
    """What narrows the choice beside kernel and key."""
    from tilewright.runtime.store import evidence

    found: list[Callable[[Any], bool]] = []
    if older_than is not None:
        before = _days_ago(older_than)
        found.append(lambda one: one.created < before)
    if toolkit_not_current:
        from tilewright.runtime.key import toolkit

        current = toolkit()
        found.append(lambda one: evidence.toolkit(one) != current)
    if missing_source:
        from tilewright.runtime.store.verifying import source_problem

        found.append(lambda one: bool(source_problem(one)))
    return found


# What they share --------------------------------------------------------------------------------------


def _store() -> Winners:
    from tilewright.runtime.store.winners import Winners

    return Winners(strict=True)


def _read(store: Winners) -> tuple[Kernels, list[Unreadable]]:
    """What the store holds; what cannot be read of it is named, and does not stand in the way of the rest."""
    from tilewright.runtime.store.naming import Kernels

    unreadable: list[Unreadable] = []
    kernels = Kernels(store.all(unreadable.append))
    for one in unreadable:
        terminal.note(one.problem)
    return kernels, unreadable


def _chosen(kernels: Kernels, kernel: str | None, key: str | None) -> tuple[Winner, ...]:
    winners = kernels.of(kernel)
    return winners if key is None else (_one(winners, key),)


def _one(winners: Sequence[Entry], key: str) -> Entry:
    """The winner whose key begins so; the error names the nearest ones, or those that the text fits."""
    fitting = [one for one in winners if one.key.startswith(key.lower())]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = ", ".join(one.key[:12] for one in fitting)
        raise RequestError(f"'{key}' is the beginning of {len(fitting)} keys; give more of it: {shown}")
    likeness = SequenceMatcher(None, "", key.lower())

    def unlike(one: Entry) -> float:
        likeness.set_seq1(one.key[: len(key)])
        return -likeness.ratio()

    nearest = sorted(winners, key=unlike)
    raise UnknownChoice("key", key, (f"{one.key[:12]} ({one.kernel})" for one in nearest[:NEAREST]))


def _days_ago(days: float) -> str:
    from tilewright.ledger.file import text_of, utc_now

    try:
        return text_of(utc_now() - timedelta(days=days))
    except OverflowError:
        raise RequestError(f"--older-than {days:g} days is before all dates") from None


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def _fields(config: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in (config or {}).items())


def _say(done: Sequence[dict[str, Any]], as_json: bool, line: Callable[[dict[str, Any]], str]) -> None:
    if as_json:
        print_json(list(done))
    else:
        for one in done:
            print(line(one))
