"""Turns a proposal into variants that can be judged: applies each value, then loads, compiles and screens the result.

    proposal → texts of each value → versions on disk → loaded and compiled in parallel → variants

A value is dropped if its code is equal to the code of the incumbent or of an earlier value. A value is also dropped if
its code does not load, compile or launch, or is predicted to be far slower. Each dropped value leaves an `Attempt` with
the reason.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from tilewright.candidate.client import Candidates
from tilewright.compile.compile import Compiled, Unit, compile_all, launch_of, lower
from tilewright.compile.screen import same_work, work_of
from tilewright.errors import MachineError, RequestError, TilewrightError, ToolFailed, in_one_line
from tilewright.hardware.architectures import Board
from tilewright.hardware.executions import occupancy_of
from tilewright.hardware.prediction import predict
from tilewright.hardware.prediction_error import ChangeKind
from tilewright.languages import language_of
from tilewright.languages.base import Argument
from tilewright.ledger.records import Attempt, AttemptStatus
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.gates.arena import Entrant
from tilewright.optimize.loading import Load, Loader, RecordLoading, unrecorded
from tilewright.optimize.proposed import RefusedProposal
from tilewright.optimize.versions import version as versions
from tilewright.optimize.versions.version import KernelVersion
from tilewright.playbook.base import NotApplicable
from tilewright.race.stats import geometric_mean
from tilewright.records import Failed, MachineCode, MeasuredTime, PredictedTime, Value, Workload
from tilewright.task.task import Task
from tilewright.worker.client import Contestant
from tilewright.worker.programs import program_of

HOPELESS = 4.0
"""A variant that is predicted to take more than this many times the incumbent's time is dropped. In the recorded
configurations, no prediction is above 3.2 times the measured time (bench/recorded, 2026-11-22)."""
MOST_VARIANTS = 32
"""The most variants of one proposal that are judged. They have the shortest predicted times."""

Identity = tuple[Hashable, ...]
Request = tuple[Value, str, Mapping[Path, str]]
"""A version to build: the proposal's value, the name of the version's folder, and the text of each editable file."""
Loaded = tuple[Value, Mapping[Path, str], KernelVersion, Task]


@dataclass(frozen=True)
class Variant:
    """A version of the kernel, compiled for every workload."""

    value: Value
    texts: Mapping[Path, str]
    version: KernelVersion
    task: Task
    """The baseline's task with this version's launch and space."""
    codes: Mapping[str, MachineCode]
    """The machine code for each workload, by name."""
    grids: Mapping[str, tuple[int, ...]]
    arguments: Mapping[str, tuple[Argument, ...]]
    """The arguments of the compiled entry for each workload, by name."""
    predicted: Mapping[str, PredictedTime]
    compiled: tuple[Compiled, ...] = field(repr=False)
    kind: ChangeKind = "form"
    structure: str = ""
    """The value of the version to which hints were added; "" if this version has no added hints."""

    @property
    def board(self) -> Board:
        return self.compiled[0].unit.board

    @property
    def identity(self) -> Identity:
        """A key of the version's behaviour: its code, grid and arguments on each workload. Equal keys mean equal
        behaviour."""
        of_each = self.codes.items()
        return tuple(same_work(code.code_hash, self.grids[name], self.arguments[name]) for name, code in of_each)

    @property
    def predicted_us(self) -> float:
        """The predicted time: geometric mean over the workloads."""
        mean = geometric_mean(prediction.us for prediction in self.predicted.values())
        assert mean is not None, "a task has workloads"
        return mean

    def attempt(
        self, status: AttemptStatus, reason: str, measured: Mapping[str, MeasuredTime] | None = None
    ) -> Attempt:
        """Makes the ledger's record of this variant."""
        code = next(iter(self.codes.values()))
        attempt = no_variant(self.value, status, reason)
        return replace(attempt, code=code, predicted=self.predicted, measured=measured or {})

    @cached_property
    def entrant(self) -> Entrant:
        """The version as data for the worker: its cubins, and how to launch them."""
        contestants = {
            each.unit.workload.name: Contestant(self.version.name, program_of(self.task, each), task=self.task)
            for each in self.compiled
        }
        return Entrant(self.version.name, self.version.files, contestants)


