"""The parent's client for versions of a task. A version is the task with edited files; it runs in its own process.

    with Candidates(files) as candidates:
        task = candidates.task(baseline, where, version)

The new task keeps the baseline's reference, tensors, tolerance and workloads, so a version cannot change how it is
judged. Its launch function asks the version's process, which answers with data. If the process dies, hangs or sends an
invalid answer, the version is wrong.

Different threads may ask different versions at the same time. Only one thread at a time may ask a version.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tilewright.candidate import messages as said
from tilewright.candidate.guard import FileGuard
from tilewright.candidate.process import Gone, VersionProcess
from tilewright.candidate.sandbox import unprotected
from tilewright.errors import MachineError, RequestError, TaskError
from tilewright.hardware.architectures import Board
from tilewright.languages import language_named
from tilewright.languages.base import Hints, ListArgument, Lowered
from tilewright.languages.described import DescribedKernel
from tilewright.records import Configuration, Failed, Value
from tilewright.source.source_file import SourceFile
from tilewright.space.space import Space
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec, span
from tilewright.tools.child import workplace
from tilewright.tools.packages import import_root
from tilewright.worker.messages import Message, encode

SECONDS = 60.0
"""Time limit for one answer. To answer, a version may load its files or run its launch function."""
ALIVE = 16
"""The most version processes at a time. If there are more, the least recently asked process is ended, but none that is
answering. A later question starts a new process for its version."""
HANGS = 10.0
"""A server that takes longer than this number of seconds for one order is ended by `Candidates.interrupt`."""
Answer = TypeVar("Answer", bound=Message)


class Forbidden(RequestError):
    """A version changed a fixed part of the task: the name, or the existence of a backward pass."""


class VersionError(TaskError):
    """A version's process failed. The message gives the reason in one line."""


