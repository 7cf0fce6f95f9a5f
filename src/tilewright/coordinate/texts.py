"""The source texts of the user's files that a run changes. This module reads files and writes none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from tilewright.errors import RequestError
from tilewright.ledger.agent_records import AgentChange

Texts: TypeAlias = Mapping[Path, str]


def read(path: Path) -> str | None:
    """Returns the text of a file; None if there is no such file. Raises RequestError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error


def on_disk(paths: Iterable[Path]) -> dict[Path, str]:
    """Returns the texts of the files that exist."""
    found = {path: read(path) for path in paths}
    return {path: text for path, text in found.items() if text is not None}


def by_name(texts: Texts) -> dict[str, str]:
    """Returns the texts by the names of their files, as the ledger stores them."""
    return {str(path): text for path, text in texts.items()}


def original(kept: Iterable[AgentChange]) -> dict[Path, str]:
    """Returns the texts before all kept changes. Files that a change created are left out."""
    first: dict[Path, str | None] = {}
    for change in kept:
        for path in change.texts:
            first.setdefault(Path(path), change.before.get(path))
    return {path: text for path, text in first.items() if text is not None}


def final(kept: Iterable[AgentChange]) -> dict[Path, str]:
    """Returns the texts with all kept changes."""
    return {Path(path): text for change in kept for path, text in change.texts.items()}


def diff(old: Texts, new: Texts, root: Path) -> str:
    """Returns the difference as one patch for ``git apply`` in ``root``."""
    return "".join(_diff(path, old.get(path), new.get(path), root) for path in dict.fromkeys((*old, *new)))


def _diff(path: Path, old: str | None, new: str | None, root: Path) -> str:
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix().lstrip("/")
    changed = difflib.unified_diff(
        (old or "").splitlines(keepends=True), (new or "").splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{name}", "/dev/null" if new is None else f"b/{name}",
    )  # fmt: skip
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in changed)
