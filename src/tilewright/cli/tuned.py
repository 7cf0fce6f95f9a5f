"""`tilewright tuned …`: lists, exports, imports, verifies and removes the stored results of tuned programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.exit_codes import CANNOT, NO
from tilewright.cli.shared import (
    HERE,
    All,
    AsJson,
    On,
    elsewhere,
    group,
    print_json,
    print_rows,
    progress,
    run_elsewhere,
)
from tilewright.cli.tuned_chosen import criteria_of, with_key
from tilewright.errors import RequestError, StorageError

if TYPE_CHECKING:
    from tilewright.records import Json, Value
    from tilewright.runtime.store.config_file import ConfigData
    from tilewright.runtime.store.evidence import Kernels
    from tilewright.runtime.store.exporting import Imported
    from tilewright.runtime.store.other_machines import MergedWinner, SharedWinners
    from tilewright.runtime.store.verifying import Verified
    from tilewright.runtime.store.winners import Unreadable, Winner

app = group(
    "tuned",
    "Lists and manages the results of programs that were tuned on this machine, with their evidence.\n\n"
    "They are stored in `$TILEWRIGHT_TUNED`, or else in `~/.cache/tilewright`. Each command takes `--json`.",
)

REPLACE = "fix: another folder; --replace writes a new file"
FILES_SHOWN = 5
SECONDS = 2.0
"""The default of `verifying`, repeated here so that `--help` does not import that module."""
OF_KERNEL = "Only this kernel; MODULE.NAME if two modules have a kernel of that name."

Kernel = Annotated[str | None, typer.Argument(metavar="[KERNEL]", help=f"{OF_KERNEL}  [default: all]")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="A key, or the beginning of a key.")]
OfKernel = Annotated[str | None, typer.Option("--kernel", metavar="NAME", help=OF_KERNEL)]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only the call whose key begins so.")]
Days = Annotated[
    float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Tuned more than this many days ago.")
]
OldToolkit = Annotated[bool, typer.Option("--toolkit-not-current", help="Tuned with another cuda-tile or tileiras.")]
_SOURCE = "The kernel is gone or has changed (imports its module)."
NoSource = Annotated[bool, typer.Option("--missing-source", help=_SOURCE)]
Everything = Annotated[bool, typer.Option("--all", help="Everything that is stored.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")]
Into = Annotated[
    Path | None, typer.Option("--into", metavar="DIR", help="Folder for one file per kernel.  [default: stdout]")
]


@app.command("list")
def list_(kernel: Kernel = None, show_all: All = False, as_json: AsJson = False) -> None:
    """Lists the tuned calls: arrays, GPU, configuration, gain over the shipped configuration.

    Example: `tilewright tuned list`
    """
    from tilewright.runtime.store import evidence

    store, kernels = _read()
    winners = kernels.of(kernel, store.each(_noted))
    if as_json:
        print_rows(map(evidence.summary, winners))
    elif (one := next(winners, None)) is None:
        print(f"nothing is stored in {store.path}")
    else:
        from tilewright.cli import tuned_table

        terminal.stdout().print(tuned_table.listed(chain([one], winners), kernels.called, show_all))


@app.command()
def show(key: Key, as_json: AsJson = False) -> None:
    """Shows all evidence of one tuned call: the parts of its key, and the outcome of every configuration.

    Example: `tilewright tuned show 3f2a91c0`
    """
    from tilewright.runtime.store.winners import Unreadable

    unreadable: list[Unreadable] = []
    store = _store()
    entries: list[Winner | Unreadable] = [*store.all(unreadable.append)]
    winner = with_key([*entries, *unreadable], key)
    if isinstance(winner, Unreadable):
        raise StorageError(winner.problem)
    others = store.others(winner.key, _noted)
    if as_json:
        print_json({**vars(winner), "others": others})
    else:
        from tilewright.cli import tuned_table

        terminal.stdout().print(tuned_table.shown(winner, others))


@app.command()
def export(
    kernel: Kernel = None, into: Into = None,
    python: Annotated[bool, typer.Option("--python", help="Write a Python module instead of JSON.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Also drop the rows of files that are in DIR.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Writes a config file with a kernel's tuned configurations, to ship in a repository.

    The file includes the rule that chooses a row for other shapes. A program can use the file without the store.
    A file that is in DIR already keeps its rows of other GPUs and of other calls.

    Example: `tilewright tuned export --into configs/`
    """
    from tilewright.runtime.key import digest
    from tilewright.runtime.store import config_folder, exporting

    store, kernels = _read()
    by_name: dict[str, list[Winner]] = {}
    changed = 0
    for winner in kernels.of(kernel, store.each(_noted)):
        if digest(winner.parts) == winner.key:
            by_name.setdefault(kernels.called(winner), []).append(winner)
            continue
        changed += 1
        terminal.note(
            f"{winner.key[:12]} of {winner.kernel} is left out: its key is not the digest of its parts, so somebody "
            f"changed it; fix: tilewright tuned prune --key {winner.key[:12]}"
        )
    if changed and not by_name:
        raise RequestError("nothing to export: each entry was changed by somebody; run the program again")
    if not by_name:
        raise RequestError("nothing is stored; run the program first")
    if into is None and len(by_name) > 1:
        raise RequestError(f"name one kernel, or a folder with --into; known: {', '.join(by_name)}")
    if replace and into is None:
        raise RequestError("--replace is about the files in a folder; name the folder with --into")
    files: list[tuple[str, Path, ConfigData, dict[str, int]]] = []
    for name, winners in by_name.items():
        if into is not None and not any(winner.config is not None for winner in winners):
            terminal.note(f"{name} is left out: its configurations have no named fields")
            continue
        content = exporting.config_file_of(winners)
        kept: dict[str, int] = {}
        if into is not None:
            path = config_folder.path_of(into, name, ".py" if python else ".json")
            if not replace:
                content, kept = config_folder.merged_into(path, content, REPLACE)
            files.append((name, path, content, kept))
        if (sources := exporting.sources_in(content)) > 1:
            terminal.note(
                f"{name}: rows of {sources} versions of its source; a look-up uses only the rows of its own version"
            )
    as_text = exporting.as_python if python else exporting.as_json
    if into is None:
        print(as_text(content), end="")
        return
    for _, path, content, _ in files:
        config_folder.write_whole(path, as_text(content))
    done: list[dict[str, Json]] = [
        {"kernel": name, "rows": len(content["rows"]), "kept": dict(kept), "file": str(path)}
        for name, path, content, kept in files
    ]
    lines = [config_folder.written(path, len(content["rows"]), name, kept) for name, path, content, kept in files]
    _print(done, as_json, lines)


