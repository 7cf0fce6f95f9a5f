"""Brings back what a command left on another machine (`work.WorkFolder.pack`), as if it had run here.

Runs go into the ledger here, and files of Tilewright's folder into that folder. Commits and refs go into the user's
repository; the checkout does not change. A file of the user is written only if it still is as it was when it was
brought over; otherwise the new one is put into ``brought`` beside the ledger. Names of folders over there become those
here.

The machine over there may be broken into. So nothing is written outside these folders, nothing of earlier runs here is
replaced, and of what it sends, git gets only objects and refs, and no kernel is launched.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import StorageError
from tilewright.ledger.file import make_private
from tilewright.ledger.merging import merged
from tilewright.ledger.runs import LedgerFile
from tilewright.remote.client import OBJECT
from tilewright.remote.messages import WorkOrder
from tilewright.remote.unpacking import is_inside, refused_name, unpack
from tilewright.remote.work import BUNDLE, LEDGER, NO_RESULTS, OURS, CommandResults, digest_of
from tilewright.tools.git import TREE, Git, GitError, bare_repository, private_name

TEXTS = frozenset((".html", ".json", ".jsonl", ".log", ".md", ".patch", ".py", ".svg", ".txt", ".yaml"))
"""Files of Tilewright's folder in which names of folders are replaced."""
REPOSITORIES = "repositories"
STAYS = frozenset((REPOSITORIES, "cubins"))
"""Folders of Tilewright's folder that are not copied. Machine code from over there is not launched here."""
RUN = re.compile(r"refs/tilewright/([^/]+)")
OF_A_REPOSITORY = ("HEAD", "objects", "packed-refs", "refs")
"""What is taken of a private repository: no settings and no hooks, which name commands."""


@dataclass(frozen=True)
class FolderNames:
    """The folders over there, and those here that they stand for."""

    tree: str
    home: str
    order: WorkOrder

    def here(self, text: str) -> str:
        """Returns a text with the names of folders over there replaced by those here."""
        return text.replace(self.home, self.order.home).replace(self.tree, self.order.root) if self.tree else text


