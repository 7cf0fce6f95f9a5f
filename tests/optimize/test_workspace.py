"""The workspace of a run, with real git: the user's checkout is never touched, each attempt is one commit.

P-02, P-10, P-14, P-20, X-15, X-25, F-2 of the requirements; 31 of trust.md.
"""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilewright.errors import MachineError, StorageError, TaskError
from tilewright.optimize.versions.workspace import PathGate, Workspace
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tools import git as git_module
from tilewright.tools.git import Git, GitError

DATE = datetime.date(2026, 11, 21)
BRANCH = "cutile-perf-scale-2026-11-21"
OPS = """\
import tilewright as tw

FACTOR = 1

task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("M",), "float32"), "y": tw.Output(("M",), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, config: tw.Launch(None, (1,), (x, y)),
    flops=lambda M: M,
    space=tw.Space(constants={"TILE": (1,)}, shipped={"TILE": 1}),
    workloads={"small": {"M": 8}},
)
"""


@pytest.fixture(autouse=True)
def _a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose git settings are as awkward as a user's may be, and who has no name."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[commit]\ngpgSign = true\n[diff]\nnoprefix = true\nexternal = /bin/false\n[status]\nbranch = true\n"
        "relativePaths = true\n[safe]\nbareRepository = explicit\n[init]\ndefaultBranch = trunk\n[color]\nui = always\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def git(folder: Path, *arguments: str) -> str:
    """Git as the user runs it, less the hooks: those wait for Tilewright's."""
    who = ("user.name=User", "user.email=user@example.org", "commit.gpgSign=false", "core.hooksPath=/dev/null")
    options = [word for setting in (*who, "color.ui=false") for word in ("-c", setting)]
    done = subprocess.run(["git", *options, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def commit_all(folder: Path, message: str = "first") -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a kernel in a folder of it, another file, and a hook that refuses everything."""
    folder = tmp_path / "my project"
    (folder / "kernels").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "kernels" / "ops.py").write_text(OPS)
    (folder / "other.txt").write_text("other\n")
    commit_all(folder)
    for hook in ("pre-commit", "commit-msg", "post-checkout", "reference-transaction", "post-commit"):
        path = folder / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\necho ran >> hooks-ran\nexit 1\n")
        path.chmod(0o755)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def task_in(folder: Path, name: str = "kernels/ops.py") -> Task:
    return load_task(str(folder / name))


@pytest.fixture
def opened(home: Path) -> Iterator[Callable[..., Workspace]]:
    made: list[Workspace] = []

    def opened(task: Task, run: str = "run-1", **rest: object) -> Workspace:
        made.append(Workspace.open(task, run, rest.get("home", home), DATE))  # type: ignore[arg-type]
        return made[-1]

    yield opened
    for workspace in made:
        workspace.close()


Opened = Callable[..., Workspace]


def edited(task: Task, factor: int) -> dict[Path, str]:
    assert task.file is not None
    return {task.file: OPS.replace("FACTOR = 1", f"FACTOR = {factor}")}


def killed(workspace: Workspace) -> None:
    """As after `kill -9`: the lock is gone and nothing else has happened."""
    workspace._lock.close()


# The user's checkout


def everything(folder: Path) -> dict[str, bytes]:
    """Every byte of the checkout, and of git's what belongs to the user: index, stash, HEAD, settings."""
    tree = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }
    mine = ("index", "HEAD", "config", "refs/stash", "logs/refs/stash", "logs/HEAD", "ORIG_HEAD")
    return tree | {name: (folder / ".git" / name).read_bytes() for name in mine if (folder / ".git" / name).exists()}


@pytest.mark.parametrize("home_inside", [False, True])
def test_the_users_checkout_is_never_touched(
    checkout: Path, home: Path, home_inside: bool, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-15: not the tree, index, stash or untracked files, byte for byte; also with the home in the checkout."""
    home = checkout / ".tilewright" if home_inside else home
    (checkout / "other.txt").write_text("stashed\n")
    git(checkout, "stash", "-q")
    (checkout / "other.txt").write_text("staged\n")
    git(checkout, "add", "other.txt")
    (checkout / "other.txt").write_text("changed after that\n")
    (checkout / "untracked.txt").write_text("untracked\n")
    task = task_in(checkout)
    os.utime(checkout / "kernels" / "ops.py", (1, 1))  # git would refresh its index for this, if it were let
    monkeypatch.setenv("GIT_OPTIONAL_LOCKS", "0")  # for this test's own `git status`
    before, status = everything(checkout), git(checkout, "status", "--porcelain")
    branch = git(checkout, "branch", "--show-current")

    workspace = opened(task, home=home)
    assert {name for name in everything(checkout) if not name.startswith(".tilewright/")} == set(before)
    first = workspace.write_and_commit(1, edited(task, 2), "one")
    workspace.keep(first)
    workspace.revert(2, workspace.write_and_commit(2, edited(task, 3), "two"))
    assert git(checkout, "status", "--porcelain") == status
    workspace.close()

    after = everything(checkout)
    assert {name: text for name, text in after.items() if not name.startswith(".tilewright/")} == before
    assert git(checkout, "status", "--porcelain") == status
    assert git(checkout, "branch", "--show-current") == branch
    assert git(checkout, "stash", "list").count("\n") == 1
    assert len(git(checkout, "worktree", "list").splitlines()) == 1


def test_variables_that_a_hook_or_shell_left_do_not_mislead(
    checkout: Path, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_in(checkout)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    workspace = opened(task)
    sha = workspace.write_and_commit(1, edited(task, 2), "one")
    assert "+FACTOR = 2" in workspace.diff(sha)


# The branch and its commits


def test_the_branch_starts_at_the_current_commit_under_its_name(checkout: Path, opened: Opened, home: Path) -> None:
    """P-02, F-2: the base is recorded, and the files are the user's."""
    task = task_in(checkout)
    workspace = opened(task)
    assert workspace.branch == BRANCH
    assert workspace.base_commit == workspace.kept == git(checkout, "rev-parse", "HEAD").strip()
    assert git(checkout, "rev-parse", BRANCH).strip() == workspace.base_commit
    assert workspace.texts() == {task.file: OPS}
    assert workspace.folder.parent == home / "worktrees"
    assert git(workspace.folder, "branch", "--show-current").strip() == BRANCH
    assert workspace.patch() == ""


def test_one_iteration_is_one_commit_and_the_branch_holds_the_kept_ones(checkout: Path, opened: Opened) -> None:
    """P-10, P-20, X-15: the commit comes before the decision; a revert undoes it and leaves it reachable."""
    task = task_in(checkout)
    workspace = opened(task)
    one = workspace.write_and_commit(1, edited(task, 2), "A: first\n\n# not a comment\n")
    assert workspace.kept == workspace.base_commit, "not decided yet"
    workspace.keep(one)
    two = workspace.write_and_commit(2, edited(task, 3), "B: second")
    assert workspace.texts() == edited(task, 2), "the incumbent's, until it is decided"
    workspace.revert(2, two)
    three = workspace.write_and_commit(3, edited(task, 4), "C: third: größer")
    workspace.keep(three)
    assert git(checkout, "rev-list", "--reverse", f"{workspace.base_commit}..{BRANCH}").split() == [one, three]
    assert git(checkout, "log", "-1", "--format=%B", one) == "A: first\n\n# not a comment\n\n"
    assert git(checkout, "log", "-1", "--format=%s", three).strip() == "C: third: größer"
    assert git(checkout, "rev-parse", "refs/tilewright/run-1/2", f"{three}^").split() == [two, one]
    assert "-FACTOR = 1\n+FACTOR = 4\n" in workspace.patch()
    assert "-FACTOR = 2\n+FACTOR = 3\n" in workspace.diff(two)
    workspace.close()
    assert not workspace.folder.exists()
    assert git(checkout, "rev-parse", BRANCH).strip() == three
    assert not (checkout / "hooks-ran").exists()


def test_the_patch_applies_to_the_users_checkout(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    workspace = opened(task)
    workspace.keep(workspace.write_and_commit(1, edited(task, 7), "one"))
    patch = checkout.parent / "p.patch"
    patch.write_text(workspace.patch())
    git(checkout, "apply", "--check", str(patch))
    git(checkout, "apply", str(patch))
    assert {task.file: (checkout / "kernels" / "ops.py").read_text()} == workspace.texts()


def test_a_file_that_is_not_as_committed_is_the_first_commit(checkout: Path, opened: Opened) -> None:
    """Iteration 0 is the files as they are on disk, and no other change of the user's."""
    (checkout / "kernels" / "ops.py").write_text(OPS + "# mine\r\n")
    (checkout / "other.txt").write_text("changed\n")
    task = task_in(checkout)
    workspace = opened(task)
    assert (
        git(checkout, "rev-parse", f"{workspace.base_commit}^", "HEAD").split()[0]
        == git(checkout, "rev-parse", "HEAD").strip()
    )
    assert git(checkout, "log", "-1", "--format=%s", BRANCH).strip().startswith("Iteration 0: the files as they are")
    assert git(checkout, "diff-tree", "-r", "--name-only", "--no-commit-id", BRANCH).split() == ["kernels/ops.py"]
    assert workspace.texts() == {task.file: OPS + "# mine\r\n"}
    assert workspace.patch() == "", "the user's own change is no part of what Tilewright changed"
    assert git(checkout, "show", f"{BRANCH}:other.txt") == "other\n"


def test_an_untracked_file_is_the_first_commit(checkout: Path, opened: Opened) -> None:
    (checkout / "new").mkdir()
    (checkout / "new" / "fresh.py").write_text(OPS)
    task = task_in(checkout, "new/fresh.py")
    workspace = opened(task)
    assert git(checkout, "diff-tree", "-r", "--name-only", "--no-commit-id", BRANCH).split() == ["new/fresh.py"]
    assert git(checkout, "status", "--porcelain") == "?? new/\n"
    assert workspace.texts() == {task.file: OPS}


def test_who_commits_is_the_user_or_else_tilewright(
    checkout: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_in(checkout)
    workspace = opened(task)
    sha = workspace.write_and_commit(1, edited(task, 2), "one")
    form = "--format=%an <%ae> %cn <%ce>"
    nobody = "Tilewright <tilewright@localhost>"
    assert git(checkout, "log", "-1", form, sha).strip() == f"{nobody} {nobody}"
    workspace.close()
    git(checkout, "config", "user.name", "Ada")
    git(checkout, "config", "user.email", "ada@example.org")
    other = opened(task, "run-2")
    sha = other.write_and_commit(1, edited(task, 2), "one")
    assert git(checkout, "log", "-1", form, sha).strip() == "Ada <ada@example.org> Ada <ada@example.org>"


def test_a_branch_of_another_run_gets_a_neighbour(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    git(checkout, "branch", f"{BRANCH}/of-the-users")
    runs = [opened(task, f"run-{n}") for n in range(3)]
    assert {run.kernel for run in runs} == {"scale"}
    assert [run.branch for run in runs] == [f"{BRANCH}-2", f"{BRANCH}-3", f"{BRANCH}-4"]


@pytest.mark.parametrize("checked_out", [False, True])
def test_a_dropped_branch_stays_only_where_the_user_has_it_checked_out(
    checkout: Path, opened: Opened, home: Path, tmp_path: Path, checked_out: bool
) -> None:
    workspace = opened(task_in(checkout))
    workspace.revert(1, workspace.write_and_commit(1, edited(task_in(checkout), 2), "one"))
    if checked_out:
        git(checkout, "worktree", "add", "-q", "--force", str(tmp_path / "theirs"), BRANCH)
    workspace.drop_branch()
    workspace.close()
    refs = git(checkout, "for-each-ref", "--format=%(refname)")
    assert (f"refs/heads/{BRANCH}" in refs) == (f"/branch/{BRANCH}" in refs) == checked_out
    assert "refs/tilewright/run-1/1" in refs
    other = opened(task_in(checkout), "run-2")
    assert other.branch == (f"{BRANCH}-2" if checked_out else BRANCH)


def test_a_branch_begins_with_the_language_of_the_kernel(checkout: Path, home: Path) -> None:
    with Workspace.open(task_in(checkout), "run-1", home, DATE, "triton") as workspace:
        assert workspace.branch == BRANCH.replace("cutile-", "triton-") and workspace.kernel == "scale"


def test_a_task_may_have_any_name(checkout: Path, opened: Opened) -> None:
    path = checkout / "kernels" / "odd.py"
    path.write_text(OPS.replace('"scale"', '"a b:c~^..lock/é.lock"'))
    assert opened(load_task(str(path))).branch == "cutile-perf-a-b-c-lock-lock-2026-11-21"


# The path gate


def test_only_editable_files_may_be_written(checkout: Path, opened: Opened) -> None:
    """P-14."""
    task = task_in(checkout)
    workspace = opened(task)
    with pytest.raises(PathGate, match="outside the task's editable files: .*other.txt"):
        workspace.write_and_commit(1, {checkout / "other.txt": "x"}, "one")
    assert workspace.texts() == {task.file: OPS}


@pytest.mark.parametrize("change", ["tracked", "untracked", "deleted"])
def test_nothing_else_may_differ_in_the_worktree(checkout: Path, opened: Opened, change: str) -> None:
    """P-14, trust.md 31: whoever changed it. Afterwards the worktree is the incumbent's again."""
    task = task_in(checkout)
    workspace = opened(task)
    name = "tests_edited.py" if change == "untracked" else "other.txt"
    if change == "deleted":
        (workspace.folder / name).unlink()
    else:
        (workspace.folder / name).write_text("changed\n")
    with pytest.raises(PathGate) as caught:
        workspace.write_and_commit(1, edited(task, 2), "one")
    assert str(caught.value) == f"changed outside the task's editable files: {name}"
    assert git(workspace.folder, "status", "--porcelain") == ""
    assert git(checkout, "rev-parse", BRANCH).strip() == workspace.base_commit
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))


def test_line_ends_that_git_would_store_otherwise_are_no_change(checkout: Path, opened: Opened) -> None:
    (checkout / "windows.txt").write_bytes(b"a\r\nb\r\n")
    commit_all(checkout)
    (checkout / ".gitattributes").write_text("*.txt text eol=lf\n")
    git(checkout, "add", ".gitattributes")
    git(checkout, "commit", "-qm", "attributes")
    task = task_in(checkout)
    workspace = opened(task)
    os.utime(workspace.folder / "windows.txt", (5, 5))
    assert "windows.txt" in git(workspace.folder, "status", "--porcelain"), "git calls it changed"
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))
    assert git(checkout, "diff", "--no-ext-diff", "--name-only", workspace.base_commit, BRANCH).split() == [
        "kernels/ops.py"
    ]


def test_an_undecided_attempt_must_be_decided_first(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    workspace = opened(task)
    workspace.write_and_commit(1, edited(task, 2), "one")
    with pytest.raises(ValueError, match="neither kept nor reverted"):
        workspace.write_and_commit(2, edited(task, 3), "two")
    with pytest.raises(ValueError, match="no commit of branch"):
        workspace.keep(git(checkout, "commit-tree", "HEAD^{tree}", "-m", "foreign").strip())


def test_an_attempt_that_changes_nothing_is_a_commit_too(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    workspace = opened(task)
    sha = workspace.write_and_commit(1, {}, "nothing")
    assert sha != workspace.kept and workspace.diff(sha) == ""


# Killed and resumed


def test_after_a_kill_the_same_run_goes_on_from_the_last_kept_commit(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    workspace = opened(task)
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))
    lost = workspace.write_and_commit(2, edited(task, 3), "two")
    (workspace.folder / "kernels" / "ops.py").write_text("half writ")
    (workspace.folder / "half.py").write_text("half")
    admin = Path(git(workspace.folder, "rev-parse", "--absolute-git-dir").strip())
    (admin / "index.lock").write_text("")
    (checkout / ".git" / "refs" / "heads" / f"{BRANCH}.lock").write_text("")
    (checkout / ".git" / "refs" / "tilewright" / "run-1" / "kept.lock").write_text("")
    killed(workspace)
    again = opened(task)
    assert (again.branch, again.kept, again.base_commit) == (BRANCH, workspace.kept, workspace.base_commit)
    assert again.texts() == edited(task, 2)
    assert git(again.folder, "status", "--porcelain") == ""
    assert git(checkout, "rev-parse", BRANCH).strip() == workspace.kept
    assert git(checkout, "rev-parse", "refs/tilewright/run-1/2").strip() == lost, "nothing is out of reach"
    again.keep(again.write_and_commit(2, edited(task, 4), "two again"))
    assert "+FACTOR = 4" in again.patch()


def test_what_the_ledger_says_was_kept_is_kept_after_a_kill(checkout: Path, opened: Opened) -> None:
    """Killed between the ledger's row and the branch: the same call again puts it right."""
    task = task_in(checkout)
    workspace = opened(task)
    sha = workspace.write_and_commit(1, edited(task, 2), "one")
    killed(workspace)
    again = opened(task)
    assert again.texts() == {task.file: OPS}
    again.keep(sha)
    assert again.texts() == edited(task, 2)
    assert git(checkout, "rev-parse", BRANCH).strip() == sha
    assert git(again.folder, "status", "--porcelain") == ""


@pytest.mark.parametrize("damage", ["removed", "no .git", "closed", "branch deleted"])
def test_a_worktree_that_is_gone_or_broken_is_made_again(
    checkout: Path, opened: Opened, damage: str, tmp_path: Path
) -> None:
    """Also inside the user's checkout, where git would find the user's repository instead."""
    task, home = task_in(checkout), checkout / ".tilewright"
    workspace = opened(task, home=home)
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))
    (checkout / "other.txt").write_text("precious\n")
    if damage in ("closed", "branch deleted"):
        workspace.close()
    if damage == "branch deleted":
        git(checkout, "branch", "-qD", BRANCH)
    if damage == "removed":
        shutil.rmtree(workspace.folder)
    if damage == "no .git":
        (workspace.folder / ".git").unlink()
    killed(workspace)
    again = opened(task, home=home)
    assert again.texts() == edited(task, 2)
    assert git(again.folder, "rev-parse", "--abbrev-ref", "HEAD").strip() == BRANCH
    assert (checkout / "other.txt").read_text() == "precious\n"
    again.keep(again.write_and_commit(2, edited(task, 3), "two"))


