"""Versions of a task's editable files. Each version has its own folder, from which `candidate.client` loads it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import TaskError
from tilewright.ledger.file import storage


@dataclass(frozen=True)
class KernelVersion:
    """One version of the editable files. ``files`` maps the absolute path of a user's file to this version's copy."""

    name: str
    files: Mapping[str, str]


def materialise(folder: Path, name: str, texts: Mapping[Path, str]) -> KernelVersion:
    """Writes a copy of each editable file into the folder ``name`` below ``folder``. If two files share a name, the
    copies keep their parent folders. ``texts``: the text to write, by the path of the user's file."""
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


def digest_of(texts: Mapping[Path, str]) -> str:
    """Returns a digest of a version's code. ``texts``: the text of each file, by the path of the user's file."""
    paired = sorted((str(path), text) for path, text in texts.items())
    return hashlib.sha256(json.dumps(paired).encode()).hexdigest()


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
