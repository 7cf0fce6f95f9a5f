"""The program that `connection` sends to another machine, and that runs there first.

It uses Python's standard library alone, because Tilewright is not there yet. It reads requests from stdin. Each is one
line of JSON that bytes may follow, and is answered with a line of JSON:

    facts    what is there: Python, the cache folder, free space, what an earlier run brought
    put      unpacks a tar into the cache folder
    files    puts a task's files together, from a git bundle and a tar
    env      makes the virtual environment
    attach   connects to the run's resident process (`agent`), which is started if it does not run
    slurm    what `login` does, which belongs to Tilewright and is there after ``put``

After ``attach``, all further lines go to and from the resident process.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import platform
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, cast

Reply = dict[str, Any]

STDIN = cast(BufferedReader, sys.stdin.buffer)
START_SECONDS = 120.0
OLD_SECONDS = 30 * 86400
"""What no run has used for so long is removed from the cache folder."""
OFFLINE = (
    "CommandFailed to establish a new connection", "NameResolutionError", "Temporary failure in name resolution",
    "ConnectTimeout", "Could not find a version", "Network is unreachable", "No matching distribution",
)  # fmt: skip
"""What pip prints if it reaches no package index."""


def say(**reply: object) -> None:
    print(json.dumps(reply), flush=True)


def received(size: int) -> BytesIO:
    """Returns the next ``size`` bytes of stdin."""
    return BytesIO(STDIN.read(size))


def cache(given: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    folder = Path(given) if given else base / "tilewright" / "remote"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def facts(folder: str, code: str, root: str) -> Reply:
    """Returns what is there."""
    where, last = cache(folder), ""
    kinds = ("files", "code", "work", "store", "runs")
    for old in (each for kind in kinds for each in where.glob(f"{kind}/*")):
        if time.time() - old.stat().st_mtime > OLD_SECONDS:
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
    git = shutil.which("git") is not None
    repository = where / "repositories" / f"{root}.git"
    if git and repository.is_dir():
        command = ["git", "--git-dir", str(repository), "rev-parse", "--verify", "-q", "refs/tilewright/last"]
        found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        last = found.stdout.strip()
    with tempfile.TemporaryFile(dir=where) as probe:
        probe.write(b"x")
    return {
        "cache": str(where), "free": shutil.disk_usage(where).free, "git": git, "last": last,
        "python": list(sys.version_info[:3]), "executable": sys.executable, "machine": platform.machine(),
        "node": platform.node(), "code": (where / "code" / code).is_dir(),
    }  # fmt: skip


def has(folder: str, kind: str, key: str) -> Reply:
    place = cache(folder) / kind / key
    there = (place / "ready").is_file() if kind == "env" else place.is_dir()
    if there:
        os.utime(place)  # in use
    return {"there": there}


@contextmanager
def made(place: Path) -> Iterator[Path]:
    """Yields a new folder, which becomes ``place`` at the end as a whole."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
    try:
        yield folder
        if not place.is_dir():
            try:
                folder.rename(place)
            except OSError:  # another run was faster
                if not place.is_dir():
                    raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(tar: BytesIO, folder: Path) -> None:
    with tarfile.open(fileobj=tar, mode="r:gz") as file:
        if hasattr(tarfile, "tar_filter"):
            file.extractall(folder, filter="tar")
        else:
            file.extractall(folder)  # noqa: S202  (our own)


def put(folder: str, kind: str, key: str, size: int) -> Reply:
    tar = received(size)
    with made(cache(folder) / kind / key) as new:
        unpack(tar, new)
    return {"ok": True}