def test_without_its_git_file_a_worktree_never_reaches_the_users_repository(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    workspace = opened(task, home=checkout / ".tilewright")
    (checkout / "other.txt").write_text("precious\n")
    (workspace.folder / ".git").unlink()
    workspace.revert(1, workspace.write_and_commit(1, edited(task, 2), "one"))
    workspace.close()
    assert (checkout / "other.txt").read_text() == "precious\n"
    assert not workspace.folder.exists()


def test_commits_that_the_user_put_on_the_branch_are_not_lost(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    opened(task).close()
    theirs = git(checkout, "commit-tree", f"{BRANCH}^{{tree}}", "-p", BRANCH, "-m", "theirs").strip()
    git(checkout, "update-ref", f"refs/heads/{BRANCH}", theirs)
    again = opened(task)
    assert git(checkout, "rev-parse", "refs/tilewright/run-1/undecided").strip() == theirs
    assert git(checkout, "rev-parse", BRANCH).strip() == again.base_commit


KILLED = """
    import datetime, os, signal, sys, threading, time
    from pathlib import Path
    from tilewright.task.loading import load_task
    from tilewright.optimize.versions.workspace import Workspace
    task = load_task(sys.argv[1])
    def die():
        time.sleep(float(sys.argv[3]))
        os.killpg(0, signal.SIGKILL)
    print("go", flush=True)
    threading.Thread(target=die, daemon=True).start()
    workspace = Workspace.open(task, "run-1", Path(sys.argv[2]), datetime.date(2026, 11, 21))
    for n in range(1, 1000):
        text = Path(sys.argv[1]).read_text().replace("FACTOR = 1", f"FACTOR = {n + 1}")
        sha = workspace.write_and_commit(n, {task.file: text}, str(n))
        workspace.keep(sha) if n % 2 else workspace.revert(n, sha)
"""


def test_killed_at_any_moment_the_run_can_be_resumed(checkout: Path, home: Path, opened: Opened) -> None:
    """A real `kill -9`, of git's children too, at moments from the first worktree to many commits."""
    task = task_in(checkout)
    before = everything(checkout)
    for delay in (0.02, 0.05, 0.08, 0.12, 0.16, 0.21, 0.3, 0.5):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(task.file), str(home), str(delay)],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.wait() == -signal.SIGKILL
        assert child.stdout is not None
        child.stdout.close()
        workspace = opened(task)
        (text,) = workspace.texts().values()
        assert (workspace.folder / "kernels" / "ops.py").read_text() == text
        assert git(workspace.folder, "status", "--porcelain") == ""
        assert git(checkout, "rev-parse", workspace.branch).strip() == workspace.kept
        factor = int(text.split("FACTOR = ")[1].split()[0])
        assert factor == 1 or factor % 2 == 0, "kept ones only"
        killed(workspace)
    assert everything(checkout) == before
    git(checkout, "fsck", "--connectivity-only")


# Two at once


def test_two_runs_on_two_kernels_of_one_repository_do_not_clash(checkout: Path, home: Path) -> None:
    (checkout / "kernels" / "second.py").write_text(OPS.replace('"scale"', '"second"'))
    commit_all(checkout)
    tasks = {"a": task_in(checkout), "b": task_in(checkout, "kernels/second.py"), "c": task_in(checkout)}
    patches: dict[str, str] = {}
    failures: list[BaseException] = []

    def work(run: str, task: Task) -> None:
        try:
            with Workspace.open(task, run, home, DATE) as workspace:
                for n in range(1, 5):
                    sha = workspace.write_and_commit(n, edited(task, n + 1), f"{run} {n}")
                    workspace.keep(sha) if n != 2 else workspace.revert(n, sha)
                patches[run] = f"{workspace.branch}\n{workspace.patch()}"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=each) for each in tasks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    branches = {run: patch.split("\n")[0] for run, patch in patches.items()}
    assert {branches["a"], branches["c"]} == {BRANCH, f"{BRANCH}-2"}
    assert branches["b"] == "cutile-perf-second-2026-11-21"
    assert all("+FACTOR = 5" in patch for patch in patches.values())
    assert "ops.py" not in patches["b"]


