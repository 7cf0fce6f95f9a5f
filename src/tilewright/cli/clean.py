"""`tilewright clean`: shows what runs left in a repository and in Tilewright's folders, and removes it by choice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import MachineError, RequestError, UnknownChoice

if TYPE_CHECKING:
    from tilewright.optimize.versions.leftovers import Leftover

Kinds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KIND]…", help="What to remove: killed, refs, branches, written, runs, jobs, repositories, "
                                           "temporary; or all.  [default: nothing, only show]"),
]  # fmt: skip
Home = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Tilewright's folder.  [default: $TILEWRIGHT_HOME or .tilewright]")
]
Yes = Annotated[bool, typer.Option("--yes", help="Remove without a question.")]


def clean(kinds: Kinds = None, yes: Yes = False, home: Home = None, as_json: AsJson = False) -> None:
    """Shows what runs left in this repository and in Tilewright's folders, and removes what you choose.

    Runs in progress, the ledger and the tuned store are never touched; `tilewright tuned prune` cleans the store.

    Example: `tilewright clean killed temporary`
    """
    from tilewright.ledger import file as database
    from tilewright.optimize.versions.leftovers import KINDS, leftovers, remove

    chosen = set(kinds or ())
    if unknown := chosen - {*KINDS, "all"}:
        raise UnknownChoice("kind", sorted(unknown)[0], (*KINDS, "all"))
    chosen = {*KINDS} if "all" in chosen else chosen
    found = list(leftovers(Path.cwd(), (home or database.home()).absolute()))
    going = [each for each in found if each.kind in chosen]
    if going and not yes:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise RequestError(f"{len(going)} things would be removed, and there is no terminal to ask; fix: --yes")
        _show(going)
        if not typer.confirm(f"remove these {len(going)}?"):
            going = []
    removed, failed = [], []
    for each in going:
        try:
            remove(each)
            removed.append(each)
        except (OSError, MachineError) as error:
            failed.append(each)
            terminal.note(f"{each.name} stays: {error}")
    if as_json:
        print_json({"found": found, "removed": removed, "failed": failed})
    elif chosen:
        print(f"removed {len(removed)} of {len(found)}, {_size(removed)}")
    else:
        _show(found)
        print(f"{len(found)} in all, {_size(found)}; name what to remove, such as: tilewright clean killed")
    if failed:
        raise MachineError(f"{len(failed)} of {len(going)} could not be removed")


def _show(found: list[Leftover]) -> None:
    from tilewright.optimize.versions.leftovers import KINDS

    for kind, about in KINDS.items():
        if of_kind := [each for each in found if each.kind == kind]:
            print(f"{kind}: {about}")
            for each in of_kind:
                print(f"  {each.name}" + (f"  {_size([each])}" if each.bytes else ""))


def _size(found: list[Leftover]) -> str:
    return f"{sum(each.bytes for each in found) / 2**20:.1f} MiB"
