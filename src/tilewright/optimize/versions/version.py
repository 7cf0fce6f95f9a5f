"""Versions of a task's editable files, side by side: each in a folder of its own, each loadable as a task.

    version = materialise(folder, "3:ROWS=4", texts)     # the copies
    task = judged(baseline, load(version, where))        # its kernel, under the baseline's judge

A version supplies a kernel and its configurations. Everything that judges it (reference, tensors,
workloads, tolerances) stays the baseline's, so that no edit can change its own judge.
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
    """The editable files at one moment.

    files: absolute path of the user's file → absolute path of this version's copy.
    """

    name: str
    files: Mapping[str, str]


class Forbidden(RequestError):
    """A change that no result could justify: it touches what it may not."""


def materialise(folder: Path, name: str, texts: Mapping[Path, str]) -> KernelVersion:
    """Writes the copies below ``folder``, in a directory that no other version's name shares.

    texts: the text of each editable file. Files of the same name keep the folders that tell them apart.
    """
    own = folder.absolute() / _directory(name)
    files = [Path(os.path.abspath(path)) for path in texts]
    alone = len({path.name for path in files}) == len(files)
    above = "" if alone else os.path.commonpath([path.parent for path in files])
    copies = {path: own / (path.name if alone else path.relative_to(above)) for path in files}
    with storage(own):
        for path, text in zip(files, texts.values(), strict=True):
            copies[path].parent.mkdir(parents=True, exist_ok=True)
            copies[path].write_bytes(text.encode())
    return KernelVersion(name, {str(path): str(copy) for path, copy in copies.items()})


def load(version: KernelVersion, where: str) -> Task:
    """The task as this version has it.

    where: as `loading.load_task` takes it. Raises TaskError, in one line, for whatever is wrong with
    the version's files.
    """
    try:
        return load_task(where, version.files)
    except TaskError:
        raise
    except RequestError as error:  # the task is no longer in the file
        raise TaskError(str(error)) from error


def judged(baseline: Task, candidate: Task) -> Task:
    """The candidate's launch and space in the baseline's task, forward and backward. Raises Forbidden where the
    candidate is another task."""
    if candidate.name != baseline.name:
        raise Forbidden(f"the task is called '{candidate.name}'; it was '{baseline.name}'")
    if (candidate.backward is None) != (baseline.backward is None):
        lost = "has no backward any more" if candidate.backward is None else "has gained a backward"
        raise Forbidden(f"task '{baseline.name}' {lost}")
    backward = None
    if baseline.backward is not None and candidate.backward is not None:
        backward = judged(baseline.backward, candidate.backward)
    return replace(baseline, launch=candidate.launch, space=candidate.space, backward=backward)


def read_source(path: Path) -> str:
    """The text of an editable file, its line ends as they are. Raises TaskError when it cannot be read."""
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
