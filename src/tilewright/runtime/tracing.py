"""Records a trace of the program that `tilewright profile` started, without changing the program.

The startup hook calls `install` after the program has imported torch. The recorder waits for the first use of CUDA. So
a process without GPU work records nothing and makes no CUDA context. The recording ends with the last wanted step; a
step is a step of an optimizer. The trace includes the steps before the first wanted one; its reader leaves them out. A
program with fewer steps is recorded until it ends, or until a time limit. Later steps are timed by CUDA events, without
the profiler. Each process writes its own trace. If only the trace is wanted, the program can be ended after it.

The profiler starts and stops only once. torch 2.13 crashes at a second start if a `record_function` is still open, as
in the step of an optimizer.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.runtime.process import leave
from tilewright.runtime.steps import StepTimes, after_seconds, guarded, on_each_step
from tilewright.runtime.turns import wait_for_turn

if TYPE_CHECKING:
    from torch.autograd.profiler import record_function
    from torch.profiler import profile

VARIABLE, LAST_STEP, SECONDS = "TILEWRIGHT_PROFILE", "TILEWRIGHT_PROFILE_STEP", "TILEWRIGHT_PROFILE_SECONDS"
"""Names of environment variables: the folder of the traces, the step before which the recording ends, and the most
seconds to record."""
END_STEP = "TILEWRIGHT_PROFILE_END"
"""The name of an environment variable: the step before which the program is ended. A program without steps is ended
with its recording. Empty: the program runs to its own end."""


def install() -> None:
    """Arranges that a trace is recorded, beginning with the first use of CUDA. Environment variables give the folder,
    the step before which the recording ends, and the time limit."""
    import torch

    end = int(os.environ.get(END_STEP) or 0)
    recorder = TraceRecorder(Path(os.environ[VARIABLE]), int(os.environ[LAST_STEP]), end)
    torch.cuda._lazy_call(lambda: guarded(lambda: recorder.begin(float(os.environ[SECONDS]))))
    if end:
        on_each_step(lambda optimizer: guarded(recorder.stepped_without_gpu))


class TraceRecorder:
    """Records one process until step ``last`` begins. Steps are the steps of the first optimizer that is used, numbered
    from 0. ``end``: the step before which the program is ended; 0 if it is not ended.
    """

    def __init__(self, folder: Path, last: int, end: int = 0):
        self.folder, self.last, self.end = folder, last, end
        self.name = f"rank{os.environ['RANK']}" if "RANK" in os.environ else f"process{os.getpid()}"
        self.step, self._began = 0, False
        self._profiler: profile | None = None
        self._marker: record_function | None = None
        self._times = StepTimes()

    def begin(self, seconds: float) -> None:
        """Starts recording. The recording ends at the latest when the program ends, or after ``seconds`` if that is not
        0."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("CUDA was first used outside of the main thread, where the profiler cannot be stopped")
        wait_for_turn()
        self.step, self._began = 0, True
        self._start()
        on_each_step(lambda optimizer: guarded(self._stepped))
        atexit.register(guarded, self.finish)
        if seconds:
            after_seconds(seconds, lambda: guarded(self._too_long))

    def stepped_without_gpu(self) -> None:
        """Counts a step of a program that has not used CUDA. There is nothing to record, so it is ended as well."""
        if not self._began:
            wait_for_turn()
            self.step += 1
            if self.step == self.end:
                leave()

    def finish(self) -> None:
        """Ends a running recording and writes its trace. Also writes the times of the later steps."""
        self._stop()
        if us := self._times.us()[self.last :]:
            self._write("steps.json", lambda path: path.write_text(json.dumps(us)))

    def _stepped(self) -> None:
        self.step += 1
        self._times.mark()
        if self.step == self.last:
            self._stop()
        elif self._profiler is not None:
            self._mark()
        if self.step == self.end:
            self._end()

    def _too_long(self) -> None:
        """Ends the recording after its seconds. Of a program without steps, nothing more is wanted."""
        self._stop()
        if self.end and not self.step:
            self._end()

    def _end(self) -> None:
        self.finish()
        leave()

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._profiler.start()
        self._mark()

    def _mark(self) -> None:
        """Ends the present step in the trace, and begins the next."""
        from torch.autograd.profiler import record_function

        self._unmark()
        self._marker = record_function(f"ProfilerStep#{self.step}")
        self._marker.__enter__()

    def _unmark(self) -> None:
        if self._marker is not None:
            self._marker.__exit__(None, None, None)
            self._marker = None

    def _stop(self) -> None:
        """Ends the recording and writes the trace."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._unmark()
        profiler.stop()
        self._write("json.gz", lambda path: profiler.export_chrome_trace(str(path)))

    def _write(self, ending: str, write: Callable[[Path], object]) -> None:
        """Writes a file under its final name only when it is complete."""
        unfinished = self.folder / f"part-{self.name}.{ending}"
        write(unfinished)
        unfinished.replace(self.folder / f"{self.name}.{ending}")
