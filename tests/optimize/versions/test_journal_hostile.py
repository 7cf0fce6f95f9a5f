"""What a journal refuses: paths that lead elsewhere, patches that lie, files that are not what they were."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.optimize.versions.kit import git, tree

from tilewright.errors import RequestError
from tilewright.optimize.versions import user_tree
from tilewright.optimize.versions.journal import Journal
from tilewright.optimize.versions.user_tree import ChangeRefused, FileChanged


@pytest.fixture
def outside(root: Path, tmp_path: Path) -> Path:
    """A file that is not of the program; a link in the program leads to its folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret.py").write_text("secret\n")
    (root / "away").symlink_to(folder)
    (root / "inner").mkdir()
    (root / "inner" / "code.py").write_text("code\n")
    (root / "round").symlink_to("inner")
    return folder / "secret.py"


REFUSED = {
    "../elsewhere/secret.py": "is outside",
    "/etc/passwd": "is outside",
    "inner/../../elsewhere/secret.py": "leads out of|is outside",
    "away/secret.py": "leads out of",
    "away/../elsewhere/secret.py": "leads out of|is outside",
    ".git/hooks/pre-commit": "is git's own file",
    "inner/.GIT/config": "is git's own file",
    "submodule/code.py": "is in another repository, submodule",
    "inner": "is a folder",
    "pipe": "is not a regular file",
    "large": "has 64 MiB; a source file has at most 64|has 65 MiB",
    "": "does not name a file|is outside",
    "..": "does not name a file",
    "nul\0.py": "does not name a file",
    "two\nlines/../../x": "is outside",
}
"""Path → reason."""


def test_a_path_that_is_refused(root: Path, outside: Path, opened: Callable[..., Journal]) -> None:
    (root / "submodule").mkdir()
    (root / "submodule" / ".git").write_text("gitdir: ../.git/modules/submodule\n")
    (root / "submodule" / "code.py").write_text("code\n")
    os.mkfifo(root / "pipe")
    with (root / "large").open("wb") as file:
        file.truncate(user_tree.LARGEST + 1)
    journal = opened()
    for path, reason in REFUSED.items():
        with pytest.raises(ChangeRefused, match=reason) as refused:
            journal.backup_file(path)
        assert len(str(refused.value).splitlines()) == 1
    assert journal.entries == () and outside.read_text() == "secret\n"


def test_own_folders_are_closed(root: Path) -> None:
    for folder in ("repositories", "worktrees"):
        (root / ".tilewright" / folder).mkdir(parents=True)
        with Journal.open(root, "run", root / ".tilewright") as journal, pytest.raises(ChangeRefused, match="is in"):
            journal.backup_file(root / ".tilewright" / folder / "any" / "config")
    with pytest.raises(ChangeRefused, match="is git's own folder"):
        Journal.open(root / ".git" / "hooks", "run", root / ".tilewright")


def test_a_link_in_the_folders_of_a_path_is_followed_inside(
    root: Path, outside: Path, opened: Callable[..., Journal]
) -> None:
    before, journal = tree(root), opened()
    journal.backup_file("round/code.py")
    journal.edit_file("inner/code.py", "changed\n")
    assert tree(root) == before | {"inner/code.py": ("file", 0o644, b"changed\n")}


def test_a_link_is_not_its_target(root: Path, opened: Callable[..., Journal]) -> None:
    before, journal = tree(root), opened()
    journal.backup_file("latest")
    with pytest.raises(ChangeRefused, match="latest is a symbolic link; fix: edit the file that it leads to"):
        journal.edit_file("latest", "text")
    assert tree(root) == before


@pytest.mark.parametrize("folders", [True, False])
def test_a_link_that_appears_after_the_backup(
    root: Path, outside: Path, opened: Callable[..., Journal], folders: bool
) -> None:
    journal = opened()
    path = root / "inner" / "secret.py"
    path.write_text("ours\n")
    journal.backup_file(path)
    if folders:
        shutil.rmtree(root / "inner")
        (root / "inner").symlink_to(outside.parent)
    else:
        path.unlink()
        path.symlink_to(outside)
    for change in (lambda: journal.edit_file(path, "evil"), lambda: journal.revert_file(path), journal.revert_all):
        with pytest.raises((ChangeRefused, FileChanged)):
            change()
    assert outside.read_text() == "secret\n"


