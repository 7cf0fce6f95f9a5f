"""Records the launches of one process: their kinds, how often each was made, and how long it takes.

The hook of a language (`language.CapturedLanguage`) calls the `Recorder` only for launches that fail and for launches
to examine, which `LaunchCounter` chooses. If recording fails, the launch is still made as usual.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, TypeAlias

from tilewright.errors import in_one_line
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.data import Data
from tilewright.runtime.capture.kinds import EXACT, Cell, LaunchCounter, LaunchKind, RecordedKernel, key_of, next_sample
from tilewright.runtime.capture.language import CapturedLanguage, LiveLaunch, Make, R
from tilewright.runtime.capture.program_call import ProgramCall, program_call
from tilewright.runtime.capture.record import ProcessRecord
from tilewright.runtime.capture.sequence import LaunchSequence

KINDS = 256
"""The most kinds of launch that are described for a kernel. Launches of further kinds are counted with the last
described kind."""
OBJECTS = 8
"""The most kernel objects that are remembered for one function with its hints. Without this limit, a program that makes
a new object for each launch (`replace_hints` on the hot path) would fill the memory."""
SECONDS_FOR_SAMPLES = 2.0
"""The longest wait for the GPU at the end of a program, in seconds. The wait is limited, because the GPU may hang."""

Examined: TypeAlias = tuple[LaunchKind, Cell, int]
"""The kind of an examined launch, the cell that counts the launch, and how many launches this launch represents."""


class Recorder:
    """Counts the launches of one process, in all languages."""

    def __init__(
        self, path: Path, data_bytes: int = 0, *, exact: int = EXACT, random: Random | None = None,
        describe: bool = False,
    ) -> None:  # fmt: skip
        """exact: how many of the first launches of each kernel are all examined.
        random: chooses among the later launches.
        describe: whether examined launches are only described, not made."""
        self.path, self._describe = path, describe
        self._data_bytes, self._exact, self._random = data_bytes, exact, random or Random()
        self._kernels: dict[tuple[str, int, str], RecordedKernel] = {}
        self._objects: dict[Hashable, RecordedKernel] = {}
        self.skips: dict[Hashable, Iterable[None]] = {}
        """The `LaunchCounter.skip` of each kernel object in `_objects`, by the handle of the object. Each item lets a
        launch pass unexamined, because a loop takes an item in one step, without a call."""
        self._in_graph: Callable[[], bool] = lambda: False
        """Returns whether launches are captured into a CUDA graph now."""
        self._warned = False
        self._gpu = ""
        self._start()

    def _start(self) -> None:
        """Starts the part file of this process. Its name has random bytes, because the system reuses process ids."""
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._finished, self._started = False, perf_counter()
        self.begun = threading.Event()
        """This event is set as soon as there is something to write."""
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._data = Data(self.path, self._data_bytes, self._name)
        self._sequence = LaunchSequence()

    def examine(self, language: CapturedLanguage, launch: LiveLaunch, make: Make[R]) -> R | None:
        """Makes a launch for which no item of `skips` is left, counts it, and times some."""
        examined = self._count(language, launch)
        if self._describe:
            return None
        try:
            if examined is not None:
                kind, cell, _ = examined
                number = kind.own.seen
                if cell is kind.own and number >= kind.next:
                    kind.next = next_sample(number)
                    return kind.sampled.call(make, launch.stream, number)
            return make()
        except BaseException as error:
            self.failed(error, language, launch, examined)
            raise

    def _count(self, language: CapturedLanguage, launch: LiveLaunch) -> Examined | None:
        """Counts a launch. Returns None if it need not be examined, or if it cannot be described."""
        try:
            with self._lock:
                known = self._known(language, launch.kernel)
                size = known.counter.count()
                if not size:
                    return None
                for handle in known.objects:
                    self.skips[handle] = known.counter.skip
                try:
                    kind, cell = self._kind(known, language, launch)
                except Exception:
                    known.lost.add(size)
                    self._sequence.close()
                    raise
                cell.add(size)
                self._add_to_sequence(known, kind, cell, launch)
                if not self.begun.is_set():
                    self.begun.set()
                return kind, cell, size
        except Exception as error:
            self.warn_once(f"a launch is not recorded: {in_one_line(error)}")
            return None

    def _add_to_sequence(self, known: RecordedKernel, kind: LaunchKind, cell: Cell, launch: LiveLaunch) -> None:
        """Adds a launch to the sequence. Ends the sequence if launches will be missing."""
        with suppress(Exception):  # the program's own objects may raise anything
            if cell is not known.others:
                self._sequence.add(kind, launch)
                if known.counter.is_exact:
                    return
        self._sequence.close()

    def failed(
        self, error: BaseException, language: CapturedLanguage, launch: LiveLaunch, examined: Examined | None = None
    ) -> None:
        """Counts a launch that failed. It is always examined, and represents only itself."""
        try:
            with self._lock:
                self._sequence.close()
                if examined is None:
                    kind, cell = self._kind(self._known(language, launch.kernel), language, launch)
                else:
                    kind, cell, size = examined
                    cell.add(size, -1)
                (kind.own if cell is kind.in_graph else cell).add(1)
                kind.failed += 1
                kind.error = kind.error or in_one_line(error)
        except Exception as problem:
            self.warn_once(f"a launch that failed is not recorded: {in_one_line(problem)}")

    def _kind(self, known: RecordedKernel, language: CapturedLanguage, launch: LiveLaunch) -> tuple[LaunchKind, Cell]:
        """Returns the kind of a launch, and the cell that counts the launch. A new kind is described here."""
        key = key_of(launch.grid, launch.args, known.constants)
        if options := launch.options:
            key += (*options, *key_of((), tuple(options.values()), tuple(repeat(True, len(options)))))
        kind = known.kinds.get(key)
        if kind is None:
            if len(known.kinds) >= KINDS:
                return next(reversed(known.kinds.values())), known.others
            torch = sys.modules.get("torch")
            if not self._gpu and torch is not None and torch.cuda.is_initialized():
                self._gpu = str(torch.cuda.get_device_name())
                self._in_graph = torch.cuda.is_current_stream_capturing
            made = language.described(launch)
            data = {} if self._in_graph() else self._data.keep(made, launch.args)
            kind = known.kinds[key] = LaunchKind(made, data, _call())
        return kind, kind.in_graph if self._in_graph() else kind.own

    def _known(self, language: CapturedLanguage, kernel: Any) -> RecordedKernel:
        known = self._objects.get(handle := language.handle(kernel))
        if known is not None:
            return known
        function = language.function_of(kernel)
        name = (language.name, id(function), language.settings(kernel))
        known = self._kernels.get(name)
        if known is None:
            counter = LaunchCounter(self._exact, self._random)
            known = self._kernels[name] = RecordedKernel(function, language.constants(kernel), counter)
        if len(known.objects) < OBJECTS:
            known.objects[handle] = kernel
            self._objects[handle] = known
        return known

    def recorded(self, finished: bool = False) -> ProcessRecord:
        """Returns this process's part. ``finished``: whether to wait for samples that the GPU has not passed yet, for
        at most `SECONDS_FOR_SAMPLES`."""
        if finished:
            until = perf_counter() + SECONDS_FOR_SAMPLES
            for kind in [kind for known in list(self._kernels.values()) for kind in known.kinds.values()]:
                kind.sampled.read_all(until)
        with self._lock:  # no kind is added meanwhile
            kernels = list(self._kernels.values())
            launches = tuple(kind for known in kernels for kind in known.recorded())
            kinds = (kind for known in kernels for kind in known.kinds.values())
            sequence = self._sequence.recorded({kind: place for place, kind in enumerate(kinds)})
        return ProcessRecord(
            os.getpid(), tuple(getattr(sys, "orig_argv", sys.argv)), os.getcwd(), self._gpu,
            perf_counter() - self._started, finished, launches, sequence,
        )  # fmt: skip

    def write(self, finished: bool = False) -> None:
        """Writes this process's part. If writing fails, prints a warning once, and the program goes on."""
        try:
            with self._writing:
                if self._finished:  # another thread has written the last part meanwhile
                    return
                self._finished = finished
                if finished or any(known.kinds for known in list(self._kernels.values())):
                    part = self.recorded(finished)
                    capture_record.write(capture_record.part_file(self.path, self._name), part)
        except Exception as error:
            self.warn_once(f"cannot write {self.path}: {in_one_line(error)}")

    def forget(self) -> None:
        """In a forked process: forgets the parent's launches, and replaces locks that its threads may hold."""
        self._start()
        self._random.seed()
        self.skips.clear()
        for known in self._kernels.values():
            known.forget(LaunchCounter(self._exact, self._random))

    def warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            print(f"tilewright: {text}", file=sys.stderr, flush=True)


def _call() -> ProgramCall | None:
    """Returns the place of the launch that is being made. A launch without one is still recorded."""
    with suppress(Exception):  # the program's own objects may raise anything when they are described
        return program_call()
    return None
