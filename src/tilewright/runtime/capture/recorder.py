"""Records the launches of one process: of which kinds they are, how often they come, how long they take.

`launch_hook` brings here only the launches that are to be looked at (`counting` says which), and those that fail.
Whatever goes wrong in here, the launch is made as if nobody looked.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from tilewright.errors import in_one_line
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.counting import EXACT, Cell, LaunchCounter
from tilewright.runtime.capture.data import Data
from tilewright.runtime.capture.described import described
from tilewright.runtime.capture.kinds import LaunchKind, RecordedKernel, key_of
from tilewright.runtime.capture.launch_hook import launch_hook
from tilewright.runtime.capture.record import ProcessRecord
from tilewright.runtime.capture.timing import next_sample

KINDS = 256
"""Kinds of launch of one kernel that are described; further ones are counted with the last of them."""
OBJECTS = 8
"""RecordedKernel objects of one function and its hints that are known themselves. A program that makes one for each
launch (`replace_hints` on the hot path) would otherwise fill the memory."""
SECONDS_FOR_SAMPLES = 2.0
"""That the end of a program waits for a GPU with work to do; one that hangs must not keep it."""

Seen = tuple[LaunchKind, Cell, int]
"""What a launch that was looked at is, where it counts, and for how many launches it stands."""


class Recorder:
    """Counts the launches of one process, on their way to ``original``. ``launch`` is the stand-in."""

    def __init__(
        self,
        original: Callable[..., Any],
        path: Path,
        data_bytes: int = 0,
        *,
        exact: int = EXACT,
        random: Random | None = None,
    ) -> None:
        """exact: launches of each kernel that are all looked at. random: draws which are later."""
        self.original, self.path = original, path
        self._exact, self._random = exact, random or Random()
        self._data_bytes = data_bytes
        self._name_process()
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._kernels: dict[tuple[int, str], RecordedKernel] = {}
        self._objects: dict[Any, RecordedKernel] = {}
        self._skips: dict[Any, Iterable[None]] = {}
        """Of the same kernel objects: `LaunchCounter.skip`."""
        self._in_graph: Callable[[], bool] = _never
        """Whether launches go into a CUDA graph now."""
        self._warned = self._finished = False
        self.begun = threading.Event()
        """Set once there is something to write."""
        self._gpu = ""
        self._started = perf_counter()
        self.launch = launch_hook(original, self._skips, self._look, self._failed)

    # A launch

    def _look(self, stream: Any, grid: Any, kernel: Any, args: Any, more: Mapping[str, Any]) -> Any:
        seen = self._come(kernel, grid, args)
        number = 0 if seen is None else self._to_time(seen)
        try:
            if seen is None or not number:
                return self.original(stream, grid, kernel, args, **more)
            call = lambda: self.original(stream, grid, kernel, args, **more)  # noqa: E731
            return seen[0].sampled.call(call, stream, number)
        except BaseException as error:
            self._failed(error, kernel, grid, args, seen)
            raise

    def _come(self, kernel: Any, grid: Any, args: Any) -> Seen | None:
        """Counts a launch and looks at it, if that is its turn; None too where it cannot be described."""
        try:
            with self._lock:
                known = self._known(kernel)
                size = known.counter.come()
                if not size:
                    return None
                for one in known.objects:
                    self._skips[one] = known.counter.skip
                try:
                    kind, cell = self._kind(known, kernel, grid, args)
                except Exception:
                    known.lost.add(size)
                    raise
                cell.add(size)
                if not self.begun.is_set():
                    self.begun.set()
                return kind, cell, size
        except Exception as error:
            self._say_once(f"a launch is not recorded: {in_one_line(error)}")
            return None

    def _to_time(self, seen: Seen) -> int:
        """The number of a launch among those of its kind that were looked at, if it is to be timed, else 0."""
        kind, cell, _ = seen
        number = kind.own.seen
        if cell is not kind.own or number < kind.next:
            return 0
        kind.next = next_sample(number)
        return number

    def _failed(self, error: BaseException, kernel: Any, grid: Any, args: Any, seen: Seen | None = None) -> None:
        """A launch that failed stands for itself alone, and its kind is always found."""
        try:
            with self._lock:
                if seen is None:
                    kind, cell = self._kind(self._known(kernel), kernel, grid, args)
                else:
                    kind, cell, size = seen
                    cell.take_back(size)
                (kind.own if cell is kind.in_graph else cell).add(1)
                kind.failed += 1
                kind.error = kind.error or in_one_line(error)
        except Exception as problem:
            self._say_once(f"a launch that failed is not recorded: {in_one_line(problem)}")

    def _kind(self, known: RecordedKernel, kernel: Any, grid: Any, args: Any) -> tuple[LaunchKind, Cell]:
        """The kind of a launch, described now if need be, and where it counts."""
        key = key_of(grid, args, known.constants)
        kind = known.kinds.get(key)
        if kind is None:
            if len(known.kinds) >= KINDS:
                return known.last(), known.others
            kind = known.kinds[key] = self._new(kernel, grid, args)
        return kind, kind.in_graph if self._in_graph() else kind.own

    def _new(self, kernel: Any, grid: Any, args: Any) -> LaunchKind:
        torch = sys.modules.get("torch")
        if not self._gpu and torch is not None and torch.cuda.is_initialized():
            self._gpu = str(torch.cuda.get_device_name())
            self._in_graph = torch.cuda.is_current_stream_capturing
        launch = described(kernel, grid, args)
        return LaunchKind(launch, {} if self._in_graph() else self._data.kept(launch, args))

    def _known(self, kernel: Any) -> RecordedKernel:
        """The function and hints of a kernel object."""
        known = self._objects.get(kernel)
        if known is not None:
            return known
        from tilewright.languages.cutile.private import parameter_annotations

        name = (id(kernel._pyfunc), repr(kernel._compiler_options))
        known = self._kernels.get(name)
        if known is None:
            constants = tuple(one.constant for one in parameter_annotations(kernel))
            known = self._kernels[name] = RecordedKernel(kernel._pyfunc, constants, self._counter())
        if len(known.objects) < OBJECTS:
            known.objects.append(kernel)
            self._objects[kernel] = known
        return known

    def _counter(self) -> LaunchCounter:
        return LaunchCounter(self._exact, self._random)

    # What was recorded

    def recorded(self, finished: bool = False) -> ProcessRecord:
        """``finished``: waits a little for samples that the GPU has not done. No launch waits for this."""
        kernels = list(self._kernels.values())
        if finished:
            until = perf_counter() + SECONDS_FOR_SAMPLES
            for kind in [kind for known in kernels for kind in known.kinds.values()]:
                kind.sampled.read_all(until)
        return ProcessRecord(
            os.getpid(), tuple(getattr(sys, "orig_argv", sys.argv)), os.getcwd(), self._gpu,
            perf_counter() - self._started, finished, tuple(one for known in kernels for one in known.recorded()),
        )  # fmt: skip

    def write(self, finished: bool = False) -> None:
        """Into this process's part; what cannot be written is said once, and the program goes on."""
        try:
            with self._writing:
                if self._finished:  # a thread that waited here while the last word was written
                    return
                self._finished = finished
                if finished or any(known.kinds for known in list(self._kernels.values())):
                    part = self.recorded(finished)
                    capture_record.write(capture_record.part_file(self.path, self._name), part)
        except Exception as error:
            self._say_once(f"cannot write {self.path}: {in_one_line(error)}")

    def forget(self) -> None:
        """In a forked process: what the other process launched, and the locks that its threads held."""
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._finished, self.begun = False, threading.Event()
        self._name_process()
        self._random.seed()
        self._skips.clear()
        for known in self._kernels.values():
            known.forget(self._counter())
        self._started = perf_counter()

    def _name_process(self) -> None:
        """For the names of files: the operating system gives a process id again, in a container soon."""
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._data = Data(self.path, self._data_bytes, self._name)

    def _say_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            print(f"tilewright: {text}", file=sys.stderr, flush=True)


def _never() -> bool:
    return False
