"""`tilewright example`: the examples that come with Tilewright."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilewright.cli import terminal
from tilewright.cli.shared import AsJson, print_json, write
from tilewright.cli.terminal_table import Indented
from tilewright.errors import StorageError, UnknownChoice

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "examples", PACKAGE.parents[1] / "examples")
"""The folders of the examples: in an installed package, and in a checkout."""


def names() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.py"))


Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The example.  [default: list them]", autocompletion=lambda: names()),
]


def example(name: Name = None, as_json: AsJson = False) -> None:
    """Writes one of the shipped examples into the current folder, or lists them. Never overwrites a file.

    Example: `tilewright example`

    Example: `tilewright example rms_norm`
    """
    about = {title: _about(_folder() / f"{title}.py") for title in names()}
    if name is None:
        if as_json:
            print_json([{"name": title, "about": text} for title, text in about.items()])
            return
        for title, text in about.items():
            terminal.stdout().print(Text(title, style="bold"), Indented(Text(text)))
        terminal.note("write one here: tilewright example NAME")
        return
    if name not in about:
        raise UnknownChoice("example", name, about)
    written = Path(f"{name}.py")
    write(written, (_folder() / written).read_text(encoding="utf-8"), mode="x")
    if as_json:
        print_json({"file": str(written)})
    else:
        terminal.note(f"wrote {written}; next: tilewright check {written}")


def _folder() -> Path:
    for folder in FOLDERS:
        if folder.is_dir():
            return folder
    raise StorageError(f"the examples are not in {FOLDERS[0]}; reinstall Tilewright")


def _about(path: Path) -> str:
    """Returns the first paragraph of the example's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())