class Candidates:
    """The processes of all versions of one task. Use it in a ``with`` block, which ends the processes.

    files: the editable files. The packages that these files import or belong to are imported once for all versions.
    seconds: time limit of one answer.
    """

    def __init__(self, files: Iterable[Path], seconds: float = SECONDS) -> None:
        self.seconds, files = seconds, tuple(files)
        self._guard = FileGuard(files) if unprotected() else None
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(workplace())
        self._lock = threading.RLock()
        """Held while the dictionary of the processes is read or changed, and while the server follows an order."""
        self._alive: OrderedDict[str, VersionProcess] = OrderedDict()
        self._orders, self._last_line = 0, "it said nothing"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tilewright.candidate.server", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self._order({"import": _imported(files), "path": sys.path}, answered=False)

    def __enter__(self) -> Candidates:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def at_once(self) -> int:
        """The most versions that may be asked at the same time. Only one, if a changed file has to show the culprit."""
        return ALIVE - 1 if self._guard is None else 1

    def interrupt(self) -> None:
        """Ends the processes that are answering. Their questions, which wait in other threads, fail at once.

        Ends the server if it hangs, for example in the import of a package: a thread that waits for it holds the lock.
        """
        if not self._lock.acquire(timeout=HANGS):
            self._server.kill()
            return
        try:
            for version in [version for version, process in self._alive.items() if process.asked]:
                self._end(version)
        finally:
            self._lock.release()

    def close(self) -> None:
        with suppress(MachineError):
            for version in list(self._alive):
                self._end(version)
        self._control.close()
        self._said_at_the_end()
        self._stack.close()

    def task(self, baseline: Task, where: str, files: Mapping[str, str]) -> Task:
        """Returns the baseline with the launch and the space of a version.

        where, files: as for `loading.load_task`. Raises TaskError if the version's files cannot be used, and Forbidden
        if they define another task.
        """
        source = _VersionFiles.of(where, files)
        opened = self.ask(source, None, said.VersionOpened)
        if opened.task != baseline.name:
            raise Forbidden(f"the task is called '{opened.task}', but its name must stay '{baseline.name}'")
        if (opened.backward is None) != (baseline.backward is None):
            lost = "no longer has a backward task" if opened.backward is None else "has a new backward task"
            raise Forbidden(f"task '{baseline.name}' {lost}")
        backward = baseline.backward
        if backward is not None and opened.backward is not None:
            launch = VersionLaunch(self, source, backward.in_place, backward=True)
            backward = replace(backward, launch=launch, space=_space(opened.backward, backward.space))
        launch = VersionLaunch(self, source, baseline.in_place, backward=False)
        return replace(baseline, launch=launch, space=_space(opened.space, baseline.space), backward=backward)

    def ask(self, source: _VersionFiles, question: Message | None, kind: type[Answer]) -> Answer:
        """Returns the version's answer to ``question``, or to `OpenVersion` if ``question`` is None.

        Raises VersionError if the process fails, or if the answer is not of the type ``kind``.
        """
        try:
            with self._process(source) as process:
                answer = process.opened if question is None else process.ask(question)
        except BaseException as error:  # also a time limit or Ctrl-C: the next question must not get a late answer
            status = self._end(source.key)
            if isinstance(error, Gone):
                self._refuse_changed_files()
                raise VersionError(error.text or _ending(status)) from None
            raise
        self._refuse_changed_files(source)
        if isinstance(answer, said.VersionFailed):
            if question is None:
                self._end(source.key)
            raise VersionFailedError(answer)
        if not isinstance(answer, kind):
            self._end(source.key)
            raise VersionError(f"its process answered {type(answer).__name__}, not {kind.__name__}")
        return answer

    def _refuse_changed_files(self, source: _VersionFiles | None = None) -> None:
        """Raises VersionError if a watched file changed. Does nothing where the system prevents such writes."""
        if self._guard is not None and (path := self._guard.changed()) is not None:
            if source is not None:
                self._end(source.key)
            raise VersionError(f"{path} was changed while the version ran")

    @contextmanager
    def _process(self, source: _VersionFiles) -> Iterator[VersionProcess]:
        """Yields the version's process. It is not ended in the ``with`` block to make room for another version."""
        with self._lock:
            process = self._alive.get(source.key) or self._started(source.key)
            self._alive.move_to_end(source.key)
            process.asked = True
        try:
            if not hasattr(process, "opened"):
                process.opened = process.ask(said.OpenVersion(source.where, source.files))
            yield process
        finally:
            with self._lock:
                process.asked = False
                if self._alive.get(source.key) is not process:  # `interrupt` has ended it
                    process.channel.close()

    def _started(self, version: str) -> VersionProcess:
        idle = [other for other, process in self._alive.items() if not process.asked]
        for other in idle[: max(len(self._alive) - ALIVE + 1, 0)]:
            self._end(other)
        scratch = Path(tempfile.mkdtemp(dir=self._folder))
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                number = self._order({"fork": str(scratch)}, theirs.fileno())["process"]
            except BaseException:  # a process that has started nevertheless ends, because its channel is closed
                ours.close()
                raise
        process = self._alive[version] = VersionProcess(int(number), ours, scratch, self.seconds)
        return process

    def _end(self, version: str) -> int | None:
        """Ends the version's process. Returns the exit status; None if there was no process."""
        with self._lock:
            process = self._alive.pop(version, None)
            if process is None:
                return None
            if process.asked:  # another thread still reads from it, and now reads its end
                with suppress(OSError):
                    process.channel.shutdown(socket.SHUT_RDWR)
            else:
                process.channel.close()
            with process.kept:
                status = self._order({"end": process.number})["status"]
        shutil.rmtree(process.scratch, ignore_errors=True)
        return int(status)

    def _order(self, order: Mapping[str, Any], *descriptors: int, answered: bool = True) -> dict[str, Any]:
        with self._lock, suppress(OSError):
            self._orders += 1
            packet = json.dumps({**order, "number": self._orders}).encode()
            if descriptors:
                socket.send_fds(self._control, [packet], list(descriptors))
            else:
                self._control.send(packet)
            if not answered:
                return {}
            while packet := self._control.recv(1 << 16):
                answer: dict[str, Any] = json.loads(packet)
                if answer["number"] == self._orders:  # else the caller of an earlier order was interrupted
                    return answer
        raise MachineError(f"the process that loads versions ended: {self._said_at_the_end()}")

    def _said_at_the_end(self) -> str:
        """Ends the server process. Returns the last line that the server wrote to stderr."""
        with self._lock:
            self._server.kill()
            with self._server:
                if self._server.stderr is not None and not self._server.stderr.closed:
                    written = self._server.stderr.read().decode(errors="replace")
                    self._last_line = (written.strip().splitlines() or [self._last_line])[-1]
            return self._last_line


class VersionFailedError(VersionError):
    """An error in a version's code, with the stage at which it happened."""

    def __init__(self, failed: said.VersionFailed) -> None:
        super().__init__(failed.reason)
        self.failed = Failed(failed.stage, failed.reason)


@dataclass(frozen=True)
class _VersionFiles:
    """The location of a version's code, and ``key``, a digest of the code."""

    where: str
    files: tuple[tuple[str, str], ...]
    key: str

    @classmethod
    def of(cls, where: str, files: Mapping[str, str]) -> _VersionFiles:
        paired = tuple(sorted(files.items()))
        digest = hashlib.sha256(json.dumps([where, paired]).encode())
        for _, copy in paired:
            digest.update(Path(copy).read_bytes())
        return cls(where, paired, digest.hexdigest())


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        with suppress(ValueError):
            return f"its process was killed by {signal.Signals(-status).name}"
    return f"its process ended with exit code {status}" if status is not None else "its process is gone"


# Launches made from the answers --------------------------------------------------------------------


