"""One connection to another machine through the user's own ssh client.

The client uses the user's configuration, keys and ControlMaster. It never asks for anything: what needs an answer from
the user (an unknown host key, a password, a second factor) is an error that says what to do.

    TILEWRIGHT_SSH              the command to use instead of ``ssh``, such as ``ssh -F FILE``
    TILEWRIGHT_SSH_MFA          direct: open a new connection, and do not use a ControlMaster; master: use the
                                ControlMaster that the user opened; probe (default): use it if there is one
    TILEWRIGHT_REMOTE_PYTHON    an interpreter over there that has Tilewright's dependencies: no environment is made
    TILEWRIGHT_REMOTE_CACHE     the folder over there for everything that is brought
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tilewright.errors import MachineError, RequestError, UnknownChoice, first_line
from tilewright.remote import boot

PYTHON, CACHE = "TILEWRIGHT_REMOTE_PYTHON", "TILEWRIGHT_REMOTE_CACHE"
OPTIONS = (
    "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=10",
    "-o", "ServerAliveCountMax=3", "-o", "ClearAllForwardings=yes",
)  # fmt: skip
STYLES = ("direct", "master", "probe")
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.14")
NO_PYTHON = 93
"""The exit code over there if no suitable Python is found."""
MOST_UNREAD = 64 << 20
"""The most bytes of one line. The longest lines have the times of all candidates of a race."""
CHECK_SECONDS, LOOK_SECONDS = 15.0, 0.5
ANSWER_SECONDS = 150.0
"""The resident process may take `boot.START_SECONDS` to start."""


class ConnectionLost(MachineError):
    """The connection ended; it may be opened again."""


class RefusedThere(MachineError):
    """Something over there failed. ``full``: for lack of space. ``offline``: it reached no package index."""

    def __init__(self, message: str, full: bool = False, offline: bool = False) -> None:
        super().__init__(message)
        self.full, self.offline = full, offline


def refused_host(host: str) -> str | None:
    """Returns why a text cannot be the name of a host; None if it can."""
    if not host:
        return "--on ssh needs a host; fix: --on ssh:HOST, with HOST as for the command ssh"
    if host.startswith("-") or any(sign.isspace() for sign in host):
        return f"'{host}' is no name of a host; fix: --on ssh:HOST, with HOST as for the command ssh"
    return None


def ssh_command(environ: Mapping[str, str] = os.environ) -> list[str]:
    return shlex.split(environ.get("TILEWRIGHT_SSH", "")) or ["ssh"]


def style_of(mfa: bool | None, environ: Mapping[str, str] = os.environ) -> str:
    """Returns how to connect. ``mfa``: False: direct; True: master; None: as TILEWRIGHT_SSH_MFA says, or else probe."""
    if mfa is not None:
        return "master" if mfa else "direct"
    style = environ.get("TILEWRIGHT_SSH_MFA") or "probe"
    if style not in STYLES:
        raise UnknownChoice("TILEWRIGHT_SSH_MFA", style, STYLES)
    return style


def bootstrap(size: int, python: str) -> str:
    """Returns the command for the shell over there. It runs a program of ``size`` bytes that is read from stdin.

    python: the interpreter to use; "" for the first suitable one.
    """
    new_enough = "import sys;sys.exit(sys.version_info<(3,10))"
    program = "import sys;exec(sys.stdin.buffer.read(int(sys.argv[1])))"
    script = (
        f"for p in {shlex.quote(python).replace(chr(39), chr(34)) if python else ' '.join(PYTHONS)}; do "
        f'if "$p" -c "{new_enough}" >/dev/null 2>&1 </dev/null; then exec "$p" -u -c "{program}" {size}; fi; done; '
        f"python3 -V >&2; exit {NO_PYTHON}"
    )
    return f"exec sh -c '{script}'"


class Connection:
    """A running ssh client, and the program `boot` at its other end.

    here: `boot` runs on this machine instead.

    Raises MachineError if there is no ssh client, or no ControlMaster where one is wanted.
    """

    def __init__(
        self, host: str, mfa: bool | None = None, environ: Mapping[str, str] = os.environ, here: bool = False
    ) -> None:
        if not here and (why := refused_host(host)) is not None:
            raise RequestError(why)
        self.host, self.python, self.cache = host, environ.get(PYTHON, ""), environ.get(CACHE, "")
        self.settings = {PYTHON: PYTHON, CACHE: CACHE}
        """What the user changes to change these."""
        program = (Path(boot.__file__).read_text(encoding="utf-8") + "\nmain()\n").encode()
        start = bootstrap(len(program), self.python)
        self.process = _started(["sh", "-c", start] if here else self._ssh(start, mfa, environ))
        self._stderr: list[str] = []
        self._unread = bytearray()
        self._errors = threading.Thread(target=self._keep_stderr, daemon=True)
        self._errors.start()
        self._send(program)

    def _ssh(self, start: str, mfa: bool | None, environ: Mapping[str, str]) -> list[str]:
        ssh, style = ssh_command(environ), style_of(mfa, environ)
        if style == "master":
            self._need_master(ssh)
        return [*ssh, *OPTIONS, *(("-o", "ControlPath=none") if style == "direct" else ()), self.host, start]

    def _need_master(self, ssh: Sequence[str]) -> None:
        command = [*ssh, "-o", "BatchMode=yes", "-O", "check", self.host]
        try:
            checked = subprocess.run(command, capture_output=True, timeout=CHECK_SECONDS, stdin=subprocess.DEVNULL)
            there = checked.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            there = False
        if not there:
            raise MachineError(f"no open connection to {self.host} to share; {master(self.host)}")

    def request(
        self, do: str, payload: Sequence[bytes] = (), note: Callable[[str], None] | None = None, **values: object
    ) -> dict[str, Any]:
        """Sends a request to `boot` and returns its answer.

        payload: sent after the request.
        note: called with what a long request prints meanwhile. Other requests without payload are answered soon.
        Raises RefusedThere if it fails over there, and MachineError if the connection fails.
        """
        header = json.dumps({"do": do, "folder": self.cache, **values}) + "\n"
        self._send(header.encode(), *payload)
        soon = None if payload or note else ANSWER_SECONDS
        while True:
            line = self.readline(soon)
            try:
                reply = json.loads(line) if line is not None else None
            except ValueError:
                reply = None
            if not isinstance(reply, dict):
                raise self.failure(line or "")
            if "note" in reply and note is not None:
                note(str(reply["note"]))
            elif "error" in reply:
                raise self._refused(reply)
            else:
                return reply

    def _refused(self, reply: Mapping[str, Any]) -> RefusedThere:
        full = reply.get("errno") in (28, 122)  # ENOSPC, EDQUOT
        fix = f"; fix: free some space there, or set {self.settings[CACHE]} to another folder" if full else ""
        return RefusedThere(f"{self.host}: {reply['error']}{fix}", full, bool(reply.get("offline")))

    def write(self, line: str) -> bool:
        """Sends a line. Returns False if the connection is lost."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
            return True
        except (OSError, ValueError):
            return False

    def readline(self, seconds: float | None = None) -> str | None:
        """Returns the next whole line; None if the connection ended. After ``seconds``, it is ended.

        A shared connection may keep the pipe open after the client has ended, so the client is looked at as well.
        """
        until, searched = math.inf if seconds is None else time.monotonic() + seconds, 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if not (left := min(LOOK_SECONDS, until - time.monotonic())) > 0:
                self._stderr.append(f"no answer within {seconds:g} s")
                self.process.kill()
                return None
            part = self._read(left)
            if part == b"" or (part is None and self.process.poll() is not None):
                return None
            self._unread += part or b""
            if len(self._unread) > MOST_UNREAD:
                self._stderr.append(f"a line of more than {MOST_UNREAD >> 20} MiB")
                self.process.kill()
                return None
        line = self._unread[: end + 1].decode("utf-8", "replace")
        del self._unread[: end + 1]
        return line

    def _read(self, seconds: float) -> bytes | None:
        """Returns what has arrived; b"" at the end, None if nothing arrives within ``seconds``."""
        assert self.process.stdout is not None
        try:
            arrives = select.poll()
            arrives.register(self.process.stdout, select.POLLIN)
            return os.read(self.process.stdout.fileno(), 1 << 16) if arrives.poll(1000 * seconds) else None
        except (OSError, ValueError):
            return b""

    def failure(self, said: str = "") -> MachineError:
        """Returns the error for a connection that ended, or that answered with ``said`` and not as `boot` does."""
        self.close(2.0)
        stderr = "".join(self._stderr)
        code = self.process.returncode or 0
        if said and not stderr:
            return MachineError(
                f"{self.host} prints '{said.strip()[:80]}' at login, which breaks programs; fix: remove it from the "
                "shell's start-up files there, or print it in interactive shells only"
            )
        if code == NO_PYTHON:
            return MachineError(no_python(self.host, stderr, self.python, self.settings[PYTHON]))
        why = refusal(self.host, stderr)
        if why is not None:
            return MachineError(why)
        last = [line.strip() for line in stderr.splitlines() if line.strip()]
        return ConnectionLost(f"the connection to {self.host} ended: {last[-1] if last else f'exit code {code}'}")

    def close(self, seconds: float = 0.0) -> bool:
        """Ends the client, after it had ``seconds`` to end by itself. Returns whether it did."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if not (ended := self.process.poll() is not None):
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
            self.process.kill()
            self.process.wait()
        self._errors.join(2.0)
        return ended

    def _send(self, *parts: bytes) -> None:
        try:
            assert self.process.stdin is not None
            for part in parts:
                self.process.stdin.write(part)
            self.process.stdin.flush()
        except (OSError, ValueError):  # the answer says why
            pass

    def _keep_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._stderr.append(line.decode("utf-8", "replace"))
            del self._stderr[:-50]


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the ssh client. Ctrl-C does not reach it, so the run over there can still be told to end."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        fix = "fix: install OpenSSH's client, or set TILEWRIGHT_SSH to it"
        raise MachineError(f"{command[0]} could not be started ({error.strerror}); {fix}") from None


def master(host: str) -> str:
    """Returns the end of a message for a host to which the user has to connect first."""
    return (
        f"fix: open one that can be shared, with ControlPath set for {host} in ~/.ssh/config: ssh -fNM {host}, "
        "then run the same command"
    )


def no_python(host: str, stderr: str, wanted: str, setting: str = PYTHON) -> str:
    if wanted:
        return f"{host}: {wanted} ({setting}) is no Python of version 3.10 or newer"
    found = first_line(stderr, "no python3")
    found = "no python3" if "not found" in found else found
    return f"{host} has no Python of version 3.10 or newer ({found}); fix: set {setting} to one there"


def refusal(host: str, stderr: str) -> str | None:
    """Returns what OpenSSH's messages mean, in one line with the fix; None if they are not known."""
    if "IDENTIFICATION HAS CHANGED" in stderr:
        return (
            f"the key of host {host} has changed: it was set up anew, or somebody is in between; fix: ask whoever runs "
            f"it, then remove the old key: ssh-keygen -R {host}"
        )
    if "Host key verification failed" in stderr or "host key is known" in stderr:
        return f"the key of host {host} is not known yet; fix: connect once by hand and accept it: ssh {host}"
    if (named := re.search(r"Could not resolve hostname (\S+?):", stderr)) is not None:
        return f"unknown host {named[1]}; fix: use a name of ~/.ssh/config, or a name or address on your network"
    if (denied := re.search(r"Permission denied \(([^)]*)\)", stderr)) is not None:
        if "keyboard-interactive" in denied[1]:
            return f"{host} asks for a password or a second factor, which only you can give; {master(host)}"
        return f"{host} refuses your keys ({denied[1]}); fix: make ssh {host} work without a question, e.g. ssh-copy-id"
    for words, why in (
        ("Connection refused", "no ssh server answers there"), ("timed out", "it does not answer"),
        ("No route to host", "there is no route to it"), ("Network is unreachable", "the network is unreachable"),
        ("Too many authentication failures", "your agent offers too many keys; set IdentitiesOnly for it"),
        ("hostname contains invalid characters", "its name has characters that no name of a host has"),
        ("Bad configuration option", first_line(stderr)), ("Bad owner or permissions", first_line(stderr)),
    ):  # fmt: skip
        if words in stderr:
            return f"no connection to {host}: {why}; fix: make ssh {host} work first"
    return None
