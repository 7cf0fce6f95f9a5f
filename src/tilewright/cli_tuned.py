"""`tilewright tuned …`: a thin adapter over the store of tuned kernels and its tables. `cli` registers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import terminal
from tilewright.cli_shared import AsJson, print_json, task_speaks_to_stderr
from tilewright.errors import RequestError, UnknownChoice

if TYPE_CHECKING:
    from tilewright.runtime.stored.verifying import Verified
    from tilewright.runtime.stored.winners import Winner, Winners

app = typer.Typer(
    name="tuned",
    help="The kernels that programs tuned on this machine: their configurations, and the evidence.\n\n"
    "They lie in `$TILEWRIGHT_TUNED`, or else in `~/.cache/tilewright`. Each command takes `--json`.",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SECONDS = 2.0
"""As `verifying.SECONDS` has it; `--help` does not import it."""
NEAREST = 3

Kernel = Annotated[str | None, typer.Argument(metavar="[KERNEL]", help="Only this kernel.  [default: all]")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="A key, or its beginning.")]
OfKernel = Annotated[str | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel.")]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this key, or its beginning.")]
Into = Annotated[
    Path | None, typer.Option("--into", metavar="DIR", help="One file a kernel there.  [default: stdout]")
]


@app.callback(invoke_without_command=True)
def _tuned(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_(kernel: Kernel = None, as_json: AsJson = False) -> None:
    """One line for each tuned call: arrays, board, configuration, gain over the shipped one.

    Example: `tilewright tuned list`
    """
    from tilewright.runtime.stored import evidence

    store = _store()
    winners = _of_kernel(store, kernel)
    if as_json:
        print_json([evidence.summary(one) for one in winners])
    elif not winners:
        print(f"nothing is stored in {store.path}")
    else:
        from tilewright import tuned_tables

        terminal.stdout().print(tuned_tables.listed(winners))


@app.command()
def show(key: Key, as_json: AsJson = False) -> None:
    """All evidence of one tuned call: its key, part by part, and what became of every configuration.

    Example: `tilewright tuned show 3f2a91c0`
    """
    winner = _one(_store().all(), key)
    if as_json:
        print_json(winner)
    else:
        from tilewright import tuned_tables

        terminal.stdout().print(tuned_tables.shown(winner))


@app.command()
def export(
    kernel: Kernel = None,
    into: Into = None,
    python: Annotated[bool, typer.Option("--python", help="A Python module instead of JSON.")] = False,
    as_json: AsJson = False,
) -> None:
    """A table of a kernel's tuned configurations, to ship in a repository.

    It has the rule by which a row is chosen for other shapes, and is read without the store.

    Example: `tilewright tuned export --into tables/`
    """
    from tilewright.runtime.stored import exporting

    names, by_kernel = _by_kernel(_of_kernel(_store(), kernel))
    if not names:
        raise RequestError("nothing is stored; run the program first")
    if into is None and len(names) > 1:
        raise RequestError(f"name one kernel, or a folder with --into; known: {', '.join(names)}")
    written = exporting.as_python if python else exporting.as_json
    if into is None:
        print(written(exporting.table_of(by_kernel[names[0]])), end="")
        return
    done = []
    for name in names:
        if not any(one.config is not None for one in by_kernel[name]):
            terminal.note(f"{name}: its configurations have no named fields, left out")
            continue
        table = exporting.table_of(by_kernel[name])
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
    """Put the rows of exported tables into the store. What stands there is kept.

    Example: `tilewright tuned import tables/softmax.json`
    """
    from tilewright.runtime.stored import exporting
    from tilewright.runtime.stored.artefact import load

    store, done = _store(), []
    for table in [load(file) for file in files]:  # all are read before any is stored
        found = exporting.import_table(table, store, replace=replace)
        if left := len(table.rows) - len(found):
            terminal.note(f"{table.name}: {left} rows of `tilewright run` are for reading only")
        done += [
            {
                "file": table.name,
                "kernel": one.row.kernel,
                "key": one.row.key,
                "outcome": one.outcome,
                "row": one.row.config,
                "stands": one.standing.config,
            }
            for one in found
        ]
    _say(done, as_json, _imported)
    if not replace and any(one["outcome"] == "kept" for one in done):
        terminal.note("where another configuration stands it was kept; --replace takes the table's")


def _imported(one: dict[str, Any]) -> str:
    head = f"{one['outcome']}: {one['kernel']} {one['key'][:12]} {_fields(one['row'])}"
    return head + (f"; {_fields(one['stands'])} stands" if one["outcome"] == "kept" else "")


@app.command()
def verify(
    kernel: Kernel = None,
    key: OfKey = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Of the race of one entry.")] = SECONDS,
    seed: Annotated[int, typer.Option(min=0, help="Of the data and the rounds.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Race the stored winners again, here and now: the check after a driver or a compiler changed.

    Exit code 0 where all that can be raced here hold, 1 where one drifted or is wrong, 3 where none can be raced.

    Example: `tilewright tuned verify --json`
    """
    from tilewright.runtime.stored.verifying import this_machine
    from tilewright.runtime.stored.verifying import verify as verified

    store = _store()
    winners = _chosen(store, kernel, key)
    if not winners:
        raise RequestError(f"nothing is stored in {store.path}; run the program first")
    with task_speaks_to_stderr(as_json), terminal.progress(quiet=as_json) as progress:
        here, device = this_machine()
        found = list(verified(winners, here, device, seconds=seconds, seed=seed, on_progress=progress))
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        from tilewright import tuned_tables

        terminal.stdout().print(tuned_tables.verified(found))
        print(_counted(found))
    if code := _exit_code(found):
        raise typer.Exit(code)