@dataclass(frozen=True)
class Builder:
    """Builds versions of one task below ``folder``.

    jobs: the number of versions and of compilers at a time (default: the cores of this machine).
    seconds: limit of processor time for one compiler run.
    recorded: records that a version is loaded, such as `Ledger.loading`.
    suspects: the digests of the versions that are loaded alone.
    """

    candidates: Candidates
    baseline: Task
    where: str
    board: Board
    workloads: tuple[Workload, ...]
    folder: Path
    jobs: int | None = None
    seconds: float = 10.0
    recorded: RecordLoading = unrecorded
    suspects: Collection[str] = ()

    def build(self, requests: Sequence[Request]) -> tuple[list[Variant], list[Attempt]]:
        """Compiles versions in parallel. Returns the variants, and an `Attempt` for each value that failed."""
        made = [versions.materialise(self.folder, name, texts) for _, name, texts in requests]
        loads = [
            Load(versions.digest_of(texts), partial(self._loaded, version))
            for (*_, texts), version in zip(requests, made, strict=True)
        ]
        threads = min(self.jobs or os.cpu_count() or 1, self.candidates.at_once)
        loader = Loader(threads, self.candidates.interrupt, self.recorded, self.suspects)
        loaded: list[Loaded] = []
        dropped: list[Attempt] = []
        for (value, _, texts), version, task in zip(requests, made, loader.outcomes(loads), strict=True):
            with noted(dropped, value, "does not load"):
                if isinstance(task, Exception):
                    raise task
                loaded.append((value, texts, version, task))
        tasks = [task for *_, task in loaded for _ in self.workloads]
        units = [Unit(each, task.space.shipped, self.board) for *_, task in loaded for each in self.workloads]
        compiled = compile_all(tasks, units, jobs=self.jobs, seconds=self.seconds)
        per_version = [compiled[at : at + len(self.workloads)] for at in range(0, len(compiled), len(self.workloads))]
        each = [self._variant(version, tuple(own)) for version, own in zip(loaded, per_version, strict=True)]
        dropped += [attempt for attempt in each if isinstance(attempt, Attempt)]
        return [variant for variant in each if isinstance(variant, Variant)], dropped

    def _loaded(self, version: KernelVersion) -> Task:
        """Loads a version, which describes and lowers its launches. The task knows the answers from then on."""
        task = self.candidates.task(self.baseline, self.where, version.files).on(self.board.arch)
        for workload in self.workloads:
            unit = Unit(workload, task.space.shipped, self.board)
            launch_of(task, unit)  # raises the errors of the launch function, which `lower` returns
            lower(task, unit)
        return task

    def build_one(self, name: str, texts: Mapping[Path, str]) -> Variant:
        """Builds a version that has to compile, such as the untouched code. Raises RequestError for any failure.

        The loading is not recorded: a run without this version could not continue.
        """
        variants, dropped = replace(self, recorded=unrecorded).build([(name, name, texts)])
        if not variants:
            error = ToolFailed if ": tool: " in dropped[0].reason else RequestError
            raise error(f"task '{self.baseline.name}': {name}: {dropped[0].reason}")
        return variants[0]

    def _variant(self, loaded: Loaded, compiled: tuple[Compiled, ...]) -> Variant | Attempt:
        (value, texts, version, task), judge = loaded, self.baseline
        codes, grids, arguments, predicted = {}, {}, {}, {}
        for each in compiled:
            workload, code = each.unit.workload, each.code
            if isinstance(code, Failed):
                return no_variant(value, "failed", f"{workload}: {code.stage}: {code.reason}")
            launch = launch_of(task, each.unit)[0]
            grid = launch.grid
            fits = occupancy_of(code, self.board)
            if not fits.ctas:
                return no_variant(value, "screened", f"{workload}: cannot be launched: {fits.why}")
            codes[workload.name], grids[workload.name] = code, grid
            arguments[workload.name] = language_of(launch.kernel).arguments(launch)
            predicted[workload.name] = predict(code, grid, work_of(judge, workload.dims), self.board)
        return Variant(value, texts, version, task, codes, grids, arguments, predicted, compiled)


def screen(variants: Sequence[Variant], incumbent: Variant) -> tuple[list[Variant], list[Attempt]]:
    """Returns the variants to judge, sorted by predicted time, and an `Attempt` for each dropped variant."""
    seen: dict[Identity, str] = {incumbent.identity: "the incumbent's"}
    kept: list[Variant] = []
    dropped = []
    for variant in variants:
        if variant.identity in seen:
            dropped.append(variant.attempt("duplicate", f"same machine code and grid as {seen[variant.identity]}"))
            continue
        seen[variant.identity] = f"{variant.value}'s"
        times = variant.predicted_us / incumbent.predicted_us
        if times > HOPELESS:
            stores = max(code.local_stores for code in variant.codes.values())
            spilling = f", with {stores} local stores" if stores else ""
            dropped.append(variant.attempt("screened", f"predicted {times:.1f}× the incumbent's time{spilling}"))
        else:
            kept.append(variant)
    kept.sort(key=lambda variant: variant.predicted_us)
    for place, variant in enumerate(kept[MOST_VARIANTS:], MOST_VARIANTS + 1):
        reason = f"predicted {place}. of {len(kept)}; the first {MOST_VARIANTS} are judged"
        dropped.append(variant.attempt("screened", reason))
    return kept[:MOST_VARIANTS], dropped


def apply_values(proposal: Proposal, texts: Mapping[Path, str], label: str) -> tuple[list[Request], list[Attempt]]:
    """Applies each value of a proposal. Returns the versions to build, and an `Attempt` for each dropped value."""
    requests: list[Request] = []
    dropped: list[Attempt] = []
    values: Sequence[Value] = ()
    with noted(dropped, "", "cannot look for values"):
        values = proposal.values()
    for place, value in enumerate(values):
        with noted(dropped, value, "does not apply"):
            changed = proposal.apply(value)
            if changed == texts:
                dropped.append(no_variant(value, "duplicate", "leaves the source as it is"))
            else:
                requests.append((value, f"{label}-{place}", changed))
    return requests, dropped


@contextmanager
def noted(dropped: list[Attempt], value: Value, what: str) -> Iterator[None]:
    """Adds ``value`` to ``dropped`` if code of a version or an entry raises in the ``with`` block. The loop goes on."""
    try:
        yield
    except MachineError:
        raise
    except RefusedProposal as refused:
        status: AttemptStatus = "tampering" if refused.tampering else "failed"
        dropped.append(replace(no_variant(value, status, str(refused)), diff=refused.patch))
    except Exception as error:
        reason = str(error) if isinstance(error, NotApplicable | TilewrightError) else in_one_line(error)
        dropped.append(no_variant(value, "failed", f"{what}: {reason}"))


def no_variant(value: Value, status: AttemptStatus, reason: str) -> Attempt:
    """Makes the `Attempt` of a value that did not become a variant."""
    return Attempt(value=str(value), status=status, reason=reason)
