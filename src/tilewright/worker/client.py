"""Verify and race one workload's candidates through the worker process, and survive what they do to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import MachineError
from tilewright.progress import Progress
from tilewright.race.rules import Policy
from tilewright.race.stats import median_interval
from tilewright.records import (
    Bound,
    Candidate,
    Checked,
    Configuration,
    MachineCode,
    MeasuredTime,
    Status,
    Workload,
    WorkloadResult,
)
from tilewright.task.task import Task
from tilewright.worker.messages import Message
from tilewright.worker.session import Lost, Session

PREPARE_SILENCE = 180.0
"""Seconds for drawing inputs and computing the float64 references of one workload."""
KEPT = ("policy", "noise", "why", "stop", "settled", "rounds", "disturbed", "disturbances", "seconds")
"""What of a race's outcome goes into the record beside the candidates."""

Candidates = dict[Configuration, Candidate]


def cost_of(code: MachineCode | None) -> tuple[int, ...]:
    """What a configuration occupies; among the tied the smaller is preferred: CTAs in a cluster, then
    registers of a CTA, shared memory, instructions."""
    if code is None:
        return (1 << 30,)
    return (code.cluster, code.registers * code.threads, code.shared_bytes, code.instructions)


@dataclass(frozen=True)
class _Race:
    """What a race ended with: who was left, the worker's answer, and who fell on the way."""

    field: list[Configuration]
    answer: Message | None
    fallen: dict[Configuration, tuple[Status, str]]


