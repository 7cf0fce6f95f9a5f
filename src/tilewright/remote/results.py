"""Brings back what a command left on another machine (`work.WorkFolder.pack`), as if it had run here.

Runs go into the ledger here, and files of Tilewright's folder into that folder. Commits and refs go into the user's
repository; the checkout does not change. A file of the user is written only if it still is as it was when it was
brought over; otherwise the new one is put beside the ledger. Names of folders over there become those here.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import StorageError
from tilewright.ledger.codec import from_json
from tilewright.ledger.file import make_private
from tilewright.ledger.merging import merged
from tilewright.ledger.runs import LedgerFile
from tilewright.remote.messages import WorkOrder
from tilewright.remote.work import BUNDLE, LEDGER, LEFT, NO_RESULTS, OURS, CommandResults, digest_of
from tilewright.tools.git import TREE, Git, GitError, private_name

TEXTS = frozenset((".html", ".json", ".jsonl", ".log", ".md", ".patch", ".py", ".svg", ".txt", ".yaml"))
"""Files of Tilewright's folder in which names of folders are replaced."""
REPOSITORIES = "repositories"


@dataclass(frozen=True)
class FolderNames:
    """The folders over there, and those here that they stand for."""

    tree: str
    home: str
    order: WorkOrder

    def here(self, text: str) -> str:
        """Returns a text with the names of folders over there replaced by those here."""
        return text.replace(self.home, self.order.home).replace(self.tree, self.order.root) if self.tree else text


def bring(packed: Path, places: FolderNames, note: Callable[[str], None]) -> None:
    """Brings everything back. It can be called again after it was interrupted.

    note: called with what could not be brought back as it is, and with the user's files that were written.
    Raises StorageError if something cannot be written here.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-") as scratch:
        folder = Path(scratch)
        try:
            _unpack(packed, folder)
            left = from_json(CommandResults, json.loads((folder / LEFT).read_text()), defaults=True)
            _Bringing(folder, left, places, note).all()
        except OSError as error:
            raise StorageError(
                f"cannot write what the command left: {error.filename}: {error.strerror}; fix: make room, or make it "
                "writable, and run the same command again: it is kept over there"
            ) from error


def _unpack(packed: Path, folder: Path) -> None:
    with tarfile.open(packed, "r:gz") as tar:
        if hasattr(tarfile, "tar_filter"):
            tar.extractall(folder, filter="tar")
        else:
            tar.extractall(folder)  # noqa: S202  (the user's own machine)


class _Bringing:
    def __init__(self, folder: Path, left: CommandResults, places: FolderNames, note: Callable[[str], None]) -> None:
        self.folder, self.left, self.places, self.note = folder, left, places, note
        self.root, self.home = Path(places.order.root), Path(places.order.home)

    def all(self) -> None:
        """Brings the ledger last, because a run that is in it is whole."""
        self._refs()
        self._home()
        self._files()
        for name in self.left.too_large:
            self.note(f"{name} stays over there: all files together are too large to bring back")
        if (ledger := self.folder / "home" / LEDGER).is_file():
            with LedgerFile(self.home / LEDGER) as here, LedgerFile(ledger) as there:
                for run in merged(here, there, self.places.here):
                    if run.outcome == "left out":
                        self.note(f"run {run.run} is not in {here.path}: {run.why}")

    def _refs(self) -> None:
        """Adds commits and refs to the user's repository. A branch that exists here stays as it is."""
        if not self.left.refs:
            return
        git, bundle = Git(self.root), self.folder / BUNDLE
        if bundle.is_file():
            git("bundle", "unbundle", str(bundle))
        for name, to in self.left.refs.items():
            if not OURS.fullmatch(name):
                continue
            present = git.line_or_none("rev-parse", "--verify", "--quiet", name)
            if present is not None and name.startswith("refs/heads/") and not _goes_on(git, present, to):
                self.note(f"branch {name.removeprefix('refs/heads/')} exists here, so it is not changed; see {to[:12]}")
                continue
            git("update-ref", name, to)

    def _home(self) -> None:
        source = self.folder / "home"
        if not source.is_dir():
            return
        make_private(self.home)
        for path in _every(source):
            name = path.relative_to(source)
            if name.parts[0] != REPOSITORIES and name.name != LEDGER:
                self._write(path, self.home / name, self.places.here if path.suffix in TEXTS else None)
        for repository in (source / REPOSITORIES).glob("[!.]*"):
            self._repository(repository)

    def _repository(self, brought: Path) -> None:
        """Adds the refs of a private repository. That of a folder is named after the folder."""
        named = {private_name(TREE, [self.places.tree]): private_name(TREE, [self.places.order.root])}
        place = self.home / REPOSITORIES / named.get(brought.name, brought.name)
        if not place.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(brought, place)
            return
        Git(place, {"GIT_DIR": str(place)})("fetch", "--quiet", str(brought), "+refs/*:refs/*")

    def _files(self) -> None:
        for name, before in self.left.files.items():
            if Path(name).is_absolute() or (NO_RESULTS | {".."}) & set(Path(name).parts):
                continue
            new, path = self.folder / "tree" / name, self.root / name
            now = digest_of(path)
            if now == digest_of(new):
                continue
            if now == before:
                self._write(new, path, None)
                self.note(f"wrote {_shown(path)}")
                continue
            aside = self.home / "brought" / name
            self._write(new, aside, None)
            self.note(f"{_shown(path)} has changed here meanwhile and is left as it is; the new one is {_shown(aside)}")

    def _write(self, new: Path, path: Path, translated: Callable[[str], str] | None) -> None:
        """Replaces a file as a whole, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name[:100]}-{secrets.token_hex(4)}")
        try:
            shutil.copy2(new, draft, follow_symlinks=False)
            if translated is not None and not new.is_symlink():
                text = new.read_bytes().decode("utf-8", "surrogateescape")
                draft.write_bytes(translated(text).encode("utf-8", "surrogateescape"))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _every(folder: Path) -> Iterator[Path]:
    for where, _, files in os.walk(folder):
        yield from (Path(where, name) for name in files)


def _goes_on(git: Git, present: str, to: str) -> bool:
    """Whether a branch only moves on, as in a run that is taken up again."""
    try:
        git("merge-base", "--is-ancestor", present, to)
    except GitError:
        return False
    return True


def _shown(path: Path) -> str:
    """Returns the path relative to this folder, if the file is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative
