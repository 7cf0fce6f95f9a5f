"""A machine that was broken into: what it sends back writes, replaces and starts nothing here that it must not."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.made_runs import run_record
from tests.optimize.kit import git, repository

from tilewright.cli.main import main
from tilewright.errors import MachineError
from tilewright.executors import executor_on
from tilewright.executors.base import Executor
from tilewright.hardware.machine import OtherMachine
from tilewright.ledger.ledger import Ledger
from tilewright.remote import messages as said
from tilewright.remote import results
from tilewright.remote.messages import WorkOrder
from tilewright.tools.git import TREE, private_name
from tilewright.worker.messages import PrepareInputs, encode

pytestmark = pytest.mark.timeout(120)
OBJECT = "1" * 40


@dataclass
class There:
    """Makes the tar of a machine that was broken into, and brings it to a user's folder here."""

    here: Path
    notes: list[str] = field(default_factory=list)

    @property
    def user(self) -> Path:
        return self.here / "user"

    @property
    def home(self) -> Path:
        return self.here / "home"

    def sends(self, members: dict[str, bytes | str | bytes], refs: dict[str, str] | None = None,
              kind: bytes = tarfile.REGTYPE, left: str | None = None) -> None:  # fmt: skip
        """``members``: bytes are the content of a file, text is the target of a link."""
        files = {name.removeprefix("tree/"): "" for name in members if name.startswith("tree/")}
        told = {"tree": "/there/tree", "home": "/there/home", "refs": refs or {}, "files": files}
        packed = self.here / "left.tar.gz"
        with tarfile.open(packed, "w:gz") as tar:
            for name, content in {**members, "left.json": (left or json.dumps(told)).encode()}.items():
                info = tarfile.TarInfo(name)
                if isinstance(content, str):
                    info.type, info.linkname = tarfile.SYMTYPE, content
                    tar.addfile(info)
                else:
                    info.type, info.size = (kind if name != "left.json" else tarfile.REGTYPE), len(content)
                    tar.addfile(info, io.BytesIO(content))
        order = WorkOrder(str(self.user), str(self.home), "ssh:gpu1")
        results.bring(
            packed, results.FolderNames("/there/tree", "/there/home", order), self.notes.append, frozenset({"given"})
        )

    def files(self) -> set[str]:
        found = (path for path in self.here.rglob("*") if path.is_symlink() or path.is_file())
        return {str(path.relative_to(self.here)) for path in found} - {"left.tar.gz"}


@pytest.fixture
def there(tmp_path: Path) -> There:
    (tmp_path / "user").mkdir()
    (tmp_path / "outside").mkdir()
    return There(tmp_path)


@pytest.mark.parametrize("name", ["../outside/x", "tree/../../outside/x", "/tmp/tilewright-outside", "home/../../x"])
def test_names_that_leave_the_folder_are_refused_before_anything_is_written(there: There, name: str) -> None:
    with pytest.raises(MachineError, match="leaves the folder"):
        there.sends({"tree/fine.txt": b"", name: b"x"})
    assert there.files() == set() and not Path("/tmp/tilewright-outside").exists()


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE])
def test_devices_and_hard_links_are_refused(there: There, kind: bytes) -> None:
    with pytest.raises(MachineError, match="neither a file nor a link"):
        there.sends({"tree/device": b""}, kind=kind)


@pytest.mark.parametrize("left", ["", "[]", "[" * 100_000, '{"tree": 1}', '{"refs": {"a": {}}}'])
def test_what_is_not_a_result_is_one_line(there: There, left: str) -> None:
    with pytest.raises(MachineError, match="cannot be read") as raised:
        there.sends({}, left=left or "{")
    assert "\n" not in str(raised.value)


