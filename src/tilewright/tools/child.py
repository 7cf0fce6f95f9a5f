"""Runs tools (compilers, disassemblers, compute-sanitizer) as child processes, and can end all of them.

A tool's budget is processor time, because wall time depends on the load of the machine. A generous limit of wall time
ends a tool that hangs. A tool that cannot be started or does not end in time raises `ToolFailed`. This error says
nothing about the kernel that the tool was given.
"""

from __future__ import annotations

import atexit
import math
import os
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tilewright.errors import CompilerMissing, ToolFailed, first_line
from tilewright.tools import keeper

PATIENCE = 8.0
"""Ratio of a tool's limit of wall time to its budget of processor time."""
OUTPUT_BYTES = 1 << 28
"""The largest file that a tool may write. The limit ends a tool that prints without end."""
KEEPER_SECONDS = 10.0
END_SECONDS = 5.0

P = ParamSpec("P")
T = TypeVar("T")

_running: dict[int, tuple[Hashable, object]] = {}
"""Maps the process group id of each running tool to its job (see `doing`), and the key of the pool that runs it."""
_thread = threading.local()
_hung: dict[str, ToolFailed] = {}
"""Maps the path of a tool that did not end in time to the error. Such a tool is not run again."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Finished:
    returncode: int
    """The exit code, or minus the number of the signal that killed the tool."""
    stdout: str
    stderr: str

    def complaint(self, tool: str) -> str:
        """Returns how the tool ended, and the first error message on its standard error."""
        if self.returncode < 0:
            return f"{tool} was killed by signal {-self.returncode} ({signal.strsignal(-self.returncode)})"
        lines = [line for line in self.stderr.splitlines() if "error:" in line]
        said = lines[0] if lines else first_line(self.stderr, "nothing on standard error")
        return f"{tool} returned {self.returncode}: {said.partition('error: ')[2] or said}"


CUTILE_FOLDER = "CUDA_TILE_TEMP_DIR"
_own_cutile_folder: list[str] = []


def name_folder_of_cutile() -> None:
    """Says where cuda.tile makes its temporary folder in this process and in the processes that it starts.

    cuda.tile 1.7 makes the folder when it is imported, and removes it at a normal end only. The keeper removes this one
    after every end. Does nothing if the user has named a folder.
    """
    if not os.environ.get(CUTILE_FOLDER):
        _own_cutile_folder.append(str(_new_folder()))
        os.environ[CUTILE_FOLDER] = _own_cutile_folder[-1]


def own_temporary_folder(folder: str) -> None:
    """Makes ``folder`` the temporary folder of this process, also of cuda.tile."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    if "/tilewright-" in os.environ.get(CUTILE_FOLDER, ""):  # else the user has named one
        os.environ[CUTILE_FOLDER] = folder


def remove_with_parent() -> None:
    """At the end of this child process, removes the folder of cuda.tile if the process that named it was killed.

    The keeper may have removed the folder before this process imported cuda.tile, which makes it again.
    """
    folder = os.environ.get(CUTILE_FOLDER, "")

    def remove() -> None:
        if Path(folder).name.startswith("tilewright-") and f"-{os.getppid()}-" not in folder:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def end_with_parent() -> None:
    """Ends this child process soon after its parent has ended, even if a kernel hangs in its main thread."""

    def wait(parent: int) -> None:
        select.select([parent], [], [])
        time.sleep(END_SECONDS)  # the end of the input usually ends this process
        os.kill(os.getpid(), signal.SIGKILL)

    with suppress(OSError):  # an old Linux, or the parent has ended already
        threading.Thread(target=wait, args=(os.pidfd_open(os.getppid()),), daemon=True).start()


def remove_folder_of_cutile() -> None:
    for folder in _own_cutile_folder:
        shutil.rmtree(folder, ignore_errors=True)


def _new_folder() -> Path:
    """Returns the name of a new temporary folder, with the number of this process (see `versions.leftovers`)."""
    return Path(tempfile.gettempdir(), f"tilewright-{os.getpid()}-{secrets.token_hex(8)}")