def files(folder: str, key: str, root: str, tree: str, bundle: int, tar: int) -> Reply:
    """Puts the files of a task together.

    tree: the name of git's tree of the tracked files; "" if the tar has all files.
    bundle, tar: their sizes in bytes.
    """
    where, bundled, untracked = cache(folder), received(bundle), received(tar)
    with made(where / "files" / key) as new:
        if tree:
            repository = where / "repositories" / f"{root}.git"
            git = ["git", "--git-dir", str(repository)]
            with tempfile.NamedTemporaryFile(dir=where) as file, tempfile.TemporaryDirectory(dir=where) as scratch:
                file.write(bundled.getbuffer())
                file.flush()
                run(["git", "init", "-q", "--bare", str(repository)])
                run([*git, "fetch", "-q", file.name, "+refs/heads/tilewright:refs/tilewright/last"])
                index = {**os.environ, "GIT_INDEX_FILE": f"{scratch}/index"}
                run([*git, "read-tree", tree], env=index)
                run([*git, "--work-tree", str(new), "checkout-index", "--all", f"--prefix={new}/"], env=index)
        unpack(untracked, new)
    return {"ok": True}


class CommandFailed(Exception):
    """A program over there failed. The message is its last line."""


def run(
    command: Sequence[str], env: Mapping[str, str] | None = None, each: Callable[[str], None] | None = None
) -> None:
    """Runs a program. ``each``: called with each line that it prints."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        threading.Thread(target=end_with_client, args=(process,), daemon=True).start()
        for line in process.stdout:
            lines.append(line.strip())
            if each is not None and line.strip():
                each(line.strip())
    if process.returncode:
        raise CommandFailed("\n".join(line for line in lines if line) or f"exit code {process.returncode}")


def end_with_client(process: subprocess.Popen[str]) -> None:
    """Ends a program if the client goes away. Reads nothing, because the main thread reads stdin."""
    closed, poll = select.POLLHUP | select.POLLRDHUP, select.poll()
    poll.register(0, select.POLLRDHUP)
    while process.poll() is None:
        if any(events & closed for _, events in poll.poll(500)):
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            return


def env(folder: str, key: str, requirements: Sequence[str], size: int) -> Reply:
    """Makes the environment. ``size``: of the tar with the wheels; 0: they come from the package index."""
    wheels, place = received(size), cache(folder) / "env" / key
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{key}.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=place.parent) as brought:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be making the same environment
        if (place / "ready").is_file():
            return {"ok": True}
        try:
            if not (place / "bin" / "pip").is_file():
                shutil.rmtree(place, ignore_errors=True)
                run([sys.executable, "-m", "venv", str(place)])
        except CommandFailed as error:
            shutil.rmtree(place, ignore_errors=True)
            return {"error": f"{sys.executable} cannot make a virtual environment: {str(error).splitlines()[-1]}"}
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        if size:
            unpack(wheels, Path(brought))
            pip += ["--no-index", "--find-links", brought]
        else:
            pip += ["--retries", "1", "--timeout", "15"]
        try:
            run([*pip, *requirements], each=lambda line: say(note=line[:200]))
        except CommandFailed as error:
            said = str(error)
            full = "No space left" in said
            if full:
                shutil.rmtree(place, ignore_errors=True)
            lines = [line for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines()
            return {"error": lines[-1], "offline": any(word in said for word in OFFLINE), "errno": 28 if full else 0}
        (place / "ready").touch()
    return {"ok": True}


def attach(
    folder: str, run: str, environment: str, python: str, code: str, work: str, cwd: str, linger: float, hello: str
) -> Reply | None:
    """Connects stdin and stdout to the run's resident process.

    environment: the key of the virtual environment; "" if ``python`` is the interpreter to use.
    work, cwd: the key of the task's files, and the folder in them where the process runs.
    hello: the first line for the process.
    """
    where = cache(folder)
    sockets = Path(tempfile.gettempdir()) / f"tilewright-{os.getuid()}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    facts = sockets.lstat()
    if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o077:
        return {"error": f"{sockets} belongs to somebody else"}
    path, log = sockets / run, where / "runs" / f"{run}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (sockets / f"{run}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connected = connect(path)
        if connected is None:
            interpreter = interpreter_of(where, environment, python)
            base = where / "files" / work
            command = [interpreter, "-m", "tilewright.remote.agent", str(path), str(base), str(linger)]
            variables = {**os.environ, "PYTHONPATH": python_path(where, code)}
            with log.open("w") as out:
                agent = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=base / cwd, env=variables,
                    start_new_session=True,
                )  # fmt: skip
            until = time.monotonic() + START_SECONDS
            while connected is None and agent.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
                connected = connect(path)
    if connected is None:
        last = last_line(log)
        fix = "; fix: install Tilewright's dependencies there, or leave TILEWRIGHT_REMOTE_PYTHON out"
        lacks = python and "No module named" in last
        return {"error": f"the resident process did not start: {last}{fix if lacks else f' (see {log})'}"}
    relay(connected, hello)
    return None


def interpreter_of(where: Path, environment: str, python: str) -> str:
    return python or str(where / "env" / environment / "bin" / "python")


def python_path(where: Path, code: str) -> str:
    return os.pathsep.join([str(where / "code" / code), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def last_line(log: Path, less: tuple[str, ...] = ()) -> str:
    """Returns the last line of a log that is not empty. Reads no more than its end.

    less: lines that begin so are returned only if there are no others.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    said = [line.strip() for line in lines if line.strip()]
    return next((line for line in reversed(said) if not line.startswith(less)), said[-1] if said else "no message")


