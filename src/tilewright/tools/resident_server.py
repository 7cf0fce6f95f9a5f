"""The process of `resident`: imports a package once, and does each job in a fork of itself.

This file runs as a script and imports nothing of tilewright. Its arguments are the number of the control socket and the
settings. A request is one packet that carries a socket for two replies. The first reply, at the start, is the process
group of the job. The second reply tells how the job ended. When the control socket is closed, the process ends all jobs
and then itself.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from types import ModuleType

PACKET = 1 << 16
OUTPUT_BYTES = 1 << 28


def main() -> None:
    """Carries out orders until the control socket is closed."""
    control, settings = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:0] = settings["path"]
    module, failed = None, ""
    try:
        module = _loaded(settings["module"])
        module.prepare()
    except BaseException as error:
        failed = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    jobs: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is woken:
                with suppress(BlockingIOError):
                    woken.recv(PACKET)
                _reap(jobs)
                continue
            packet, numbers, _, _ = socket.recv_fds(control, PACKET, 1)
            if not packet:
                _end(jobs)
            answers = socket.socket(fileno=numbers[0])
            if module is None or failed:
                _say(answers, {"failed": failed})
                answers.close()
                continue
            process = os.fork()
            if process == 0:
                _work(module, **json.loads(packet))
            jobs[process] = answers
            with suppress(OSError):
                os.setpgid(process, process)  # the child calls this, too, because either process may run first
            _say(answers, {"group": process})


def _loaded(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("resident_work", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _say(answers: socket.socket, answer: dict[str, object]) -> None:
    with suppress(OSError):  # no process waits for the answer any more
        answers.sendall(json.dumps(answer).encode() + b"\n")


def _reap(jobs: dict[int, socket.socket]) -> None:
    while jobs:
        process, status, usage = os.wait4(-1, os.WNOHANG)
        if process == 0:
            return
        answers = jobs.pop(process)
        with suppress(OSError):  # processes that the job started
            os.killpg(process, signal.SIGKILL)
        _say(answers, {"status": os.waitstatus_to_exitcode(status), "used": usage.ru_utime + usage.ru_stime})
        answers.close()


def _end(jobs: dict[int, socket.socket]) -> None:
    for process in jobs:
        with suppress(OSError):
            os.killpg(process, signal.SIGKILL)
    os._exit(0)


def _work(module: ModuleType, folder: str, seconds: float) -> None:
    """Does the job in the forked process, and ends this process. ``seconds``: the budget of processor time."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(OSError):
            os.setpgid(0, 0)
        budget = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (budget, budget + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, OUTPUT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.closerange(3, 1 << 16)
        module.work(folder)
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
