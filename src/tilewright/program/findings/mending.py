"""Finds the lines at which the changes of a program have sites."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tilewright.program.changes import program_changes
from tilewright.program.changes.base import ChangeSite
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.reach import reached_modules

Sites: TypeAlias = Mapping[str, frozenset[tuple[str, int]]]
"""Name of a change → the lines of its sites, as files below the root and numbers."""


def sites_of(script: Path, root: Path) -> Sites:
    """Returns the lines that each change would make different. Reads the program's files."""
    modules = reached_modules(script, root)
    return {
        change.name: frozenset(
            (os.path.relpath(module.path, root.resolve()), line)
            for module in modules for site in change.sites(module) for line in lines_of_site(module, site)
        )
        for change in program_changes() if not change.never
    }  # fmt: skip


def lines_of_site(module: ReadModule, site: ChangeSite) -> set[int]:
    """Returns the lines that a site is at, or that its edits replace."""
    lines = {site.line}
    for edit in site.edits:
        if edit.end > edit.start:
            first = module.text.count("\n", 0, edit.start) + 1
            lines |= set(range(first, first + module.text.count("\n", edit.start, edit.end - 1) + 1))
    return lines
