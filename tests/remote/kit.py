"""A real ssh server on loopback, a child of the test run, with keys and configuration of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tilewright.testing.executors import ExecutorContract
from tilewright.worker.messages import Hello, PrepareInputs

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="needs an ssh server; fix: apt-get install openssh-server"
)
SERVER = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AcceptEnv TILEWRIGHT_*
"""
CLIENT = """\
Host loop refused unknown
    HostName 127.0.0.1
    Port {port}
    IdentitiesOnly yes
    IdentityFile {folder}/%n-key
    UserKnownHostsFile {folder}/known-%n
    StrictHostKeyChecking yes
    ControlPath {folder}/master
    LogLevel ERROR
Host closed
    HostName 127.0.0.1
    Port 1
Host nowhere
    HostName no-such-host.invalid
"""
GRACE = 120.0
"""Seconds within which what is waited for happens, also where other work keeps the machine busy."""
ROOT = Path(__file__).parents[2]


@dataclass
class Loopback:
    """``folder``: keys, configuration, and what is brought to the other side. ``more``: lines for the server."""

    folder: Path
    more: str = ""
    port: int = 0
    server: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        for name in ("host", "loop-key", "refused-key", "unknown-key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)
        keys = [(self.folder / f"{name}-key.pub").read_text() for name in ("loop", "unknown")]
        (self.folder / "authorized").write_text("".join(keys))
        key = (self.folder / "host.pub").read_text()
        for name in ("loop", "refused"):
            (self.folder / f"known-{name}").write_text(f"[127.0.0.1]:{self.port} {key}")
        (self.folder / "known-unknown").touch()
        for name, text in (("server", SERVER + self.more), ("client", CLIENT)):
            (self.folder / name).write_text(text.format(folder=self.folder, port=self.port))
        self._forgive()
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        assert SSHD is not None
        with (self.folder / "server.log").open("wb") as log:
            self.server = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "server")], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(self._answers)

    def _forgive(self) -> None:
        """Lets newer servers accept connections also after refused keys and sessions that were killed."""
        assert SSHD is not None
        server = self.folder / "server"
        text = server.read_text()
        server.write_text(f"{text}PerSourcePenalties no\n")
        if subprocess.run([SSHD, "-t", "-f", str(server)], capture_output=True, check=False).returncode:
            server.write_text(text)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    @property
    def environ(self) -> dict[str, str]:
        return {
            "TILEWRIGHT_SSH": f"ssh -F {self.folder}/client", "TILEWRIGHT_REMOTE_PYTHON": sys.executable,
            "TILEWRIGHT_REMOTE_CACHE": str(self.folder / "cache"), "XDG_CACHE_HOME": str(self.folder / "here"),
        }  # fmt: skip

    def drop(self) -> int:
        """Kills the server's processes for connections, as a broken network does. Returns how many there were."""
        dropped = [each for each in children(self.server.pid) if "sshd" in each[1]]
        for pid, _ in dropped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(dropped)

    def logins(self) -> int:
        return (self.folder / "server.log").read_text().count("Accepted publickey")

    def left(self) -> list[str]:
        """Returns the commands of the processes that were brought there and still run."""
        mark = str(self.folder / "cache")
        return [line for _, line in processes() if mark in line and "remote.agent" in line]

    def stop(self) -> None:
        self.drop()
        self.server.terminate()
        self.server.wait()
        for pid, line in processes():
            if str(self.folder) in line:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def processes() -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words and int(entry.name) != os.getpid():
                    found.append((int(entry.name), words))
    return found


def children(pid: int) -> list[tuple[int, str]]:
    """Returns all processes below a process."""
    parents: dict[int, int] = {}
    for one, _ in processes():
        with suppress(OSError, ValueError, IndexError):
            parents[one] = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1])
    below = {pid}
    while more := {one for one, parent in parents.items() if parent in below} - below:
        below |= more
    return [(one, line) for one, line in processes() if one in below - {pid}]


def wait_for(happened: Callable[[], object], seconds: float = GRACE, pause: float = 0.02) -> None:
    """Waits until something happens. Fails if it does not within ``seconds``. ``pause``: between two looks."""
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(pause)


def written_ops(folder: Path, text: str) -> str:
    """Writes a task file into a folder of its own. Returns its path."""
    (folder / "task").mkdir()
    (file := folder / "task" / "ops.py").write_text(text)
    return str(file)


class OtherMachineContract(ExecutorContract):
    """The kit of executors for one that runs steps elsewhere. The module has a fixture ``ops``, which is a task."""

    step, deadly = Hello(), PrepareInputs("deadly", 0)

    @pytest.fixture(autouse=True)
    def _task(self, ops: str, tmp_path: Path) -> None:
        self.task, self.folder = ops, tmp_path
        (tmp_path / "broken").mkdir()
        (broken := tmp_path / "broken" / "ops.py").write_text("import nothing_like_this")
        self.broken_task = str(broken)


def steps(folder: Path, name: str) -> int:
    file = folder / "steps"
    return file.read_text().split("\n").count(name) if file.exists() else 0


class Tuning:
    """A process that tunes on the other side, with races that wait while `hold` is there. ``module``: what it runs."""

    def __init__(self, ops: str, folder: Path, linger: float = 60.0, module: str = "tests.remote.tuning") -> None:
        self.folder, self.hold = folder, folder / "hold"
        self.command = [sys.executable, "-m", module, ops, str(folder), str(folder / "runs.db")]
        self.command.append(str(linger))
        self.hold.touch()

    def start(self) -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT), os.environ["PYTHONPATH"]))}
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True)

    def racing(self) -> bool:
        return steps(self.folder, "RaceField") > 0

    def winners(self, process: subprocess.Popen[str]) -> list[str]:
        out, errors = process.communicate(timeout=GRACE)
        assert process.returncode == 0, errors
        self.said = errors
        return out.splitlines()