def _exit_code(found: Sequence[Verified]) -> int:
    verdicts = {one.verdict for one in found}
    if verdicts & {"drifted", "wrong"}:
        return 1
    return 0 if "holds" in verdicts else 3


def _counted(found: Sequence[Verified]) -> str:
    counts = {
        name: sum(one.verdict == name for one in found) for name in ("holds", "drifted", "wrong", "cannot")
    }
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
    from tilewright.runtime.stored import evidence

    store = _store()
    chosen = list(_chosen(store, kernel, key))
    if older_than is not None:
        before = _days_ago(older_than)
        chosen = [one for one in chosen if one.created < before]
    if toolkit_not_current:
        from tilewright.runtime.key import toolkit

        chosen = [one for one in chosen if evidence.toolkit(one) != toolkit()]
    if missing_source:
        from tilewright.runtime.stored.verifying import source_problem

        with task_speaks_to_stderr(as_json):
            chosen = [one for one in chosen if source_problem(one)]
    if not dry_run:
        store.remove(one.key for one in chosen)
    word = "would forget" if dry_run else "forgot"
    if as_json:
        print_json([evidence.summary(one) for one in chosen])
    else:
        for one in chosen:
            print(f"{word} {one.key[:12]} {one.kernel} {evidence.shapes(one)}")
        print(f"{word} {len(chosen)} of {len(store.all()) + (0 if dry_run else len(chosen))}")


# What they share --------------------------------------------------------------------------------------


def _store() -> Winners:
    from tilewright.runtime.stored.winners import Winners

    return Winners(strict=True)


def _of_kernel(store: Winners, kernel: str | None) -> tuple[Winner, ...]:
    winners = store.all()
    if kernel is None:
        return winners
    names, by_kernel = _by_kernel(winners)
    if kernel not in by_kernel:
        raise UnknownChoice("kernel", kernel, names)
    return tuple(by_kernel[kernel])


def _chosen(store: Winners, kernel: str | None, key: str | None) -> tuple[Winner, ...]:
    winners = _of_kernel(store, kernel)
    return winners if key is None else (_one(winners, key),)


def _by_kernel(winners: Iterable[Winner]) -> tuple[list[str], dict[str, list[Winner]]]:
    found: dict[str, list[Winner]] = {}
    for one in winners:
        found.setdefault(one.kernel, []).append(one)
    return list(found), found


def _one(winners: Sequence[Winner], key: str) -> Winner:
    """The winner whose key begins so; the error names the nearest ones, or those that the text fits."""
    fitting = [one for one in winners if one.key.startswith(key.lower())]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = ", ".join(one.key[:12] for one in fitting)
        raise RequestError(f"'{key}' is the beginning of {len(fitting)} keys; give more of it: {shown}")
    likeness = SequenceMatcher(None, "", key.lower())

    def unlike(one: Winner) -> float:
        likeness.set_seq1(one.key[: len(key)])
        return -likeness.ratio()

    nearest = sorted(winners, key=unlike)
    raise UnknownChoice("key", key, (f"{one.key[:12]} ({one.kernel})" for one in nearest[:NEAREST]))


def _days_ago(days: float) -> str:
    from tilewright.database import text_of, utc_now

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
