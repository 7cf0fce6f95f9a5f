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
from tilewright.errors import UnknownChoice
from tilewright.task.examples import examples_folder


def names() -> list[str]:
    return sorted(path.stem for path in examples_folder().glob("*.py"))


Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The example.  [default: list them]", autocompletion=lambda: names()),
]


def example(name: Name = None, as_json: AsJson = False) -> None:
    """Writes one of the shipped examples into the current folder, or lists them. Never overwrites a file.

    Example: `tilewright example`

    Example: `tilewright example rms_norm`
    """
    about = {title: _about(examples_folder() / f"{title}.py") for title in names()}
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
    for each in sorted((written, *_modules(written)), key=lambda file: not file.exists()):  # an error before any write
        each.parent.mkdir(exist_ok=True)
        write(each, (examples_folder() / each).read_text(encoding="utf-8"), mode="x")
    if as_json:
        print_json({"file": str(written)})
    else:
        terminal.note(f"wrote {written}; next: tilewright check {written}")


def _modules(example: Path) -> list[Path]:
    """Returns the files beside an example that it imports, and those that they import."""
    found, waiting = list[Path](), [example]
    while waiting:
        tree = ast.parse((examples_folder() / waiting.pop()).read_text(encoding="utf-8"))
        named = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        files = [Path(*name.split(".")).with_suffix(".py") for name in named]
        new = [file for file in files if (examples_folder() / file).is_file() and file not in found]
        found, waiting = [*found, *new], [*waiting, *new]
    return found


def _about(path: Path) -> str:
    """Returns the first paragraph of the example's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())