@pytest.mark.parametrize("at_once", [True, False])
def test_another_process_is_making_a_worktree(
    checkout: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    task, half = task_in(checkout), checkout / ".git" / "worktrees" / "half"
    half.mkdir(parents=True)
    (half / "gitdir").write_text(f"{checkout.parent / 'half' / '.git'}\n")
    (half / "HEAD").write_text("ref: refs/heads/half\n")
    (half / "commondir").touch()

    def sleep(seconds: float) -> None:
        if at_once:
            (half / "commondir").write_text("../..\n")

    monkeypatch.setattr("tilewright.tools.git.time.sleep", sleep)
    if at_once:
        assert opened(task).branch == BRANCH
    else:
        with pytest.raises(GitError, match="git worktree: fatal: failed to read .*commondir"):
            opened(task)


def test_one_run_is_one_process(checkout: Path, opened: Opened) -> None:
    task = task_in(checkout)
    workspace = opened(task)
    with pytest.raises(MachineError, match="run run-1 is in progress in another process"):
        opened(task)
    workspace.close()
    opened(task)


# Where the user's checkout is unusual


def test_a_detached_head(checkout: Path, opened: Opened) -> None:
    git(checkout, "checkout", "-q", "--detach")
    task = task_in(checkout)
    workspace = opened(task)
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))
    assert "+FACTOR = 2" in workspace.patch()
    assert git(checkout, "branch", "--show-current") == ""


