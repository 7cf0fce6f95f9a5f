"""The process that uses the GPU. It verifies and races candidates, which may crash it.

It answers the steps of `worker.messages`, which arrive one per line. `session.Session` is the parent's side. All
candidates are judged by the tensors, references and tolerances of the opened task. A failure that breaks the CUDA
context ends the process, and the parent starts a new process.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
import threading
import time

from tilewright.hardware.gpu import detect, make_context
from tilewright.worker.early import WITH_TORCH
from tilewright.worker.process.preload import begin_torch, with_all_of_torch

if __name__ == "__main__":
    # A CUDA context is made during the imports, which takes 0.3 s.
    threading.Thread(target=make_context, daemon=True).start()
    gc.disable()  # an eighth of the time of imports goes into collections that free nothing
    if WITH_TORCH in sys.argv:
        begin_torch()

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import MachineError, TilewrightError, in_one_line
from tilewright.hardware.gpu import Monitor
from tilewright.launching import cuda
from tilewright.launching.driver import ProgramLaunch
from tilewright.race import protocol
from tilewright.race.protocol import Rounds, interleaved
from tilewright.task.loading import load_task
from tilewright.tools.child import end_with_parent, remove_with_parent
from tilewright.worker import messages as ask
from tilewright.worker.messages import Message, private_stdout, receive, send
from tilewright.worker.process.backends import Runner
from tilewright.worker.process.bound import Tensors, bound
from tilewright.worker.process.buffers import InputSets
from tilewright.worker.process.choosing import needs_torch
from tilewright.worker.process.clock import GpuClock
from tilewright.worker.process.examiner import DeviceExaminer, Prepared

if TYPE_CHECKING:
    from tilewright.worker.process.images import Images

AA_ROUNDS = 40
FEW_ROUNDS = 5
CAPTURE_WARMUP = 1  # first rounds of a capture that do not count, if there are several captures
SLOW = 3.0  # a candidate that takes this many times as long as the fastest gets only `FEW_ROUNDS`


class Worker:
    """Answers the steps for the task in ``opened``, and writes messages to ``out``."""

    def __init__(self, opened: ask.OpenTask, out: IO[str]) -> None:
        self.out = out
        self.task = with_all_of_torch(partial(load_task, opened.where, dict(opened.files)))
        gpu = detect()
        assert gpu is not None, "the worker is started on a machine with a GPU only"
        self.gpu, self.board = gpu, gpu.board
        if any(needs_torch(self.task, dims) for dims in self.task.workloads.values()):
            begin_torch()
        self.prepared = Prepared(self.task)
        self.examiner: DeviceExaminer | None = None
        self.images: Images | None = None

    def hello(self, step: ask.Hello) -> ask.Greeting:
        return ask.Greeting(self.gpu.name, self.gpu.cuda_driver)

    def prepare(self, step: ask.PrepareInputs) -> ask.InputsReady:
        self.examiner = None  # the next examiner may need its memory
        if (reason := self.prepared.too_large(step.workload)) is not None:
            return ask.InputsReady((), False, reason)
        self.examiner, new = self.prepared.get(step.workload, step.seed, passing=step.passing)
        return ask.InputsReady(tuple(self.examiner.described()), new)

    def check(self, step: ask.CheckOutputs) -> ask.OutputsChecked:
        return ask.OutputsChecked(self._judge.check(lambda tensors: self._runner(step.source, tensors)))

    def race(self, step: ask.RaceField) -> ask.FieldRaced:
        """Runs the A/A check, then the race, on one clock.

        The check times two copies of the shipped candidate, or of the first candidate if the shipped one is absent.
        """
        base, policy, count = step.shipped or 0, step.policy, len(step.sources)
        rng, monitor, sets = np.random.default_rng(policy.seed), Monitor(), self._judge.timing_sets()
        runners, announce = self._runners(step.sources, base), self._announcing(base, count)
        with GpuClock(runners, policy, monitor, sets, announce) as gpu_clock:
            clock: protocol.Clock = OneByOne(gpu_clock, announce) if step.careful else gpu_clock
            self._say(ask.Running(None))
            warmup, tie_band = policy.warmup_rounds, policy.tie_band
            noise = protocol.aa_check(clock, base, count, AA_ROUNDS, rng, warmup=warmup, tie_band=tie_band)
            outcome = protocol.race(
                count, clock, policy, cost=step.costs, shipped=step.shipped, rng=rng, noise=noise,
                on_look=lambda rounds, live, leader: self._say(ask.Advanced(rounds, live, leader)),
            )  # fmt: skip
            again = None if outcome.winner is None else self._timed_again(gpu_clock, sets, outcome.winner)
        return ask.FieldRaced(outcome, {**monitor.record(), **sets.record()}, again)

    def time_rounds(self, step: ask.TimeRounds) -> ask.RoundsTimed:
        """Times all candidates in interleaved rounds, one capture after the other.

        If ``step.copied`` is given, a timed launch of the first candidate is checked at the end.
        """
        sets, monitor, rng = self._judge.timing_sets(), Monitor(), np.random.default_rng(step.policy.seed)
        trusted, several = step.benchmark and self.task.trusted is not None, step.captures > 1
        size, budget = len(step.sources) + (step.copied is not None) + trusted, step.budget.divided(step.captures)
        timed: list[Rounds] = []
        again, done, ended, started = None, 0, False, time.monotonic()
        while not ended:
            order = rng.permutation(size).tolist() if several else list(range(size))
            rounds = Rounds(size)
            with self._captured(step, order, monitor, sets) as clock:
                self._say(ask.Running(None))
                interleaved(
                    clock, rounds, budget, rng, warmup=CAPTURE_WARMUP if several else step.policy.warmup_rounds,
                    on_round=partial(_drop_the_slow, rounds) if step.benchmark else lambda: False,
                    on_progress=partial(self._advanced, done),
                )  # fmt: skip
                timed.append(rounds)
                done += len(rounds.rows)
                enough = len(timed) * budget.fewest >= step.budget.fewest
                late = time.monotonic() - started >= step.budget.seconds
                ended = len(timed) == step.captures or (enough and late)
                if ended and step.copied is not None:
                    again = self._timed_again(clock, sets, order.index(0))
            rounds.rows = [row[np.argsort(order)] for row in rounds.rows]
        us = tuple(tuple(chain(*parts)) for parts in zip(*(rounds.samples_us for rounds in timed), strict=True))
        return ask.RoundsTimed(
            us[:-1] if trusted else us, tuple(len(rounds.rows) for rounds in timed),
            tuple(reason for rounds in timed for reason in rounds.disturbances), {**monitor.record(), **sets.record()},
            again, us[-1] if trusted else None,
        )  # fmt: skip

    def _captured(self, step: ask.TimeRounds, order: Sequence[int], monitor: Monitor, sets: InputSets) -> GpuClock:
        """Captures all candidates of the step in the order of ``order``.

        If there are several captures, each capture loads the code anew. So the address of the code and the order do not
        favour a candidate.
        """
        sources = step.sources if step.copied is None else (*step.sources, step.sources[step.copied])
        tensors, own_code = self._judge.buffers.tensors(), step.captures > 1
        runners = [
            self._runner(sources[at], tensors, own_code) if at < len(sources) else self._judge.trusted_runner()
            for at in order
        ]
        announce = self._announcing(step.copied, len(step.sources))
        return GpuClock(runners, step.policy, monitor, sets, lambda at: announce(order[at]))

    def run_images(self, step: ask.RunImages) -> ask.ImagesRan:
        from tilewright.worker.process.images import Images  # imports torch

        self.images = self.images or Images()
        launch = partial(bound, self.task, step.configuration, step.dims, self.board)
        return self.images.run(step, launch)

    def unknown(self, step: Message) -> ask.Refused:
        return ask.Refused(f"the worker process does not answer {type(step).__name__}")

    @property
    def _judge(self) -> DeviceExaminer:
        assert self.examiner is not None, "inputs are prepared before anything runs on them"
        return self.examiner

    def _timed_again(self, clock: protocol.Clock, sets: InputSets, index: int) -> str | None:
        """Repeats a candidate's timed launch on the inputs with known outputs. Returns the mistake, or None."""

        def again(stream: int | None) -> None:
            for _ in range(1 + sets.current):  # each round uses the other set; the outputs of the second set are known
                with suppress(protocol.Disturbed):
                    clock.round([index])

        return self._judge.check_timed(again)

    def _advanced(self, done: int, more: int) -> None:
        self._say(ask.Advanced(done + more))

    def _say(self, message: Message) -> None:
        send(self.out, message)

    def _announcing(self, copied: int | None, count: int) -> Callable[[int], None]:
        """Returns a function that announces a candidate by its index. The copy has the index ``count``."""
        return lambda index: self._say(ask.Running(index if index < count else copied))

    def _runners(self, sources: Sequence[ask.Source], copied: int | None = None) -> list[Runner]:
        """Returns the runners of the sources on the timing buffers, and last a copy of the source at ``copied``."""
        again = () if copied is None else (sources[copied],)
        tensors = self._judge.buffers.tensors()
        return [self._runner(source, tensors) for source in (*sources, *again)]

    def _runner(self, source: ask.Source, tensors: Tensors, own_code: bool = False) -> Runner:
        if isinstance(source, ask.Program):
            return ProgramLaunch(source, tensors, own_code)
        theirs = self._judge.backend.torch_tensors(tensors)
        return bound(self.task, source.configuration, self._judge.dims, self.board, theirs).launch