class Measuring:
    """The GPU's part of a tuning run. ``session`` is None where there is no GPU."""

    def __init__(self, task: Task, session: Session | None, policy: Policy, seed: int, progress: Progress) -> None:
        self.task, self.session, self.policy, self.seed, self.progress = task, session, policy, seed, progress
        self.seconds: dict[str, float] = {"verify": 0.0, "race": 0.0}
        self._ready: tuple[str, int] | None = None
        self._races: dict[tuple[str, tuple[Configuration, ...]], _Race] = {}
        self._verdicts: dict[tuple[str, Configuration], Checked | Lost] = {}

    def run(
        self, workload: Workload, bound: Bound, candidates: Candidates, chosen: Sequence[Configuration]
    ) -> WorkloadResult:
        """Verifies and races ``chosen``; the candidates come back with what became of them."""
        self._verify(workload, candidates, chosen)
        key = (workload.name, tuple(chosen))
        if key not in self._races:
            correct = [config for config in chosen if _is_correct(candidates[config])]
            with self._timed("race"):
                self._races[key] = self._race(workload, candidates, correct)
        race = self._races[key]
        for config, (status, reason) in race.fallen.items():
            candidates[config] = replace(candidates[config], status=status, reason=reason)
        if race.answer is not None:
            return self._result(workload, bound, candidates, race.field, race.answer)
        reason = "no candidate compiled, ran and was right"
        return WorkloadResult(workload, bound, None, (), tuple(candidates.values()), self.task.space.shipped, reason)

    def has_raced(self, workload: Workload, chosen: Sequence[Configuration]) -> bool:
        return (workload.name, tuple(chosen)) in self._races

    def prepare(self, workload: Workload) -> None:
        """Inputs and references on the worker, unless it has them; can run while candidates compile."""
        if self._ready == (workload.name, self._losses()):
            return
        answer = self._ask({"do": "prepare", "workload": workload.name, "seed": self.seed}, PREPARE_SILENCE)
        if isinstance(answer, Lost):
            raise MachineError(f"workload {workload.name} could not be prepared on the GPU: {answer.reason}")
        self._ready = (workload.name, self._losses())

    def has_verdict(self, workload: Workload, config: Configuration) -> bool:
        return (workload.name, config) in self._verdicts

    def verdict(self, workload: Workload, config: Configuration) -> Checked | Lost:
        """Runs a configuration against the references, once; `Lost` when it crashed or hung."""
        if not self.has_verdict(workload, config):
            with self._timed("verify"):
                self.prepare(workload)
                answer = self._ask({"do": "check", "config": dict(config)})
            if not isinstance(answer, Lost):
                answer["checked"]["cases"] = tuple(answer["checked"]["cases"])
            found = answer if isinstance(answer, Lost) else Checked(**answer["checked"])
            self._verdicts[workload.name, config] = found
        return self._verdicts[workload.name, config]

    def _verify(self, workload: Workload, candidates: Candidates, chosen: Sequence[Configuration]) -> None:
        for place, config in enumerate(chosen, 1):
            self.progress("verify", place, len(chosen), f"{workload.name} {config}")
            verdict, one = self.verdict(workload, config), candidates[config]
            if isinstance(verdict, Lost):
                candidates[config] = failed(one, "verify", verdict.reason)
            elif verdict.verdict == "correct":
                candidates[config] = replace(one, checked=verdict)
            else:
                candidates[config] = replace(one, checked=verdict, status="wrong", reason=verdict.reason)

    def _race(self, workload: Workload, candidates: Candidates, correct: list[Configuration]) -> _Race:
        """Races until one race went through; each one that hangs, crashes or ends wrong leaves the field."""
        careful, fallen = False, {}  # type: bool, dict[Configuration, tuple[Status, str]]
        while correct:
            self.prepare(workload)
            request = self._race_request(candidates, correct, careful)
            answer = self._ask(request, on_progress=self._on_progress(workload))
            if isinstance(answer, Lost):
                if answer.at is None and careful:
                    raise MachineError(f"the race of workload {workload.name} fails: {answer.reason}")
                if answer.at is not None:
                    fallen[correct.pop(answer.at)] = ("failed", f"race: {answer.reason}")
                careful = answer.at is None
            elif answer["after_timing"] is not None:
                fallen[correct.pop(answer["race"]["winner"])] = ("wrong", answer["after_timing"])
            else:
                return _Race(correct, answer, fallen)
        return _Race([], None, fallen)

    def _race_request(self, candidates: Candidates, correct: list[Configuration], careful: bool) -> Message:
        return {
            "do": "race",
            "configs": [dict(config) for config in correct],
            "cost": [cost_of(candidates[config].code) for config in correct],
            "shipped": self._shipped_place(candidates, correct),
            "policy": self.policy.to_json(),
            "careful": careful,
        }

    def _shipped_place(self, candidates: Candidates, correct: list[Configuration]) -> int | None:
        """Where the shipped configuration, or one with the same code and hints, stands in the race."""
        shipped = candidates.get(self.task.space.shipped)
        if shipped is None or shipped.code is None:
            return None
        for place, config in enumerate(correct):
            code = candidates[config].code
            if config == shipped.configuration or (
                shipped.status == "duplicate" and code is not None and code.code_hash == shipped.code.code_hash
            ):
                return place
        return None

    def _result(
        self, workload: Workload, bound: Bound, candidates: Candidates, raced: list[Configuration], answer: Message
    ) -> WorkloadResult:
        race = answer["race"]
        for config, row in zip(raced, race["candidates"], strict=True):
            if row["state"] == "failed" or not row["samples_us"]:
                candidates[config] = failed(candidates[config], "race", row["reason"])
                continue
            candidates[config] = replace(
                candidates[config], status="raced", reason=row["reason"], measured=measured_of(row["samples_us"])
            )
        winner = race["winner"]
        tied = tuple(c for c, row in zip(raced, race["candidates"], strict=True) if row["state"] in ("leader", "tied"))
        record = {name: race[name] for name in KEPT} | {"monitor": answer["monitor"], "seed": self.seed}
        return WorkloadResult(
            workload=workload,
            bound=bound,
            best=candidates[raced[winner]] if winner is not None else None,
            tied=tied,
            candidates=tuple(candidates.values()),
            shipped=self.task.space.shipped,
            reason=race["why"],
            race=record,
        )

    def _on_progress(self, workload: Workload) -> Any:
        def on_progress(said: Message) -> None:
            live = len(said.get("live", ()))
            self.progress("race", said.get("rounds", 0), None, f"{workload.name}: {live} left in the race")

        return on_progress

    def _ask(
        self,
        request: Message,
        silence: float | None = None,
        on_progress: Callable[[Message], None] = lambda message: None,
    ) -> Message | Lost:
        assert self.session is not None, "only a machine with a GPU measures"
        return self.session.ask(request, silence=silence, on_progress=on_progress)

    def _losses(self) -> int:
        assert self.session is not None
        return self.session.losses

    @contextmanager
    def _timed(self, stage: str) -> Any:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - started


def failed(candidate: Candidate, stage: str, reason: str) -> Candidate:
    return replace(candidate, status="failed", reason=f"{stage}: {reason}")


def measured_of(samples: Sequence[float]) -> MeasuredTime:
    """Median and its 95 % distribution-free interval, in µs."""
    interval = median_interval(samples, 0.95)
    return MeasuredTime(interval.centre, (interval.low, interval.high), tuple(samples))


def _is_correct(candidate: Candidate) -> bool:
    return candidate.checked is not None and candidate.checked.verdict == "correct"