@contextmanager
def workplace() -> Iterator[Path]:
    """Makes a folder for a tool's files. The folder is removed at the end, even if this process is killed.

    The keeper knows the folder before it is made, and until it is gone: a signal may end this process at any moment.
    """
    folder = _new_folder()
    with kept(f"remove {folder}", until=lambda: not folder.exists()):
        folder.mkdir(0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run(
    command: Sequence[str], seconds: float, folder: Path | None = None, *,
    env: Mapping[str, str] | None = None, fix: str = "", patience: float = PATIENCE, once: bool = False,
    stdin: Path | None = None,
) -> Finished:  # fmt: skip
    """Runs a tool for at most ``seconds`` of processor time, and ``patience`` times as much wall time.

    folder: a `workplace` for the tool's output and temporary files. None makes a new one.
    fix: what the user can do about a missing or broken tool, for the message.
    once: a tool that does not end in time is never run again; later calls raise the same error.
    stdin: the file that the tool reads on its standard input; None for no input.
    Raises CompilerMissing if the tool cannot be started, ToolFailed if the tool does not end in time.
    """
    if folder is None:
        with workplace() as new:
            return run(command, seconds, new, env=env, fix=fix, patience=patience, once=once, stdin=stdin)
    if command[0] in _hung:
        raise _hung[command[0]]
    environment = {**(os.environ if env is None else env), "TMPDIR": str(folder)}
    out, err = folder / "stdout", folder / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr, open(stdin or os.devnull, "rb") as given:
        try:  # a new process group, so that the tool's own children (tileiras starts ptxas) end with the tool
            process = subprocess.Popen(
                command, env=environment, stdin=given, stdout=stdout, stderr=stderr, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise CompilerMissing(not_started(command[0], error, fix)) from None
    returncode, used, in_time = _ended(process, seconds, seconds * patience)
    tool = Path(command[0]).name
    try:
        if not in_time and used < seconds:
            so_far = f"{used:.2g} s of processor time in {seconds * patience:g} s"
            raise ToolFailed(f"{tool} did not end: it used {so_far}{_to_fix(fix)}")
        return finished(tool, folder, returncode, used, seconds)
    except ToolFailed as error:
        if once:
            _hung[command[0]] = error
        raise


def finished(tool: str, folder: Path, returncode: int, used: float, seconds: float) -> Finished:
    """Returns the result of a tool, with the content of the files ``stdout`` and ``stderr`` in ``folder``.

    used, seconds: the processor time that the tool used, and its budget.
    Raises ToolFailed if the budget is used up.
    """
    if (spent := getattr(_thread, "spent", None)) is not None:
        spent.seconds += used
    if returncode == -signal.SIGXCPU or used >= seconds:  # ``used`` includes the tool's own children
        raise ToolFailed(f"{tool} took longer than its budget of {seconds:g} s of processor time")
    texts = ((folder / name).read_bytes().decode("utf-8", "backslashreplace") for name in ("stdout", "stderr"))
    return Finished(returncode, *texts)


def _ended(process: subprocess.Popen[bytes], seconds: float, wall: float) -> tuple[int, float, bool]:
    """Waits at most ``wall`` seconds for the end of a tool, and then kills the tool's process group.

    Returns the exit code, the processor time in seconds, and whether the tool ended by itself.
    """
    in_time = True

    def late() -> None:
        nonlocal in_time
        in_time = False
        _kill(process.pid)

    timer = threading.Timer(wall, late)
    try:
        with running(process.pid):
            _limit(process.pid, seconds)
            timer.start()
            with suppress(ChildProcessError):  # the user's program ignores SIGCHLD, or waits for all children
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        timer.cancel()
        returncode, used = 0, 0.0
        with suppress(ChildProcessError):
            _, status, usage = os.wait4(process.pid, 0)
            returncode, used = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        process.returncode = returncode
    return returncode, used, in_time or returncode != -signal.SIGKILL


@contextmanager
def running(group: int) -> Iterator[None]:
    """Registers a process group. Kills it at the end of the block, in `kill_all`, or when this process is killed."""
    with _lock:
        _running[group] = getattr(_thread, "job", None), getattr(_thread, "pool", None)
    try:
        with kept(f"kill {group}"):
            yield
    finally:
        _kill(group)
        with _lock:
            _running.pop(group, None)


@contextmanager
def swept(folder: Path) -> Iterator[None]:
    """Kills at the end of the block, or when this process is killed, what tools with the workplace ``folder`` left."""
    with kept(f"sweep {folder}"):
        try:
            yield
        finally:
            keeper.sweep(str(folder))


def _limit(pid: int, seconds: float) -> None:
    budget = math.ceil(seconds)
    with suppress(OSError):  # it has ended already
        resource.prlimit(pid, resource.RLIMIT_CPU, (budget, budget + 1))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (OUTPUT_BYTES, OUTPUT_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def not_started(program: str, error: Exception | None = None, fix: str = "") -> str:
    """Returns the message for a tool that cannot be started, with the fix."""
    path = Path(program)
    if path.is_file() and not os.access(path, os.X_OK):
        return f"{path.name} cannot be started (permission denied); fix: chmod +x {path}"
    if path.is_dir():
        return f"{program} cannot be started: it is a folder; name a program in it"
    why = getattr(error, "strerror", None) or str(error or "No such file or directory")
    return f"{path.name} cannot be started ({path}: {why}){_to_fix(fix)}"


def _to_fix(fix: str) -> str:
    return f"; fix: {fix}" if fix else ""


class ToolPool(ThreadPoolExecutor):
    """Threads that wait for tools. On Ctrl-C or an error, their tools are killed and queued calls are dropped.

    kill: kills the tools that these threads started.
    """

    def __init__(self, threads: int, name: str, kill: Callable[[], object] | None = None) -> None:
        key = object()
        super().__init__(threads, name, lambda: setattr(_thread, "pool", key))
        self._asked: list[Future[Any]] = []
        self._kill = kill or (lambda: kill_all(key))

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(call, *args, **kwargs)
        self._asked.append(future)
        return future

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.end()
        self.shutdown(cancel_futures=True)

    def end(self) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in self._asked):  # a thread may be just starting its tool
            self._kill()
            time.sleep(0.01)


@dataclass
class Spent:
    """The processor time of the tools of a job, in seconds."""

    seconds: float = 0.0


@contextmanager
def doing(job: Hashable) -> Iterator[Spent]:
    """Makes ``job`` the job of the tools that this thread starts in the block, for `kill_slow`. Adds up their time."""
    _thread.job, _thread.spent = job, Spent()
    try:
        yield _thread.spent
    finally:
        _thread.job = _thread.spent = None


def kill_slow(limits: Mapping[Hashable, float], on_kill: Callable[[Hashable], object]) -> None:
    """Kills the tools that used more processor time than the limit of their job, in seconds.

    on_kill: called with the job before its tool is killed.
    """
    with _lock:
        limited = {group: job for group, (job, _) in _running.items() if job in limits}
    for group, job in limited.items():
        if _used(group) > limits[job]:
            on_kill(job)
            _kill(group)


def _used(pid: int) -> float:
    """Returns the processor time of a process and its children, in seconds; 0 if it has ended."""
    used = 0.0
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        used += sum(_used(int(child)) for child in children)
    return used


def kill_all(key: object = None) -> None:
    """Kills every running tool, for example after Ctrl-C; with the ``key`` of a pool, those of its threads."""
    with _lock:
        groups = [group for group, (_, pool) in _running.items() if key in (None, pool)]
    for group in groups:
        _kill(group)


def _kill(group: int) -> None:
    with _lock:  # a group that is no longer in `_running` has ended, and another process may have its number
        if group in _running:
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)


# The keeper ---------------------------------------------------------------------------------------


@dataclass
class _Keeper:
    """The pipe to the keeper process (see `keeper`).

    starter: the child process that forks the keeper and then ends.
    """

    starter: subprocess.Popen[bytes] | None = None
    pipe: int = -1

    def told(self, line: str) -> None:
        with _lock, suppress(OSError):
            if self.starter is None:
                self._start()
            os.write(self.pipe, os.fsencode(line + "\n"))

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid())]
        read, self.pipe = os.pipe()
        quiet = subprocess.DEVNULL
        try:
            self.starter = subprocess.Popen(
                command, stdin=read, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True
            )
        finally:
            os.close(read)
        for folder in _own_cutile_folder:
            os.write(self.pipe, os.fsencode(f"+ remove {folder}\n"))

    def settle(self) -> None:
        """Waits for the end of ``starter``. Otherwise ``os.wait`` in the user's program could return this process."""
        if self.starter is not None:
            with suppress(subprocess.TimeoutExpired):
                self.starter.wait(KEEPER_SECONDS)


_KEEPER = _Keeper()


def _forget() -> None:
    """Clears the lists of tools and the keeper in a forked copy of this process."""
    global _lock
    _lock = threading.Lock()
    _running.clear()
    _KEEPER.starter = None


os.register_at_fork(after_in_child=_forget)


@contextmanager
def kept(duty: str, until: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Makes the keeper process do ``duty``, such as ``kill 123``, if this process ends inside the ``with`` block.

    until: returns whether nothing is left to do after the block. If not, the duty is done when this process ends.
    """
    _KEEPER.told(f"+ {duty}")
    try:
        yield
    finally:
        if until():
            _KEEPER.told(f"- {duty}")
        _KEEPER.settle()
