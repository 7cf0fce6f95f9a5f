"""The process that touches the GPU: it verifies candidates and races them, and may die doing so.

It answers one JSON request a line (`session.Session` is the other side):

    hello                       → the GPU and the versions
    prepare  workload           → buffers, drawn inputs, float64 references
    check    config             → a `records.Checked`
    race     configs, policy    → a `protocol.RaceOutcome`, with progress on the way
    measure  configs, rounds    → every configuration's samples, none dropped, beside the trusted one's
    confirm  versions, rounds   → paired samples of all and of a second copy of one, none dropped
    run_images config, images   → launches on memory images, which come back in their files

Who runs is a `Contestant`: a configuration of the task as it was opened, or a version of the task's files (in place
of ``config`` and ``configs``: ``version`` and ``versions``) with the configuration that it ships. The judge is the
same for all: tensors, references and tolerances are those of the task as it was opened.

A failure that leaves the CUDA context broken is answered with ``dead`` and ends the process; the
parent starts another.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import threading

from tilewright.hardware.gpu import detect, make_context

if __name__ == "__main__":
    # Importing torch takes 3 s, and making a CUDA context 0.3 s: side by side.
    threading.Thread(target=make_context, daemon=True).start()

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import torch

from tilewright.errors import TilewrightError, in_one_line
from tilewright.hardware.monitor import Monitor
from tilewright.languages import warm_up
from tilewright.race import protocol
from tilewright.race.protocol import Budget, Rounds, interleaved
from tilewright.race.rules import Policy
from tilewright.records import Configuration
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.worker.messages import Message, private_stdout, receive, send
from tilewright.worker.process.clock import GpuClock
from tilewright.worker.process.examiner import DeviceExaminer
from tilewright.worker.process.images import Images, bound
from tilewright.worker.process.prepared import Prepared

AA_ROUNDS = 40
FEW_ROUNDS = 5
SLOW = 3.0
"""`measure` times what is this much slower than the fastest only `FEW_ROUNDS` times."""


@dataclass(frozen=True)
class Contestant:
    """What is launched: a configuration, by the task that launches it."""

    task: Task
    config: Configuration


class Worker:
    """``where`` and ``files``: as `loading.load_task` takes them; the files of the task as it is opened."""

    def __init__(self, where: str, files: Mapping[str, str], out: IO[str]) -> None:
        self.where, self.out = where, out
        self.task = load_task(where, files)
        gpu = detect()
        assert gpu is not None, "the worker is started on a machine with a GPU only"
        self.board = gpu.board
        self.prepared = Prepared(self.task, "cuda")
        self.examiner: DeviceExaminer | None = None
        self.images: Images | None = None
        self._versions = {frozenset(files.items()): self.task}

    def hello(self, request: Message) -> Message:
        torch.zeros(1, device="cuda")
        return {"torch": torch.__version__, "cuda_runtime": torch.version.cuda, "gpu": torch.cuda.get_device_name()}

    def prepare(self, request: Message) -> Message:
        self.examiner = None  # its memory may be what the next one needs
        self.examiner, new = self.prepared.get(
            request["workload"], request["seed"], passing=request.get("passing", False)
        )
        return {"cases": self.examiner.described(), "new": new}

    def check(self, request: Message) -> Message:
        assert self.examiner is not None
        one = self._contestant(request.get("config"), request.get("version"))
        return {"checked": asdict(self.examiner.check(lambda tensors: self._runner(one, tensors)))}

    def race(self, request: Message) -> Message:
        assert self.examiner is not None
        policy = Policy(**request["policy"])
        field = self._field(request)
        tensors = self.examiner.timing_tensors()
        rng, monitor = np.random.default_rng(policy.seed), Monitor()
        base = request["shipped"] if request["shipped"] is not None else 0
        runners = [self._runner(one, tensors) for one in (*field, field[base])]

        def announce(index: int) -> None:
            send(self.out, {"at": index if index < len(field) else base})

        with GpuClock(runners, policy, monitor, announce) as gpu_clock:
            clock: protocol.Clock = Announcing(gpu_clock, announce) if request.get("careful") else gpu_clock
            send(self.out, {"at": None})  # from here on a round holds them all
            noise = protocol.aa_check(
                clock, base, len(field), AA_ROUNDS, rng, warmup=policy.warmup_rounds, tie_band=policy.tie_band
            )
            outcome = protocol.race(
                len(field), clock, policy, cost=[tuple(cost) for cost in request["cost"]],
                shipped=request["shipped"], rng=rng, noise=noise, on_progress=self._progress,
            )  # fmt: skip
        again = None if outcome.winner is None else self.examiner.check_timed(runners[outcome.winner])
        return {"race": outcome.to_json(), "monitor": monitor.record(), "after_timing": again}

    def measure(self, request: Message) -> Message:
        """Interleaved rounds of all, for `bench/`: the slow ones leave after the first few rounds."""
        assert self.examiner is not None
        policy = Policy(**request["policy"])
        tensors = self.examiner.timing_tensors()
        runners = [self._runner(one, tensors) for one in self._field(request)]
        if self.task.trusted is not None:
            runners.append(self.examiner.trusted_runner())
        monitor, rounds = Monitor(), Rounds(len(runners))

        def drop_the_slow() -> bool:
            if len(rounds.rows) == FEW_ROUNDS:
                medians = np.median(rounds.rows, axis=0)
                rounds.live = [index for index in rounds.live if medians[index] < SLOW * medians.min()]
            return False

        with GpuClock(runners, policy, monitor) as clock:
            interleaved(
                clock, rounds, Budget(request["rounds"], math.inf, 0), np.random.default_rng(policy.seed),
                on_round=drop_the_slow, on_progress=self._rounds,
            )  # fmt: skip
        samples = list(rounds.samples_us)
        trusted = samples.pop() if self.task.trusted is not None else None
        return {"samples_us": samples, "trusted_us": trusted, "monitor": monitor.record()}

    def confirm(self, request: Message) -> Message:
        """Interleaved rounds of ``versions`` and of a second copy of the one at ``copied``, the A/A check of the
        same rounds; and a check of the first one on the buffers that were timed."""
        assert self.examiner is not None
        policy, copied = Policy(**request["policy"]), request["copied"]
        field, tensors = self._field(request), self.examiner.timing_tensors()
        runners = [self._runner(one, tensors) for one in (*field, field[copied])]
        rng, monitor = np.random.default_rng(policy.seed), Monitor()

        def announce(index: int) -> None:
            send(self.out, {"at": index if index < len(field) else copied})

        with GpuClock(runners, policy, monitor, announce) as clock:
            send(self.out, {"at": None})
            timed = interleaved(
                clock, Rounds(len(runners)), Budget(**request["budget"]), rng,
                warmup=policy.warmup_rounds, on_progress=self._rounds,
            )  # fmt: skip
        return {
            "samples_us": timed.samples_us, "disturbances": timed.disturbances,
            "monitor": monitor.record(), "after_timing": self.examiner.check_timed(runners[0]),
        }  # fmt: skip

    def run_images(self, request: Message) -> Message:
        config, self.images = Configuration.of(request["config"]), self.images or Images()
        return self.images.run(request, lambda tensors: bound(self.task, config, request["dims"], self.board, tensors))

    def _rounds(self, rounds: int) -> None:
        send(self.out, {"progress": {"rounds": rounds}})

    def _progress(self, progress: protocol.RaceProgress) -> None:
        send(self.out, {"progress": asdict(progress)})

    def _field(self, request: Message) -> list[Contestant]:
        if "versions" in request:
            return [self._contestant(None, files) for files in request["versions"]]
        return [self._contestant(values, None) for values in request["configs"]]

    def _contestant(self, config: Mapping[str, Any] | None, version: Mapping[str, str] | None) -> Contestant:
        """Loads a version once; its launches find their cubins in the front end's cache."""
        if version is None:
            assert config is not None, "a request names configurations or versions"
            return Contestant(self.task, Configuration.of(config))
        key = frozenset(version.items())
        if key not in self._versions:
            self._versions[key] = load_task(self.where, version)
        return Contestant(self._versions[key], self._versions[key].space.shipped)

    def _runner(self, one: Contestant, tensors: Mapping[str, Any]) -> Callable[[Any], None]:
        assert self.examiner is not None
        return bound(one.task, one.config, self.examiner.dims, self.board, tensors).launch


