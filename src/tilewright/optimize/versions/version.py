"""Versions of a task's editable files: each lies in its own folder and can be loaded as a task.

    version = materialise(folder, "3:ROWS=4", texts)              # writes the copies
    task = with_baseline_checks(load(version, where), baseline)

A version supplies a kernel and its configurations. Everything that checks it (reference, tensors, workloads,
tolerances) comes from the baseline, so no edit can weaken its own checks.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.errors import RequestError, TaskError
from tilewright.ledger.file import storage
from tilewright.task.loading import load_task
from tilewright.task.task import Task


@dataclass(frozen=True)
class KernelVersion:
    """One version of the editable files. ``files``: absolute path of the user's file → that of this version's copy."""

    name: str
    files: Mapping[str, str]


class Forbidden(RequestError):
    """The change edits something that no change may edit."""


def materialise(folder: Path, name: str, texts: Mapping[Path, str]) -> KernelVersion:
    """Writes the copies into their own directory below ``folder``.

    texts: the text of each editable file. If two files share a name, the copies keep their folders.
    """
    directory = folder.absolute() / _directory(name)
    files = [Path(os.path.abspath(path)) for path in texts]
    distinct = len({path.name for path in files}) == len(files)
    common = "" if distinct else os.path.commonpath([path.parent for path in files])
    copies = {path: directory / (path.name if distinct else path.relative_to(common)) for path in files}
    with storage(directory):
        for path, text in zip(files, texts.values(), strict=True):
            copies[path].parent.mkdir(parents=True, exist_ok=True)
            copies[path].write_bytes(text.encode())
    return KernelVersion(name, {str(path): str(copy) for path, copy in copies.items()})


def load(version: KernelVersion, where: str) -> Task:
    """Loads the task from this version's files. ``where``: as in `loading.load_task`. Raises TaskError, in one line,
    for any error in the files."""
    try:
        return load_task(where, version.files)
    except TaskError:
        raise
    except RequestError as error:  # the task is no longer in the file
        raise TaskError(str(error)) from error


def with_baseline_checks(candidate: Task, baseline: Task) -> Task:
    """Returns the baseline's task with the candidate's launch and space, forward and backward. Raises Forbidden if the
    candidate is another task."""
    if candidate.name != baseline.name:
        raise Forbidden(f"the task is called '{candidate.name}'; it was '{baseline.name}'")
    if (candidate.backward is None) != (baseline.backward is None):
        change = "has no backward any more" if candidate.backward is None else "has gained a backward"
        raise Forbidden(f"task '{baseline.name}' {change}")
    backward = None
    if baseline.backward is not None and candidate.backward is not None:
        backward = with_baseline_checks(candidate.backward, baseline.backward)
    return replace(baseline, launch=candidate.launch, space=candidate.space, backward=backward)


def read_source(path: Path) -> str:
    """Returns the text of an editable file, with its line ends unchanged. Raises TaskError if it cannot be read."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise TaskError(f"{path} is not UTF-8; fix: save it as UTF-8") from None


def _directory(name: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9_.=-]+", "-", name).strip(".-") or "version"
    if readable == name and len(name) < 100:
        return name
    return f"{readable[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
