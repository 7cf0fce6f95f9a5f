"""Whole commands on another machine, through a real ssh server on loopback: what they leave is here afterwards."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.coordinate.made_agent import PROGRAM, program_in
from tests.made_runs import baseline_iteration, crashed, raced, run_record
from tests.optimize.kit import SCALE, git, repository
from tests.remote.driven import AGENT, HANDED, context_of, over_there
from tests.remote.kit import GRACE, ROOT, Loopback, needs_sshd, wait_for
from tests.runtime.made_winners import winner

from tilewright.cli.main import main
from tilewright.errors import RequestError
from tilewright.executors import executor_on
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.merging import merged
from tilewright.ledger.runs import LedgerFile
from tilewright.remote import results
from tilewright.remote.client import Remote
from tilewright.remote.messages import WorkOrder
from tilewright.remote.ordering import ordered_command
from tilewright.remote.work import WorkFolder
from tilewright.runtime.store.winners import Winners

pytestmark = [needs_sshd, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _environ(loop: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name, value in loop.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    yield
    wait_for(lambda: not loop.left())


def works(loop: Loopback) -> list[Path]:
    return [*(loop.folder / "cache" / "work").glob("*")]


@pytest.mark.long
def test_optimize_leaves_what_it_leaves_here(
    loop: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SCALE.replace("(256,)", "(16, 1024)").replace('"TILE": 256', '"TILE": 16').replace("4096", "1 << 18")
    file = repository(tmp_path / "user", text)
    file.write_text(f"{text}\n# not committed\n")
    monkeypatch.chdir(file.parent)
    git(file.parent, "config", "user.name", "Someone")
    before = git(file.parent, "status", "--short"), git(file.parent, "rev-parse", "HEAD")
    words = ["--arch", "sm_90", "--seed", "1", "--iterations", "1", "--only", "tile_sizes", "--budget", "60"]
    assert main(["optimize", "ops.py", *words, "--on", "ssh:loop", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert str(loop.folder) not in said.out, "names of folders are those here"
    with Ledger() as ledger:
        record, iterations = ledger.run(found["run"]), ledger.iterations(found["run"])
    assert record.where == f"{file}:scale" and record.reproduce.endswith("--on ssh:loop")
    assert [each.n for each in iterations] == [0, 1] and record.finished
    assert main(["report", "latest", "--markdown", "-"]) == 0 and "tile sizes" in capsys.readouterr().out
    assert (git(file.parent, "status", "--short"), git(file.parent, "rev-parse", "HEAD")) == before
    refs = git(file.parent, "for-each-ref", "--format=%(refname)").split()
    assert {f"refs/heads/{record.branch}", f"refs/tilewright/{record.run}/1"} <= set(refs)
    shown = git(file.parent, "show", "--format=%an", f"refs/tilewright/{record.run}/1")
    assert shown.startswith("Someone\n") and "-    space=tw.Space(constants" in shown
    log = git(file.parent, "log", "--format=%H", record.branch).split()
    assert before[1].strip() in log, "the branch begins at the user's commit"
    assert not works(loop), "nothing is kept over there once it is here"
    assert main(["optimize", "ops.py", "--propose", "cat", "--on", "ssh:loop"]) == 2
    assert "--propose asks a command of this machine" in capsys.readouterr().err


@pytest.mark.parametrize("in_git", [True, False])
def test_agents_kept_changes_reach_the_files_here_and_can_be_taken_back(
    in_git: bool, loop: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-05: every delegation carries the same execution context, byte for byte; one connection serves all."""
    script = program_in(tmp_path / "program", git=in_git)
    monkeypatch.chdir(script.parent)
    logins = loop.logins()
    assert over_there(script.with_name("driver.py"), AGENT) == 0
    assert loop.logins() - logins == 1
    assert "fast = 1" in script.read_text() and "faster = 1" in script.read_text()
    with AgentLedger() as ledger:
        run, found = ledger.load("latest")
    assert run.root == str(script.parent) and len(found.kept) == 2
    assert context_of(found, script.parent) == run.context and "reached with --on ssh:loop;" in run.context
    assert main(["agent", "--undo", run.run]) == 0
    assert script.read_text() == PROGRAM and "is taken back" in capsys.readouterr().out