class Announcing:
    """A clock that runs one candidate at a time and says which: it finds the one that hangs."""

    def __init__(self, clock: protocol.Clock, announce: Callable[[int], None]) -> None:
        self.clock, self.announce = clock, announce

    def round(self, order: Any) -> list[float]:
        times: list[float] = []
        for index in order:
            self.announce(int(index))
            times.extend(self.clock.round([index]))
        return times


def serve(requests: IO[str], out: IO[str]) -> None:
    first = receive(requests)
    if first is None:
        return
    try:
        worker = Worker(first["task"], first.get("files", {}), out)
    except TilewrightError as error:
        send(out, {"error": str(error), "kind": type(error).__name__})
        return
    send(out, {"started": True})
    # Beside the first `prepare`, which computes in NumPy and on the GPU while this waits for a child.
    threading.Thread(target=warm_up, daemon=True).start()
    while (request := receive(requests)) is not None:
        if not answer(worker, request, out):
            return


def answer(worker: Worker, request: Message, out: IO[str]) -> bool:
    """Answers one request; False when the process is of no more use."""
    try:
        send(out, {"done": getattr(worker, request["do"])(request)})
        return True
    except TilewrightError as error:
        send(out, {"error": str(error), "kind": type(error).__name__})
        return True
    except torch.cuda.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        send(out, {"failed": f"out of GPU memory: {str(error).splitlines()[0]}", "dead": False})
        return True
    except Exception as error:
        reason = in_one_line(error)
        dead = context_is_broken()
        send(out, {"failed": reason, "dead": dead})
        return not dead


def context_is_broken() -> bool:
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
        return False
    except Exception:
        return True


def main() -> None:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    serve(sys.stdin, private_stdout())


if __name__ == "__main__":
    main()
