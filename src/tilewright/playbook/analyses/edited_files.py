"""Joins the file of a kernel and the file of its launch into one source, so that one change can edit both.

A captured task launches a kernel of a library: the kernel is in the library's file, and the launch is in the task file.
Many changes need both. So an entry gets the two texts as one `Source`, the kernel's file first. Lines of the kernel's
file keep their numbers. `EditedFiles.parted` takes the texts apart after the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.playbook.analyses.task_code import launched_here
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Source

BETWEEN = "\n# The launch of the task, in its own file:\n"
"""The line between the two texts. It starts with a line break, because the first text may end without one."""


@dataclass(frozen=True)
class EditedFiles:
    """One source, and the files from which it was joined. Most sources are one file."""

    source: Source
    paths: tuple[Path, ...]

    def parted(self, text: str) -> dict[Path, str]:
        """Returns the text of each file in the changed ``text``. Raises `NotApplicable` if they cannot be told
        apart."""
        parts = text.split(BETWEEN)
        if len(parts) != len(self.paths):
            raise NotApplicable(f"{self.source.name}: the change runs across the end of the file")
        return dict(zip(self.paths, parts, strict=True))


def edited_files(texts: Mapping[Path, str]) -> list[EditedFiles]:
    """Returns the sources of the editable files: the file of the launched kernel joined with the file of the launch.

    If functions of the two files share a name, the files are not joined. Each other file is a source of its own.
    """
    sources = {path: Source(path.name, text) for path, text in texts.items()}
    joined = _kernel_and_launch(sources) if len(sources) > 1 else ()
    alone = [EditedFiles(source, (path,)) for path, source in sources.items() if path not in joined]
    if not joined:
        return alone
    text = BETWEEN.join(texts[path] for path in joined)
    return [EditedFiles(Source(joined[0].name, text), joined), *alone]


def _kernel_and_launch(sources: Mapping[Path, Source]) -> tuple[Path, ...]:
    for launch, source in sources.items():
        kernel = launched_here(source)
        for path, other in sources.items():
            if path != launch and kernel in other.functions and not other.functions.keys() & source.functions.keys():
                return (path, launch)
    return ()