def test_too_much_is_refused(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.remote.unpacking.MOST_UNPACKED", 1 << 20)
    with pytest.raises(MachineError, match="more than 1 MiB"):
        there.sends({"tree/zeros": bytes(2 << 20)})
    assert there.files() == set()


def test_nothing_is_written_through_links(there: There) -> None:
    """Neither through a link that it sends, nor through one that the user has."""
    outside = there.here / "outside"
    (there.user / "mine").symlink_to(outside)
    (there.user / ".git" / "hooks").mkdir(parents=True)
    there.sends({"tree/out": str(outside), "tree/up": "..", "tree/git": ".git", "tree/fine": "inner"})
    assert there.files() == {"user/mine", "user/fine"}
    there.sends({"tree/mine/x": b"x"})
    (there.user / "git").symlink_to(".git")
    there.sends({"tree/git/hooks/post-commit": b"x", "tree/.git/hooks/post-commit": b"x", "home/link": str(outside)})
    assert list(outside.iterdir()) == [] and list((there.user / ".git" / "hooks").iterdir()) == []
    assert sum("leads out of" in note for note in there.notes) >= 4
    there.home.mkdir(exist_ok=True)
    (there.home / "runs").symlink_to(outside)
    there.sends({"home/runs/a/report.html": b"x", "home/cubins/k.json": b"code"})
    assert list(outside.iterdir()) == [] and not (there.home / "cubins").exists()


def test_a_file_that_was_not_brought_is_not_replaced_by_who_guesses_its_content(there: There) -> None:
    """Such as one that git ignores."""
    files = {}
    for name in ("given", "ignored"):
        (there.user / name).write_text("known")
        files[name] = results.digest_of(there.user / name)
    left = json.dumps({"tree": "/there/tree", "home": "/there/home", "refs": {}, "files": files})
    there.sends({"tree/given": b"new", "tree/ignored": b"new"}, left=left)
    assert [(there.user / name).read_text() for name in files] == ["new", "known"]
    assert (there.home / "brought" / "ignored").read_text() == "new"


def test_what_earlier_runs_left_stays(there: There) -> None:
    (there.home / "runs" / "old").mkdir(parents=True)
    for name in ("runs/old/report.html", "casebook_questions.jsonl"):
        (there.home / name).write_text("mine\n")
    there.sends({"home/runs/old/report.html": b"theirs", "home/casebook_questions.jsonl": b"theirs\n"})
    assert (there.home / "runs/old/report.html").read_text() == "mine\n"
    assert (there.home / "brought/runs/old/report.html").read_text() == "theirs"
    assert (there.home / "casebook_questions.jsonl").read_text() == "mine\ntheirs\n", "questions are added"


def test_refs_of_own_runs_and_branches_of_the_user_stay(there: There) -> None:
    repository(there.user / "program")
    there.user.rmdir() if False else None
    program = there.user / "program"
    there = There(there.here)
    with Ledger(there.home / "ledger.db") as ledger:
        own = ledger.begin(run_record()).run
    head = git(program, "rev-parse", "HEAD").strip()
    git(program, "commit", "--quiet", "--allow-empty", "-m", "next")
    new = git(program, "rev-parse", "HEAD").strip()
    git(program, "reset", "--quiet", "--hard", head)
    git(program, "checkout", "--quiet", "-b", "my-perf-work")
    git(program, "update-ref", f"refs/tilewright/{own}/1", head)
    sent = {
        f"refs/tilewright/{own}/1": new, "refs/heads/my-perf-work": new, "refs/heads/main": new, "refs/tags/v1": new,
        "refs/tilewright/other/1": new, "refs/heads/a-perf-b": "--no-deref", "refs/tilewright/other/2": "-d",
    }  # fmt: skip
    order = WorkOrder(str(program), str(there.home), "ssh:gpu1")
    before = git(program, "for-each-ref")
    bringing = results._Bringing(
        there.here, results.CommandResults("/t", "/h", sent, {}), results.FolderNames("/t", "/h", order),
        there.notes.append, frozenset(),
    )  # fmt: skip
    bringing._refs()
    after = set(git(program, "for-each-ref").splitlines()) - set(before.splitlines())
    assert [line.split("\t")[1] for line in after] == ["refs/tilewright/other/1"]
    assert any(own in note for note in there.notes) and any("my-perf-work" in note for note in there.notes)


def test_private_repositories_bring_no_settings_and_no_hooks(there: There) -> None:
    """They name commands, which git would start here."""
    made = there.here / "made"
    subprocess.run(["git", "init", "-q", "--bare", made], check=True)
    blob = subprocess.run(
        ["git", "-C", made, "hash-object", "-w", "--stdin"], input=b"x", capture_output=True, check=True
    )
    git(made, "update-ref", "refs/tilewright/run/1", blob.stdout.decode().strip())
    hook = f"#!/bin/sh\ntouch {there.here}/started\n"
    (made / "config").write_text(
        f'[core]\nbare=true\nfsmonitor="touch {there.here}/started"\n[filter "x"]\nclean=evil\n'
    )
    for name in ("hooks/post-update", "hooks/reference-transaction", "info/attributes", "objects/info/alternates"):
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(hook)
    name = private_name(TREE, ["/there/tree"])
    members = {
        f"home/repositories/{name}/{p.relative_to(made)}": p.read_bytes() for p in made.rglob("*") if p.is_file()
    }
    for _ in range(2):
        there.sends(dict(members))
    (brought,) = (there.home / "repositories").glob("tree-*")
    assert brought.name == private_name(TREE, [str(there.user)])
    assert "refs/tilewright/run/1" in git(brought, "for-each-ref", "--format=%(refname)")
    assert "filter" not in (brought / "config").read_text() and not (brought / "hooks").exists()
    assert not (brought / "objects/info/alternates").exists() and not (there.here / "started").exists()


ANSWERS = {
    "no JSON": "'hello'",
    "a list": "'[]'",
    "no facts": "'{}'",
    "odd facts": """'{"python": 3, "node": "\\\\u001b[31m"}'""",
    "deep": "'[' * 100000",
    "nothing": "''",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_answers_that_are_none_are_one_line(
    answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "ssh.py"
    script.write_text(f"import sys\nprint({answer}, flush=True)\nsys.stdin.buffer.read()\n")
    monkeypatch.setenv("TILEWRIGHT_SSH", shlex.join([sys.executable, str(script)]))
    monkeypatch.chdir(tmp_path)
    code = main(["agent", "speed up x.py", "--on", "ssh:gpu1"])
    error = capsys.readouterr().err
    assert code == 3 and error.startswith("error: ") and error.count("\n") == 1 and "\x1b" not in error, error


def test_a_line_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "ssh.py"
    script.write_text("import os\nwhile True:\n    os.write(1, b'x' * 65536)\n")
    monkeypatch.setenv("TILEWRIGHT_SSH", shlex.join([sys.executable, str(script)]))
    monkeypatch.setattr("tilewright.remote.connection.MOST_UNREAD", 1 << 20)
    monkeypatch.chdir(tmp_path)
    with executor_on("ssh:gpu1") as executor, pytest.raises(MachineError, match="a line of more than 1 MiB"):
        executor.command(["check", "x.py"], None)


def _asked(executor: Executor, for_a_step: bool) -> None:
    if for_a_step:
        executor.open("x.py")
        executor.run(PrepareInputs("w", 0))
    else:
        executor.command(["check", "x.py"], None)


ATTACHED = said.Attached(OtherMachine("gpu1", None, None, "n"), 1, False, False)
OTHERWISE = {
    "a line that is no message": "hello\n",
    "a part that is no Base64": encode(said.LeftPart("é")),
    "a part without end": encode(said.LeftPart("QUFB" * 2000)),
    "an answer of another kind": encode(said.StepEnded(2, "PASSED", encode(said.Ping()), "", None)),
}


@pytest.mark.parametrize("line", OTHERWISE.values(), ids=list(OTHERWISE))
def test_messages_of_another_kind_end_the_command_with_one_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is sent after the connection was made."""
    facts = {"python": [3, 11], "node": "n", "executable": "p", "code": True, "cache": "/c", "free": 1e12, "last": "",
             "git": True, "machine": "x86_64", "there": True}  # fmt: skip
    script = tmp_path / "ssh.py"
    script.write_text(
        f"import json, sys\nfor _ in range(3):\n    print({json.dumps(facts)!r})\n"
        f"print({encode(ATTACHED)!r}, end='')\nprint({line!r}, end='', flush=True)\nsys.stdin.buffer.read()\n"
    )
    monkeypatch.setenv("TILEWRIGHT_SSH", shlex.join([sys.executable, str(script)]))
    monkeypatch.setenv("TILEWRIGHT_REMOTE_PYTHON", "python3")
    monkeypatch.setattr("tilewright.remote.command.MOST_UNPACKED", 1 << 10)
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "x.py").touch()
    monkeypatch.chdir(tmp_path / "task")
    with executor_on("ssh:gpu1") as executor, pytest.raises(MachineError) as raised:
        _asked(executor, "StepEnded" in line)
    assert "\n" not in str(raised.value)
    assert "sends back more than" in str(raised.value) or "does not answer as Tilewright does" in str(raised.value)
