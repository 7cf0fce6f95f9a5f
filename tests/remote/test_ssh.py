"""Runs on another machine through a real ssh server on loopback, with connections, clients and workers that die.

The GPU over there is simulated (`worker.py`); ssh, the resident process, compilers, git and the ledger are real.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.remote.kit import (
    GRACE,
    Loopback,
    OtherMachineContract,
    Tuning,
    needs_sshd,
    steps,
    wait_for,
    written_ops,
)  # fmt: skip
from tests.remote.tuning import H200, executor
from tests.tune.test_tune import OPS as FOUR

from tilewright.cli.main import main
from tilewright.errors import MachineError, NoGpu, RequestError, TilewrightError, UnknownChoice
from tilewright.executors.base import Executor
from tilewright.executors.ssh import Ssh
from tilewright.hardware.machine import OtherMachine
from tilewright.remote import client, environment, files
from tilewright.remote.client import prepared
from tilewright.remote.connection import Connection, refusal
from tilewright.tune.tune import tune
from tilewright.worker.messages import Hello, PrepareInputs

pytestmark = [needs_sshd, pytest.mark.timeout(240)]
OPS = FOUR.replace("(None, 2)", "(None,)")
"""Two configurations."""


@pytest.fixture(autouse=True)
def _environ(loop: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in loop.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def ops(tmp_path: Path) -> str:
    return written_ops(tmp_path, OPS)


class TestSsh(OtherMachineContract):
    def make(self) -> Executor:
        return executor(self.folder)


def test_a_hang_is_an_outcome_and_nothing_is_left(loop: Loopback, ops: str, tmp_path: Path) -> None:
    with executor(tmp_path) as run:
        run.open(ops)
        outcome = run.run(PrepareInputs("hangs", 0), silence=0.3)
        assert (outcome.status, outcome.answer) == ("HANG_DETECTED", None) and "kernel hangs" in outcome.reason
        assert run.run(Hello()).status == "PASSED"
        wait_for(lambda: len(loop.left()) == 1)
    wait_for(lambda: not loop.left())


# A run of tune ------------------------------------------------------------------------------------


def test_a_lost_connection_and_a_killed_client_lose_nothing(loop: Loopback, ops: str, tmp_path: Path) -> None:
    """The run goes on over there, is taken up again by the same command, and no race runs twice."""
    run = Tuning(ops, tmp_path)
    process = run.start()
    wait_for(run.racing)
    logins = loop.logins()
    assert loop.drop() >= 1
    wait_for(lambda: loop.logins() > logins)
    process.kill()
    assert "connecting again" in process.communicate()[1]
    wait_for(lambda: len(loop.left()) == 1)
    run.hold.unlink()
    assert run.winners(run.start()) == ["even TILE=32,occupancy=auto"]
    assert "taking up the run on loop again" in run.said
    assert steps(tmp_path, "RaceField") == 1, "the race that the killed client began is not repeated"
    wait_for(lambda: not loop.left())


def test_an_interruption_ends_everything_at_once(loop: Loopback, ops: str, tmp_path: Path) -> None:
    run = Tuning(ops, tmp_path)
    process = run.start()
    wait_for(run.racing)
    process.send_signal(signal.SIGINT)
    assert process.wait(GRACE) == 130
    assert "Traceback" not in process.communicate()[1]
    wait_for(lambda: not loop.left())
    assert run.hold.exists(), "the race was still running"


def test_a_client_that_does_not_come_back_leaves_no_process(loop: Loopback, ops: str, tmp_path: Path) -> None:
    run = executor(tmp_path, linger=0.3)
    run.open(ops)
    assert run.run(Hello()).status == "PASSED" and run.remote is not None and run.remote._connection is not None
    run.remote._ended.set()  # it says nothing more, as a client that was killed
    run.remote._connection.process.kill()
    wait_for(lambda: not loop.left())


def test_a_second_client_is_told_who_uses_the_run(ops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BUSY_WAITS", (0.0,))
    with executor(tmp_path) as first, executor(tmp_path) as second:
        first.open(ops)
        with pytest.raises(MachineError, match=rf"in use by .*process {os.getpid()}; fix: wait"):
            second.open(ops)


# Whole commands -----------------------------------------------------------------------------------


def test_check_runs_over_there_on_the_users_files(
    ops: str, loop: Loopback, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(ops).parent)
    Path(ops).write_text(OPS.replace("t * 2", "t * 3"))
    assert main(["check", "ops.py", "--quick", "--on=ssh:loop", "--json"]) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["task"], found["verdict"]) == ("scale", "incorrect")
    assert "loop has no GPU: the command runs there on the CPU" in said.err
    wait_for(lambda: not loop.left())


def test_tune_needs_a_gpu_over_there(ops: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", ops, "--on", "ssh:loop", "--no-store"]) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: loop has no GPU to measure on; fix: ")
    with pytest.raises(NoGpu):
        tune(ops, executor=Ssh("loop"), store=False)


@pytest.mark.parametrize(("driver", "cuda"), [("550.54.14", "12.4"), (None, "12.4")])
def test_a_driver_that_is_too_old_is_one_line(driver: str | None, cuda: str) -> None:
    old = OtherMachine("gpu1", replace(H200, cuda_driver=cuda), driver, "x86_64")
    with pytest.raises(MachineError, match="gpu1 has .*which does not run .* fix: install driver r580 or newer there"):
        old.the_gpu()
    assert replace(old, driver="580.1").the_gpu().name == "NVIDIA H200"


def test_doctor_says_what_works_over_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--on", "ssh:loop", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [each["name"] for each in found["checks"]]
    assert names[:5] == ["connection", "files", "environment", "resident process", "Python"] and "GPU" in names
    assert main(["doctor", "--on", "ssh:refused"]) == 3
    said = capsys.readouterr().out
    assert "refused refuses your keys" in said and "fix: make ssh refused work" in said


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("ssh", "--on ssh needs a host; fix: --on ssh:HOST"),
        ("ssh:-oProxyCommand=x", "is no name of a host"),
        ("ssh:nowhere", "unknown host no-such-host.invalid; fix:"),
        ("ssh:closed", "no ssh server answers there; fix:"),
        ("ssh:refused", "refuses your keys (publickey); fix:"),
        ("ssh:unknown", "the key of host unknown is not known yet; fix: connect once by hand"),
        ("shh:loop", "unknown place for --on 'shh:loop'; known: local, "),
    ],
)
def test_a_bad_host_is_one_line(where: str, line: str, ops: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", ops, "--on", where, "--no-store"]) in (2, 3)
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and line in said[0]


def test_a_changed_host_key_is_named(loop: Loopback) -> None:
    other = (loop.folder / "loop-key.pub").read_text()
    known, before = loop.folder / "known-loop", (loop.folder / "known-loop").read_text()
    known.write_text(f"[127.0.0.1]:{loop.port} {other}")
    try:
        with pytest.raises(MachineError, match="the key of host loop has changed: .*ssh-keygen -R loop"):
            Connection("loop").request("facts", code="x", root="x")
    finally:
        known.write_text(before)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("TILEWRIGHT_REMOTE_PYTHON", "/bin/false", "/bin/false (TILEWRIGHT_REMOTE_PYTHON) is no Python"),
        (
            "TILEWRIGHT_REMOTE_PYTHON",
            "BARE/bin/python",
            "No module named 'numpy'; fix: install Tilewright's dependencies",
        ),
        ("TILEWRIGHT_REMOTE_CACHE", "/proc/nowhere", "loop: No such file or directory (/proc/nowhere)"),
        ("TILEWRIGHT_SSH", "/no/such/ssh", "/no/such/ssh could not be started (No such file or directory); fix:"),
        ("TILEWRIGHT_SSH_MFA", "master", "no open connection to loop to share; fix: open one"),
    ],
)
def test_what_is_wrong_over_there_is_one_line(
    variable: str, value: str, line: str, ops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value.startswith("BARE"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "BARE")], check=True)
        value = str(tmp_path / value)
    monkeypatch.setenv(variable, value)
    with pytest.raises(MachineError) as error:
        executor(tmp_path).open(ops)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_styles_of_second_factors(loop: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """K15: direct, a ControlMaster that the user made, probe."""
    socket = loop.folder / "master"
    command = [*os.environ["TILEWRIGHT_SSH"].split(), "-o", "BatchMode=yes", "-MN", "loop"]
    nowhere = subprocess.DEVNULL  # a master that outlives a killed test would keep the terminal's pipe open
    master = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    try:
        wait_for(socket.exists)
        before = loop.logins()
        for mfa, logins in ((True, 0), (None, 0), (False, 1)):
            connection = Connection("loop", mfa)
            assert connection.request("has", kind="code", key="x") == {"there": False}
            connection.close()
            assert loop.logins() - before == logins
    finally:
        master.kill()
        master.wait()
        socket.unlink()
    asked = refusal("gpu1", "me@gpu1: Permission denied (publickey,keyboard-interactive).")
    assert asked is not None and "second factor" in asked and "ssh -fNM gpu1" in asked
    monkeypatch.setenv("TILEWRIGHT_SSH_MFA", "sometimes")
    with pytest.raises(UnknownChoice, match="known: direct, master, probe"):
        Connection("loop")


@pytest.mark.skipif(os.getuid() != 0, reason="needs to mount a small file system, which only root may")
def test_no_space_over_there_is_one_line(ops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system")
    try:
        monkeypatch.setenv("TILEWRIGHT_REMOTE_CACHE", str(small))
        with pytest.raises(MachineError, match="No space left.*fix: free some space there"):
            executor(tmp_path).open(ops)
        assert not [each for each in small.rglob(".new-*") if each.exists()]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_text_that_the_login_prints_is_named(loop: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy: Any = f"sh -c 'echo welcome; exec {os.environ['TILEWRIGHT_SSH']} \"$@\"' ssh"
    monkeypatch.setenv("TILEWRIGHT_SSH", noisy)
    with pytest.raises(TilewrightError, match="loop prints 'welcome' at login"):
        Connection("loop").request("facts", code="x", root="x")


# What is brought ---------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=me", "-c", "user.email=me@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def brought(bundle: files.Bundle, loop: Loopback) -> tuple[dict[str, str], int]:
    """Brings a bundle over. Returns the files there with their text, and the size of the git bundle."""
    connection = Connection("loop")
    facts = connection.request("facts", code="x", root=bundle.root_key)
    packed = bundle.packed(facts["last"])
    connection.request(
        "files", [packed, bundle.tar], key=bundle.key, root=bundle.root_key, tree=bundle.tree, bundle=len(packed),
        tar=len(bundle.tar),
    )  # fmt: skip
    connection.close()
    there = loop.folder / "cache" / "files" / bundle.key
    return {str(each.relative_to(there)): each.read_text() for each in there.rglob("*") if each.is_file()}, len(packed)


def test_tracked_files_travel_as_a_git_bundle_and_others_as_a_tar(
    loop: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working tree as it is, without what git ignores. The user's repository stays as it was."""
    repository = tmp_path / "repository"
    (repository / "ops").mkdir(parents=True)
    git(repository, "init", "-q")
    large = "".join(f"{number * 7919 % 10007}\n" for number in range(20000))
    for name, text in {"ops/a.py": "old", "b.py": "b", "gone.py": "x", ".gitignore": "*.log", "large": large}.items():
        (repository / name).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "one")
    (repository / "gone.py").unlink()
    for name, text in {"ops/a.py": "changed", "ops/new.py": "new", "run.log": "ignored"}.items():
        (repository / name).write_text(text)
    asked = ["status", "-s"], ["count-objects"], ["for-each-ref"]
    state = [git(repository, *words) for words in asked]
    bundle = files.bundle_of(repository / "ops" / "a.py")
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(tmp_path / "of the repository whose hook started this"))
        assert files.bundle_of(repository / "ops" / "a.py").key == bundle.key
    there, size = brought(bundle, loop)
    assert there == {"ops/a.py": "changed", "ops/new.py": "new", "b.py": "b", ".gitignore": "*.log", "large": large}
    assert files.relative(bundle.root, repository / "ops" / "a.py") == "ops/a.py"
    (repository / "b.py").write_text("b again")
    again, less = brought(files.bundle_of(repository / "ops" / "a.py"), loop)
    assert again["b.py"] == "b again" and again["large"] == large and less < size / 10, "only the change travels"
    (repository / "b.py").write_text("b")
    assert [git(repository, *words) for words in asked] == state
    with pytest.raises(RequestError, match="is outside .*fix: put it into that folder"):
        files.relative(bundle.root, tmp_path / "elsewhere.py")