ANSWERS: dict[type[Message], Callable[[Worker, Any], Message]] = {
    ask.Hello: Worker.hello, ask.PrepareInputs: Worker.prepare, ask.CheckOutputs: Worker.check,
    ask.RaceField: Worker.race, ask.TimeRounds: Worker.time_rounds, ask.RunImages: Worker.run_images,
}  # fmt: skip


def _drop_the_slow(rounds: Rounds) -> bool:
    """Drops the slow candidates after `FEW_ROUNDS`. Returns False, so that the rounds continue."""
    if len(rounds.rows) == FEW_ROUNDS:
        medians = np.median(rounds.rows, axis=0)
        rounds.live = [index for index in rounds.live if medians[index] < SLOW * medians.min()]
    return False


class OneByOne:
    """A clock that announces and runs one candidate at a time, to find the candidate that hangs."""

    def __init__(self, clock: protocol.Clock, announce: Callable[[int], None]) -> None:
        self.clock, self.announce = clock, announce

    def round(self, order: Sequence[int]) -> list[float]:
        times: list[float] = []
        for index in order:
            self.announce(int(index))
            times.extend(self.clock.round([index]))
        return times


def failure(error: Exception) -> ask.Refused | ask.Broken:
    """Returns the reply to a step that raised ``error``."""
    if isinstance(error, TilewrightError):
        return ask.Refused(str(error), machine=isinstance(error, MachineError))
    if isinstance(error, ModuleNotFoundError):
        if error.name == "torch":
            return ask.Refused("torch is not installed, but this task needs it; fix: pip install torch", machine=True)
        return ask.Broken(in_one_line(error), dead=False)
    if cuda.is_out_of_memory(error):
        cuda.release_torchs_cache()
        reason = f"out of GPU memory: {str(error).splitlines()[0]}"
        return ask.Broken(reason, dead=False, status="OUT_OF_MEMORY")
    return ask.Broken(in_one_line(error), dead=context_is_broken())


def context_is_broken() -> bool:
    try:
        memory = cuda.DeviceBytes.allocated(cuda.DriverContext(), 1)
        memory.fill_(0)
        memory.downloaded()
        return False
    except Exception:
        return True


def main() -> None:
    """Loads the task of the first message, and answers steps until the input ends."""
    if WITH_TORCH not in sys.argv:  # else the thread that imports torch does this
        gc.freeze()
        gc.enable()
    faulthandler.enable()
    # Only the parent handles these signals, even if all processes get them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    remove_with_parent()
    end_with_parent()
    out = private_stdout()
    if not isinstance(first := receive(sys.stdin), ask.OpenTask):
        return
    try:
        worker = Worker(first, out)
    except TilewrightError as error:
        send(out, ask.Refused(str(error)))
        return
    send(out, ask.Started())
    while (step := receive(sys.stdin)) is not None:
        try:
            reply = ANSWERS.get(type(step), Worker.unknown)(worker, step)
        except Exception as error:
            reply = failure(error)
        send(out, reply)
        if isinstance(reply, ask.Broken) and reply.dead:
            return


if __name__ == "__main__":
    main()
