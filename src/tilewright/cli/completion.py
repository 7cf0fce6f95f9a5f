"""Shell completion of architectures, kinds, task files, tasks, workloads, and options that take one of a few values.

Completion reads task files and does not run them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.models import OptionInfo

from tilewright.errors import RequestError


def one_of(flag: str, *names: str, help: str) -> OptionInfo:
    """Returns an option that takes one of ``names``.

    Typer's own ways do not work in all supported versions: 0.12 lacks ``Literal``, the newest lacks `click` choices.
    """

    def text(given: str) -> str:
        if given not in names:
            raise typer.BadParameter(f"{given!r} is not one of {', '.join(map(repr, names))}.")
        return given

    def beginning(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    metavar = f"[{'|'.join(names)}]"
    option: OptionInfo = typer.Option(flag, parser=text, metavar=metavar, help=help, autocompletion=beginning)
    return option


def kinds(incomplete: str) -> list[str]:
    from tilewright.space.kinds import KINDS

    return [name for kind in KINDS if (name := kind.replace(" ", "-")).startswith(incomplete)]


def architectures(incomplete: str) -> list[str]:
    """Completes the last architecture of a comma-separated list."""
    from tilewright.hardware.architectures import ARCHITECTURES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in ARCHITECTURES if name.startswith(last)]


def task_files(incomplete: str) -> list[str]:
    """Completes folders and Python files, and after a colon the tasks of a file."""
    file, colon, task = incomplete.rpartition(":")
    if colon:
        return [f"{file}:{name}" for name, _ in _tasks(file) if name.startswith(task)]
    start = Path(incomplete)
    folder, beginning = (start, "") if incomplete.endswith("/") else (start.parent, start.name)
    if not folder.is_dir():
        return []
    near = sorted(path for path in folder.iterdir() if path.name.startswith(beginning) and path.name[0] != ".")
    return [f"{path}/" if path.is_dir() else str(path) for path in near if path.is_dir() or path.suffix == ".py"]


def workloads(context: typer.Context, incomplete: str) -> list[str]:
    """Completes workloads. They come from the task file that is already on the command line."""
    where = str(context.params.get("where") or context.params.get("a") or next(iter(context.args), ""))
    file, colon, task = where.rpartition(":")
    named = [names for name, names in _tasks(file if colon else where) if not colon or name == task]
    return sorted({name for names in named for name in names if name.startswith(incomplete)})


def _tasks(file: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the workloads of each `Task` call in the file. Only literals can be read."""
    from tilewright.source.source_file import SourceFile, keywords
    from tilewright.source.values import called_name

    try:
        source = SourceFile.requested(Path(file))
    except (RequestError, RecursionError):
        return
    for call in (call for call in source.every(ast.Call) if called_name(call) == "Task"):
        name, listed = (keywords(call).get(word) for word in ("name", "workloads"))
        keys = listed.keys if isinstance(listed, ast.Dict) else []
        yield (
            str(name.value) if isinstance(name, ast.Constant) else "",
            [str(key.value) for key in keys if isinstance(key, ast.Constant)],
        )
