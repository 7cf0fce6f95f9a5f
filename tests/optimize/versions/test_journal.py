"""The journal of a run, with real git and real files: what it changes is exactly what it says, and it goes back.

C-13, X-25 of the requirements.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tilewright.errors import MachineError
from tilewright.optimize.versions.entries import journal_entries, journal_runs
from tilewright.optimize.versions.journal import Journal
from tilewright.optimize.versions.user_tree import ChangeRefused, FileChanged

Tree: TypeAlias = "dict[str, tuple[str, int, bytes]]"
Opened: TypeAlias = Callable[..., Journal]


@pytest.fixture(autouse=True)
def _a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose git settings are as awkward as a user's may be, and who has no name."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[commit]\ngpgSign = true\n[core]\nautocrlf = true\n[diff]\nnoprefix = true\n[apply]\nwhitespace = fix\n"
        "ignoreWhitespace = change\n[safe]\nbareRepository = explicit\n[log]\nshowSignature = true\n"
        "[color]\nui = always\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def git(folder: Path, *arguments: str) -> str:
    who = ("user.name=User", "user.email=user@example.org", "commit.gpgSign=false", "core.autocrlf=false")
    options = [word for setting in (*who, "color.ui=false") for word in ("-c", setting)]
    done = subprocess.run(["git", *options, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def tree(root: Path) -> Tree:
    """What is in the folder, git's own files excepted: name → kind, mode and bytes."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] == ".git":
            continue
        if path.is_symlink():
            found[name] = ("link", 0, os.fsencode(os.readlink(path)))
        elif path.is_dir():
            found[name] = ("folder", 0, b"")
        else:
            found[name] = ("file", path.stat().st_mode & 0o7777, path.read_bytes())
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(params=["repository", "no repository"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program, in a repository or not."""
    folder = tmp_path / "my program"
    folder.mkdir()
    (folder / "train.py").write_bytes(b"import torch\r\nprint('caf\xe9')\n\0no newline")
    (folder / "train.py").chmod(0o640)
    (folder / "latest").symlink_to("train.py")
    if request.param == "repository":
        git(folder, "init", "-q")
        (folder / ".gitattributes").write_text("*.py text eol=crlf filter=none\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def opened(root: Path, home: Path) -> Iterator[Opened]:
    """Opens a journal of ``root``; all are closed in the end."""
    journals: list[Journal] = []

    def open_(run: str = "run-1") -> Journal:
        journals.append(Journal.open(root, run, home))
        return journals[-1]

    yield open_
    for journal in journals:
        journal.close()


def test_an_edit_is_undone_byte_for_byte(root: Path, opened: Opened) -> None:
    before, journal = tree(root), opened()
    backup = journal.backup_file("train.py")
    edit = journal.edit_file(root / "train.py", "print('new')\n")
    assert tree(root) == before | {"train.py": ("file", 0o640, b"print('new')\n")}
    revert = journal.revert_file("train.py")
    assert tree(root) == before
    assert [(entry.id, entry.kind) for entry in journal.entries] == [
        (backup, "backup"), (edit, "edit"), (revert, "revert")
    ]  # fmt: skip


def test_no_edit_without_a_backup(root: Path, opened: Opened) -> None:
    before, journal = tree(root), opened()
    patch = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-import torch\r\n+import os\r\n"
    for refused in (
        lambda: journal.edit_file("train.py", ""), lambda: journal.revert_file("train.py"),
        lambda: journal.apply_patch(patch),
    ):  # fmt: skip
        with pytest.raises(ChangeRefused, match="train.py has no backup in run run-1; fix: call backup_file first"):
            refused()
    assert tree(root) == before and journal.entries == ()


def test_what_the_user_has_changed_since_is_left(root: Path, opened: Opened) -> None:
    journal = opened()
    journal.backup_file("train.py")
    journal.edit_file("train.py", "ours")
    (root / "train.py").write_bytes(b"the user's")
    for change in (
        lambda: journal.edit_file("train.py", "x"), lambda: journal.revert_file("train.py"), journal.revert_all,
    ):  # fmt: skip
        with pytest.raises(FileChanged, match="train.py was changed by another program, and was left so; fix: "):
            change()
    assert (root / "train.py").read_bytes() == b"the user's"
    journal.backup_file("train.py")
    journal.edit_file("train.py", "ours again")
    journal.revert_all()
    assert (root / "train.py").read_bytes() == b"the user's"


def test_two_journals_of_one_repository(root: Path, opened: Opened, home: Path) -> None:
    first = opened("run-1")
    other = rf"another run is changing files in .*my program: run run-1 \(process {os.getpid()}\); fix: wait"
    with pytest.raises(MachineError, match=other):
        opened("run-2")
    first.close()
    opened("run-2").backup_file("train.py")
    assert journal_runs(root, home) == ("run-2",)
    assert [entry.kind for entry in journal_entries(root, "run-2", home)] == ["backup"]