def test_a_link_that_appears_while_the_file_is_replaced(
    root: Path, outside: Path, opened: Callable[..., Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is opened without following links, so the swap comes too late to lead away."""
    path = root / "inner" / "secret.py"
    path.write_text("ours\n")
    journal = opened()
    journal.backup_file(path)
    written = user_tree._write

    def swap(*arguments: object) -> None:
        written(*arguments)  # type: ignore[arg-type]
        if not (root / "inner").is_symlink():
            (root / "inner").rename(root / "moved")
            (root / "inner").symlink_to(outside.parent)

    monkeypatch.setattr(user_tree, "_write", swap)
    journal.edit_file(path, "new\n")
    assert outside.read_text() == "secret\n" and (root / "moved" / "secret.py").read_text() == "new\n"


def test_a_change_just_before_the_rename(
    root: Path, opened: Callable[..., Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened()
    for name in ("a.py", "train.py"):
        journal.backup_file(name)
    written = user_tree._write

    def save(folder: int, temporary: str, wanted: user_tree.FileContent, like: str) -> None:
        written(folder, temporary, wanted, like)
        if like == "train.py":
            (root / "train.py").write_text("saved by the user\n")

    monkeypatch.setattr(user_tree, "_write", save)
    with pytest.raises(FileChanged, match="train.py was changed by another program just now"):
        journal.edit_files({root / "a.py": "a", root / "train.py": "b"})
    assert (root / "train.py").read_text() == "saved by the user\n" and not (root / "a.py").exists()
    assert not [name for name in tree(root) if name.startswith(".tilewright")]


NEW = "diff --git a/{name} b/{name}\nnew file mode {mode}\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{text}\n"
CODE = "--- a/inner/code.py\n+++ b/inner/code.py\n"


PATCHES = (
    NEW.format(name="../elsewhere/new.py", mode="100644", text="x"),
    NEW.format(name="/etc/tilewright-was-here", mode="100644", text="x"),
    NEW.format(name=".git/hooks/pre-commit", mode="100755", text="x"),
    NEW.format(name="away/new.py", mode="100644", text="x"),
    NEW.format(name="round/new.py", mode="100644", text="x"),
    NEW.format(name="inner/code.py", mode="100644", text="x"),  # is there already
    NEW.format(name="link", mode="120000", text="/etc/passwd"),
    NEW.format(name="link", mode="120000", text="inner/../../elsewhere"),
    NEW.format(name="sub", mode="160000", text="Subproject commit " + "1" * 40),
    f"{CODE}@@ -1 +1 @@\n-other\n+new\n",
    f"{CODE}@@ -1,3 +1,3 @@\n other context\n-code\n+new\n and after\n",
    f"{CODE}@@ -1 +1 @@\n-code  \n+new\n",  # differs in white space
    f"{CODE}@@ -1 +1 @@\n-code\n+new\n+lost\n",  # more lines than the header says
    f"{CODE}@@ -1 +1,2 @@\n-code\n+new\n",  # fewer
    f"{CODE}@@ -1 +1 @\n-code\n+new\n",
    f"{CODE}@@ -1 +1 @@\n-code\n+new\n--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-not there\n+x\n",
    "not a patch", "", "--- a/inner/code.py\n", "diff --git a/x b/x\n",
    "--- a/absent.py\n+++ b/absent.py\n@@ -1 +1 @@\n-a\n+b\n",
)  # fmt: skip


def test_a_patch_that_is_refused(root: Path, outside: Path, opened: Callable[..., Journal]) -> None:
    """Whatever is backed up before, nothing changes: neither the file that does not fit, nor another one."""
    journal, before = opened(), tree(root)
    for path in ("inner/code.py", "train.py", "absent.py", "link", "sub", "inner/new.py"):
        journal.backup_file(path)
    entries = journal.entries
    for patch in PATCHES:
        with pytest.raises(ChangeRefused) as refused:
            print(patch, journal.apply_patch(patch))
        assert len(str(refused.value).splitlines()) == 1
        assert tree(root) == before and journal.entries == entries, patch
    assert {path.name for path in outside.parent.iterdir()} == {"secret.py"}
    assert not Path("/etc/tilewright-was-here").exists()


def test_a_lone_surrogate_that_is_no_byte(root: Path, opened: Callable[..., Journal]) -> None:
    journal = opened()
    journal.backup_file("train.py")
    with pytest.raises(ChangeRefused, match=r"the new text of train.py has U\+D800 at character 1, which UTF-8 cannot"):
        journal.edit_file("train.py", "a\ud800")
    text = (root / "train.py").read_bytes().decode(errors="surrogateescape")
    journal.edit_file("train.py", text + "#")
    assert (root / "train.py").read_bytes() == text.encode(errors="surrogateescape") + b"#"


def test_a_read_only_file(root: Path, opened: Callable[..., Journal]) -> None:
    (root / "train.py").chmod(0o444)
    before, journal = tree(root), opened()
    journal.backup_file("train.py")
    with pytest.raises(ChangeRefused, match=r"train.py is read-only; fix: chmod u\+w"):
        journal.edit_file("train.py", "x")
    assert tree(root) == before


def test_another_name_of_the_file_keeps_its_content(root: Path, opened: Callable[..., Journal], tmp_path: Path) -> None:
    before, journal = (root / "train.py").read_bytes(), opened()
    os.link(root / "train.py", tmp_path / "cache.py")
    journal.backup_file("train.py")
    journal.edit_file("train.py", "x")
    assert (tmp_path / "cache.py").read_bytes() == before
    journal.revert_file("train.py")
    assert (root / "train.py").read_bytes() == before


def test_a_disk_that_fails_midway(root: Path, opened: Callable[..., Journal], monkeypatch: pytest.MonkeyPatch) -> None:
    before, journal, rename = tree(root), opened(), os.rename
    for name in ("a.py", "new/b.py", "train.py"):
        journal.backup_file(name)
    renamed: list[object] = []

    def full(*arguments: object, **options: object) -> None:
        renamed.append(arguments)
        if len(renamed) == 3:
            raise OSError(28, "No space left on device")
        rename(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(RequestError, match="cannot be used: No space left on device; it was not changed"):
        journal.edit_files({root / name: "x" for name in ("a.py", "new/b.py", "train.py")})
    assert tree(root) == before
    assert journal.edit_file("train.py", "y") == journal.entries[-1].id


def test_the_users_git_is_not_touched(root: Path, home: Path) -> None:
    """Index, HEAD, branches, stash and status are the same bytes as before; nothing runs in the user's tree."""
    if not (root / ".git").exists():
        git(root, "init", "-q")
    (root / "staged.py").write_text("staged\n")
    git(root, "add", "staged.py")
    (root / "staged.py").write_text("and changed\n")
    for hook in ("reference-transaction", "post-commit", "pre-auto-gc"):
        (root / ".git" / "hooks" / hook).write_text("#!/bin/sh\ntouch hook-ran\nexit 1\n")
        (root / ".git" / "hooks" / hook).chmod(0o755)
    index, head = (root / ".git" / "index").read_bytes(), (root / ".git" / "HEAD").read_bytes()
    status = git(root, "status", "--porcelain")
    before = tree(root)
    with Journal.open(root, "run", home) as journal:
        journal.backup_file("staged.py")
        journal.edit_file("staged.py", "ours\n")
        journal.revert_all()
    assert ((root / ".git" / "index").read_bytes(), (root / ".git" / "HEAD").read_bytes()) == (index, head)
    assert git(root, "status", "--porcelain") == status and tree(root) == before
    assert not git(root, "branch", "--list", "*tilewright*")
    refs = git(root, "for-each-ref", "--format=%(refname)", "refs/tilewright").split()
    assert refs == ["refs/tilewright/run/journal/head", "refs/tilewright/run/journal/next"]
    undo = subprocess.run(["git", "fsck", "--strict"], cwd=root, capture_output=True, text=True)
    assert undo.returncode == 0, undo.stderr