def meet(name: str, hello: str) -> None:
    """Waits for the resident process of this machine and copies stdin and stdout. It runs where that process runs."""
    until = time.monotonic() + START_SECONDS
    while (connected := connect(name)) is None and time.monotonic() < until:
        time.sleep(0.02)
    if connected is None:
        say(error=f"the resident process did not start within {START_SECONDS:g} s")
    else:
        relay(connected, hello)


def address(path: str | Path) -> str:
    """Returns the address of a socket: a path, or a name after ``@``, which is in no folder."""
    return "\0" + str(path)[1:] if str(path).startswith("@") else str(path)


def is_own(connection: socket.socket) -> bool:
    """Returns whether a process of the same user is at the other end."""
    facts = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", facts)[1] == os.getuid())


def connect(path: str | Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address(path))
    except OSError:
        connection.close()
        return None
    return connection if is_own(connection) else None


def relay(connected: socket.socket, hello: str) -> None:
    """Copies stdin to the socket and the socket to stdout. Ends this process when either ends.

    hello: the first line for the socket.
    """
    say(ok=True)
    connected.sendall(hello.encode() + b"\n")

    def send() -> None:
        try:
            while part := STDIN.read1(1 << 16):
                connected.sendall(part)
            connected.shutdown(socket.SHUT_WR)
        except OSError:
            os._exit(0)

    threading.Thread(target=send, daemon=True).start()
    try:
        while part := connected.recv(1 << 16):
            while part:
                part = part[os.write(1, part) :]
    except OSError:
        pass
    os._exit(0)


def slurm(folder: str, code: str, what: str, **values: object) -> Reply | None:
    """Does what the login node of a cluster does, ``what`` of `login.ACTIONS`."""
    where = cache(folder)
    sys.path.insert(0, str(where / "code" / code))
    login = importlib.import_module("tilewright.remote.login")
    return cast("Reply | None", login.ACTIONS[what](where, code, **values))


ACTIONS: dict[str, Callable[..., Reply | None]] = {
    "facts": facts,
    "has": has,
    "put": put,
    "files": files,
    "env": env,
    "attach": attach,
    "slurm": slurm,
}


def main() -> None:
    while line := STDIN.readline():
        request = json.loads(line)
        try:
            reply = ACTIONS[request.pop("do")](**request)
        except CommandFailed as error:
            reply = {"error": str(error).splitlines()[-1], "errno": 28 if "No space left" in str(error) else 0}
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            reply = {"error": f"{error.strerror or error}{place}", "errno": error.errno or 0}
        if reply is None:
            return
        say(**reply)
