"""The journal of a run, with real git and real files: what it changes is exactly what it says, and it goes back.

C-13, X-25 of the requirements.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.optimize.versions.kit import git, tree

from tilewright.errors import MachineError
from tilewright.optimize.versions.entries import journal_entries, journal_runs
from tilewright.optimize.versions.journal import Journal
from tilewright.optimize.versions.user_tree import ChangeRefused, FileChanged

Opened: TypeAlias = Callable[..., Journal]


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
        with pytest.raises(FileChanged, match="train.py was changed by another program, and was not restored; fix: "):
            change()
    assert (root / "train.py").read_bytes() == b"the user's"
    journal.backup_file("train.py")
    journal.edit_file("train.py", "ours again")
    journal.revert_all()
    assert (root / "train.py").read_bytes() == b"the user's"


def test_the_hint_to_the_recorded_file_is_a_command_that_works_without_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "a program"
    folder.mkdir()
    (folder / "train.py").write_text("before")
    with Journal.open(folder, "run-1", tmp_path / "home") as journal:
        journal.backup_file("train.py")
        journal.edit_file("train.py", "ours")
        (folder / "train.py").write_text("the user's")
        with pytest.raises(FileChanged) as refused:
            journal.revert_all()
    command = shlex.split(str(refused.value).partition("look at the recorded one: ")[2])
    assert subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True).stdout == "ours"


def test_two_journals_of_one_repository(root: Path, opened: Opened, home: Path) -> None:
    first = opened("run-1")
    other = rf"another run is changing files in .*my program: run run-1 \(process {os.getpid()}\); fix: wait"
    with pytest.raises(MachineError, match=other):
        opened("run-2")
    first.close()
    opened("run-2").backup_file("train.py")
    assert journal_runs(root, home) == ("run-2",)
    assert [entry.kind for entry in journal_entries(root, "run-2", home)] == ["backup"]


@pytest.mark.parametrize(
    "names", ["a/lib/code.py b/lib/code.py", "lib/code.py lib/code.py", "old/lib/code.py new/lib/code.py"]
)
def test_a_plain_diff(root: Path, opened: Opened, names: str) -> None:
    """With leading folders, as git writes it, and without."""
    (root / "lib").mkdir()
    (root / "lib" / "code.py").write_text("one\ntwo\n")
    old, new = names.split()
    journal, patch = opened(), f"--- {old}\n+++ {new}\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert journal.files_of(patch) == (root / "lib" / "code.py",)
    journal.backup_file("lib/code.py")
    journal.apply_patch(patch)
    assert (root / "lib" / "code.py").read_text() == "one\n2\n"


def test_a_renamed_file_keeps_its_mode(root: Path, opened: Opened) -> None:
    before, journal = tree(root), opened()
    patch = "diff --git a/train.py b/run.py\nrename from train.py\nrename to run.py\n"
    for path in journal.files_of(patch):
        journal.backup_file(path)
    journal.apply_patch(patch)
    assert tree(root)["run.py"] == before["train.py"] and "train.py" not in tree(root)


def test_back_to_a_step(root: Path, opened: Opened) -> None:
    """To a kept change, when the next one is no gain; and never to before a change of the user's own."""
    before, journal = tree(root), opened()
    journal.backup_file("train.py")
    kept = journal.edit_file("train.py", "kept\n")
    for name in ("train.py", "lib/new.py"):
        journal.backup_file(name)
    journal.edit_files({root / "train.py": "no gain\n", root / "lib" / "new.py": "new\n"})
    journal.revert_to(kept)
    assert tree(root) == before | {"train.py": ("file", 0o640, b"kept\n")}
    (root / "train.py").write_text("the user's\n")
    journal.backup_file("train.py")
    with pytest.raises(FileChanged, match="train.py was changed by another program after that step"):
        journal.revert_to(kept)
    with pytest.raises(ChangeRefused, match="beef is no entry of run run-1"):
        journal.revert_to("beef")
    assert (root / "train.py").read_text() == "the user's\n"


def test_nothing_to_undo(root: Path, opened: Opened) -> None:
    with pytest.raises(ChangeRefused, match="run run-1 has changed no file of .*my program"):
        opened().revert_all()


def test_a_run_is_undone_with_git_alone(root: Path, opened: Opened) -> None:
    """As docs/cleaning-up.md says: a change of the user's own in another line stays."""
    git(root, "init", "-q")
    (root / ".gitattributes").unlink(missing_ok=True)
    text = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
    (root / "train.py").write_bytes(text)
    with opened() as journal:
        for name in ("train.py", "made.py"):
            journal.backup_file(name)
        journal.edit_files({root / "train.py": text.replace(b"two", b"2"), root / "made.py": "made\n"})
    (root / "train.py").write_bytes(text.replace(b"two", b"2").replace(b"seven", b"the user's"))
    head = "refs/tilewright/run-1/journal/head"
    undo = f"git diff --binary {head}:was {head}:now | git apply -R"
    subprocess.run(undo, shell=True, cwd=root, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}, check=True)
    assert (root / "train.py").read_bytes() == text.replace(b"seven", b"the user's")
    assert not (root / "made.py").exists()
