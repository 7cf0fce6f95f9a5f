"""The copy of the user's files in which a command runs on another machine, and what the command leaves there.

    CACHE/work/RUN/tree       the files; in a git repository with the commit that is checked out on the user's machine
    CACHE/work/RUN/home       Tilewright's folder: the ledger, reports and patches
    CACHE/work/RUN/journal    all messages of a command that ended, for a client that comes later

`WorkFolder.pack` writes a tar with what the command left. `results.bring` takes it apart on the user's machine:

    left.json                 `CommandResults`
    refs.bundle               the commits of new and changed refs
    home/…, tree/…            new and changed files
"""

from __future__ import annotations

import base64
import filecmp
import hashlib
import json
import os
import re
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.ledger.codec import to_json
from tilewright.remote import ON_VARIABLE
from tilewright.remote.files import MOST_BYTES
from tilewright.remote.messages import Checkout, WorkOrder
from tilewright.tools.git import Git

LEFT, BUNDLE, LEDGER = "left.json", "refs.bundle", "ledger.db"
NO_RESULTS = frozenset(("__pycache__", ".git", "worktrees"))
"""Folders that are not brought back."""
OURS = re.compile(r"refs/(tilewright/.+|heads/[^/]+-perf-.+)")
"""Refs that Tilewright makes. Others, which a program of the user may make, are not brought back."""
NO_RESULT_ENDS = (".lock", "-wal", "-shm", "-journal")


@dataclass(frozen=True)
class CommandResults:
    """What a command left.

    tree, home: the folders over there.
    refs: maps the name of each new or changed ref to its object.
    files: maps the name of each new or changed file, relative to ``tree``, to the digest that it had; "" for a new one.
    too_large: the files that stay over there, because all of them are too large to bring back.
    """

    tree: str
    home: str
    refs: dict[str, str]
    files: dict[str, str]
    too_large: tuple[str, ...] = ()


