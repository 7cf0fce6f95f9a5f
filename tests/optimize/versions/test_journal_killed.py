"""A process that is killed while it changes the user's files: the next one finds the tree at a recorded step.

The process is killed at drawn lines of the journal and of what it uses, and at git commands, before or after they run.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.optimize.versions.kit import git, program, tree

from tilewright.errors import MachineError
from tilewright.optimize.versions import locks
from tilewright.optimize.versions.journal import Journal
from tilewright.optimize.versions.user_tree import ChangeRefused

TRACED = "/optimize/versions/"
LINES = 10
PATCH = """\
diff --git a/train.py b/train.py
old mode 100644
new mode 100755
--- a/train.py
+++ b/train.py
@@ -1,2 +1,2 @@
 one
-two
+2
diff --git a/data/loader.py b/new/place/loader.py
rename from data/loader.py
rename to new/place/loader.py
diff --git a/notes b/notes
deleted file mode 120000
--- a/notes
+++ /dev/null
@@ -1 +0,0 @@
-train.py
\\ No newline at end of file
"""


def backups(journal: Journal) -> None:
    for path in journal.files_of(PATCH):
        journal.backup_file(path)


STEPS: tuple[Callable[[Journal], object], ...] = (
    lambda journal: journal.backup_file("train.py"),
    lambda journal: journal.edit_file("train.py", "one\ntwo\n"),
    lambda journal: journal.backup_file("deep/er/made.py"),
    lambda journal: journal.edit_file("deep/er/made.py", "made = 1\n"),
    backups,
    lambda journal: journal.apply_patch(PATCH),
    lambda journal: journal.edit_file("train.py", "three\n"),
    lambda journal: journal.revert_file("train.py"),
    lambda journal: journal.revert_to(journal.entries[3].id),
    lambda journal: journal.revert_all(),
)
"""Changes of files in each of the ways that there are."""
CHANGES = (1, 3, 5, 9)
"""Steps that change a file, make folders, apply a patch, and revert everything."""


@dataclass(frozen=True)
class Recorded:
    """The program after each number of steps, in a copy of its own, and how many entries the journal has then."""

    copies: list[Path]
    entries: list[int]
    home: Path

    def copy(self, done: int, to: Path) -> Path:
        return shutil.copytree(self.copies[done], to, symlinks=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    tmp_path = tmp_path_factory.mktemp("recorded")
    root, home = program(tmp_path / "my program", repository=True), tmp_path / "home"
    (root / "train.py").write_bytes(b"zero\r\n\xff")
    (root / "data").mkdir()
    (root / "data" / "loader.py").write_text("load = 1\n")
    (root / "data" / "loader.py").chmod(0o600)
    (root / "notes").symlink_to("train.py")
    copies, entries = [shutil.copytree(root, tmp_path / "after-0", symlinks=True)], [0]
    for number, step in enumerate(STEPS, 1):
        with Journal.open(root, "run", home) as journal:
            step(journal)
            entries.append(len(journal.entries))
        copies.append(shutil.copytree(root, tmp_path / f"after-{number}", symlinks=True))
    assert tree(copies[-1]) == tree(copies[0])
    return Recorded(copies, entries, home)


def child(root: Path, home: Path, step: Callable[[Journal], object], prepare: Callable[[], None]) -> int:
    """Takes a step in a child process. Returns the signal that ended it, or 0."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            with Journal.open(root, "run", home) as journal:
                step(journal)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def counted_lines(at: int, lines: list[int]) -> None:
    """Kills this process at the line number ``at`` that it comes to. Counts in ``lines``."""

    def line(_: FrameType, event: str, __: Any) -> Any:
        if event == "line":
            lines[0] += 1
            if lines[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame: FrameType, *_: object) -> Any:
        return line if TRACED in frame.f_code.co_filename else None

    sys.settrace(call)


def check_recovered(root: Path, recorded: Recorded, step: int, where: str) -> bool:
    """The tree is as before the step or as after it, as the journal says. Returns whether it is as after it."""
    with Journal.open(root, "run", recorded.home) as journal:
        entries = len(journal.entries)
        after = entries == recorded.entries[step + 1]
        # Backups change no file.
        assert after or STEPS[step] is backups or entries == recorded.entries[step], where
        assert tree(root) == tree(recorded.copies[step + after]), where
    return after


def check_undone(root: Path, recorded: Recorded) -> None:
    """After a kill, the run goes on, and is undone."""
    with Journal.open(root, "run", recorded.home) as journal:
        journal.backup_file("train.py")
        journal.edit_file("train.py", "goes on\n")
        journal.revert_all()
    assert tree(root) == tree(recorded.copies[0])