def test_a_repository_without_commits(tmp_path: Path, opened: Opened) -> None:
    git(tmp_path, "init", "-q", "fresh")
    (tmp_path / "fresh" / "ops.py").write_text(OPS)
    (tmp_path / "fresh" / "other.py").write_text("")
    task = task_in(tmp_path / "fresh", "ops.py")
    workspace = opened(task)
    assert not workspace.place.private
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))
    assert git(tmp_path / "fresh", "ls-tree", "-r", "--name-only", BRANCH).split() == ["ops.py"]
    assert "-FACTOR = 1\n+FACTOR = 2" in workspace.patch()
    assert git(tmp_path / "fresh", "status", "--porcelain") == "?? ops.py\n?? other.py\n"


def test_a_worktree_as_the_users_checkout(checkout: Path, tmp_path: Path, opened: Opened) -> None:
    linked = tmp_path / "linked"
    git(checkout, "worktree", "add", "-q", str(linked), "-b", "theirs")
    (linked / "other.txt").write_text("changed\n")
    task = task_in(linked)
    workspace = opened(task)
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))
    workspace.close()
    assert git(linked, "status", "--porcelain") == " M other.txt\n"
    assert git(linked, "branch", "--show-current") == "theirs\n"
    assert git(checkout, "rev-list", "--count", f"theirs..{BRANCH}").strip() == "1"


