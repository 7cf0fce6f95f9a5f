"""Records the launches of one process: their kinds, how often each was made, and how long it takes.

`launch_hook` makes the function that the program calls. This function calls the `Recorder` only for launches that fail
and for launches to examine, which `LaunchCounter` chooses. If recording fails, the launch is still made as usual.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from pathlib import Path
from random import Random
from time import perf_counter
from typing import TypeAlias

from tilewright.errors import in_one_line
from tilewright.runtime.arrays import CallValue, KernelObject, Stream
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.data import Data
from tilewright.runtime.capture.described import described
from tilewright.runtime.capture.kinds import EXACT, Cell, LaunchCounter, LaunchKind, RecordedKernel, key_of, next_sample
from tilewright.runtime.capture.record import ProcessRecord

SIGNATURE = "(stream, grid, kernel, kernel_args, /, *, programmatic_dependent_launch=False)"
"""The signature of `ct.launch` in cuda-tile 1.7."""
KINDS = 256
"""How many kinds of launch are described for a kernel. Launches of further kinds count with the last one of these."""
OBJECTS = 8
"""How many kernel objects are remembered for one function with its hints. Without this limit, a program that makes a
new object for each launch (`replace_hints` on the hot path) would fill the memory."""
SECONDS_FOR_SAMPLES = 2.0
"""How long the end of a program waits for the GPU. The wait is limited, because the GPU may hang."""

Examined: TypeAlias = tuple[LaunchKind, Cell, int]
"""The kind of an examined launch, the cell that counts it, and how many launches it represents."""
Grid: TypeAlias = Sequence[int]
Args: TypeAlias = Sequence[CallValue]
LaunchCall: TypeAlias = Callable[..., None]
Skips: TypeAlias = Mapping[KernelObject, Iterable[None]]


class Recorder:
    """Counts the launches of one process, and passes them on to ``original``. Its ``launch`` is the launch hook."""

    def __init__(
        self, original: LaunchCall, path: Path, data_bytes: int = 0, *, exact: int = EXACT,
        random: Random | None = None,
    ) -> None:  # fmt: skip
        """exact: this many first launches of each kernel are all examined. random: chooses among the later launches."""
        self.original, self.path = original, path
        self._data_bytes, self._exact, self._random = data_bytes, exact, random or Random()
        self._kernels: dict[tuple[int, str], RecordedKernel] = {}
        self._objects: dict[KernelObject, RecordedKernel] = {}
        self._skips: dict[KernelObject, Iterable[None]] = {}
        """The `LaunchCounter.skip` of each kernel object in `_objects`."""
        self._in_graph: Callable[[], bool] = lambda: False
        """Returns whether launches are captured into a CUDA graph now."""
        self._warned = False
        self._gpu = ""
        self._start()
        self.launch = launch_hook(original, self._skips, self._examine, self._failed)

    def _start(self) -> None:
        """Starts the part file of this process. Its name has random bytes, because the system reuses process ids."""
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._finished, self._started = False, perf_counter()
        self.begun = threading.Event()
        """This event is set as soon as there is something to write."""
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._data = Data(self.path, self._data_bytes, self._name)

    def _examine(self, stream: Stream, grid: Grid, kernel: KernelObject, args: Args, more: Mapping[str, bool]) -> None:
        examined = self._count(kernel, grid, args)
        try:
            if examined is not None:
                kind, cell, _ = examined
                number = kind.own.seen
                if cell is kind.own and number >= kind.next:
                    kind.next = next_sample(number)
                    return kind.sampled.call(lambda: self.original(stream, grid, kernel, args, **more), stream, number)
            return self.original(stream, grid, kernel, args, **more)
        except BaseException as error:
            self._failed(error, kernel, grid, args, examined)
            raise

    def _count(self, kernel: KernelObject, grid: Grid, args: Args) -> Examined | None:
        """Counts a launch. Returns None if it need not be examined, or if it cannot be described."""
        try:
            with self._lock:
                known = self._known(kernel)
                size = known.counter.count()
                if not size:
                    return None
                for kernel_object in known.objects:
                    self._skips[kernel_object] = known.counter.skip
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
            self._warn_once(f"a launch is not recorded: {in_one_line(error)}")
            return None

    def _failed(
        self, error: BaseException, kernel: KernelObject, grid: Grid, args: Args, examined: Examined | None = None
    ) -> None:
        """Counts a launch that failed. It is always examined, and represents only itself."""
        try:
            with self._lock:
                if examined is None:
                    kind, cell = self._kind(self._known(kernel), kernel, grid, args)
                else:
                    kind, cell, size = examined
                    cell.add(size, -1)
                (kind.own if cell is kind.in_graph else cell).add(1)
                kind.failed += 1
                kind.error = kind.error or in_one_line(error)
        except Exception as problem:
            self._warn_once(f"a launch that failed is not recorded: {in_one_line(problem)}")

    def _kind(self, known: RecordedKernel, kernel: KernelObject, grid: Grid, args: Args) -> tuple[LaunchKind, Cell]:
        """Returns the kind of a launch, and the cell that counts the launch. A new kind is described here."""
        key = key_of(grid, args, known.constants)
        kind = known.kinds.get(key)
        if kind is None:
            if len(known.kinds) >= KINDS:
                return next(reversed(known.kinds.values())), known.others
            torch = sys.modules.get("torch")
            if not self._gpu and torch is not None and torch.cuda.is_initialized():
                self._gpu = str(torch.cuda.get_device_name())
                self._in_graph = torch.cuda.is_current_stream_capturing
            launch = described(kernel, grid, args)
            kind = known.kinds[key] = LaunchKind(launch, {} if self._in_graph() else self._data.keep(launch, args))
        return kind, kind.in_graph if self._in_graph() else kind.own

    def _known(self, kernel: KernelObject) -> RecordedKernel:
        known = self._objects.get(kernel)
        if known is not None:
            return known
        from tilewright.languages.cutile.private import parameter_annotations

        name = (id(kernel._pyfunc), repr(kernel._compiler_options))
        known = self._kernels.get(name)
        if known is None:
            constants = tuple(annotation.constant for annotation in parameter_annotations(kernel))
            counter = LaunchCounter(self._exact, self._random)
            known = self._kernels[name] = RecordedKernel(kernel._pyfunc, constants, counter)
        if len(known.objects) < OBJECTS:
            known.objects.append(kernel)
            self._objects[kernel] = known
        return known

    def recorded(self, finished: bool = False) -> ProcessRecord:
        """Returns this process's part. finished: wait a little for samples that the GPU has not passed yet."""
        kernels = list(self._kernels.values())
        if finished:
            until = perf_counter() + SECONDS_FOR_SAMPLES
            for kind in [kind for known in kernels for kind in known.kinds.values()]:
                kind.sampled.read_all(until)
        return ProcessRecord(
            os.getpid(), tuple(getattr(sys, "orig_argv", sys.argv)), os.getcwd(), self._gpu,
            perf_counter() - self._started, finished, tuple(kind for known in kernels for kind in known.recorded()),
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
            self._warn_once(f"cannot write {self.path}: {in_one_line(error)}")

    def forget(self) -> None:
        """In a forked process: forgets the parent's launches, and replaces locks that its threads may hold."""
        self._start()
        self._random.seed()
        self._skips.clear()
        for known in self._kernels.values():
            known.forget(LaunchCounter(self._exact, self._random))

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            print(f"tilewright: {text}", file=sys.stderr, flush=True)


def launch_hook(original: LaunchCall, skips: Skips, examine: LaunchCall, failed: LaunchCall) -> LaunchCall:
    """Returns the function that the program calls instead of `ct.launch`. It passes its arguments on to ``original``.

    Most launches only pass through, so the function is as short as Python allows. ``skips`` has an iterator for each
    kernel object. Each item lets one launch pass, because a loop takes an item in one step, without a call.

    examine(stream, grid, kernel, args, keywords): makes the launch, if no item is left or the kernel is not known.
    failed(error, kernel, grid, args): is called if a launch that passed through raised.
    """
    if getattr(original, "__text_signature__", None) != SIGNATURE:  # other keywords are possible: a slower hook

        def launch_with_any(stream: Stream, grid: Grid, kernel: KernelObject, args: Args, /, **more: bool) -> None:
            return examine(stream, grid, kernel, args, more)

        return update_wrapper(launch_with_any, original)

    def launch(
        stream: Stream, grid: Grid, kernel: KernelObject, kernel_args: Args, /, *,
        programmatic_dependent_launch: bool = False,
    ) -> None:  # fmt: skip
        try:
            skip = skips[kernel]
        except Exception:  # not known, or not hashable
            skip = ()
        try:
            for _ in skip:
                if programmatic_dependent_launch is False:  # spares `ct.launch` parsing a keyword
                    return original(stream, grid, kernel, kernel_args)
                return original(
                    stream, grid, kernel, kernel_args,
                    programmatic_dependent_launch=programmatic_dependent_launch,
                )  # fmt: skip
        except BaseException as error:
            failed(error, kernel, grid, kernel_args)
            raise
        more = {"programmatic_dependent_launch": programmatic_dependent_launch}
        return examine(stream, grid, kernel, kernel_args, more)

    return update_wrapper(launch, original)
