"""From a proposal to what can be judged: apply each value, load, compile, screen.

    proposal → texts of each value → versions on disk → compiled in parallel → read → variants

A value is dropped if its code equals the incumbent's or an earlier value's, or if it does not load, does not compile,
cannot be launched, or is predicted to be far slower. Each dropped value leaves an `Attempt` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.compile.compile import Compiled, Unit, compile_all, launch_of, remember
from tilewright.errors import MachineError, RequestError, TilewrightError, in_one_line
from tilewright.hardware.architectures import Board, architecture, attainable_ctas
from tilewright.hardware.prediction import WARPGROUP, Work, predict
from tilewright.ledger.records import Attempt, AttemptStatus
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.versions import version as versions
from tilewright.optimize.versions.version import KernelVersion
from tilewright.playbook.base import NotApplicable
from tilewright.race.stats import geometric_mean
from tilewright.records import Failed, MachineCode, MeasuredTime, PredictedTime, Value, Workload
from tilewright.task.task import Task

HOPELESS = 4.0
"""A variant that is predicted to take more than this many times the incumbent's time is not judged. The predictor errs
by up to 1.7 times on the recorded kernels (`screen.SLOWER`), and may err more between two forms of a kernel."""
MOST_VARIANTS = 16
"""The most values of one site that are judged: those with the best prediction."""

Identity = tuple[tuple[str, tuple[int, ...], str], ...]
Loaded = tuple[Value, Mapping[Path, str], KernelVersion, Task]


@dataclass(frozen=True)
class Variant:
    """A version of the kernel, compiled for every workload."""

    value: Value
    texts: Mapping[Path, str]
    version: KernelVersion
    task: Task
    """Judged by the baseline's reference, launched by its own launch and configuration."""
    codes: Mapping[str, MachineCode]
    """By workload."""
    grids: Mapping[str, tuple[int, ...]]
    predicted: Mapping[str, PredictedTime]
    compiled: tuple[Compiled, ...] = field(repr=False)

    @property
    def board(self) -> Board:
        return self.compiled[0].unit.board

    @property
    def identity(self) -> Identity:
        """Equal identity, equal behaviour: machine code and grid of each workload."""
        return tuple((name, self.grids[name], code.code_hash) for name, code in self.codes.items())

    @property
    def predicted_us(self) -> float:
        """Geometric mean over the workloads."""
        mean = geometric_mean(prediction.us for prediction in self.predicted.values())
        assert mean is not None, "a task has workloads"
        return mean

    def attempt(
        self, status: AttemptStatus, reason: str, measured: Mapping[str, MeasuredTime] | None = None
    ) -> Attempt:
        """What the ledger keeps of it."""
        code = next(iter(self.codes.values()))
        return Attempt(
            value=str(self.value), status=status, reason=reason, code=code, predicted=self.predicted,
            measured=measured or {},
        )  # fmt: skip

    def remember(self) -> None:
        """Stores the cubins where the launches find them."""
        remember(self.task, self.compiled)