def test_a_submodule_as_the_users_checkout(checkout: Path, tmp_path: Path, opened: Opened) -> None:
    git(tmp_path, "init", "-q", "whole")
    whole = tmp_path / "whole"
    git(whole, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(checkout), "part")
    commit_all(whole)
    task = task_in(whole / "part")
    workspace = opened(task)
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))
    workspace.close()
    assert git(whole / "part", "rev-list", "--count", f"HEAD..{BRANCH}").strip() == "1"
    assert git(whole, "status", "--porcelain") == ""
    assert git(checkout, "branch", "--list", BRANCH) == ""


def test_a_repository_with_submodules(checkout: Path, tmp_path: Path, opened: Opened) -> None:
    git(tmp_path, "init", "-q", "library")
    (tmp_path / "library" / "a.txt").write_text("a\n")
    commit_all(tmp_path / "library")
    git(checkout, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "library"), "lib")
    commit_all(checkout)
    task = task_in(checkout)
    workspace = opened(task)
    workspace.keep(workspace.write_and_commit(1, edited(task, 2), "one"))


def test_a_checkout_behind_a_link(checkout: Path, tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "link").symlink_to(checkout)
    task = task_in(tmp_path / "link")
    workspace = opened(task)
    assert not workspace.place.private
    assert list(workspace.place.names.values()) == ["kernels/ops.py"]


