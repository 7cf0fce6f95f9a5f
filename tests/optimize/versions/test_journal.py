"""The journal of a run, with real git and real files: what it changes is exactly what it says, and it goes back.

C-13, X-25 of the requirements.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.optimize.versions.kit import tree

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
