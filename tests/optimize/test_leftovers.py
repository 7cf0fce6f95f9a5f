"""What killed runs leave, with real git: the next run and `tilewright clean` remove it, and nothing else."""

# ruff: noqa: F811  (fixtures of another file)
from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.coordinate.made_agent import PROGRAM, proposing
from tests.made_runs import run_record
from tests.optimize.test_workspace import BRANCH, DATE, _a_user, checkout, git, home, task_in  # noqa: F401

from tilewright.cli import main as cli
from tilewright.ledger.ledger import Ledger
from tilewright.optimize.versions.journal import Journal
from tilewright.optimize.versions.leftovers import leftovers, prune_killed
from tilewright.optimize.versions.locks import is_free, run_lock
from tilewright.optimize.versions.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "examples"


def killed(checkout: Path, home: Path, run: str, *, row: bool) -> None:
    """A run that ended without its clean-up: the system has released its lock."""
    if row:
        with Ledger(home / "ledger.db") as ledger:
            ledger.begin(replace(run_record(), run=run))
    Workspace.open(task_in(checkout), run, home, DATE)._lock.close()


def refs(folder: Path) -> list[str]:
    return git(folder, "for-each-ref", "--format=%(refname)").split()


def test_the_next_run_prunes_what_a_killed_run_left(checkout: Path, home: Path) -> None:
    before = refs(checkout)
    killed(checkout, home, "run-1", row=False)
    assert f"refs/heads/{BRANCH}" in refs(checkout) and len(git(checkout, "worktree", "list").splitlines()) == 2
    removed = prune_killed(checkout, home)
    assert len(removed) == 4 and {each.kind for each in removed} == {"killed"}
    assert refs(checkout) == before and len(git(checkout, "worktree", "list").splitlines()) == 1
    assert [path.name for path in (home / "worktrees").iterdir()] == [".gitignore"]
    assert git(checkout, "status", "--porcelain") == ""


def test_a_run_with_a_row_keeps_its_branch_and_refs_and_resumes(checkout: Path, home: Path) -> None:
    killed(checkout, home, "run-1", row=True)
    kept = refs(checkout)
    assert [each.kind for each in prune_killed(checkout, home)] == ["killed", "killed"]
    assert refs(checkout) == kept and not (home / "worktrees" / "run-1").exists()
    with Workspace.open(task_in(checkout), "run-1", home, DATE) as resumed:
        assert resumed.branch == BRANCH


def test_nothing_of_a_run_in_progress_or_of_another_home_is_touched(checkout: Path, home: Path, tmp_path: Path) -> None:
    with Workspace.open(task_in(checkout), "run-1", home, DATE) as running:
        assert not is_free(home / "worktrees" / "run-1.lock")
        before = refs(checkout)
        assert prune_killed(checkout, home) == () and list(leftovers(checkout, home)) == []
        (tmp_path / "other" / "worktrees").mkdir(parents=True)
        assert prune_killed(checkout, tmp_path / "other") == ()
        assert refs(checkout) == before and running.folder.is_dir()


def test_a_run_that_cannot_be_stored_leaves_nothing(checkout: Path, home: Path) -> None:
    before = refs(checkout)
    with Workspace.open(task_in(checkout), "run-1", home, DATE) as workspace:
        workspace.forget()
    assert refs(checkout) == before and list(leftovers(checkout, home)) == []


def test_a_branch_that_has_commits_is_kept(checkout: Path, home: Path) -> None:
    killed(checkout, home, "run-1", row=False)
    worktree = home / "worktrees" / "run-1"
    (worktree / "other.txt").write_text("mine\n")
    git(worktree, "commit", "-qam", "mine")
    prune_killed(checkout, home)
    assert f"refs/heads/{BRANCH}" in refs(checkout)


def killed_agent(checkout: Path, home: Path, run: str) -> None:
    """An agent that ended before its row was written, and had backed a file up."""
    lock = run_lock(home, run)
    with Journal.open(checkout, run, home) as journal:
        journal.backup_file("other.txt")
    lock.close()


@pytest.mark.parametrize("command", ["tune", "agent"])
def test_every_command_that_runs_prunes_also_journals_without_a_row(
    command: str, checkout: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = refs(checkout)
    killed(checkout, home, "run-1", row=False)
    killed_agent(checkout, home, "run-2")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(home))
    monkeypatch.chdir(checkout)
    (checkout / "rms_norm.json").write_text("not a table\n")
    assert len(refs(checkout)) > len(before)
    if command == "tune":  # both commands end with a refusal, after they have pruned
        shutil.copy(EXAMPLES / "rms_norm.py", checkout)
        code, said = cli.main(["tune", "rms_norm.py", "--arch", "sm_90", "--into", str(checkout)]), "rms_norm.json"
    else:
        proposing(monkeypatch, slow="fast")
        (checkout / "train.py").write_text(PROGRAM)
        with Journal.open(checkout, "run-3", home):
            code, said = cli.main(["agent", "speed up train.py", "--yes"]), "another run is changing files"
    assert code != 0 and said in capsys.readouterr().err
    assert refs(checkout) == before and len(git(checkout, "worktree", "list").splitlines()) == 1
    assert [path.name for path in (home / "worktrees").iterdir()] == [".gitignore"]