@app.command("import")
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Files that export wrote, or stores (`tuned.db`, its folder).")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Also replace rows that other files brought.")] = False,
    as_json: AsJson = False,
) -> None:
    """Puts the rows of exported config files, or of another machine's store, into the store.

    What was measured here is kept and launched. Results of another store that are not launched are kept beside it.

    Example: `tilewright tuned import configs/softmax.json`
    """
    from tilewright.runtime.store import exporting
    from tilewright.runtime.store.config_file import load
    from tilewright.runtime.store.other_machines import store_at
    from tilewright.runtime.store.winners import NAME

    if lacking := next((file for file in files if file.is_dir() and not (file / NAME).is_file()), None):
        raise RequestError(f"there is no store {lacking / NAME}; name a file, or the folder with {NAME}")
    stores = {file: store for file in files if (store := store_at(file)) is not None}
    contents = [load(file) for file in files if file not in stores]  # raises before anything is stored
    imported: list[tuple[str, Imported | MergedWinner]] = [
        (row.file, row) for row in exporting.import_config_files(contents, _store(), replace=replace)
    ]
    for content in contents:
        if left := exporting.for_reading_only(content):
            terminal.note(f"{content.name}: {left} rows were written by `tilewright run` and are not imported")
    for store in stores.values():
        imported += ((str(store), row) for row in _merged(store))
    done: list[dict[str, Json]] = [
        {
            "file": file, "kernel": row.row.kernel, "key": row.row.key, "outcome": row.outcome,
            "row": _plain(row.row.config), "stands": _plain(row.stored.config),
        }
        for file, row in imported
    ]  # fmt: skip
    lines = [f"{row.outcome}: {row.row.kernel} {row.row.key[:12]} {_fields(row.row)}"
             + (f"; {_fields(row.stored)} stays" if row.outcome == "kept" else "") for _, row in imported]  # fmt: skip
    _print(done, as_json, lines)
    _explain_kept([row.stored for _, row in imported if row.outcome == "kept"], replace)


def _merged(file: Path) -> Sequence[MergedWinner]:
    """Merges the store of another machine. Says which of its rows are left out."""
    from tilewright.runtime.store.other_machines import SharedWinners, readable

    return _store().merge(tuple(readable(SharedWinners(file, strict=True, variable="tilewright tuned import"), _noted)))


def _explain_kept(stored: Sequence[Winner], replace: bool) -> None:
    if any(winner.is_local for winner in stored):
        terminal.note(
            "what was measured on this machine was kept; to measure it again: "
            "tilewright tuned prune --key KEY, and run the program"
        )
    if not replace and not all(winner.is_local for winner in stored):
        terminal.note("stored configurations that differ were kept; --replace takes those of a config file")


def _fields(winner: Winner) -> str:
    return " ".join(f"{name}={value}" for name, value in (winner.config or {}).items())


def _plain(config: Mapping[str, Value] | None) -> Json:
    return None if config is None else dict(config)


