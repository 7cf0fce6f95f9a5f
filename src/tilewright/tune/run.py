"""The request of a tuning run, and the run's record in the ledger."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

from tilewright.compile.compile import BUDGET_SECONDS
from tilewright.compile.screen import RACED
from tilewright.compile.skipped import EXPECTED_OF
from tilewright.hardware.machine import OtherMachine, Target
from tilewright.race.rules import Policy
from tilewright.records import Machine, TuningResult, Workload, WorkloadResult
from tilewright.space.heuristics import seeds_of
from tilewright.task.loading import file_of, where_is
from tilewright.task.task import Task
from tilewright.tune.workload_search import Limits, Searching

if TYPE_CHECKING:  # not loaded where nothing is stored
    from tilewright.executors.base import Executor
    from tilewright.languages.kept_cubins import CubinsOfRun
    from tilewright.ledger.records import TuneRun
    from tilewright.ledger.tunings import TuneLedger
    from tilewright.strategies.base import Expectation


@dataclass(frozen=True)
class TuneOptions:
    """The arguments of `tune.tune` that are the same for each kind of GPU."""

    workloads: Sequence[str] | str | None = None
    policy: Policy = field(default_factory=Policy)
    top: int = RACED
    strategy: str | None = None
    limits: Limits = field(default_factory=Limits)
    seeds: str | None = None
    jobs: int | None = None
    budget: float = BUDGET_SECONDS
    seed: int | None = None
    fresh: bool = False


@dataclass(frozen=True)
class GpuKind:
    """A kind of GPU to tune for, and where it is.

    place: the machine, if it is another one; of several, the first.
    executors: run verification and race; None: worker processes on this machine.
    """

    target: Target
    place: OtherMachine | None
    executors: tuple[Executor | None, ...]

    @property
    def name(self) -> str:
        return self.target.gpu.name if self.target.gpu else self.target.board.arch

    @property
    def on(self) -> tuple[str, ...]:
        """What the user gave for ``--on``; () for the default."""
        given = tuple(executor.on if executor else "local" for executor in self.executors)
        return () if given == ("local",) else tuple(filter(None, given))

    def others(self, workloads: int) -> Iterator[Executor]:
        """Yields further executors for the same kind of GPU, so that each of so many workloads may have one."""
        left = workloads - len(self.executors)
        for executor in filter(None, self.executors):
            for other in executor.others(left) if left > 0 else ():
                left -= 1
                yield other


@dataclass(frozen=True)
class TuneRequest:
    """The arguments of `tune` on which the result depends."""

    task: Task
    target: Target
    policy: Policy
    workloads: tuple[Workload, ...]
    top: int
    strategy: str | None
    """The name of the search strategy; None for the default."""
    seed: int | None
    seeds: str | None
    languages: tuple[str, ...]
    """The names of the languages of the task's kernels."""
    limits: Limits = field(default_factory=Limits)
    on: tuple[str, ...] = ()
    """Where candidates run, as the user gave it; () for this machine."""

    def key(self, machine: Machine) -> str:
        """Returns the key of the request. Requests with the same key have the same result, except for noise."""
        from tilewright.compile.identity import code_of
        from tilewright.ledger.file import key_of

        return key_of(
            {
                "task": file_of(self.task).read_text(),
                "name": self.task.name,
                "code": code_of(self.task, self.workloads, self.target.board),
                "board": self.target.board.name,
                "measured": self.target.measured,
                "policy": self.policy.to_json(),
                "workloads": [workload.name for workload in self.workloads],
                "top": self.top,
                "seed": self.seed,
                "versions": dict(machine.versions),
                **({"seeds": self.seeds} if self.seeds else {}),
                **({"strategy": self.strategy} if self.strategy else {}),
                **({"limits": vars(self.limits)} if self.limits != Limits() else {}),
            }
        )

    def searches(self, workloads: Sequence[Workload], jobs: int) -> dict[str, Searching]:
        """Returns the search of each workload, by name. Its first batch is ready. ``jobs``: the number of compilers."""
        space, board, dtype = self.task.space, self.target.board, self.task.compute_dtype
        kind, searches = cache(self._kind), dict[str, Searching]()
        known = self.languages == EXPECTED_OF
        for workload in workloads:
            seeds = seeds_of(space, self.seeds, workload.dims, dtype=dtype, gpu=board.name, arch=board.sm, kind=kind)
            searches[workload.name] = Searching(
                workload, space, board.sm, self.limits, strategy=self.strategy, seeds=seeds, seed=self.seed or 0,
                pace=jobs / len(workloads), expected=partial(self._expected, workload) if known else None,
                others=searches.values(),
            )  # fmt: skip
        return searches

    def _expected(self, workload: Workload) -> Expectation:
        from tilewright.inspect.expected import ExpectedTimes  # loads the reader of Tile IR

        return ExpectedTimes(self.task, workload, self.target.board)

    def _kind(self) -> str | None:
        from tilewright.tune.advice import kind_of  # loads the interpreter

        return kind_of(self.task, self.workloads[0], self.target.board)

    def command(self) -> str:
        """Returns the command that repeats the run."""
        words = ["tilewright", "tune", where_is(self.task), "--arch", self.target.board.arch]
        words += ["--top", str(self.top), "--fresh"]
        if len(self.workloads) < len(self.task.workloads):
            words += [word for workload in self.workloads for word in ("--workload", workload.name)]
        words += [word for each in self.on for word in ("--on", each)]
        policy, default = self.policy, Policy()
        for name, value, usual in (
            ("--l2", policy.l2, default.l2), ("--launch", policy.launch, default.launch),
            ("--tie-band", policy.tie_band, default.tie_band), ("--strategy", self.strategy, None),
            ("--seed", self.seed, None), ("--seeds", self.seeds, None),
            ("--seconds", self.limits.seconds, None), ("--candidates", self.limits.candidates, None),
        ):  # fmt: skip
            if value != usual:
                words += [name, str(value)]
        return shlex.join(words)


