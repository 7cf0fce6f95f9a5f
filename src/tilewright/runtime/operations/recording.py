"""Records the operations of the program that `program.recorded` started, in one observed run.

The startup hook calls `install` after the program has imported torch. The steps are those of `runtime.observing`. In a
program without steps, each backward pass ends one. Compiled functions run as they are written, and are not recorded.
"""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tilewright.runtime import observing
from tilewright.runtime.operations.recorder import MOST_OPERATIONS, OperationRecorder, RecordingPart, inside
from tilewright.runtime.process import leave, seed_torch, write_record

if TYPE_CHECKING:
    from torch.nn import Module

VARIABLE = "TILEWRIGHT_OPERATIONS"
"""The name of an environment variable with the folder of the program, whose lines are recorded."""
EVERY_S = 0.002
"""The time between two looks at the line that the host is at."""
RECORDED, FEWEST = 10, 3
"""After so many steps, operations are recorded only in an evaluation. Fewer steps are enough if they take long."""
LONG_S = 12.0
"""Steps take long if, after the first one, they together take so many seconds. Recording makes a step of many small
operations many times as slow."""
AFTER, AFTER_S = 1.0, 15.0
"""The program is not waited for longer than so many times the time of the recorded steps, nor longer than so many
seconds, to reach an evaluation."""
EVALUATION_S = 5.0
"""The program is ended after so many seconds of a recorded evaluation."""
BEFORE_MODULES = 20_000
"""The most operations that are recorded before the program calls its first module. A program may make its data by
hundreds of thousands of small operations, each of which is many times as slow while it is recorded."""
REST_S = 0.002
"""The time after which the recorder tries to leave a program that has made so many operations, and tries again: even an
operation that it passes on unrecorded is several times as slow."""
LIKE = 3
"""So many parts with the same operations are stored; of others only the number and the time of the operations."""


def install() -> None:
    """Seeds torch, and records the operations of this process."""
    seed_torch()
    RecordingObserver(json.loads(os.environ[observing.VARIABLE]), os.environ[VARIABLE]).begin()


