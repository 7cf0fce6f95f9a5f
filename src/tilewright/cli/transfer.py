"""`tilewright transfer`: translates tuning configurations between Triton and cuTile."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tilewright.cli import terminal
from tilewright.cli.completion import one_of
from tilewright.cli.exit_codes import NO
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.source.configurations import Listed

Source = Annotated[
    str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, and the name of a kernel or list in it.")
]
To = Annotated[Literal["cutile", "triton"], one_of("--to", "cutile", "triton", help="The language to transfer to.")]
OnlyArch = Annotated[
    str | None, typer.Option(metavar="A", help="Drop what this architecture does not allow, for example sm_90.")
]
Renamed = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="A parameter's new name. May be given several times."),
]


def transfer(
    source: Source, to: To = "cutile", arch: OnlyArch = None, rename: Renamed = None, as_json: AsJson = False
) -> None:
    """Translates the tuning configurations of a Triton kernel for cuTile, or of a cuTile kernel for Triton.

    Reads the file and does not run its code. Prints Python that can be pasted. Comments name the fields without an
    equivalent, with the reason. Exit code 1 if nothing could be transferred.

    Example: `tilewright transfer softmax_triton.py:softmax_kernel --to cutile --arch sm_90`

    Example: `tilewright transfer matmul.py --to triton --rename TILE_K=BK`
    """
    from tilewright.cli import transfer_text as text
    from tilewright.source.configurations import not_reached, read
    from tilewright.transfer.triton import transfer as transferred

    path, colon, name = source.rpartition(":")
    named = bool(colon) and not Path(source).exists()
    file = Path(path if named else source)
    language: Literal["triton", "cutile"] = "triton" if to == "cutile" else "cutile"
    names = _names(rename or [])
    lists = read(file, language, name if named else None)
    fields = _fields(lists)
    if unknown := next((old for old in names if old not in fields), None):
        raise RequestError(f"--rename {unknown}: no configuration names it; known: {', '.join(sorted(fields))}")
    done = []
    for listed in lists:
        own = {old: new for old, new in names.items() if old in _fields([listed])}
        done.append((listed, transferred(listed.configurations, to=to, names=own, arch=arch)))
    any_transferred = any(result.configurations for _, result in done)
    if as_json:
        print_json([text.to_json(listed, result) for listed, result in done])
    else:
        imports = f"import {'tilewright as tw' if to == 'cutile' else 'triton'}\n\n" if any_transferred else ""
        print(imports + "\n\n".join(text.python(listed, result) for listed, result in done))
    if to == "cutile" and (left := not_reached(file)):
        terminal.note(f"{file}: not reached, and not in the output: triton.Config(…), {left}")
    if not any_transferred:
        raise typer.Exit(NO)


def _names(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for (old, _, new), text in zip(pairs, given, strict=True):
        if not old.isidentifier() or not new.isidentifier() or iskeyword(new):
            raise RequestError(f"--rename '{text}' is not of the form OLD=NEW, with two names")
    return {old: new for old, _, new in pairs}


def _fields(lists: Sequence[Listed]) -> set[str]:
    return {field for listed in lists for written in listed.configurations for field, _ in written.fields}