@dataclass(frozen=True)
class Builder:
    """Makes versions of one task, below a folder of their own."""

    baseline: Task
    where: str
    board: Board
    workloads: tuple[Workload, ...]
    folder: Path
    jobs: int | None = None
    seconds: float = 10.0
    """Wall time of one compiler run."""

    def built(self, wanted: Sequence[tuple[Value, str, Mapping[Path, str]]]) -> tuple[list[Variant], list[Attempt]]:
        """Compiles versions of (value, name, texts) side by side; returns the variants, and an attempt for each value
        that failed."""
        loaded: list[Loaded] = []
        dropped: list[Attempt] = []
        for value, name, texts in wanted:
            version = versions.materialise(self.folder, name, texts)
            with _noted(dropped, value, "does not load"):
                task = versions.with_baseline_checks(versions.load(version, self.where), self.baseline)
                for workload in self.workloads:
                    launch_of(task, Unit(workload, task.space.shipped, self.board))
                loaded.append((value, texts, version, task))
        tasks = [task for *_, task in loaded for _ in self.workloads]
        units = [Unit(each, task.space.shipped, self.board) for *_, task in loaded for each in self.workloads]
        compiled = compile_all(tasks, units, jobs=self.jobs, seconds=self.seconds)
        variants = []
        for place, one in enumerate(loaded):
            own = compiled[place * len(self.workloads) : (place + 1) * len(self.workloads)]
            made = self._variant(one, tuple(own))
            if isinstance(made, Attempt):
                dropped.append(made)
            else:
                variants.append(made)
        return variants, dropped

    def certain(self, name: str, texts: Mapping[Path, str]) -> Variant:
        """A version that has to compile: the untouched code, or what was kept before. Raises RequestError."""
        variants, dropped = self.built([(name, name, texts)])
        if not variants:
            raise RequestError(f"task '{self.baseline.name}': {name}: {dropped[0].reason}")
        return variants[0]

    def _variant(self, loaded: Loaded, compiled: tuple[Compiled, ...]) -> Variant | Attempt:
        (value, texts, version, task), judge = loaded, self.baseline
        codes, grids, predicted = {}, {}, {}
        for one in compiled:
            workload, code = one.unit.workload, one.code
            if isinstance(code, Failed):
                return no_variant(value, "failed", f"{workload}: {code.stage}: {code.reason}")
            grid = launch_of(task, one.unit)[0].grid
            fits = attainable_ctas(
                architecture(self.board.arch), registers=code.registers, threads=code.threads or WARPGROUP,
                shared_bytes=code.shared_bytes,
            )  # fmt: skip
            if not fits.ctas:
                return no_variant(value, "screened", f"{workload}: cannot be launched: {fits.why}")
            work = Work(judge.work(workload.dims), judge.traffic(workload.dims), judge.compute_dtype)
            codes[workload.name], grids[workload.name] = code, grid
            predicted[workload.name] = predict(code, grid, work, self.board)
        return Variant(value, texts, version, task, codes, grids, predicted, compiled)


def screened(variants: Sequence[Variant], incumbent: Variant) -> tuple[list[Variant], list[Attempt]]:
    """The variants to judge, the best predicted first, and an attempt with the reason for each of the others."""
    seen: dict[Identity, str] = {incumbent.identity: "the incumbent's"}
    kept: list[Variant] = []
    dropped = []
    for one in variants:
        if one.identity in seen:
            dropped.append(one.attempt("duplicate", f"same machine code and grid as {seen[one.identity]}"))
            continue
        seen[one.identity] = f"{one.value}'s"
        times = one.predicted_us / incumbent.predicted_us
        if times > HOPELESS:
            stores = max(code.local_stores for code in one.codes.values())
            spilling = f", with {stores} local stores" if stores else ""
            dropped.append(one.attempt("screened", f"predicted {times:.1f}× the incumbent's time{spilling}"))
        else:
            kept.append(one)
    kept.sort(key=lambda one: one.predicted_us)
    for place, one in enumerate(kept[MOST_VARIANTS:], MOST_VARIANTS + 1):
        reason = f"predicted {place}. of {len(kept)}; the first {MOST_VARIANTS} are judged"
        dropped.append(one.attempt("screened", reason))
    return kept[:MOST_VARIANTS], dropped


def applied(
    proposal: Proposal, texts: Mapping[Path, str], label: str
) -> tuple[list[tuple[Value, str, Mapping[Path, str]]], list[Attempt]]:
    """The texts of each value, with a name for its folder; and the values that do not apply."""
    wanted: list[tuple[Value, str, Mapping[Path, str]]] = []
    dropped: list[Attempt] = []
    values: Sequence[Value] = ()
    with _noted(dropped, "", "cannot look for values"):
        values = proposal.values()
    for place, value in enumerate(values):
        with _noted(dropped, value, "does not apply"):
            changed = proposal.apply(value)
            if changed == texts:
                dropped.append(no_variant(value, "duplicate", "leaves the source as it is"))
            else:
                wanted.append((value, f"{label}-{place}", changed))
    return wanted, dropped


@contextmanager
def _noted(dropped: list[Attempt], value: Value, what: str) -> Iterator[None]:
    """Code of a version or an entry: what it raises fails its value, not the loop. Our own errors keep their words."""
    try:
        yield
    except MachineError:
        raise
    except Exception as error:
        said = str(error) if isinstance(error, NotApplicable | TilewrightError) else in_one_line(error)
        dropped.append(no_variant(value, "failed", f"{what}: {said}"))


def no_variant(value: Value, status: AttemptStatus, reason: str) -> Attempt:
    """A value that never became a variant."""
    return Attempt(value=str(value), status=status, reason=reason)