# No repository of the user's


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with two modules that a task edits; returns the folder above it."""
    site = tmp_path / "site-packages"
    for folder in ("gym_of_workspace", "gym_of_workspace/ops", "gym_of_workspace/ops/cutile"):
        (site / folder).mkdir(parents=True)
        (site / folder / "__init__.py").write_text("")
    (site / "gym_of_workspace/ops/cutile/attention.py").write_text("WIDTH = 1\n")
    (site / "gym_of_workspace/ops/matmul.py").write_text("WIDTH = 1\n")
    monkeypatch.syspath_prepend(str(site))
    return site


def package_task(tmp_path: Path, *modules: str) -> Task:
    path = tmp_path / "task_of_package.py"
    loads = "".join(f"m{n} = tw.editable('{name}')\n" for n, name in enumerate(modules))
    path.write_text(OPS.replace("FACTOR = 1\n", loads))
    return load_task(str(path))


ATTENTION = "gym_of_workspace.ops.cutile.attention"


def test_a_package_outside_any_repository_gets_a_private_one(
    package: Path, tmp_path: Path, opened: Opened, home: Path
) -> None:
    """The patch is against the package: it applies with `patch -p1` where the package is installed."""
    task = package_task(tmp_path, ATTENTION, "gym_of_workspace.ops.matmul")
    workspace = opened(task)
    assert workspace.place.private and workspace.place.root == package
    assert sorted(workspace.place.names.values()) == [
        "gym_of_workspace/ops/cutile/attention.py",
        "gym_of_workspace/ops/matmul.py",
    ]
    assert workspace.place.git.folder.parent == home / "repositories"
    assert workspace.branch == BRANCH
    attention = package / "gym_of_workspace/ops/cutile/attention.py"
    workspace.keep(workspace.write_and_commit(1, {attention: "WIDTH = 8\n"}, "one"))
    assert workspace.texts()[attention] == "WIDTH = 8\n"
    patch = workspace.patch()
    workspace.close()
    assert attention.read_text() == "WIDTH = 1\n"
    subprocess.run(["patch", "-p1", "-s"], cwd=package, input=patch, text=True, check=True)
    assert attention.read_text() == "WIDTH = 8\n"
    again = opened(task, "run-2")
    assert again.place.git.folder == workspace.place.git.folder
    assert again.branch == f"{BRANCH}-2"
    assert again.texts()[attention] == "WIDTH = 8\n", "as it is on disk now"


def test_a_private_repository_can_be_resumed(package: Path, tmp_path: Path, opened: Opened) -> None:
    task = package_task(tmp_path, ATTENTION)
    workspace = opened(task)
    (path,) = workspace.texts()
    workspace.keep(workspace.write_and_commit(1, {path: "WIDTH = 2\n"}, "one"))
    workspace.write_and_commit(2, {path: "WIDTH = 3\n"}, "two")
    killed(workspace)
    assert opened(task).texts() == {path: "WIDTH = 2\n"}


@pytest.mark.parametrize("why", ["ignored", "two repositories"])
def test_a_file_that_the_users_repository_cannot_hold_gets_a_private_one(
    checkout: Path, tmp_path: Path, opened: Opened, why: str
) -> None:
    path = checkout / "kernels" / "ops.py"
    if why == "ignored":
        (checkout / ".gitignore").write_text("venv/\n")
        (checkout / "venv").mkdir()
        path = checkout / "venv" / "ops.py"
        path.write_text(OPS)
        task = load_task(str(path))
    else:
        (tmp_path / "beside.py").write_text("WIDTH = 1\n")
        loads = "b = tw.editable('../../beside.py')\n"
        path.write_text(
            OPS.replace("FACTOR = 1\n", loads).replace("    name=", "    edit=('ops.py', b.__file__), name=")
        )
        task = load_task(str(path))
    before = git(checkout, "status", "--porcelain"), git(checkout, "for-each-ref")
    workspace = opened(task)
    assert workspace.place.private
    workspace.keep(workspace.write_and_commit(1, {path: "# edited\n"}, "one"))
    assert workspace.texts()[path] == "# edited\n"
    assert (git(checkout, "status", "--porcelain"), git(checkout, "for-each-ref")) == before


def test_a_file_that_is_ignored_but_tracked_is_the_repositorys(checkout: Path, opened: Opened) -> None:
    (checkout / ".gitignore").write_text("kernels/\n")
    assert not opened(task_in(checkout)).place.private


# What cannot be


def test_git_that_is_missing_is_one_line(checkout: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_in(checkout)
    monkeypatch.setenv("PATH", str(home / "no such folder"))
    with pytest.raises(MachineError, match="git is not installed; fix: ") as caught:
        Workspace.open(task, "run-1", home, DATE)
    assert "\n" not in str(caught.value)


def test_what_git_refuses_is_one_line_and_nothing_stays_locked(checkout: Path, home: Path, opened: Opened) -> None:
    task = task_in(checkout)
    head = checkout / ".git" / "config"
    good = head.read_text()
    head.write_text("[broken\n")
    with pytest.raises(GitError, match="git rev-parse: fatal: bad config line 1") as caught:
        Workspace.open(task, "run-1", home, DATE)
    assert "\n" not in str(caught.value)
    head.write_text(good)
    opened(task)


def test_git_that_does_not_answer_is_given_up(
    checkout: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task, fake = task_in(checkout), tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 3600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_module, "SECONDS", 0.2)
    with pytest.raises(MachineError, match="took longer than 0.2 s"):
        Workspace.open(task, "run-1", home, DATE)


def test_a_home_that_cannot_be_written_is_one_line(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot use .*file"):
        Workspace.open(task_in(checkout), "run-1", tmp_path / "file", DATE)


def test_a_file_that_is_not_utf8_is_refused_at_once(checkout: Path, home: Path) -> None:
    (checkout / "kernels" / "ops.py").write_bytes(b"# coding: latin-1\n# \xe9\n" + OPS.encode())
    with pytest.raises(TaskError, match="ops.py is not UTF-8"):
        Workspace.open(task_in(checkout), "run-1", home, DATE)


def test_the_words_of_git_in_one_line(tmp_path: Path) -> None:
    assert str(GitError("add", "hint: x\nfatal: no such path\n")) == "git add: fatal: no such path"
    assert str(GitError("add", "")) == "git add: failed without a message"
    with pytest.raises(MachineError, match="no such folder"):
        Git(tmp_path / "no such folder")("status")
