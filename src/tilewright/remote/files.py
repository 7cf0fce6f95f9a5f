"""What is brought to another machine: the files of a task, and Tilewright itself.

Files that git tracks travel as a git bundle, with the changes of the working tree and without their history. Its commit
is made in a repository of its own in the cache folder, on top of the commit that travelled last. The user's repository
is only read, and nothing is pushed. Other files that git does not ignore travel in a tar. Outside a repository, the
folder of the task travels as a whole.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import tilewright
from tilewright.errors import RequestError
from tilewright.task.loading import file_named
from tilewright.tools.git import Git

MOST_BYTES = 256 << 20
SKIPPED = ("__pycache__", "node_modules", ".tilewright")
_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "tilewright"), ("EMAIL", "tilewright@localhost"), ("DATE", "2000-01-01T00:00:00Z"))
}


@dataclass(frozen=True)
class Bundle:
    """The files of a task.

    root: the folder here that is reproduced over there.
    tree: the name of git's tree of the tracked files; "" if there is no repository.
    head: the name of git's tree of the commit that is checked out, for a command that adds commits to it; else "".
    """

    root: Path
    tree: str
    tar: bytes
    repository: Path | None = None
    head: str = ""

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.tree}{self.head}".encode() + self.tar).hexdigest()[:16]

    @property
    def root_key(self) -> str:
        return _key_of(self.root)

    def names(self) -> frozenset[str]:
        """Returns the names of the files, relative to ``root``."""
        with tarfile.open(fileobj=io.BytesIO(self.tar)) as tar:
            names = frozenset(tar.getnames())
        if self.repository is None:
            return names
        git = Git(self.repository, {"GIT_DIR": str(self.repository)})
        return names | set(filter(None, git("ls-tree", "-r", "-z", "--name-only", self.tree).split("\0")))

    def packed(self, have: str) -> bytes:
        """Returns the git bundle; nothing without a repository.

        have: the commit that an earlier run brought; "" if there is none. The bundle leaves out what that commit has.
        """
        if self.repository is None:
            return b""
        git = Git(self.repository, {"GIT_DIR": str(self.repository), **_AUTHOR})
        known = have and git.line_or_none("cat-file", "-e", have) is not None
        parent, less = (["-p", have], [f"^{have}"]) if known else ([], [])
        for tree in filter(None, (self.head, self.tree)):
            commit = git.line("commit-tree", *parent, "-m", "files for another machine", tree)
            parent = ["-p", commit]
        with tempfile.TemporaryDirectory(prefix="tilewright-") as scratch:
            git("update-ref", "refs/heads/tilewright", commit)
            git("bundle", "create", "-q", f"{scratch}/bundle", "refs/heads/tilewright", *less)
            return Path(scratch, "bundle").read_bytes()

    @property
    def folder(self) -> str:
        """The folder over there that stands for the working directory; the root if the user is outside it."""
        work = Path.cwd().resolve()
        return str(work.relative_to(self.root)) if work.is_relative_to(self.root) else "."


@dataclass(frozen=True)
class Surroundings:
    """The files around a task file: those that git tracks or does not ignore, or all in its folder without git."""

    root: Path
    files: tuple[Path, ...]

    def zipped(self) -> bytes:
        """Returns the files as a zip, which depends on nothing but their names and contents.

        Raises RequestError if they are too large.
        """
        out, total = io.BytesIO(), 0
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as file:
            for path in self.files:
                total += path.stat().st_size
                refuse_large(total, self.root, path)
                file.writestr(zipfile.ZipInfo(str(path.relative_to(self.root))), path.read_bytes())
        return out.getvalue()


def surroundings(file: Path) -> Surroundings:
    """Returns the files around a task file."""
    file = file.resolve()
    root = _repository_root(file.parent)
    if root is None:
        return Surroundings(file.parent, tuple(sorted(_every(file.parent))))
    names = _listed(root, "--cached") | _untracked(root, [file], lambda: file.parent.glob("*.py"))
    return Surroundings(root, tuple(path for path in sorted(names) if path.is_file()))


def _untracked(root: Path, named: Sequence[Path], beside: Callable[[], Iterable[Path]]) -> set[Path]:
    """Returns the files that git neither tracks nor ignores. ``named`` and ``beside``: as for `_bundle`."""
    found, tracked = _listed(root, "--others", "--exclude-standard"), _listed(root, "--cached")
    ignored = {*named} - tracked - found
    return found | ignored | ({*beside()} - tracked if ignored else set())


def _listed(root: Path, *options: str) -> set[Path]:
    return {root / name for name in Git(root)("ls-files", "-z", *options).split("\0") if name}


def relative(root: Path, path: Path) -> str:
    """Returns the name over there of a file here. Raises RequestError for a file outside ``root``."""
    try:
        return str(path.resolve().relative_to(root))
    except ValueError:
        raise RequestError(
            f"{path} is outside {root}, which is brought to the other machine; fix: put it into that folder"
        ) from None


def task_there(root: Path, task: str) -> str:
    """Returns the name over there of a task, ``FILE`` or ``FILE:TASK``. Raises RequestError as `relative`."""
    file, wanted = file_named(task)
    return relative(root, Path(file)) + (f":{wanted}" if wanted else "")


def texts_there(root: Path, copies: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the texts of copies by the names over there of the files that they replace. ``copies``: maps each file
    to its copy (`executors.base.Executor.open`)."""
    return {relative(root, Path(name)): Path(copy).read_text() for name, copy in (copies or {}).items()}


