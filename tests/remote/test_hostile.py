"""A machine that was broken into: what it sends back writes, replaces and starts nothing here that it must not."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.made_runs import run_record
from tests.optimize.kit import git, repository
from tests.remote.tuning import H200

from tilewright.cli.main import main
from tilewright.errors import MachineError
from tilewright.executors import executor_on
from tilewright.executors.base import Executor
from tilewright.executors.ssh import Ssh
from tilewright.hardware.machine import OtherMachine
from tilewright.ledger.ledger import Ledger
from tilewright.race.protocol import Raced, RaceOutcome
from tilewright.race.rules import Policy
from tilewright.remote import messages as said
from tilewright.remote import results
from tilewright.remote.messages import WorkOrder
from tilewright.tools.git import TREE, private_name
from tilewright.worker import messages as ask
from tilewright.worker.messages import PrepareInputs, encode
from tilewright.worker.plausible import mistake_in

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
    Path("x.py").touch()
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


def attached(seed: int = 1, driver: str = "580.0", **gpu: Any) -> str:
    """A greeting that lies about the machine."""
    return encode(said.Attached(OtherMachine("gpu1", replace(H200, **gpu), driver, "n"), seed, False, False))


OTHERWISE = {
    "a line that is no message": "hello\n",
    "a part that is no Base64": encode(said.LeftPart("é")),
    "a part without end": encode(said.LeftPart("QUFB" * 2000)),
    "an answer of another kind": encode(said.StepEnded(2, "PASSED", encode(said.Ping()), "", None)),
    "no answer": encode(said.StepEnded(2, "PASSED", "", "", None)),
    "a candidate that there is not": encode(said.StepEnded(2, "FAILED", "", "x", 10**30)),
    "a folder that is none": encode(said.WorksIn("", "/")),
    "an exit code that is none": encode(said.CommandEnded(10**30)),
    "a greeting of a driver that is none": attached(driver="one"),
    "a greeting of a GPU that is none": attached(arch="--help"),
    "a greeting of a GPU without cores": attached(sms=0),
    "a greeting with a seed that is none": attached(seed=-1),
}


FACTS = {
    "python": [3, 11], "node": "n", "executable": "p", "code": True, "cache": "/c", "free": 1e12, "last": "",
    "git": True, "machine": "x86_64", "there": True, "job": "7", "new": True, "state": "RUNNING",
}  # fmt: skip
"""An answer to each request of `boot`."""


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], Executor]:
    """Returns the executor for a machine, or for a cluster whose login node it is, that prints these lines."""

    def made(on: str, lines: list[str]) -> Executor:
        script = tmp_path / "ssh.py"
        script.write_text(
            f"import sys\nfor line in {lines!r}:\n    print(line, end='', flush=True)\nsys.stdin.buffer.read()\n"
        )
        spec = {"ssh_host": "gpu1", "partition": None, "account": None, "gpus_per_node": 1, "walltime": "1"}
        (tmp_path / "spec.json").write_text(json.dumps({**spec, "python": "python3"}))
        monkeypatch.setenv("TILEWRIGHT_JOB_SPEC", str(tmp_path / "spec.json"))
        monkeypatch.setenv("TILEWRIGHT_SSH", shlex.join([sys.executable, str(script)]))
        monkeypatch.setenv("TILEWRIGHT_REMOTE_PYTHON", "python3")
        monkeypatch.setattr("tilewright.remote.command.MOST_UNPACKED", 1 << 10)
        (tmp_path / "task").mkdir()
        (tmp_path / "task" / "x.py").touch()
        monkeypatch.chdir(tmp_path / "task")
        return executor_on(on)

    return made


@pytest.mark.parametrize("on", ["ssh:gpu1", "slurm"])
@pytest.mark.parametrize("line", OTHERWISE.values(), ids=list(OTHERWISE))
def test_messages_of_another_kind_end_the_command_with_one_line(
    line: str, on: str, lying: Callable[[str, list[str]], Executor]
) -> None:
    """Whatever is sent after the connection was made."""
    requests = 3 if on.startswith("ssh") else 4
    greeting = line if "Attached" in line else encode(ATTACHED) + line
    executor = lying(on, [json.dumps(FACTS) + "\n"] * requests + [greeting])
    with executor, pytest.raises(MachineError) as raised:
        _asked(executor, "StepEnded" in line)
    assert "\n" not in str(raised.value)
    assert "sends back more than" in str(raised.value) or "does not answer as Tilewright does" in str(raised.value)


def test_what_nobody_takes_any_more_keeps_no_run_from_ending(lying: Callable[[str, list[str]], Executor]) -> None:
    """Such as what a command prints after Ctrl-C: it fills the pipe, and a machine that writes does not end."""
    printed = [encode(said.TextPrinted(1, 4000 * "x"))] * 300
    executor = lying("ssh:gpu1", [json.dumps(FACTS) + "\n"] * 3 + [encode(ATTACHED), *printed])
    executor.prepare("x.py")
    assert isinstance(executor, Ssh) and (remote := executor.remote) is not None
    executor.close()
    assert remote.ended_well


ALLOCATIONS = {
    "no job": {"state": "RUNNING", "node": "n"},
    "a list": [],
    "an error with escape sequences": {"error": "\x1b[31m" + "x\n" * 9},
    "a job without a node": {"job": "7", "new": True, "state": "RUNNING"},
    "an error that is no text": {"error": {"a": [1]}, "errno": "28"},
}


@pytest.mark.parametrize("answer", ALLOCATIONS.values(), ids=list(ALLOCATIONS))
def test_a_login_node_that_lies_about_the_allocation_is_one_line(
    answer: object, lying: Callable[[str, list[str]], Executor], capsys: pytest.CaptureFixture[str]
) -> None:
    lying("slurm", [json.dumps(each) + "\n" for each in (FACTS, FACTS, answer)])
    code = main(["profile", "--on", "slurm", "--", "python", "-c", "1"])
    error = capsys.readouterr().err
    assert code == 3 and error.startswith("error: ") and error.count("\n") == 1 and "\x1b" not in error, error


def raced(*us: float, winner: int | None = 0, first: int = 0) -> ask.FieldRaced:
    rows = tuple(Raced(first + n, "tied", "", None, (0,), (each,)) for n, each in enumerate(us))
    return ask.FieldRaced(RaceOutcome(Policy(), rows, winner, winner, "settled", "", 1, 0, (), 1.0), {}, None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (raced(1.0), "of 1 candidates, not of 2"), (raced(1.0, 2.0, first=7), "candidates, not of 2"),
        (raced(1.0, 2.0, winner=9), "did not take part"), (raced(1.0, 2.0, winner=-1), "did not take part"),
        (raced(1.0, -2.0), "a time of -2.0"), (raced(1.0, float("nan")), "a time of nan"), (raced(1.0, 2.0), None),
    ],
)  # fmt: skip
def test_a_race_that_cannot_be_is_none(answer: ask.FieldRaced, why: str | None) -> None:
    source = ask.Program("", "x", (1,), ())
    found = mistake_in(ask.RaceField((source, source), ((), ()), None, Policy()), answer)
    assert found is None if why is None else found is not None and why in found
