"""One observed run of a user's program: the times of its steps, its outputs, and the operations that ran."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np

from tilewright.program.copies import Startable
from tilewright.program.early import Meanwhile, turn_after
from tilewright.records import Json
from tilewright.runtime import observing, slicing
from tilewright.runtime.started import python_path
from tilewright.tools.child import running, workplace

StepUnit: TypeAlias = Literal["optimizer step", "forward call", "process"]
"""What a step is: a step of the first optimizer; without one, a call of the first outermost module; else the run."""
RunStage: TypeAlias = Literal["imports", "start", "exit", "time limit", "race"]


PLAIN: Mapping[str, Json] = MappingProxyType({"outputs": False, "nudged": False, "operations": "", "slice": 0})
"""The settings of `runtime.observing` with which a run records only the times of its steps."""
ENDLESS = 1 << 60
"""The most steps of a run that is ended by something else than the number of its steps."""


@dataclass(frozen=True)
class ObservedTensor:
    """The record of a tensor that a program computed."""

    name: str
    """The name, such as ``step 1 output 0``, ``step 1 loss 0`` or ``step 1 parameter 12``."""
    shape: tuple[int, ...]
    dtype: str
    digest: int
    """A hash of all bits of the tensor."""
    not_finite: int
    """How many values are NaN or infinite."""
    sample: tuple[float, ...] = field(repr=False)
    """Values at evenly spaced places, as float64."""


@dataclass(frozen=True)
class ProgramOutputs:
    """The tensors that a run computed in its first steps and in some later ones."""

    tensors: tuple[ObservedTensor, ...]
    calls: tuple[tuple[int, int], ...]
    """For each step, the number of calls of outermost modules and of backward."""
    eps: float
    """Spacing of the numbers near 1 in the least precise type that the program computes in."""


@dataclass(frozen=True)
class ProgramRun:
    """One run of a program."""

    unit: StepUnit
    steps: int
    """How many steps were made."""
    cut: Literal["", "steps", "seconds"]
    """The limit that ended the run before the program's end; empty if none did."""
    step_us: tuple[float, ...] = field(repr=False)
    """Times in µs of the steps that recording did not slow down, in order. A program that is timed as a whole process
    has one time, from the import of torch to the end; without torch, there is no time.
    """
    wall_s: float
    """From the start to the end, without the time in which the program waited for its turn."""
    device: str
    """``cpu``, or the name of the GPU."""
    operations: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Operation → how often it ran in the recorded steps; empty if operations were not recorded."""
    kernels: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Kernel or copy of the GPU → how often it ran in the same steps."""
    memory: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Memory in bytes: the peaks of ``host`` and ``gpu``, and ``gpu, free`` at the end. Empty without torch."""
    processes: int = 1
    """How many processes made steps."""
    outputs: ProgramOutputs | None = field(default=None, repr=False)
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)


@dataclass(frozen=True)
class ProgramFailed:
    """A run without a result. ``last_line``: the last line on standard error."""

    stage: RunStage
    reason: str
    exit_code: int | None = None
    last_line: str = ""


def run_program(
    program: Startable, *, steps: int = 20, seconds: float = 300.0, outputs: bool = False, nudged: bool = False,
    meanwhile: Meanwhile | None = None,
) -> ProgramRun | ProgramFailed:  # fmt: skip
    """Runs a program with the observing hook, in its own process group, which is killed at the end.

    The run ends after ``steps`` steps. A program without steps runs to its end. Random numbers are seeded.

    seconds: the time limit, after which the program is killed. A program with steps ends earlier: after the step in
    which nine tenths of the time have passed. outputs: whether to record outputs and operations, too. This slows the
    steps, so a race does not use it. A program with fewer than five steps runs a second time, only to record its
    operations. nudged: whether to change each parameter by about one unit in the last place before its first use. The
    difference to a run without this shows how rounding affects the program: the ``noise`` of `outputs.compare`.
    meanwhile: called after the start. The program waits for its end before the first call of a module, and before the
    end of the first step. What it raises ends the program.
    """
    wanted = {
        **PLAIN, "steps": steps, "seconds": 0.9 * seconds, "outputs": outputs, "nudged": nudged,
        "operations": "steps" if outputs else "",
    }  # fmt: skip
    run = _once(program, wanted, seconds, meanwhile)
    if outputs and isinstance(run, ProgramRun) and run.outputs and not run.operations:
        again = _once(program, {**wanted, "outputs": False, "operations": "all"}, seconds)
        if isinstance(again, ProgramRun):
            run = replace(run, operations=again.operations, kernels=again.kernels)
    return run


def _once(
    program: Startable, wanted: Mapping[str, Json], seconds: float, meanwhile: Meanwhile | None = None
) -> ProgramRun | ProgramFailed:
    with turn_after(meanwhile) as (variables, give_turn), started_program(program, wanted, variables) as started:
        give_turn()
        return started if isinstance(started, ProgramFailed) else started.result(seconds)


@contextmanager
def started_program(
    program: Startable, wanted: Mapping[str, Json], variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[StartedProgram | ProgramFailed]:
    """Starts a program with the observing hook, and kills it at the end of the ``with`` block. ``variables``: further
    environment variables.
    """
    with workplace() as folder:
        before = program.environment()
        observed = {observing.VARIABLE: json.dumps({**wanted, "folder": str(folder)})}
        environment = {"PYTHONHASHSEED": "0", **before, "PYTHONPATH": python_path(before), **observed, **variables}
        for pipe in (slicing.GO, slicing.DONE) if wanted["slice"] else ():
            os.mkfifo(folder / pipe)
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            try:
                process = subprocess.Popen(
                    program.words, cwd=program.cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    start_new_session=True,
                )  # fmt: skip
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                yield ProgramFailed("start", f"cannot start {program.words[0]}: {why}")
                return
        with running(process.pid):
            started = StartedProgram(process, folder, bool(wanted["outputs"]))
            try:
                yield started
            finally:
                started.kill()


@dataclass(frozen=True)
class StartedProgram:
    """A running program. ``folder``: where its processes write their records."""

    process: subprocess.Popen[bytes]
    folder: Path
    outputs: bool
    began: float = field(default_factory=time.perf_counter)

    def kill(self) -> None:
        """Ends the program and its descendants, if it has not ended."""
        if self.process.returncode is None:
            kill_tree(self.process.pid)
            self.process.wait()

    def result(self, seconds: float) -> ProgramRun | ProgramFailed:
        """Waits for the end of the program, and kills it after ``seconds``."""
        timer, asked = threading.Timer(seconds, kill_tree, [self.process.pid]), time.perf_counter()
        timer.start()
        try:
            code = self.process.wait()
        finally:
            timer.cancel()
        ended = time.perf_counter()
        out, err = (_text(self.folder / name) for name in ("stdout", "stderr"))
        if code != 0:
            return _failed(code, err, seconds if ended - asked >= seconds else None)
        return _read(self.folder, ended - self.began, self.outputs, out, err)


def kill_tree(pid: int) -> None:
    """Kills a process and its descendants: torchrun starts each rank in a session of its own."""
    for each in [pid, *_descendants(pid)]:
        with suppress(OSError):
            os.kill(each, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


def _failed(code: int, stderr: str, limit: float | None) -> ProgramFailed:
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("USDT:")]
    said = lines[-1] if lines else ""
    if limit is not None and code == -signal.SIGKILL:
        return ProgramFailed("time limit", f"the program did not end in {limit:g} s, and has too few steps", code, said)
    ended = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
    return ProgramFailed("exit", f"the program {ended}{f': {said}' if said else ''}", code, said)


def _read(folder: Path, wall: float, outputs: bool, out: str, err: str) -> ProgramRun:
    """Returns the run, as recorded by the process that made the most steps.

    If several processes made equally many steps, it is the one with the lowest rank.
    """
    records = [(json.loads(path.read_text()), path) for path in sorted(folder.glob("process*.json"))]
    if not records:
        return ProgramRun("process", 0, "", (), wall, "cpu", stdout=out, stderr=err)
    many = sum(each["steps"] > 0 for each, _ in records)
    record, path = max(records, key=lambda each: (each[0]["steps"], -each[0]["rank"], len(each[0]["tensors"])))
    return ProgramRun(
        record["unit"], record["steps"], record["cut"], tuple(record["step_us"]), wall - record["waited"],
        record["device"], record["operations"], record["kernels"], record["memory"], max(1, many),
        _outputs(record, path) if outputs else None, out, err,
    )  # fmt: skip


def _outputs(record: Mapping[str, Any], path: Path) -> ProgramOutputs:
    values, at, tensors = np.fromfile(path.with_suffix(".values")), 0, []
    for row in record["tensors"]:
        sample = values[at : at + row["sampled"]]
        at += row["sampled"]
        facts = (row["name"], tuple(row["shape"]), row["dtype"], row["digest"], row["not_finite"])
        tensors.append(ObservedTensor(*facts, tuple(sample.tolist())))
    return ProgramOutputs(tuple(tensors), tuple((f, b) for f, b in record["calls"]), record["eps"])


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")
