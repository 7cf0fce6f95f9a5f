"""A program in a process of its own, which answers requests: first calls, times of tuned calls, and their results.

What a benchmark of `tilewright run` starts once for each phase. torch, the inputs and the GPU's context are there
before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

ROUNDS = 10
"""Samples in a turn."""
FLUSHED = 16
"""Times the L2 that is written before a sample: 0.2 ms, so that a slow host too has launched before the GPU waits."""
START_SECONDS, CALL_SECONDS, ANSWER_SECONDS = 90.0, 120.0, 30.0
"""Of one process: until torch and the inputs are there; for one first call; for anything else."""
SWITCHES = ("TILEWRIGHT_PATCH", "TILEWRIGHT_WIDEN", "TILEWRIGHT_TUNING", "DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE")
"""The variables that would change what a phase does; a benchmark removes them."""


class MeasuredCalls:
    """The program's side: an object whose methods answer the requests. ``calls``: each returns its output tensors."""

    def __init__(self, calls: Mapping[str, Callable[[], Any]]) -> None:
        import torch

        self.torch, self.calls = torch, calls
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(FLUSHED * l2, dtype=torch.uint8, device="cuda")
        warm = torch.randn(1024, 1024, dtype=torch.bfloat16, device="cuda")
        (warm @ warm).sum().item()
        torch.cuda.synchronize()

    def first_call(self, name: str) -> dict[str, Any]:
        started = time.perf_counter()
        self.calls[name]()
        self.torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - started}

    def measure(self, name: str) -> dict[str, Any]:
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(ROUNDS)]
        for before, after in events:
            self.flush.zero_()
            before.record()
            self.calls[name]()
            after.record()
        self.torch.cuda.synchronize()
        return {"us": statistics.median(before.elapsed_time(after) * 1e3 for before, after in events)}

    def save(self, name: str, file: str) -> dict[str, Any]:
        self.torch.save(self._result(name), file)
        return {}

    def compare(self, name: str, file: str) -> dict[str, Any]:
        """This process's result against a saved one: the largest difference over the root mean square, and what the
        search itself would say of it."""
        from tilewright.runtime.search.comparing_outputs import Expected

        same, worst, wrong = True, 0.0, None
        for one, other in zip(self._result(name), self.torch.load(file, map_location="cuda"), strict=True):
            same = same and bool(self.torch.equal(one, other))
            scale = other.float().square().mean().sqrt().clamp(min=1e-30)
            worst = max(worst, float(((one.float() - other.float()).abs().max() / scale).item()))
            wrong = wrong or Expected(name, other).wrong(one)
        return {"same_bits": same, "largest_difference": worst, "wrong": wrong}

    def _result(self, name: str) -> list[Any]:
        result = self.calls[name]()
        parts = result if isinstance(result, (tuple, list)) else (result,)
        return [one for one in parts if hasattr(one, "data_ptr")]


def serve(make: Callable[[], Any]) -> None:
    """Answers the requests on stdin with the methods of the object that ``make`` returns."""
    from tilewright.worker.messages import private_stdout

    channel = private_stdout()
    serving = make()
    for request in (json.loads(line) for line in sys.stdin):
        try:
            answer = getattr(serving, request.pop("do"))(**request)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {str(error)[:400]}"}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


class Process:
    """A running program, as a context manager. Every answer is a dictionary; ``failed`` says what went wrong."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], stderr: Path) -> None:
        self.stderr = stderr
        self.first_wait = START_SECONDS
        with stderr.open("w") as file:
            self.process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, seconds: float = ANSWER_SECONDS, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        seconds, self.first_wait = seconds + self.first_wait, 0.0
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._lost("its process has ended")
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self.process.kill()
            return self._lost(f"no answer in {seconds:.0f} s")
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else self._lost("its process has ended")
        return answer

    def _lost(self, why: str) -> dict[str, Any]:
        return {"failed": f"{why}: {self.stderr.read_text()[-400:].strip()}"}


def environment_in(folder: Path, caches: Sequence[str]) -> dict[str, str]:
    """The caller's, with these caches of its own in the folder, and none of its switches."""
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return {**kept, **{name: str(folder / name.lower()) for name in caches}}


def first_calls(process: Process, names: Sequence[str], progress: TextIO) -> dict[str, Any]:
    """One phase: the first call of each operation, in turn."""
    found: dict[str, Any] = {"about": process.ask(do="about"), "calls": {}}
    for name in names:
        found["calls"][name] = process.ask(CALL_SECONDS, do="first_call", name=name)
        print(f"  {name}: {said(found['calls'][name])}", file=progress, flush=True)
    return {**found, "stderr": process.stderr.read_text()[-2000:]}


def benchmark(
    parser: argparse.ArgumentParser, operations: Collection[str], program: Callable[[Sequence[str]], Any],
    measured: Callable[[argparse.Namespace, Path], dict[str, Any]],
    summary: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """Returns the record of a whole benchmark, and writes it to --out. A process that was started as a program serves
    instead, and ends.
    """
    parser.add_argument("--only", nargs="+", choices=operations, default=list(operations), metavar="OPERATION")
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--program", nargs="+", choices=operations, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        serve(lambda: program(given.program))
        sys.exit()
    from common import compile_packages, made_here, need_gpu, write

    need_gpu()
    compile_packages()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        record = {**made_here(), **measured(given, Path(folder))}
    record["seconds"] = time.perf_counter() - started
    record["summary"] = summary(record)
    write(given.out, record)
    return record


def said(answer: Mapping[str, Any]) -> str:
    return str(answer.get("failed") or f"{answer['seconds']:.2f} s")


def totalled(calls: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> float | None:
    """The seconds of the first calls together; None if one failed."""
    seconds = [calls.get(name, {}).get("seconds") for name in names]
    return None if None in seconds else sum(seconds)


def ratio(turns: Mapping[str, Sequence[float | None]], phase: str) -> float | None:
    """Median over the turns of unpatched / phase: drift common to a turn cancels."""
    before, after = turns.get("unpatched", ()), turns.get(phase, ())
    pairs = [(x, y) for x, y in zip(before, after, strict=False) if x and y]
    return statistics.median(x / y for x, y in pairs) if pairs else None


def over(before: float | None, after: float | None) -> float | None:
    return before / after if before and after else None