def bring(packed: Path, places: FolderNames, note: Callable[[str], None], given: frozenset[str]) -> None:
    """Brings everything back. It can be called again after it was interrupted.

    note: called with what could not be brought back as it is, and with the user's files that were written.
    given: the names of the files that were brought over there. No other file of the user is replaced.
    Raises StorageError if something cannot be written here, MachineError if what is sent cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-") as scratch:
        folder = Path(scratch)
        try:
            _Bringing(folder, unpack(packed, folder), places, note, given).all()
        except OSError as error:
            raise StorageError(
                f"cannot write what the command left: {error.filename}: {error.strerror}; fix: make room, or make it "
                "writable, and run the same command again: it is kept over there"
            ) from error


class _Bringing:
    def __init__(
        self, folder: Path, left: CommandResults, places: FolderNames, note: Callable[[str], None],
        given: frozenset[str],
    ) -> None:  # fmt: skip
        self.folder, self.left, self.places, self.note, self.given = folder, left, places, note, given
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
        checked_out = git("worktree", "list", "--porcelain").splitlines()
        if bundle.is_file():
            git("bundle", "unbundle", str(bundle))
        own = self._own_runs()
        for name, to in self.left.refs.items():
            if not OURS.fullmatch(name) or not OBJECT.fullmatch(to):
                continue
            if _is_of(name, own):
                self.note(f"{name} is of a run of this machine, so it is not changed")
                continue
            present = git.line_or_none("rev-parse", "--verify", "--quiet", name)
            stands = f"branch {name}" in checked_out or (present is not None and not _goes_on(git, present, to))
            if name.startswith("refs/heads/") and stands:
                self.note(f"branch {name.removeprefix('refs/heads/')} exists here, so it is not changed; see {to[:12]}")
                continue
            git("update-ref", name, to)

    def _own_runs(self) -> frozenset[str]:
        """Returns the names of the runs that were made here."""
        with LedgerFile(self.home / LEDGER) as ledger:
            return ledger.own_names()

    def _home(self) -> None:
        source = self.folder / "home"
        if not source.is_dir():
            return
        make_private(self.home)
        for path in _every(source):
            name = path.relative_to(source)
            if name.parts[0] not in STAYS and name.name not in (LEDGER, ".gitignore"):
                self._keep(path, name)
        for repository in (source / REPOSITORIES).glob("[!.]*"):
            self._repository(repository)

    def _keep(self, new: Path, name: Path) -> None:
        """Adds a file to Tilewright's folder. One that is there and differs stays as it is."""
        path, translated = self.home / name, self.places.here if new.suffix in TEXTS else None
        if len(name.parts) == 1 and name.suffix == ".jsonl":  # a log, to which lines are added
            known = path.read_bytes().splitlines() if path.is_file() else []
            with path.open("ab") as file:
                file.writelines(line + b"\n" for line in new.read_bytes().splitlines() if line not in known)
        elif not is_inside(path, self.home):
            self.note(f"{name} is not brought, because a link leads out of {_shown(self.home)}")
        elif not path.is_symlink() and not path.exists():
            self._write(new, path, translated)
        elif path.read_bytes() != _content(new, translated):
            aside = self.home / "brought" / name
            self._write(new, aside, translated)
            self.note(f"{_shown(path)} is here already and is left as it is; the new one is {_shown(aside)}")

    def _repository(self, brought: Path) -> None:
        """Adds the refs of a private repository. That of a folder is named after the folder."""
        named = {private_name(TREE, [self.places.tree]): private_name(TREE, [self.places.order.root])}
        source = self.folder / "repositories" / brought.name
        Git(self.folder)("init", "--quiet", "--bare", "--template=", str(source))
        for part in OF_A_REPOSITORY:
            if (brought / part).is_dir():
                shutil.copytree(brought / part, source / part, dirs_exist_ok=True, ignore=_links)
            elif (brought / part).is_file():
                shutil.copyfile(brought / part, source / part)
        place = bare_repository(self.home / REPOSITORIES / named.get(brought.name, brought.name))
        refs = Git(source, {"GIT_DIR": str(source)})("for-each-ref", "--format=%(refname)").splitlines()
        here, own = place("for-each-ref", "--format=%(refname)").splitlines(), self._own_runs()
        wanted = [ref for ref in refs if OURS.fullmatch(ref) and not (ref in here and ref.startswith("refs/heads/"))]
        if wanted := [f"+{ref}:{ref}\n" for ref in wanted if not _is_of(ref, own)]:
            place("fetch", "--quiet", "--stdin", str(source), stdin="".join(wanted))

    def _files(self) -> None:
        for name, before in self.left.files.items():
            new, path = self.folder / "tree" / name, self.root / name
            if refused_name(name) or NO_RESULTS & set(Path(name).parts) or not is_inside(new, self.folder / "tree"):
                continue
            if not is_inside(path, self.root) or (new.is_symlink() and not _stays_inside(new, path, self.root)):
                self.note(f"{name} is not brought, because a link leads out of {self.root}")
                continue
            now = digest_of(path)
            if now == digest_of(new):
                continue
            if now == before and (not path.exists() or name in self.given):
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
                draft.write_bytes(_content(new, translated))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _is_of(ref: str, runs: frozenset[str]) -> bool:
    return (run := RUN.match(ref)) is not None and run[1] in runs


def _content(new: Path, translated: Callable[[str], str] | None) -> bytes:
    content = new.read_bytes()
    if translated is None:
        return content
    return translated(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _stays_inside(new: Path, path: Path, root: Path) -> bool:
    """Whether a link leads to a place below ``root`` if it is put at ``path``."""
    return is_inside(path.parent / os.readlink(new) / "any", root)


def _links(folder: str, names: list[str]) -> list[str]:
    """Returns what is not copied of a repository: links, and the names of other repositories to read objects from."""
    outside = ("alternates", "http-alternates")
    return [name for name in names if name in outside or os.path.islink(os.path.join(folder, name))]


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