def order(root: str = "/here", home: str = "/home") -> WorkOrder:
    return WorkOrder(root, home, "ssh:loop")


def test_a_file_that_one_specialist_writes_is_there_for_the_next(
    loop: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert over_there(Path("driver.py"), HANDED) == 0
    out = capsys.readouterr().out
    assert "same context: True" in out and str(loop.folder) not in out
    assert "--on ssh:loop" in (tmp_path / "home" / "written" / "kernel.py").read_text()


SLOW = """\
import time
from pathlib import Path
place = Path(PLACE)
with (place / "started").open("a") as file:
    file.write("x")
print("begun", flush=True)
while (place / "hold").exists():
    time.sleep(0.02)
Path("out").mkdir()
Path("out/figures.txt").write_text("7")
print("ended")
sys.exit(5)
"""
CLIENT = """\
import sys
from tilewright.executors import executor_on
with executor_on("ssh:loop") as executor:
    executor.say = lambda remark: print(remark, file=sys.stderr, flush=True)
    sys.exit(executor.command(["slow.py"], None))
"""


def test_a_command_goes_on_when_its_client_is_killed_and_is_taken_up_again(
    loop: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    (tmp_path / "hold").touch()
    text = f"import sys\n{SLOW}".replace("PLACE", repr(str(tmp_path)))
    (folder / "slow.py").write_text(text)
    monkeypatch.chdir(folder)

    def client() -> subprocess.Popen[str]:
        pipe, env = subprocess.PIPE, os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.Popen([sys.executable, "-c", CLIENT], stdout=pipe, stderr=pipe, text=True, env=env)

    first = client()
    assert first.stdout is not None and first.stdout.readline() == "begun\n"
    logins = loop.logins()
    assert loop.drop() >= 1
    wait_for(lambda: loop.logins() > logins)
    first.kill()
    assert "connecting again" in first.communicate(timeout=GRACE)[1]
    second = client()
    (tmp_path / "hold").unlink()
    out, errors = second.communicate(timeout=GRACE)
    assert (second.returncode, out) == (5, "begun\nended\n") and "taking it up again" in errors
    assert (folder / "out" / "figures.txt").read_text() == "7" and "wrote out/figures.txt" in errors
    assert (tmp_path / "started").read_text() == "x", "it ran once"
    assert not works(loop)
    (tmp_path / "hold").touch()
    third = client()
    assert third.stdout is not None and third.stdout.readline() == "begun\n"
    third.send_signal(signal.SIGINT)
    assert "goes on from what it has finished there" in third.communicate(timeout=GRACE)[1]
    wait_for(lambda: not loop.left() and not works(loop))


def test_what_ended_while_nobody_was_there_is_delivered_once(
    loop: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the reader of the output has closed it."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    text = SLOW.replace("PLACE", repr(str(tmp_path)))
    with monkeypatch.context() as patched:
        patched.setattr(Remote, "brought", lambda self: None)  # the answer is lost
        assert over_there(Path("slow.py"), text) == 5
    shutil.rmtree(folder / "out")
    assert len(works(loop)) == 1
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        over_there(Path("slow.py"), text)
    assert "this command ended at 2" in capsys.readouterr().err
    assert (folder / "out" / "figures.txt").read_text() == "7" and (tmp_path / "started").read_text() == "x"
    wait_for(lambda: not works(loop))


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_words_and_files_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = repository(tmp_path / "user")
    (file.parent / "sub").mkdir()
    (file.parent / ".gitignore").write_text("*.patch\n")
    for name in ("named.patch", "other.patch"):
        (file.parent / name).write_text("x")
    monkeypatch.chdir(file.parent / "sub")
    change, task = file.parent / "named.patch", "../ops.py:scale"
    words = ["optimize", task, "--change", str(change), f"--change={change}", "--l2", "cold"]
    ordered = ordered_command(words, task, [change], "ssh:gpu1")
    there = ["optimize", "../ops.py:scale", "--change", "../named.patch", "--change=../named.patch", "--l2", "cold"]
    assert list(ordered.words) == there and ordered.bundle.folder == "sub"
    with tarfile.open(fileobj=io.BytesIO(ordered.bundle.tar)) as tar:
        assert tar.getnames() == [".gitignore", "named.patch"], (
            "what the command names is brought though git ignores it"
        )
    monkeypatch.chdir(tmp_path)
    assert ordered_command(["check", str(file)], str(file), [], "ssh:gpu1").words == ("check", "ops.py")


def test_what_changed_here_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    for name in ("cache/files/key", "user"):
        (tmp_path / name).mkdir(parents=True)
        for file in ("a.py", "b.py", "same.py"):
            (tmp_path / name / file).write_text("old")
    user, home = tmp_path / "user", tmp_path / "home"
    work = WorkFolder("run", tmp_path / "cache" / "files" / "key", order(str(user), str(home)))
    work.prepare()
    for file in ("a.py", "b.py", "new/c.txt"):
        (work.tree / file).parent.mkdir(exist_ok=True)
        (work.tree / file).write_text("from there")
    (work.home / "runs").mkdir()
    (work.home / "runs" / "told.md").write_text(f"see {work.tree}/a.py and {work.home}/runs")
    (user / "b.py").write_text("mine")
    notes: list[str] = []
    places = results.FolderNames(str(work.tree), str(work.home), work.order)
    for _ in range(2):  # also after an interruption
        results.bring(work.pack(), places, notes.append, frozenset({"a.py", "b.py", "same.py"}))
    texts = {name: (user / name).read_text() for name in ("a.py", "b.py", "same.py", "new/c.txt")}
    assert texts == {"a.py": "from there", "b.py": "mine", "same.py": "old", "new/c.txt": "from there"}
    assert (home / "brought" / "b.py").read_text() == "from there"
    assert (home / "runs" / "told.md").read_text() == f"see {user}/a.py and {home}/runs"
    assert [note for note in notes if "b.py has changed here meanwhile and is left as it is" in note]
    with tarfile.open(work.pack()) as tar:
        assert "tree/same.py" not in tar.getnames(), "only what is new is brought back"


def test_runs_are_brought_with_the_names_of_folders_here_and_grow(tmp_path: Path) -> None:
    outcomes = []
    with Ledger(tmp_path / "there.db") as there, LedgerFile(tmp_path / "here.db") as here:
        run = there.begin(replace(run_record(), where="/there/ops.py:task")).run
        for iteration in (baseline_iteration(), raced(1, 10.0, 20.0, keep=True), crashed(2)):
            there.append(run, iteration)
            for _ in range(2):
                (done,) = merged(here, there, lambda text: text.replace("/there", "/here"))
                outcomes.append(done.outcome)
        expected = there.iterations(run)
    assert outcomes == ["added", "same", "extended", "same", "extended", "same"]
    with Ledger(tmp_path / "here.db") as ledger:
        assert ledger.run(run).where == "/here/ops.py:task" and ledger.iterations(run) == expected


def test_tuned_verify_takes_the_store_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    assert main(["tuned", "verify", "--on", "ssh:loop"]) == 2
    assert "nothing is stored in" in capsys.readouterr().err
    Winners(strict=True).put(winner("a" * 64, kernel="matmul"))
    assert main(["tuned", "verify", "--on", "ssh:loop", "--json"]) == 3
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["kernel"], row["verdict"]) == ("matmul", "cannot")


def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    Path("x.py").touch()
    for words, why in (
        (["profile", "trace.json"], "a trace is read here"),
        (["profile", "--html", str(tmp_path / "x.html"), "--", "python", "-c", "1"], "is outside"),
        (["agent", "--undo", "x"], "--undo restores files of this machine"),
        (["agent", "speed up x.py", "--report", str(tmp_path / "r.md")], "is outside"),
    ):
        assert main([*words[:1], "--on", "ssh:loop", *words[1:]]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert why in line and "fix: " in line
    assert main(["profile", "--on", "ssh:loop", "--", "python", "-c", "1"]) == 3
    assert "needs a GPU, and there is none here" in capsys.readouterr().err
    with pytest.raises(RequestError, match="runs the steps of tune, but no whole command"):
        executor_on("local").command(["check"], None)
