"""Starts the ranks of a job that measures communication, gives them orders, and ends them.

Each rank is a process of the user's Python with the user's torch. It inherits the environment. Only NCCL's algorithm
and protocol can be set (`SETTABLE`). Variables of multicast and NVLS are never set or removed: on shared machines they
keep one job from disturbing another.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from tilewright.errors import MachineError, RequestError, ToolFailed
from tilewright.hardware.gpu import count
from tilewright.hardware.machine import installed_version
from tilewright.program.command import interpreter
from tilewright.runtime.collectives import rank as rank_file
from tilewright.runtime.collectives.rank import ORDER
from tilewright.tools.child import running, workplace

Backend: TypeAlias = Literal["nccl", "gloo"]
SETTABLE = ("NCCL_ALGO", "NCCL_PROTO")
PROTECTED = re.compile(r"NVLS|MULTICAST", re.IGNORECASE)
"""Matches names of variables that say how multicast and NVLS are used."""
START_SECONDS = 120.0
ENDING_SECONDS = 5.0


@dataclass(frozen=True)
class RankFacts:
    """What the ranks of a job run on. ``environment``: their variables of NCCL and NVSHMEM."""

    backend: Backend
    ranks: int
    devices: tuple[str, ...]
    torch: str
    nccl: str
    environment: Mapping[str, str]

    @property
    def protected(self) -> tuple[str, ...]:
        """The variables of multicast and NVLS that the environment sets, as ``NAME=value``. They are left alone."""
        return tuple(f"{name}={value}" for name, value in sorted(self.environment.items()) if PROTECTED.search(name))

    def __str__(self) -> str:
        where = f"{self.ranks} × {self.devices[0]}" if self.backend == "nccl" else f"{self.ranks} processes of the CPU"
        version = f"NCCL {self.nccl}" if self.nccl else self.backend
        return f"{where}, torch {self.torch}, {version}"


class Ranks:
    """A running job. ``facts``: what it runs on."""

    def __init__(self, processes: list[subprocess.Popen[str]], errors: list[Path], backend: Backend) -> None:
        self._processes, self._errors = processes, errors
        self._said: list[queue.Queue[str]] = [queue.Queue() for _ in processes]
        for process, said in zip(processes, self._said, strict=True):
            threading.Thread(target=_listen, args=(process, said), daemon=True).start()
        self._backend: Backend = backend
        self.facts: RankFacts

    def begin(self, seconds: float) -> None:
        """Waits until all ranks have met. Raises MachineError if one cannot start, ToolFailed if it takes too long."""
        answers = self._answers(seconds, "start")
        if failed := next((each["failed"] for each in answers if "failed" in each), ""):
            raise MachineError(f"the ranks cannot start with {self._backend}: {failed}")
        first = answers[0]
        self.facts = RankFacts(
            self._backend, len(answers), tuple(each["device"] for each in answers), first["torch"], first["nccl"],
            dict(first["environment"]),
        )  # fmt: skip

    def ask(self, do: str, seconds: float, **order: object) -> tuple[dict[str, Any], ...]:
        """Gives all ranks an order (a method of `runtime.collectives.rank.Rank`), and returns their answers by rank.

        A rank that could not follow it answers with ``failed``. Raises ToolFailed if a rank ended, or if they take
        longer than ``seconds``.
        """
        line = json.dumps({"do": do, **order})
        for process in self._processes:
            assert process.stdin is not None
            with suppress(OSError):  # a rank that ended is noticed by its answer
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
        return self._answers(seconds, do)

    def _answers(self, seconds: float, what: str) -> tuple[dict[str, Any], ...]:
        until, answers = time.monotonic() + seconds, []
        for number, said in enumerate(self._said):
            try:
                line = said.get(timeout=max(0.05, until - time.monotonic()))
            except queue.Empty:
                raise ToolFailed(f"rank {number} did not end '{what}' within {seconds:.0f} s") from None
            if not line:
                raise ToolFailed(self._ended(number, what))
            answers.append(json.loads(line))
        return tuple(answers)

    def _ended(self, number: int, what: str) -> str:
        """Returns how a rank ended during an order."""
        try:
            code = self._processes[number].wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return f"rank {number} stopped answering during '{what}': {_last_line(self._errors[number])}"
        if code < 0:
            return f"rank {number} was killed by signal {-code} during '{what}'"
        return f"rank {number} ended with exit code {code} during '{what}': {_last_line(self._errors[number])}"


def _listen(process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with suppress(OSError, ValueError):
        for line in process.stdout:
            said.put(line)
    said.put("")


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:400] if lines else "it printed nothing"


@contextmanager
def started_ranks(
    backend: Backend, ranks: int = 2, variables: Mapping[str, str] = MappingProxyType({}),
    seconds: float = START_SECONDS,
) -> Iterator[Ranks]:  # fmt: skip
    """Starts a job of several ranks, and kills it with its children at the end of the ``with`` block.

    Call `Ranks.begin` first: so several jobs can start at the same time. variables: values of `SETTABLE`. seconds: how
    long ranks wait for each other. Raises RequestError for another variable, MachineError without enough GPUs.
    """
    check_machine(backend, ranks)
    if other := sorted(set(variables) - set(SETTABLE)):
        raise RequestError(f"{', '.join(other)} is not set for ranks; only {' and '.join(SETTABLE)} are")
    with workplace() as folder, ExitStack() as stack:
        processes, errors = [], []
        order = json.dumps({"backend": backend, "meet": str(folder / "meet"), "seconds": seconds})
        for number in range(ranks):
            place = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(ranks), ORDER: order}
            here = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}  # as torchrun does; one host
            errors.append(folder / f"stderr{number}")
            with errors[-1].open("wb") as stderr:
                process = subprocess.Popen(
                    [interpreter(), rank_file.__file__], env={**here, **os.environ, **place, **variables}, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
                )  # fmt: skip
            stack.callback(_end, process)
            stack.enter_context(running(process.pid))  # left first: it kills
            processes.append(process)
        yield Ranks(processes, errors, backend)


def check_machine(backend: Backend, ranks: int) -> None:
    """Raises MachineError if this machine lacks torch, or as many GPUs as ``ranks`` for NCCL."""
    if installed_version("torch") is None and interpreter() == sys.executable:
        raise MachineError("measuring communication needs torch; fix: pip install torch")
    if backend == "nccl" and (found := count()) < ranks:
        have = "there is none" if not found else f"there is {found}" if found == 1 else f"there are {found}"
        raise MachineError(
            f"measuring communication needs {ranks} GPUs of one host, and here {have}; traces of ranks are read "
            "without a GPU, and --cpu measures processes of the CPU"
        )


def _end(process: subprocess.Popen[str]) -> None:
    """Waits for a killed process."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    process.wait()
