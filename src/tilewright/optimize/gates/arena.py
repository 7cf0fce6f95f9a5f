"""Versions of a kernel through the worker process: verified, raced, confirmed, timed.

The worker opens the baseline, whose inputs, references and tolerances judge every version; a version supplies
its launch and its shipped configuration. A version that hung, crashed or was wrong is a `VersionFailed` with its
name. The next request starts another process.

`Arena.race` chooses among the variants of one iteration and is quick; nothing is kept because of it.
`Arena.confirm` pairs the chosen one with incumbent and baseline on inputs that nobody has seen (trust.md 24),
look by look, until `decide` has enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilewright.errors import MachineError, TaskError
from tilewright.optimize.decide import AA_CONFIDENCE, Paired
from tilewright.optimize.versions.version import KernelVersion
from tilewright.progress import Progress, silent
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.race.stats import noise_of
from tilewright.records import Checked, MeasuredTime
from tilewright.task.task import Task
from tilewright.worker.client import PREPARE_SILENCE, measured_of
from tilewright.worker.messages import Message
from tilewright.worker.session import Lost, Session

RACE_ROUNDS, RACE_SECONDS = 200, 2.0
"""Of the choice among variants, which the confirmation checks on fresh inputs: it may be wrong by a little."""
CONFIRM_SECONDS = 3.0
"""Wall time of the rounds of one confirmation on one workload, all looks together: 400 rounds of a kernel of
1.7 ms. Short kernels end by `decide.ROUNDS` before."""
FEWEST_ROUNDS = 40
"""Of the first look, however long a kernel takes: what the bounds of a decision over six workloads need thrice."""
TIME_BUDGET = Budget(100, 1.0, 20)
"""Of `Arena.time`."""


@dataclass(frozen=True)
class VersionFailed:
    """A version that did not get through: it crashed, hung, could not be launched, or was wrong."""

    version: str
    reason: str
    checked: Checked | None = None
    """The verdict, where its outputs are what is wrong."""


@dataclass(frozen=True)
class RacedVersion:
    version: KernelVersion
    state: str
    """Of `protocol.Raced`: leader, tied, dropped, undecided, failed."""
    reason: str
    measured: MeasuredTime | None


@dataclass(frozen=True)
class Race:
    """A race on one workload: the incumbent, which comes first, and what was left to race it; or nothing at all.
    ``record``: policy, A/A noise, rounds, monitor."""

    raced: tuple[RacedVersion, ...]
    fallen: tuple[VersionFailed, ...]
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Confirmation:
    """One workload: paired µs of candidate, incumbent, a second copy of the incumbent, and baseline."""

    candidate_us: tuple[float, ...] = field(repr=False)
    incumbent_us: tuple[float, ...] = field(repr=False)
    copy_us: tuple[float, ...] = field(repr=False)
    baseline_us: tuple[float, ...] = field(repr=False)
    checked: Checked
    """The candidate's, on this confirmation's inputs, before and after it was timed."""
    seed: int
    monitors: tuple[Mapping[str, Any], ...] = ()
    """Clocks and other processes, look by look."""
    disturbances: tuple[str, ...] = ()

    def plus(self, more: Confirmation) -> Confirmation:
        """With the rounds of the next look."""
        return replace(
            more,
            candidate_us=self.candidate_us + more.candidate_us,
            incumbent_us=self.incumbent_us + more.incumbent_us,
            copy_us=self.copy_us + more.copy_us,
            baseline_us=self.baseline_us + more.baseline_us,
            monitors=self.monitors + more.monitors,
            disturbances=self.disturbances + more.disturbances,
        )

    @property
    def paired(self) -> Paired:
        """What `decide` asks for."""
        noise = noise_of(self.incumbent_us, self.copy_us, confidence=AA_CONFIDENCE)
        return Paired(self.candidate_us, self.incumbent_us, self.baseline_us, noise)


class Arena:
    """The worker process of one optimisation run. Use it as a context.

    task, where: the task, and where `loading.load_task` finds it. policy: how to measure (L2, graph or eager).
    session: a worker process that is starting already and has no task yet; the arena ends it.
    """

    def __init__(
        self, task: Task, where: str, baseline: KernelVersion, policy: Policy, seed: int,
        progress: Progress = silent, session: Session | None = None,
    ) -> None:  # fmt: skip
        self.task, self.baseline, self.policy, self.seed, self.progress = (task, baseline, policy, seed, progress)
        self.session = session or Session()
        self.session.open(where, baseline.files)
        self._verdicts: dict[tuple[frozenset[tuple[str, str]], str, int], Checked | VersionFailed] = {}

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *what: object) -> None:
        self.session.__exit__(*what)

    def prepare(self, workload: str, seed: int | None = None) -> None:
        """Inputs and references on the worker, which keeps those of several workloads. ``seed``: one that
        will not come back, whose inputs are not kept long; or the run's, as without one.

        Raises TaskError for what is wrong with the task, MachineError where the worker cannot.
        """
        seed = self.seed if seed is None else seed
        passing = seed != self.seed
        request = {"do": "prepare", "workload": workload, "seed": seed, "passing": passing}
        answer: Message | Lost = Lost("")
        for _ in range(2):  # a process that died since the last request is noticed by this one
            if not isinstance(answer := self.session.ask(request, silence=PREPARE_SILENCE), Lost):
                break
        if isinstance(answer, Lost):
            raise MachineError(f"workload {workload} could not be prepared on the GPU: {answer.reason}")
        if answer["new"] and self.task.trusted is None:
            # Whole outputs are compared with the first correct ones: those are to be the baseline's.
            self._ask({"do": "check", "version": dict(self.baseline.files)})

    def verify(self, version: KernelVersion, workload: str, seed: int | None = None) -> Checked | VersionFailed:
        """Runs a version against the references, once; `VersionFailed` where it did not even run."""
        key = (frozenset(version.files.items()), workload, self.seed if seed is None else seed)
        if key not in self._verdicts:
            self.progress("verify", 0, None, f"{workload}: {version.name}")
            self.prepare(workload, seed)
            answer = self._ask({"do": "check", "version": dict(version.files)})
            if isinstance(answer, Lost):
                self._verdicts[key] = VersionFailed(version.name, f"verify: {answer.reason}")
            else:
                said = answer["checked"]
                self._verdicts[key] = Checked(**{**said, "cases": tuple(said["cases"])})
        return self._verdicts[key]

    def race(self, workload: str, versions: Sequence[KernelVersion]) -> Race:
        """Which of verified ``versions`` is fastest; the first is the incumbent. The slow leave early.

        Races until one race went through; a version that hangs, crashes or ends wrong leaves the field.
        """
        field, fallen, careful = list(versions), [], False  # type: list[KernelVersion], list[VersionFailed], bool
        policy = replace(self.policy, max_rounds=RACE_ROUNDS, seconds=RACE_SECONDS, seed=self.seed)
        while field and field[0] is versions[0]:
            self.prepare(workload)
            request = {
                "do": "race", "versions": [dict(one.files) for one in field], "cost": [() for _ in field],
                "shipped": 0, "policy": policy.to_json(), "careful": careful,
            }  # fmt: skip
            answer = self._ask(request, self._on_progress("race", workload))
            if isinstance(answer, Lost):
                if answer.at is not None:
                    fallen.append(VersionFailed(field.pop(answer.at).name, f"race: {answer.reason}"))
                elif careful:  # not even one at a time shows who it is
                    return Race(
                        (), (*fallen, *(VersionFailed(one.name, f"race: {answer.reason}") for one in field[1:]))
                    )
                careful = answer.at is None
            elif answer["after_timing"] is not None:
                gone = field.pop(answer["race"]["winner"]).name
                fallen.append(_wrong_after(gone, answer["after_timing"]))
            else:
                return Race(_raced(field, answer["race"]["candidates"]), tuple(fallen), _record(answer))
        return Race((), tuple(fallen))

    def confirm(
        self, workload: str, candidate: KernelVersion, incumbent: KernelVersion, baseline: KernelVersion,
        seed: int, budget: Budget,
    ) -> Confirmation | VersionFailed:  # fmt: skip
        """Paired samples of one look, on inputs of ``seed``: what decides needs one that no earlier request used.

        A hang in the rounds is blamed on the candidate: incumbent and baseline went through rounds before.
        """
        checked = self.verify(candidate, workload, seed)
        if isinstance(checked, VersionFailed):
            return checked
        if checked.verdict != "correct":
            return VersionFailed(candidate.name, f"on fresh inputs: {checked.reason}", checked)
        versions = [candidate, incumbent, *([] if baseline.files == incumbent.files else [baseline])]
        answer = self._timed(workload, versions, 1, seed, budget)
        if isinstance(answer, Lost):
            return VersionFailed(versions[answer.at or 0].name, f"confirmation: {answer.reason}")
        if answer["after_timing"] is not None:
            return _wrong_after(candidate.name, answer["after_timing"])
        *samples, copy = (tuple(us) for us in answer["samples_us"])
        return Confirmation(
            samples[0], samples[1], copy, samples[-1], checked, seed, (answer["monitor"],),
            tuple(answer["disturbances"]),
        )  # fmt: skip

    def time(self, workload: str, version: KernelVersion) -> MeasuredTime | VersionFailed:
        """A version by itself, on the run's inputs."""
        answer = self._timed(workload, [version], 0, None, TIME_BUDGET)
        if isinstance(answer, Lost):
            return VersionFailed(version.name, f"timing: {answer.reason}")
        return measured_of(answer["samples_us"][0])

    def _timed(
        self, workload: str, versions: Sequence[KernelVersion], copied: int, seed: int | None, budget: Budget
    ) -> Message | Lost:
        self.prepare(workload, seed)
        policy = replace(self.policy, seed=self.seed if seed is None else seed)
        request = {
            "do": "confirm", "versions": [dict(one.files) for one in versions], "copied": copied,
            "policy": policy.to_json(), "budget": asdict(budget),
        }  # fmt: skip
        answer = self._ask(request, self._on_progress("confirm", workload))
        if not isinstance(answer, Lost) and not answer["samples_us"][0]:
            return Lost(f"every round was disturbed: {answer['disturbances'][-1]}")
        return answer

    def _ask(self, request: Message, on_progress: Any = lambda message: None) -> Message | Lost:
        """What is wrong with a version is wrong with it alone: not an error, as it is for the task."""
        try:
            return self.session.ask(request, on_progress=on_progress)
        except TaskError as error:
            return Lost(str(error))

    def _on_progress(self, stage: str, workload: str) -> Any:
        def on_progress(said: Message) -> None:
            live = f", {len(said['live'])} left" if "live" in said else ""
            self.progress(stage, said.get("rounds", 0), None, f"{workload}{live}")

        return on_progress


def _raced(field: Sequence[KernelVersion], rows: Sequence[Message]) -> tuple[RacedVersion, ...]:
    return tuple(
        RacedVersion(
            version, row["state"], row["reason"],
            measured_of(row["samples_us"]) if row["samples_us"] else None,
        )
        for version, row in zip(field, rows, strict=True)
    )  # fmt: skip


def _record(answer: Message) -> dict[str, Any]:
    kept = ("policy", "noise", "why", "stop", "rounds", "disturbed", "seconds")
    return {name: answer["race"][name] for name in kept} | {"monitor": answer["monitor"]}


def _wrong_after(version: str, reason: str) -> VersionFailed:
    return VersionFailed(version, reason, Checked("incorrect", reason))