class TuningRun:
    """The results of one run. Without a ledger they are kept in memory only.

    An interrupted run with the same key continues where it stopped, unless ``fresh`` is True.
    """

    def __init__(self, ledger: TuneLedger | None, request: TuneRequest, machine: Machine, fresh: bool) -> None:
        self.ledger, self.request, self.machine, self.name = ledger, request, machine, ""
        self.done: dict[str, WorkloadResult] = {}
        self._key = ""
        """The key of a run that is not yet in the ledger; "" otherwise."""
        self.kept: CubinsOfRun | None = None
        if ledger is None:
            return
        key = request.key(machine)
        self.kept = ledger.compiled_of(key)
        if fresh:
            self.kept.remove()
        interrupted = None if fresh else ledger.resume(key)
        if interrupted is None:
            self._key = key
            return
        self.name, self.done = interrupted[0].run, dict(interrupted[1])
        ledger.note(f"resuming run {self.name}: {len(self.done)} of {len(request.workloads)} workloads are done")

    def note(self, remark: str) -> None:
        """Tells the user a remark about the run."""
        if self.ledger is not None:
            self.ledger.note(remark)

    @property
    def open(self) -> list[Workload]:
        """The workloads that have no result yet."""
        return [workload for workload in self.request.workloads if workload.name not in self.done]

    def begin(self) -> None:
        """Writes a new run to the ledger. Call this after the first workload was prepared.

        So a request that is refused in the preparation leaves no run in the ledger.
        """
        if self.ledger is not None and self._key:
            self.name, self._key = self.ledger.begin(self._record()).run, ""

    def _record(self) -> TuneRun:
        from tilewright.inspect.kernel_class import classification  # loads the interpreter
        from tilewright.ledger.records import TuneRun

        request = self.request
        task, board, language = request.task, request.target.board, ", ".join(request.languages)
        return TuneRun(
            language=language,
            classification=classification(language, task, request.workloads[0], board),
            key=self._key, task=task.name, machine=self.machine, measured=request.target.measured, where=where_is(task),
            board=board.name, bandwidth_gbs=board.bandwidth_gbs, dtype=task.compute_dtype,
            policy=request.policy.to_json(), top=request.top, seed=request.seed, reproduce=request.command(),
        )  # fmt: skip

    def save(self, result: WorkloadResult) -> None:
        self.done[result.workload.name] = result
        if self.ledger is not None:
            self.ledger.save(self.name, result)

    def finish(self, seconds: Mapping[str, float]) -> TuningResult:
        """Ends the run and returns its result. ``seconds``: wall time of each stage."""
        if self.ledger is not None:
            self.ledger.finish(self.name, seconds)
        if self.kept is not None:
            self.kept.remove()
        request = self.request
        results = tuple(self.done[workload.name] for workload in request.workloads)
        return TuningResult(request.task.name, self.machine, request.target.measured, results, self.name, seconds)