def test_too_many_files_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ops.py").write_text("x" * 2000)
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(RequestError, match=r"too much to bring along \(at ops.py\); fix: let .gitignore name"):
        files.bundle_of(tmp_path / "ops.py")


def wheel(folder: Path) -> None:
    """Writes the smallest wheel."""
    with zipfile.ZipFile(folder / "tiny_thing-1.0-py3-none-any.whl", "w") as file:
        info = "tiny_thing-1.0.dist-info"
        file.writestr("tiny_thing.py", "VALUE = 7\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"tiny_thing.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.mark.long
def test_an_environment_is_made_once_from_wheels_where_no_index_is_reached(
    loop: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TILEWRIGHT_REMOTE_PYTHON")
    wheel(tmp_path)
    downloads: list[Any] = []

    def bring(wanted: Any, python: Any, machine: str) -> bytes:
        downloads.append(wanted)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            for each in tmp_path.glob("*.whl"):
                tar.add(each, each.name)
        return out.getvalue()

    monkeypatch.setattr(environment, "requirements", lambda: ("tiny-thing==1.0", "--index-url=http://127.0.0.1:1"))
    monkeypatch.setattr(environment, "wheels", bring)
    said: list[str] = []
    connection = Connection("loop")
    facts = connection.request("facts", code="x", root="x")
    key = prepared(connection, facts, said.append)
    assert prepared(connection, facts, said.append) == key
    connection.close()
    assert len(downloads) == 1 and [line for line in said if "reaches no package index" in line]
    python = loop.folder / "cache" / "env" / key / "bin" / "python"
    assert subprocess.check_output([python, "-c", "import tiny_thing; print(tiny_thing.VALUE)"], text=True) == "7\n"


def test_the_environment_has_the_versions_of_this_one() -> None:
    wanted = environment.requirements()
    named = {line.partition("==")[0].partition("[")[0].partition(">")[0]: line for line in wanted}
    assert named["numpy"] == f"numpy=={version('numpy')}"
    assert named["cuda-tile"] == f"cuda-tile[tileiras]=={version('cuda-tile')}"
    assert {"cuda-bindings", "nvidia-ml-py", "nvidia-cuda-tileiras"} <= named.keys(), "a GPU needs them"
    assert "pytest" not in named
    keys = {environment.key(wanted, python, "x86_64") for python in ([3, 11, 1], [3, 11, 9], [3, 12, 1])}
    assert len(keys) == 2