def test_killed_at_a_line(tmp_path: Path, recorded: Recorded) -> None:
    rng, after = random.Random(15), 0
    for step, change in enumerate(STEPS):
        lines = [0]
        with Journal.open(recorded.copy(step, tmp_path / f"counted-{step}"), "run", recorded.home) as journal:
            counted_lines(0, lines)
            try:
                change(journal)
            finally:
                sys.settrace(None)
        for at in rng.sample(range(1, lines[0] + 1), LINES // len(STEPS)):
            root = recorded.copy(step, tmp_path / f"step-{step}-line-{at}")

            def killed(journal: Journal, change: Callable[[Journal], object] = change, at: int = at) -> None:
                counted_lines(at, [0])
                change(journal)

            assert child(root, recorded.home, killed, lambda: None) == -signal.SIGKILL
            after += check_recovered(root, recorded, step, f"step {step}, line {at} of {lines[0]}")
        check_undone(root, recorded)
    assert 0 < after < LINES, "some kills came before the entry was finished, some after it"


FILE_CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.chmod"}


def kill_at_file_call(at: int) -> None:
    """Kills this process before the journal's call number ``at`` that changes a file or folder."""
    calls = 0

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event in FILE_CALLS and sys._getframe(1).f_code.co_filename.endswith("/user_tree.py"):
            reading = event == "open" and not arguments[2] & os.O_CREAT
            calls += not reading
            if calls == at and not reading:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(heard)


@pytest.mark.long
def test_killed_before_each_change_of_a_file(tmp_path: Path, recorded: Recorded) -> None:
    kills = 0
    for step in CHANGES[1:]:
        for at in range(1, 99):
            root = recorded.copy(step, tmp_path / f"step-{step}-call-{at}")
            ended = child(root, recorded.home, STEPS[step], lambda at=at: kill_at_file_call(at))
            check_recovered(root, recorded, step, f"step {step}, before call {at}")
            if ended == 0:
                break
            kills += 1
    assert kills > 20


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_git_command(
    tmp_path: Path, recorded: Recorded, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: git goes on when its parent is dead, and may end after the next process has started."""
    folder, count = tmp_path / "bin", tmp_path / "count"
    folder.mkdir()
    real, kill = shutil.which("git"), '[ "$n" = "$KILL_AT" ] && kill -9 $PPID'
    order = [kill, f'"{real}" "$@"; rc=$?'] if when == "before" else [f'"{real}" "$@"; rc=$?', kill]
    script = ["#!/bin/sh", f'echo >> "{count}"; n=$(($(wc -l < "{count}")))', *order, "exit $rc"]
    (folder / "git").write_text("\n".join(script) + "\n")
    (folder / "git").chmod(0o755)
    path, rng = f"{folder}:{os.environ['PATH']}", random.Random(9)
    for step in CHANGES:
        count.unlink(missing_ok=True)
        root = recorded.copy(step, tmp_path / f"counted-{step}")
        assert child(root, recorded.home, STEPS[step], lambda: os.environ.update(PATH=path, KILL_AT="0")) == 0
        commands = len(count.read_text().splitlines())
        for at in rng.sample(range(commands // 2, commands + 1), 2):
            count.unlink()
            root = recorded.copy(step, tmp_path / f"step-{step}-command-{at}")
            ended = child(root, recorded.home, STEPS[step], lambda at=at: os.environ.update(PATH=path, KILL_AT=str(at)))
            assert ended == -signal.SIGKILL
            check_recovered(root, recorded, step, f"step {step}, {when} git command {at} of {commands}")
    check_undone(root, recorded)


@pytest.mark.long
def test_another_run_after_a_kill(tmp_path: Path, recorded: Recorded) -> None:
    """It begins from a recorded step of the killed run, not from what that left unfinished. In another worktree of the
    repository, it leaves it alone."""
    root = recorded.copy(5, tmp_path / "program")
    git(root, "worktree", "add", "-q", str(tmp_path / "worktree"))
    for at in range(1, 99):  # to a kill after the first file of the patch
        assert child(root, recorded.home, STEPS[5], lambda at=at: kill_at_file_call(at)) == -signal.SIGKILL
        if tree(root) != tree(recorded.copies[5]) and (root / "new").is_dir():
            break
        Journal.open(root, "run", recorded.home).close()
    with Journal.open(tmp_path / "worktree", "other", recorded.home), pytest.raises(MachineError, match="run other"):
        Journal.open(root, "run", recorded.home)
    with pytest.raises(ChangeRefused, match="run run is of another worktree of this repository; fix: start it there"):
        Journal.open(tmp_path / "worktree", "run", recorded.home)
    assert tree(root) != tree(recorded.copies[5])
    with Journal.open(root, "another", recorded.home) as journal:
        assert tree(root) == tree(recorded.copies[5]) and journal.entries == ()


def test_a_git_command_that_outlives_its_process(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the journal before the command has ended: it could still finish the entry."""
    monkeypatch.setattr(locks, "LOCK_SECONDS", 0.0)
    folder, go = tmp_path / "bin", tmp_path / "go"
    folder.mkdir()
    os.mkfifo(go)
    wait = f'case "$*" in *update-ref*/head*) kill -9 $PPID; read -r line < "{go}";; esac'
    (folder / "git").write_text(f'#!/bin/sh\n{wait}\nexec "{shutil.which("git")}" "$@"\n')
    (folder / "git").chmod(0o755)
    root = recorded.copy(1, tmp_path / "program")
    path = f"{folder}:{os.environ['PATH']}"
    assert child(root, recorded.home, STEPS[1], lambda: os.environ.update(PATH=path)) == -signal.SIGKILL
    with pytest.raises(MachineError, match="another run is changing files in .*: run run "):
        Journal.open(root, "run", recorded.home)
    monkeypatch.setattr(locks, "LOCK_SECONDS", 60.0)
    go.write_text("go\n")
    assert check_recovered(root, recorded, 1, "git went on"), "git has finished the entry"