def test_a_row_that_cannot_be_read_is_a_row(checkout: Path, home: Path) -> None:
    killed(checkout, home, "run-1", row=True)
    kept = refs(checkout)
    with closing(sqlite3.connect(home / "ledger.db")) as connection, connection:
        connection.execute("DROP TRIGGER runs_refuse_UPDATE")
        connection.execute("UPDATE runs SET record = '{'")
    prune_killed(checkout, home)
    assert refs(checkout) == kept


@pytest.mark.parametrize("state", ["unfinished", "edited"])
def test_a_journal_that_restores_files_is_kept(state: str, checkout: Path, home: Path) -> None:
    killed_agent(checkout, home, "run-2")
    head = "refs/tilewright/run-2/journal/head"
    if state == "unfinished":
        entry = git(checkout, "commit-tree", "-p", head, "-m", "unfinished", f"{head}^{{tree}}").strip()
        git(checkout, "update-ref", "refs/tilewright/run-2/journal/next", entry)
    else:
        with Journal.open(checkout, "run-2", home) as journal:
            journal.edit_file("other.txt", "edited\n")
    prune_killed(checkout, home)
    assert head in refs(checkout)


@pytest.mark.parametrize(
    ("owner", "days", "kind"),
    [("ended", 2, "killed"), ("ended", 0, None), ("here", 2, "temporary"), ("", 2, "temporary")],
)
def test_old_temporary_folders_of_ended_processes_are_pruned(
    owner: str, days: int, kind: str | None, checkout: Path, home: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    number = {"ended": f"{ended.pid}-", "here": f"{os.getpid()}-", "": ""}[owner]
    (folder := tmp_path / f"tilewright-{number}12ab").mkdir()
    os.utime(folder, (time.time() - days * 86_400 - 60,) * 2)
    assert [each.kind for each in leftovers(checkout, home)] == ([kind] if kind else [])
    prune_killed(checkout, home)
    assert folder.exists() == (kind != "killed")


@pytest.fixture
def in_checkout(checkout: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(home))
    return checkout


def clean(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["clean", *arguments])
    return code, *capsys.readouterr()


def test_clean_shows_and_removes_by_choice(in_checkout: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Workspace.open(task_in(in_checkout), "run-0", home, DATE):
        pass
    killed(in_checkout, home, "run-1", row=True)
    (home / "jobs" / "one").mkdir(parents=True)
    (home / "jobs" / "one" / "log").write_text("x" * 2**20)
    code, out, _ = clean(capsys)
    assert code == 0 and "worktree of run run-1" in out and "jobs/one  1.0 MiB" in out and f"branch {BRANCH}" in out
    for arguments in (("jobs",), ("all", "--json")):
        code, out, err = clean(capsys, *arguments)
        assert code == 2 and "no terminal to ask; fix: --yes" in err and (home / "jobs" / "one").exists()
    code, out, _ = clean(capsys, "jobs", "--yes", "--json")
    told: Any = json.loads(out)
    assert code == 0 and [each["name"] for each in told["removed"]] == ["jobs/one"] and told["failed"] == []
    assert not (home / "jobs" / "one").exists() and (home / "worktrees" / "run-1").exists()
    code, out, _ = clean(capsys, "all", "--yes")
    assert code == 0 and refs(in_checkout) == ["refs/heads/trunk"]
    assert (home / "ledger.db").exists() and clean(capsys)[1].startswith("0 in all")


def test_an_unknown_kind_names_the_kinds(in_checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = clean(capsys, "kiled")
    assert code == 2 and "did you mean 'killed'?" in err


@pytest.mark.parametrize("folder", ["worktrees", "ledger", "repositories"])
def test_the_folder_is_private_from_the_first_command_on(
    folder: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout)
    home = checkout / ".tilewright"
    if folder == "ledger":
        with Ledger(home / "ledger.db") as ledger:
            ledger.begin(run_record())
    elif folder == "worktrees":
        Workspace.open(task_in(checkout), "run-1", home, DATE)._lock.close()
    else:
        from tilewright.optimize.versions.repositories import _private

        _private(home, "tree", ["x"])
    assert (home / ".gitignore").read_text() == "*\n" and git(checkout, "status", "--porcelain") == ""
