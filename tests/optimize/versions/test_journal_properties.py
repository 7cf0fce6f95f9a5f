"""Random sequences of edits, reverts and changes of the user, on random trees: the tree is as a simple model says."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.optimize.versions.kit import Tree, git, tree

from tilewright.optimize.versions.entries import journal_entries
from tilewright.optimize.versions.journal import Journal
from tilewright.optimize.versions.user_tree import ChangeRefused, FileChanged

NAMES = ("train.py", "a b/ü.py", "a b/deep/er/x", "new line\n.py", os.fsdecode(b"caf\xe9.py"), "-n", '"quoted"\\.py')
ABSENT = ("absent", 0, b"")
FILES = st.tuples(
    st.just("file"),
    st.sampled_from((0o644, 0o640, 0o600, 0o755, 0o2750, 0o664)),
    st.sampled_from((b"", b"a\nb\n", b"a\r\nb\r\n", b"no end", b"\0\xff\xfe", b"\xed\xa0\x80", b"ident $Id$\n"))
    | st.binary(max_size=40),
)
LINKS = st.tuples(st.just("link"), st.just(0), st.sampled_from((b"train.py", b"nowhere", b"\xff", b"/etc/passwd")))
STATES = st.one_of(FILES, FILES, LINKS, st.just(ABSENT))


def put(root: Path, name: str, state: tuple[str, int, bytes]) -> None:
    """As the user does it."""
    path = root / name
    if os.path.lexists(path):
        path.unlink()
    kind, mode, data = state
    if kind != "absent":
        path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        os.symlink(data, os.fsencode(path))
    elif kind == "file":
        path.write_bytes(data)
        path.chmod(mode)


class Journalled(RuleBasedStateMachine):
    """A journal of some files, and a model of it: name → what the journal has recorded, and what is on the disk."""

    repository = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tilewright-test-"))
        self.root = self.folder / "program"
        self.root.mkdir()
        self.was: Tree = {}
        self.backup: Tree = {}
        self.now: Tree = {}
        self.disk: Tree = dict.fromkeys(NAMES, ABSENT)
        self.folders: set[str] = set()
        self.recorded: list[tuple[str, Tree, Tree]] = []

    @initialize(states=st.lists(STATES, min_size=len(NAMES), max_size=len(NAMES)))
    def start(self, states: list[tuple[str, int, bytes]]) -> None:
        if self.repository:
            git(self.root, "init", "-q")
        for name, state in zip(NAMES, states, strict=True):
            self.users_change(name, state)
        self.journal = Journal.open(self.root, "run", self.folder / "home")

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
        shutil.rmtree(self.folder)

    @rule(name=st.sampled_from(NAMES), state=STATES)
    def users_change(self, name: str, state: tuple[str, int, bytes]) -> None:
        put(self.root, name, state)
        self.disk[name] = state
        self.folders = {each for each, (kind, *_) in tree(self.root).items() if kind == "folder"}

    @rule(name=st.sampled_from(NAMES))
    def back_up(self, name: str) -> None:
        entry = self.journal.backup_file(name)
        if self.now.get(name) != self.disk[name]:
            self.was[name] = self.disk[name]
        self.backup[name] = self.now[name] = self.disk[name]
        self.record(entry)

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1, max_size=3), data=st.binary(max_size=9))
    def edit(self, names: set[str], data: bytes) -> None:
        texts = {self.root / name: data for name in names}
        if not names <= self.now.keys() or any(self.now[name][0] == "link" for name in names):
            with pytest.raises(ChangeRefused):
                self.journal.edit_files(texts)
            return
        after = {}
        for name in names:
            kind, mode, _ = self.now[name]
            after[name] = ("file", mode if kind == "file" else 0o644, data)
        self.change(after, lambda: self.journal.edit_files(texts))

    @rule(name=st.sampled_from(NAMES))
    def revert(self, name: str) -> None:
        if name not in self.now:
            with pytest.raises(ChangeRefused):
                self.journal.revert_file(name)
            return
        self.change({name: self.backup[name]}, lambda: self.journal.revert_file(name))

    @precondition(lambda self: self.now)
    @rule()
    def revert_all(self) -> None:
        self.change(self.was, self.journal.revert_all)

    @precondition(lambda self: self.recorded)
    @rule(data=st.data())
    def revert_to(self, data: st.DataObject) -> None:
        entry, now, was = data.draw(st.sampled_from(self.recorded))
        if any(self.was[name] != was[name] for name in was):
            with pytest.raises(FileChanged):
                self.journal.revert_to(entry)
            return
        self.change(self.was | now, lambda: self.journal.revert_to(entry))

    @rule()
    def open_again(self) -> None:
        self.journal.close()
        self.journal = Journal.open(self.root, "run", self.folder / "home")
        assert self.journal.recovered.entry == ""

    def change(self, after: Tree, act: Callable[[], str]) -> None:
        if any(self.disk[name] != self.now[name] for name in after):
            with pytest.raises(FileChanged):
                act()
            return
        entry = act()
        self.disk |= after
        self.now |= after
        self.record(entry)

    def record(self, entry: str) -> None:
        self.recorded.append((entry, dict(self.now), dict(self.was)))

    @invariant()
    def the_tree_is_as_the_model_says(self) -> None:
        found = tree(self.root)
        files = {name: state for name, state in found.items() if state[0] != "folder"}
        assert files == {name: state for name, state in self.disk.items() if state != ABSENT}
        needed = {str(folder) for name in files for folder in Path(name).parents} - {"."}
        assert needed <= {name for name, state in found.items() if state[0] == "folder"} <= needed | self.folders


class JournalledWithoutGit(Journalled):
    repository = False


@pytest.mark.parametrize("machine", [Journalled, JournalledWithoutGit])
def test_the_tree_is_as_the_model_says(machine: type[Journalled]) -> None:
    os.umask(0o022)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=8, stateful_step_count=12, deadline=None, derandomize=True,
            suppress_health_check=list(HealthCheck), phases=(Phase.generate,),
        ),
    )  # fmt: skip


GIT_FILES = st.tuples(
    st.just("file"), st.sampled_from((0o644, 0o755)), st.text("ab\r\n\0é", max_size=30).map(str.encode)
)
GIT_LINKS = st.tuples(st.just("link"), st.just(0), st.sampled_from((b"train.py", b"x/../y")))
GIT_TREES = st.dictionaries(st.sampled_from(NAMES), st.one_of(GIT_FILES, GIT_FILES, GIT_LINKS), max_size=4)


def patch_of_git(folder: Path, before: Tree, after: Tree) -> bytes:
    folder.mkdir()
    git(folder, "init", "-q")
    for states in (before, after):
        for name in {**before, **after}:
            put(folder, name, states.get(name, ABSENT))
        git(folder, "add", "-A")
        if states is before:
            git(folder, "commit", "-q", "--allow-empty", "-m", "before")
    options = ("--cached", "--binary", "--find-renames=20", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
    return subprocess.run(["git", "diff", *options], cwd=folder, capture_output=True, check=True).stdout


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(before=GIT_TREES, after=GIT_TREES)
def test_a_patch_of_git_makes_the_other_tree(before: Tree, after: Tree) -> None:
    """And a revert makes the first one again."""
    if before == after:
        return
    with tempfile.TemporaryDirectory() as folder:
        root, home = Path(folder, "program"), Path(folder, "home")
        root.mkdir()
        for name, state in before.items():
            put(root, name, state)
        first, patch = tree(root), patch_of_git(Path(folder, "git"), before, after)
        with Journal.open(root, "run", home) as journal:
            files = journal.files_of(patch)
            assert {path.relative_to(root).as_posix() for path in files} == {
                name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
            }
            for path in files:
                journal.backup_file(path)
            journal.apply_patch(patch)
            assert {name: state for name, state in tree(root).items() if state[0] != "folder"} == after
            journal.revert_all()
            assert tree(root) == first
        assert [entry.kind for entry in journal_entries(root, "run", home)][-2:] == ["patch", "revert"]