class RecordingObserver(observing.Observer):
    """Observes one process, and records its operations."""

    def __init__(self, settings: observing.Settings, root: str) -> None:
        super().__init__(settings)
        self.recorder = OperationRecorder(root)
        self.recorder.most = BEFORE_MODULES
        self._sampler = threading.Thread(target=self._sample, args=(threading.get_ident(),), daemon=True)
        self._ended, self._waiting, self._late, self._evaluates = False, False, 0.0, False
        self._first, self._resting = math.inf, False

    def begin(self) -> None:
        """Sets the hooks, and begins to record."""
        super().begin()
        self._leave_out_compiled()
        self._watch_evaluations()
        self._watch_optimizers()
        self.recorder.on_backward, self.recorder.on_full = self._backward, self._rest
        self.recorder.start()
        self._sampler.start()

    def finish(self, cut: str = "") -> None:
        """Writes the record of the operations, and that of the run."""
        if not self._ended:
            self._ended = True
            if self._sampler.ident is not None:  # a thread that is left when Python ends can abort the process
                self._sampler.join()
            self.recorder.stop()
            write_record(Path(self.settings["folder"]), f"operations{self.process}", record_of(self.recorder))
        super().finish(cut)

    def _wait(self) -> float:
        waited = super()._wait()
        self.recorder.parts[-1].own_ns += int(1e9 * waited)
        return waited

    def _rest(self) -> None:
        """Takes the recorder off the program soon, until the program calls a module."""

        def rest() -> bool:
            wanted = self.recorder.most == BEFORE_MODULES
            self._resting = wanted and self.recorder.rest()
            return self._resting or not wanted

        if self.recorder.most == BEFORE_MODULES:
            _in_between(REST_S, rest)

    def _call(self, module: Module) -> None:
        self.recorder.most = MOST_OPERATIONS
        if self._resting and self.recorder.go_on_after_rest():
            self._resting = False
        super()._call(module)

    def _stepped(self) -> None:
        super()._stepped()
        self._step_ended()

    def _backward(self) -> None:
        """Ends a step at a backward pass, if nothing else ends steps."""
        if self.unit == "process":
            self.recorder.mark()

    def _step_ended(self) -> None:
        if self._evaluates or (self._waiting and time.monotonic() > self._late):
            self._end()
        if not self._waiting:
            self.recorder.mark()
            training_comes = self.unit == "forward call" and observing.has_optimizer()
            if self._enough_steps() and not training_comes:
                self._waiting = True
                now = time.monotonic()
                self._late = now + (min(AFTER_S, AFTER * (now - self.began)) if _alone() else 0.0)
                self._resting = False  # else the next module would end this pause
                self.recorder.pause()

    def _enough_steps(self) -> bool:
        now = time.monotonic()
        self._first = min(self._first, now)
        return self.steps >= RECORDED or (_alone() and self.steps >= FEWEST and now - self._first > LONG_S)

    def _end(self) -> bool:
        self.finish("steps")
        leave()
        return True

    def _watch_evaluations(self) -> None:
        """Records again from the first call of ``eval`` after the recorded steps, until the next step."""
        from torch.nn import Module

        train = Module.train

        @functools.wraps(train)
        def observed(module: Module, mode: bool = True) -> Module:
            if not mode and self._waiting and not self._evaluates:
                self._evaluates = True
                self.recorder.go_on()
                if _alone():
                    _in_between(EVALUATION_S, lambda: self.recorder.is_whole() and self._end())
            result: Module = train(module, mode)
            return result

        Module.train = observed

    def _watch_optimizers(self) -> None:
        """Notes the lines that make optimizers which update one parameter at a time."""
        from torch.optim import Optimizer

        make = Optimizer.__init__

        @functools.wraps(make)
        def made(optimizer: Optimizer, params: Any, defaults: dict[str, Any]) -> None:
            make(optimizer, params, defaults)
            if defaults.get("foreach") is False and not defaults.get("fused"):
                self.recorder.note("single-tensor", type(optimizer).__name__, sys._getframe(1))

        Optimizer.__init__ = made

    def _leave_out_compiled(self) -> None:
        """Makes ``torch.compile`` return functions that run as they are written, and are not recorded."""
        import torch

        recorder = self.recorder

        def paused(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def unrecorded(*args: Any, **kwargs: Any) -> Any:
                recorder.paused += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    recorder.paused -= 1

            return unrecorded

        def compiled(model: Any = None, **kwargs: Any) -> Any:
            if model is None:
                return functools.partial(compiled, **kwargs)
            if isinstance(model, torch.nn.Module):
                model.forward = paused(model.forward)
                return model
            return paused(model)

        torch.compile = compiled

    def _sample(self, thread: int) -> None:
        """Notes the line of the program at which the host is, while no operation runs."""
        before = time.perf_counter()
        while not self._ended:
            time.sleep(EVERY_S)
            now, frame = time.perf_counter(), sys._current_frames().get(thread)
            if frame is not None and not self.recorder.busy and not _in_torch(frame.f_code.co_filename):
                host = self.recorder.parts[-1].host
                stack = self.recorder.places.key(frame)
                host[stack] = host.get(stack, 0.0) + 1e6 * (now - before)
            before = now


def _in_between(seconds: float, act: Callable[[], bool]) -> None:
    """Calls ``act`` in the main thread after ``seconds``, outside of the recorder; again if it returns False.

    Does nothing if the program uses SIGALRM itself.
    """

    def interrupted(_: int, frame: FrameType | None) -> None:
        if inside(frame) or not act():
            signal.setitimer(signal.ITIMER_REAL, REST_S)
        else:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        signal.signal(signal.SIGALRM, interrupted)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _alone() -> bool:
    """Returns whether this is the only process of its job. The processes of a job must end after the same step."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def _in_torch(file: str) -> bool:
    ours = f"{os.sep}runtime{os.sep}" in file and "tilewright" in file
    return ours or (f"{os.sep}torch{os.sep}" in file and f"{os.sep}data{os.sep}" not in file)


def record_of(recorder: OperationRecorder) -> dict[str, Any]:
    """Returns the record of a recorder as JSON has it. The recorder must have stopped."""
    places, values = recorder.places, recorder.values
    kept = _kept(recorder.parts)
    numbers: dict[int, int] = {}
    for n, part in enumerate(recorder.parts):
        rows = part.rows if n in kept else []
        part.rows = [(*row[:5], numbers.setdefault(row[5], len(numbers)), row[6]) for row in rows]
    parts = [_part(recorder, part, n in kept) for n, part in enumerate(recorder.parts)]
    return {
        "files": places.files, "stacks": places.stacks, "names": recorder.names, "kinds": list(values.kinds),
        "types": values.types, "alive": values.alive(), "parts": parts,
    }  # fmt: skip


def _part(recorder: OperationRecorder, part: RecordingPart, kept: bool) -> dict[str, Any]:
    host = [[recorder.places.number(stack), us] for stack, us in part.host.items()]
    return {"us": part.us, "operations": part.operations, "rows": part.rows, "events": part.events if kept else [],
            "host": host}  # fmt: skip


def _kept(parts: list[RecordingPart]) -> set[int]:
    """Returns the parts whose operations are stored: those with a pair of a line and an operation that few parts before
    have.
    """
    seen: dict[tuple[int, int], int] = {}
    kept = set()
    for n, part in enumerate(parts):
        pairs = {(row[0], row[1]) for row in part.rows}
        if any(seen.get(pair, 0) < LIKE for pair in pairs):
            kept.add(n)
            for pair in pairs:
                seen[pair] = seen.get(pair, 0) + 1
    return kept
