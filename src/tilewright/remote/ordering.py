"""What a whole command needs on another machine: its words as they are there, its files, and the user's commit."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.ledger.file import home
from tilewright.remote import files
from tilewright.remote.messages import Checkout, WorkOrder
from tilewright.task.loading import file_named


@dataclass(frozen=True)
class Ordered:
    """A command for another machine. ``store``: a tar with the store of tuned kernels; nothing if it needs none."""

    words: tuple[str, ...]
    bundle: files.Bundle
    order: WorkOrder
    store: bytes = b""


def ordered_command(
    words: Sequence[str], task: str | None, paths: Iterable[Path], on: str, brings: bool = True,
    store: Path | None = None,
) -> Ordered:  # fmt: skip
    """Collects what a command needs (see `executors.base.Executor.command`; ``brings``: whether it needs files).

    Raises RequestError for a path outside the folder that is brought.
    """
    name, wanted = file_named(task) if task else ("", "")
    file = Path(name) if name else None
    paths = [*paths, *([file] if file else [])]
    bundle, checkout = files.nothing(), None
    if brings:
        named = [path for path in paths if path.is_file()]
        bundle = files.bundle_for_command(file.resolve().parent if file else Path.cwd(), named)
        checkout = _checkout(bundle) if bundle.repository is not None else None
    there = {str(path): os.path.relpath(bundle.relative(path), bundle.folder) for path in paths}
    if task and file:
        there[task] = there[str(file)] + (f":{wanted}" if wanted else "")
    tar = files.tar_of(store.parent, [store]) if store is not None else b""
    key = hashlib.sha256(tar).hexdigest()[:16] if tar else ""
    order = WorkOrder(str(bundle.root), str(home().absolute()), on, key, checkout)
    return Ordered(tuple(_word_there(word, there) for word in words), bundle, order, tar)


def _word_there(word: str, there: dict[str, str]) -> str:
    option, equals, value = word.partition("=")
    if word in there:
        return there[word]
    return f"{option}={there[value]}" if equals and option.startswith("-") and value in there else word


def _checkout(bundle: files.Bundle) -> Checkout:
    git = ["git", "-C", str(bundle.root)]

    def asked(*words: str) -> bytes:
        return subprocess.run([*git, *words], capture_output=True, check=False).stdout

    def line(*words: str) -> str:
        return asked(*words).decode(errors="replace").strip()

    branch = line("symbolic-ref", "--quiet", "--short", "HEAD")
    taken = line("for-each-ref", "--format=%(refname:short)", "refs/heads/*-perf-*").split()
    commit = base64.b64encode(asked("cat-file", "commit", "HEAD")).decode()
    author = line("config", "user.name"), line("config", "user.email")
    return Checkout(commit, branch, bundle.root_key, tuple(name for name in taken if name != branch), author)