class VersionLaunch:
    """The launch function of a version. It asks the version's process once for each different launch.

    in_place: maps an output to the input that the output may overwrite. The baseline declares this, so a version cannot
    change it.
    """

    def __init__(
        self, candidates: Candidates, source: _VersionFiles, in_place: Mapping[str, str], *, backward: bool
    ) -> None:
        self._candidates, self._source, self._in_place, self._backward = candidates, source, in_place, backward
        self._known: dict[str, Launch | VersionError] = {}

    def __call__(self, *, config: Configuration, hardware: Board, **others: Value | ArraySpec) -> Launch:
        """Returns the version's launch of ``config``. ``others``: the dimensions, and each tensor's specification."""
        arrays = {name: value for name, value in others.items() if isinstance(value, ArraySpec)}
        dims: dict[str, Value] = {name: value for name, value in others.items() if not isinstance(value, ArraySpec)}
        asked = said.DescribeLaunch(config, dims, arrays, hardware, self._in_place, self._backward)
        key = encode(asked)
        if key not in self._known:
            try:
                self._known[key] = self._described(asked)
            except VersionError as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, VersionError):
            raise known
        return known

    def _described(self, asked: said.DescribeLaunch) -> Launch:
        answer = self._candidates.ask(self._source, asked, said.LaunchDescribed)
        for array in _arrays_in(answer):
            if not array.scratch and not any(_is_view(array, given) for given in asked.arrays.values()):
                raise VersionError(f"its launch passes an array that is no tensor of the task: {array}")
        kernel = DescribedKernel(
            language_named(answer.language), answer.kernel, answer.arguments, answer.hints, answer.constants,
            _Code(self._candidates, self._source, asked),
        )  # fmt: skip
        return Launch(kernel=kernel, grid=answer.grid, args=tuple(map(_value, answer.args)))


class _Code:
    """Lowers one launch for given compiler hints. It asks the version's process once for each set of hints."""

    def __init__(self, candidates: Candidates, source: _VersionFiles, launch: said.DescribeLaunch) -> None:
        self._candidates, self._source, self._launch = candidates, source, launch
        self._known: dict[tuple[object, ...], Lowered | Failed] = {}

    def __call__(self, hints: Hints, tile_ir: bool) -> Lowered | Failed:
        key = (tile_ir, *sorted(hints.items()))
        if key not in self._known:
            self._known[key] = self._lowered(hints, tile_ir)
        return self._known[key]

    def _lowered(self, hints: Hints, tile_ir: bool) -> Lowered | Failed:
        asked = said.LowerLaunch(self._launch, dict(hints), tile_ir)
        try:
            answer = self._candidates.ask(self._source, asked, said.LaunchLowered)
            code, same_as = (base64.b64decode(text, validate=True) for text in (answer.code, answer.same_as))
        except VersionFailedError as error:
            return error.failed
        except (VersionError, ValueError) as error:
            return Failed("front end", str(error))
        launch = self._launch
        arch = launch.board.arch
        return Lowered(launch.configuration, arch, answer.symbol, code, answer.options, answer.parameters, same_as)


def _is_view(array: ArraySpec, given: ArraySpec) -> bool:
    """Returns whether ``array`` is the memory of ``given``, perhaps with another shape and strides (a transpose)."""
    if array == replace(given, shape=array.shape, strides_=array.strides_):
        inside = len(array.strides) == array.ndim and min((*array.shape, *array.strides), default=0) >= 0
        return inside and span(array.shape, array.strides) <= span(given.shape, given.strides)
    return False


def _arrays_in(answer: said.LaunchDescribed) -> Iterable[ArraySpec]:
    for argument in answer.args:
        if isinstance(argument, ArraySpec):
            yield argument
        elif isinstance(argument, said.ArrayList):
            yield from argument.arrays
    for entry in answer.arguments:
        rows = [[entry]] if not isinstance(entry, ListArgument) else entry.rows
        yield from (value for row in rows for value in row if isinstance(value, ArraySpec))


def _value(argument: Any) -> Any:
    if isinstance(argument, said.ArrayList):
        return list(argument.arrays)
    return argument.text if isinstance(argument, said.OtherValue) else argument


def _space(lists: said.SpaceLists, baseline: Space) -> Space:
    """Returns the version's space, with the baseline's predicates. Predicates on removed knobs are left out."""
    knobs = {*lists.constants, *lists.hints}
    gone = {*baseline.knobs} - knobs
    return Space(
        constants=lists.constants, hints=lists.hints, shipped=lists.shipped, include=lists.include, only=lists.only,
        shipped_for=lists.shipped_for,
        where=[predicate.function for predicate in baseline.where if not gone & {*predicate.required}],
    )  # fmt: skip


def _imported(files: Iterable[Path]) -> list[str]:
    """Returns the packages that the files import at module level, and those in which the files lie.

    Only those that this process has loaded with the task: to import another could run a script.
    """
    names: set[str] = set()
    for path in files:
        names.add(".".join(path.parent.relative_to(import_root(path)).parts))
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            names |= SourceFile.read(path).packages_at_top
    return sorted(names & sys.modules.keys())