@app.command()
def verify(
    context: typer.Context,
    kernel: Kernel = None, key: OfKey = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds for the race of one entry.")] = SECONDS,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of the rounds.")] = 0,
    on: On = HERE, show_all: All = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Races the stored winners again on this machine, for example after a driver or a compiler changed.

    Exit code 0 if all entries that can be raced here have the verdict `holds`. Exit code 1 if one entry has `drifted`
    or `wrong`, 3 if no entry can be raced.

    Example: `tilewright tuned verify --json`
    """
    if elsewhere(on) is not None:
        from tilewright.runtime.store.winners import NAME, folder

        if not (stored := folder() / NAME).is_file():
            raise RequestError(f"nothing is stored in {stored}; run the program first")
        run_elsewhere(context, on, store=stored)

    from tilewright.runtime.store.verifying import planned, this_machine
    from tilewright.runtime.store.verifying import verify as verified

    store, kernels = _read()
    chosen = kernels.of(kernel, store.each(_noted))
    if key is not None:
        chosen = iter([with_key(list(chosen), key)])
    with progress(as_json) as on_progress:
        here, device = this_machine()
        plan = planned(chosen, here)
        if not plan.entries:
            raise RequestError(f"nothing is stored in {store.path}; run the program first")
        _say_what_runs(plan.files)
        entries = (store.get(entry) if isinstance(entry, str) else entry for entry in plan.entries)
        there = (entry for entry in entries if entry is not None)  # another process may have removed one
        verdicts = list(verified(there, here, device, seconds=seconds, seed=seed, total=len(plan.entries),
                                 on_progress=on_progress))  # fmt: skip
    counts = Counter(verdict.verdict for verdict in verdicts)
    if as_json:
        print_rows(verdict.to_json() for verdict in verdicts)
    else:
        from tilewright.cli import tuned_table

        if kernel is None and key is None:
            kernels = _named(verdicts)
        terminal.stdout().print(tuned_table.verified(verdicts, kernels.called, show_all))
        print(", ".join(f"{counts[name]} {name}" for name in ("holds", "drifted", "wrong", "cannot") if counts[name]))
    if counts["drifted"] or counts["wrong"]:
        raise typer.Exit(NO)
    if not counts["holds"]:
        raise typer.Exit(CANNOT)


@app.command()
def prune(
    kernel: OfKernel = None, key: OfKey = None, older_than: Days = None, toolkit_not_current: OldToolkit = False,
    missing_source: NoSource = False, everything: Everything = False, dry_run: DryRun = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Removes the tuned calls that meet all given criteria. A program tunes a removed call again when it needs it.

    Example: `tilewright tuned prune --toolkit-not-current --dry-run`
    """
    if not (kernel or key or older_than is not None or toolkit_not_current or missing_source or everything):
        criteria = "--kernel, --key, --older-than, --toolkit-not-current, --missing-source or --all"
        raise RequestError(f"choose what to remove: {criteria}")
    from tilewright.runtime.store import evidence
    from tilewright.runtime.store.unchanged import executed_files
    from tilewright.runtime.store.winners import Unreadable

    narrowing = criteria_of(older_than, toolkit_not_current, missing_source)
    store, kernels = _read()
    total, unreadable = len(kernels), list[Unreadable]()

    def kept_and_noted(entry: Unreadable) -> None:
        unreadable.append(entry)
        _noted(entry)

    entries: list[Winner | Unreadable] = [*kernels.of(kernel, store.each(kept_and_noted))]
    if not kernel and not narrowing:  # an unreadable entry meets no criterion
        entries += unreadable
    if key is not None:
        entries = [with_key(entries, key)]
    if missing_source:
        _say_what_runs(executed_files(entry for entry in entries if not isinstance(entry, Unreadable)))
    with progress(as_json):
        chosen = [entry for entry in entries if isinstance(entry, Unreadable) or all(fits(entry) for fits in narrowing)]
    if not dry_run:
        store.remove(entry.key for entry in chosen)
    word = "would remove" if dry_run else "removed"
    if as_json:
        print_json([entry if isinstance(entry, Unreadable) else evidence.summary(entry) for entry in chosen])
    else:
        for entry in chosen:
            what = entry.kernel
            if not isinstance(entry, Unreadable):
                what = f"{kernels.called(entry)} {evidence.shapes(entry)}"
            print(f"{word} {entry.key[:12]} {what}")
        print(f"{word} {len(chosen)} of {total}")


# Shared -----------------------------------------------------------------------------------------------


def _store() -> SharedWinners:
    from tilewright.runtime.store.other_machines import SharedWinners

    return SharedWinners(strict=True)


def _read() -> tuple[SharedWinners, Kernels]:
    """Returns the store, and the names of its kernels."""
    from tilewright.runtime.store.evidence import Kernels

    store = _store()
    return store, Kernels(store.places)


def _named(verdicts: Sequence[Verified]) -> Kernels:
    """Returns the names of the kernels of a whole store, without reading it again."""
    from tilewright.runtime.store.evidence import Kernels

    return Kernels(lambda: ((each.key, each.kernel, (None, None, None, each.module)) for each in verdicts))


def _noted(entry: Unreadable) -> None:
    terminal.note(entry.problem)


def _say_what_runs(files: Sequence[Path]) -> None:
    """Prints which files of the user are about to be executed."""
    if files:
        more = f", and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
        shown = ", ".join(map(str, files[:FILES_SHOWN]))
        terminal.note(f"executes the file of each unchanged kernel: {shown}{more}")


def _print(done: Sequence[dict[str, Json]], as_json: bool, lines: Iterable[str]) -> None:
    if as_json:
        print_json(done)
    else:
        for line in lines:
            print(line)