def nothing() -> Bundle:
    """Returns a bundle without files, for a command that needs none."""
    return Bundle(Path.cwd().resolve(), "", tar_of(Path.cwd(), ()))


def bundle_of(file: Path) -> Bundle:
    """Collects the files around a task file. Raises RequestError if they are too large."""
    file = file.resolve()
    return _bundle(file.parent, [file], lambda: file.parent.glob("*.py"))


def bundle_for_command(folder: Path, named: Iterable[Path]) -> Bundle:
    """Collects the files around ``folder`` for a command that may add commits to what is checked out.

    named: files that the command reads, which are brought also if git ignores them.
    Raises RequestError if they are too large.
    """
    bundle = _bundle(folder.resolve(), [path.resolve() for path in named], lambda: ())
    if bundle.repository is None:
        return bundle
    return replace(bundle, head=Git(bundle.root).line("rev-parse", "HEAD^{tree}"))


def _bundle(folder: Path, named: Sequence[Path], beside: Callable[[], Iterable[Path]]) -> Bundle:
    """``named``: brought also if git ignores them. ``beside``: brought with such a file."""
    root = _repository_root(folder)
    if root is None:
        return Bundle(folder, "", tar_of(folder, sorted(_every(folder))))
    repository = cache_folder() / "bundles" / f"{_key_of(root)}.git"
    tree = _tree(root, repository)
    return Bundle(root, tree, tar_of(root, sorted(_untracked(root, named, beside))), repository)


def _repository_root(folder: Path) -> Path | None:
    if shutil.which("git") is None:
        return None
    git = Git(folder)
    root = git.line_or_none("rev-parse", "--show-toplevel")
    has_commit = git.line_or_none("rev-parse", "--quiet", "--verify", "HEAD") is not None
    return Path(root).resolve() if root is not None and has_commit else None


def _key_of(root: Path) -> str:
    return hashlib.sha256(str(root).encode()).hexdigest()[:16]


def _tree(root: Path, repository: Path) -> str:
    """Returns the name of the tree of the tracked files as they are now. It is made in a repository of its own."""
    at = "rev-parse", "--path-format=absolute", "--git-path"
    objects, index = (Git(root).line(*at, name) for name in ("objects", "index"))
    Git(root)("init", "-q", "--bare", str(repository))
    (repository / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    with tempfile.TemporaryDirectory(prefix="tilewright-") as scratch:
        if Path(index).is_file():
            shutil.copy2(index, f"{scratch}/index")
        places = {"GIT_DIR": str(repository), "GIT_WORK_TREE": str(root), "GIT_INDEX_FILE": f"{scratch}/index"}
        git = Git(root, places)
        git("add", "--update", "--", str(root))
        return git.line("write-tree")


def _every(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder, without caches, hidden folders and virtual environments."""
    for where, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders
            if name not in SKIPPED and not name.startswith(".") and not (Path(where) / name / "pyvenv.cfg").is_file()
        ]  # fmt: skip
        yield from (Path(where) / name for name in files)


def tar_of(root: Path, files: Iterable[Path], prefix: str = "") -> bytes:
    """Returns the files as a tar, which depends on nothing but their names, modes and contents.

    Raises RequestError if they are too large.
    """
    out, total = io.BytesIO(), 0
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0, compresslevel=4) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for path in files:
            if not path.is_symlink() and not path.is_file():
                continue  # a socket, or removed meanwhile
            info = tar.gettarinfo(path, prefix + str(path.relative_to(root)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            total += info.size
            refuse_large(total, root, path, "that git does not track ")
            if info.isreg():
                with path.open("rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)
    return out.getvalue()


def refuse_large(total: int, root: Path, path: Path, which: str = "") -> None:
    """Raises RequestError if ``total`` bytes, up to the file ``path``, are too many to bring."""
    if total > MOST_BYTES:
        raise RequestError(
            f"the files in {root} {which}are larger than {MOST_BYTES >> 20} MiB, too much to "
            f"bring along (at {path.relative_to(root)}); fix: let .gitignore name what the task does not need, "
            "or put the task into a folder of its own"
        )


def cache_folder() -> Path:
    """Returns the folder here for what is only kept to save time."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "tilewright"


@cache
def code() -> tuple[str, bytes]:
    """Returns Tilewright itself as a tar, and its key."""
    folder = Path(tilewright.__file__).parent
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    tar = tar_of(folder, files, "tilewright/")
    return hashlib.sha256(tar).hexdigest()[:16], tar