class WorkFolder:
    """The work folder of one run. ``brought``: the folder with the files as they were brought."""

    def __init__(self, run: str, brought: Path, order: WorkOrder) -> None:
        self.brought, self.order, self.cache = brought, order, brought.parent.parent
        self.folder = self.cache / "work" / run
        self.tree, self.home, self.journal = (self.folder / name for name in ("tree", "home", "journal"))
        self.store = self.folder / "store"

    def prepare(self) -> None:
        """Makes the copy, unless an earlier command of this run has made it."""
        self.home.mkdir(parents=True, exist_ok=True)
        os.utime(self.folder)
        if self.tree.is_dir():
            return
        new = self.folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(self.brought, new, symlinks=True)
        if self.order.checkout is not None:
            self._check_out(Git(new), self.order.checkout)
        if self.order.store:
            self._take_store()
        new.rename(self.tree)

    def _check_out(self, git: Git, checkout: Checkout) -> None:
        """Makes a repository with the user's commit, without its history. So new commits have it as their parent."""
        git("init", "--quiet", "--template=", ".")
        repository = self.cache / "repositories" / f"{checkout.repository}.git"
        (git.folder / ".git" / "objects" / "info").mkdir(exist_ok=True)
        (git.folder / ".git" / "objects" / "info" / "alternates").write_text(f"{repository / 'objects'}\n")
        raw = git.folder / ".git" / "commit"
        raw.write_bytes(base64.b64decode(checkout.commit))
        head = git.line("hash-object", "-t", "commit", "-w", "--no-filters", str(raw))
        (git.folder / ".git" / "shallow").write_text(f"{head}\n")
        for name, value in zip(("user.name", "user.email"), checkout.author, strict=True):
            if value:
                git("config", name, value)
        branch = checkout.branch or "detached"
        git("symbolic-ref", "HEAD", f"refs/heads/{branch}")
        refs = dict.fromkeys((branch, *checkout.taken))
        git("update-ref", "--stdin", stdin="".join(f"create refs/heads/{name} {head}\n" for name in refs))
        git("read-tree", "HEAD")

    def _take_store(self) -> None:
        """Takes the store of tuned kernels that was brought. It names the files of the user's machine."""
        shutil.copytree(self.cache / "store" / self.order.store, self.store, dirs_exist_ok=True)
        for file in self.store.glob("*.db"):
            with closing(sqlite3.connect(file)) as connection, connection:
                names = self.order.root, str(self.tree)
                connection.execute("UPDATE winners SET launches = replace(launches, ?, ?)", names)

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of the command."""
        variables = {
            "TILEWRIGHT_HOME": str(self.home), ON_VARIABLE: self.order.on, "GIT_CEILING_DIRECTORIES": str(self.folder),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }  # fmt: skip
        return variables | ({"TILEWRIGHT_TUNED": str(self.store)} if self.order.store else {})

    @property
    def is_of_use(self) -> bool:
        """Whether the same command can go on from it: it ended, or its run is in the ledger."""
        return self.journal.is_file() or (self.home / LEDGER).is_file()

    def remove(self) -> None:
        """Removes the folder under another name, so that a thread that still writes finds it no more."""
        gone = self.folder.with_name(f".gone-{self.folder.name}-{os.getpid()}")
        with suppress(OSError):
            self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    # What is left -----------------------------------------------------------------------------------

    def pack(self) -> Path:
        """Writes the tar with what the command left, and returns its path."""
        refs, packed = self._refs(), self.folder / "left.tar.gz"
        files, too_large, total = dict[str, str](), list[str](), 0
        with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
            for name, path in sorted(self._files(), key=lambda each: each[1].lstat().st_size):
                total += path.lstat().st_size
                if total > MOST_BYTES:
                    too_large.append(str(path))
                    continue
                tar.add(path, name, recursive=False)
                if name.startswith("tree/"):
                    files[name.removeprefix("tree/")] = digest_of(self.brought / name.removeprefix("tree/"))
            if (bundle := self._bundle(refs)) is not None:
                tar.add(bundle, BUNDLE)
            (self.folder / LEFT).write_text(
                json.dumps(to_json(CommandResults(str(self.tree), str(self.home), refs, files, tuple(too_large))))
            )
            tar.add(self.folder / LEFT, LEFT)
        return packed

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yields each new or changed file with its name in the tar."""
        if (self.home / LEDGER).is_file():
            copy = self.folder / LEDGER  # the ledger's own files may lack what its log has
            copy.unlink(missing_ok=True)
            with closing(sqlite3.connect(self.home / LEDGER)) as ledger, closing(sqlite3.connect(copy)) as whole:
                ledger.backup(whole)
            yield f"home/{LEDGER}", copy
        for path in _every(self.home):
            if path != self.home / LEDGER:
                yield f"home/{path.relative_to(self.home)}", path
        for path in _every(self.tree):
            name = path.relative_to(self.tree)
            if not _same(path, self.brought / name):
                yield f"tree/{name}", path

    def _refs(self) -> dict[str, str]:
        checkout = self.order.checkout
        if checkout is None:
            return {}
        given = {f"refs/heads/{name}" for name in (checkout.branch or "detached", *checkout.taken)}
        lines = Git(self.tree)("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        refs = dict(line.split(" ") for line in lines)
        return {name: to for name, to in refs.items() if OURS.fullmatch(name) and name not in given}

    def _bundle(self, refs: dict[str, str]) -> Path | None:
        """Writes the commits that the user's repository lacks. Returns None if there are none."""
        if not refs:
            return None
        git, file = Git(self.tree), self.folder / BUNDLE
        head = git.line("rev-parse", "HEAD")
        new = [name for name, to in refs.items() if to != head]
        if not new:
            return None
        git("bundle", "create", "--quiet", str(file), "--stdin", stdin="\n".join([*new, f"^{head}", ""]))
        return file


def _every(folder: Path) -> Iterator[Path]:
    """Yields the files and links of a folder that may be brought back."""
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in NO_RESULTS]
        for name in files:
            path = Path(where, name)
            if not name.endswith(NO_RESULT_ENDS) and (path.is_symlink() or path.is_file()):
                yield path


def _same(path: Path, brought: Path) -> bool:
    if path.is_symlink() or brought.is_symlink():
        return path.is_symlink() and brought.is_symlink() and os.readlink(path) == os.readlink(brought)
    return brought.is_file() and filecmp.cmp(path, brought)


def digest_of(path: Path) -> str:
    """Returns the digest of a file, or of the target's name of a link; "" if there is none."""
    if path.is_symlink():
        return hashlib.sha256(b"link " + os.fsencode(os.readlink(path))).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
