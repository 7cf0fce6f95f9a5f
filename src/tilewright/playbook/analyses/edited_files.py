"""Joins the file of a kernel and the file of its launch into one source, so that one change can edit both.

A captured task launches a kernel of a library: the kernel is in the library's file, and the launch is in the task file.
Many changes need both. So an entry gets the two texts as one `Source`, the kernel's file first. Lines of the kernel's
file keep their numbers. `EditedFiles.parted` takes the texts apart after the change.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.playbook.analyses.task_code import launched_here
from tilewright.playbook.base import Entry, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

Part = ast.FunctionDef | ast.ClassDef
BETWEEN = "\n# The launch of the task, in its own file:\n"
"""The line between the two texts. It starts with a line break, because the first text may end without one."""


@dataclass(frozen=True)
class EditedFiles:
    """One source, and the files from which it was joined. Most sources are one file.

    hidden: maps the text that stands for a hidden function or class to its own text.
    """

    source: Source
    paths: tuple[Path, ...]
    hidden: Mapping[str, str] = field(default_factory=dict, repr=False)

    def changed(self, texts: Mapping[Path, str], entry: Entry, site: Site, value: Value) -> dict[Path, str]:
        """Returns ``texts`` after the entry's change of this source. Raises `NotApplicable` if that is impossible."""
        return {**texts, **self.parted(entry.change(self.source, site, value))}

    def parted(self, text: str) -> dict[Path, str]:
        """Returns the text of each file in the changed ``text``. Raises `NotApplicable` if they cannot be told
        apart."""
        for shown, own in self.hidden.items():
            if text.count(shown) != 1:
                raise NotApplicable(f"{self.source.name}: the change removes code that the kernel does not use")
            text = text.replace(shown, own)
        parts = text.split(BETWEEN)
        if len(parts) != len(self.paths):
            raise NotApplicable(f"{self.source.name}: the change runs across the end of the file")
        return dict(zip(self.paths, parts, strict=True))


def edited_files(texts: Mapping[Path, str]) -> list[EditedFiles]:
    """Returns the sources of the editable files: the file of the launched kernel joined with the file of the launch.

    If functions that are not hidden share a name, the files are not joined. Each other file is a source of its own.
    """
    sources = {path: Source(path.name, text) for path, text in texts.items()}
    joined = _kernel_and_launch(sources) if len(sources) > 1 else ()
    alone = [EditedFiles(source, (path,)) for path, source in sources.items() if path not in joined]
    if not joined:
        return alone
    kernel, launch = (sources[path] for path in joined)
    text, hidden = _with_hidden(kernel, launched_here(launch), launch.functions)
    return [EditedFiles(Source(joined[0].name, text + BETWEEN + launch.text), joined, hidden), *alone]


def _hidden_parts(source: Source, kernel: str) -> Iterator[tuple[int, Part]]:
    """Yields the functions and classes to hide, with their places in the file.

    Not hidden are the kernel, the functions that it calls, and all code that names one of these.
    """
    reached = source.called_by([kernel])
    for number, part in enumerate(ast.parse(source.text).body):
        names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} & (reached - {kernel})
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and part.name not in reached and not names:
            yield number, part


def _with_hidden(source: Source, kernel: str, taken: Collection[str]) -> tuple[str, dict[str, str]]:
    """Returns the text with functions and classes hidden, and for each text that stands for one its own text.

    taken: names of other functions, such as ``launch``, which a program may have, too.
    """
    lines, hidden = source.text.split("\n"), dict[str, str]()
    for number, part in _hidden_parts(source, kernel):
        first = min([part.lineno, *(decorator.lineno for decorator in part.decorator_list)]) - 1
        own = "\n".join(lines[first : part.end_lineno])
        name = f"_hidden_{part.name}" if part.name in taken else part.name
        begins = f"def {name}(*_):" if isinstance(part, ast.FunctionDef) else f"class {name}:"
        shown = f'{begins} """{number}' + "\n" * own.count("\n") + '"""'
        lines[first : part.end_lineno] = shown.split("\n")
        hidden[shown] = own
    return "\n".join(lines), hidden


def _kernel_and_launch(sources: Mapping[Path, Source]) -> tuple[Path, ...]:
    for launch, source in sources.items():
        kernel = launched_here(source)
        for path, other in sources.items():
            if path != launch and kernel in other.functions:
                both = other.functions.keys() & source.functions.keys()
                if not both or both <= {part.name for _, part in _hidden_parts(other, kernel)}:
                    return (path, launch)
    return ()
