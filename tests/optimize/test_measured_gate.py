"""The gate with a GPU, on an arena whose true times and verdicts are made up: who is raced, confirmed, kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from tests.optimize.kit import compiled

from tilewright.hardware.architectures import default_board
from tilewright.inspect.work import bound_of
from tilewright.optimize.attempting import Variant
from tilewright.optimize.gates.arena import Confirmation, Entrant, PlannedLook
from tilewright.optimize.gates.base import Judged
from tilewright.optimize.gates.measured import MeasuredGate
from tilewright.optimize.versions.version import KernelVersion
from tilewright.race.stats import measured_of
from tilewright.records import Checked
from tilewright.worker.client import Eliminated, Finisher, RaceResult, wrong_after

RIGHT, WRONG = Checked("correct", "right"), Checked("incorrect", "y[3] is 7, should be 6")


@dataclass
class Arena:
    """Times versions by their names, with a noise of 0.5 %; ``lucky`` gains 5 % in the race alone."""

    us: Mapping[str, float]
    verdicts: Mapping[str, Checked | Eliminated] = field(default_factory=dict)
    on_fresh_inputs: Mapping[str, Checked] = field(default_factory=dict)
    fallen: Mapping[str, Eliminated] = field(default_factory=dict)
    seed: int = 7
    raced: list[list[str]] = field(default_factory=list)
    confirmed: list[tuple[str, int]] = field(default_factory=list)
    draws: int = 0

    def _samples(self, name: str, rounds: int, factor: float = 1.0) -> tuple[float, ...]:
        self.draws += 1
        noise = np.random.default_rng(self.draws).normal(1.0, 0.005, rounds)
        return tuple(float(one) for one in self.us[name] * factor * noise)

    def verify(self, version: Entrant, workload: str, seed: int | None = None) -> Checked | Eliminated:
        return self.verdicts.get(version.name, RIGHT)

    @contextmanager
    def preparing(self, workloads: Sequence[str]) -> Iterator[None]:
        yield

    def race(self, workload: str, versions: Sequence[Entrant]) -> RaceResult:
        self.raced.append([one.name for one in versions])
        return RaceResult(
            tuple(
                Finisher(
                    one.name, "tied", "", measured_of(self._samples(one.name, 60, 0.95 if one.name == "lucky" else 1.0))
                )
                for one in versions
                if one.name not in self.fallen
            ),
            tuple(self.fallen.values()),
        )

    def confirm(
        self, workload: str, candidate: Entrant, incumbent: Entrant, baseline: Entrant, seed: int, look: PlannedLook
    ) -> Confirmation | Eliminated:
        self.confirmed.append((candidate.name, seed))
        if candidate.name in self.on_fresh_inputs and seed != self.seed:
            bad = self.on_fresh_inputs[candidate.name]
            return Eliminated(candidate.name, f"on fresh inputs: {bad.reason}", bad)
        names = (candidate.name, incumbent.name, incumbent.name, baseline.name)
        return Confirmation(
            *(self._samples(name, look.budget.rounds) for name in names),
            (look.budget.rounds // look.captures,) * look.captures, RIGHT, seed,
        )  # fmt: skip


@dataclass
class Interpreter:
    """Says of each version what it is told to; ``asked`` remembers of whom."""

    verdicts: Mapping[str, Checked] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def verdict(self, variant: Variant) -> Checked:
        self.asked.append(variant.version.name)
        return self.verdicts.get(variant.version.name, RIGHT)


def variant(name: str) -> Variant:
    made = compiled()
    return replace(made, value=name, version=KernelVersion(name, {"ops.py": f"{name}/ops.py"}))


def gate_on(arena: Arena, interpreter: Interpreter | None = None) -> MeasuredGate:
    """A gate that has judged the baseline of 100 µs."""
    made = compiled()
    workloads = made.task.selected(None)
    bounds = {one.name: bound_of(made.task, one, default_board("sm_90")) for one in workloads}
    gate = MeasuredGate(arena, interpreter or Interpreter(), workloads, bounds, fresh="1")  # type: ignore[arg-type]
    assert not isinstance(gate.baseline(variant("baseline")), str)
    return gate


def judge(gate: MeasuredGate, variants: Sequence[Variant], incumbent: Variant) -> Judged:
    """The stages, as the loop runs them."""
    confirmed = gate.confirm(gate.ranking(incumbent).race(variants), incumbent)
    return confirmed if isinstance(confirmed, Judged) else gate.decide(confirmed)


def test_the_fastest_right_one_is_confirmed_and_kept() -> None:
    arena = Arena({"baseline": 100.0, "a": 95.0, "b": 90.0})
    judged = judge(gate_on(arena), [variant("a"), variant("b")], variant("baseline"))
    assert (judged.best.value, judged.keep, judged.correctness) == ("b", True, "PASS")
    assert arena.raced[-1] == ["baseline", "a", "b"]
    assert {name for name, _ in arena.confirmed[1:]} == {"b"}
    (outcome,) = judged.outcomes
    assert outcome.ratio is not None and outcome.ratio.high < 0.95


def test_a_confirmation_draws_inputs_that_the_run_has_not_used() -> None:
    """trust.md 24: never the seed of the run."""
    arena = Arena({"baseline": 100.0, "a": 90.0})
    gate = gate_on(arena)
    for _ in range(2):
        judge(gate, [variant("a")], variant("baseline"))
    seeds = {seed for _, seed in arena.confirmed[1:]}
    assert len(seeds) == 2 and arena.seed not in seeds


def test_what_was_only_lucky_in_the_race_is_not_kept() -> None:
    """X-14: the race picks, and what it says of its pick is flattered."""
    judged = judge(gate_on(Arena({"baseline": 100.0, "lucky": 100.0})), [variant("lucky")], variant("baseline"))
    assert not judged.keep
    assert "no gain" in judged.reason


def test_without_a_gain_in_the_race_nothing_is_confirmed() -> None:
    arena = Arena({"baseline": 100.0, "a": 104.0, "b": 102.0})
    judged = judge(gate_on(arena), [variant("a"), variant("b")], variant("baseline"))
    assert not judged.keep and judged.best.value == "b"
    assert len(arena.confirmed) == 1  # of the baseline itself
    assert judged.reason.startswith("no gain in the race")


@pytest.mark.parametrize(("fallen", "status"), [(wrong_after("a", "faster than the board"), "wrong"),
                                                (Eliminated("a", "a hang", stage="race"), "crashed")])  # fmt: skip
def test_what_falls_in_the_race_is_an_attempt_with_the_reason(fallen: Eliminated, status: str) -> None:
    """trust.md 12, 23, 34."""
    arena = Arena({"baseline": 100.0, "a": 1.0, "b": 90.0}, fallen={"a": fallen})
    judged = judge(gate_on(arena), [variant("a"), variant("b")], variant("baseline"))
    assert (judged.best.value, judged.keep) == ("b", True)
    assert {(one.value, one.status) for one in judged.attempts} == {("a", status), ("b", "raced")}
    assert fallen.reason in [one.reason for one in judged.attempts]


def test_what_is_wrong_is_never_raced() -> None:
    arena = Arena({"baseline": 100.0, "wrong": 10.0, "a": 90.0}, {"wrong": WRONG})
    judged = judge(gate_on(arena), [variant("wrong"), variant("a")], variant("baseline"))
    assert judged.keep and judged.best.value == "a"
    assert all("wrong" not in names for names in arena.raced)
    assert {one.value: one.status for one in judged.attempts} == {"wrong": "wrong", "a": "raced"}


@pytest.mark.parametrize(
    ("verdict", "crashed"), [(WRONG, False), (Eliminated("a", "no answer for 30 s: a kernel hangs"), True)]
)
def test_where_nothing_is_right_there_is_no_race(verdict: Checked | Eliminated, crashed: bool) -> None:
    """P-21: reverted at once, without a benchmark; P-11: a hang is a crash."""
    arena = Arena({"baseline": 100.0}, {"a": verdict})
    judged = judge(gate_on(arena), [variant("a")], variant("baseline"))
    assert (judged.keep, judged.crashed, judged.correctness) == (False, crashed, "FAIL")
    assert not arena.raced


def test_what_the_interpreter_refuses_gives_way_to_the_next() -> None:
    """trust.md 6: right on the workloads' shapes, wrong on others."""
    arena = Arena({"baseline": 100.0, "fast": 80.0, "sound": 90.0})
    interpreter = Interpreter({"fast": WRONG})
    judged = judge(gate_on(arena, interpreter), [variant("fast"), variant("sound")], variant("baseline"))
    assert judged.keep and judged.best.value == "sound"
    assert {one.value: one.status for one in judged.attempts}["fast"] == "wrong"


@pytest.mark.parametrize(
    ("of_candidate", "of_baseline", "kept"),
    [
        (Checked("unverified", "window: not run within 20 s", None, ("M=1,N=5",)), RIGHT, False),
        (Checked("unverified", "an operation that is not implemented"), RIGHT, False),
        (Checked("unverified", "not implemented"), Checked("unverified", "not implemented"), True),
    ],
    ids=["out of time", "none looked at", "nor of the baseline"],
)
def test_what_the_interpreter_cannot_say(of_candidate: Checked, of_baseline: Checked, kept: bool) -> None:
    arena = Arena({"baseline": 100.0, "a": 90.0})
    interpreter = Interpreter({"a": of_candidate, "baseline": of_baseline})
    judged = judge(gate_on(arena, interpreter), [variant("a")], variant("baseline"))
    assert judged.keep is kept
    assert judged.correctness == ("PASS" if kept else "unverified")


def test_wrong_on_fresh_inputs_is_not_kept() -> None:
    arena = Arena({"baseline": 100.0, "a": 90.0}, on_fresh_inputs={"a": WRONG})
    judged = judge(gate_on(arena), [variant("a")], variant("baseline"))
    assert (judged.keep, judged.correctness) == (False, "FAIL")
    assert "on fresh inputs" in judged.reason


def test_slower_than_the_baseline_by_more_than_two_percent_is_not_kept() -> None:
    """P-12, X-15: faster than the incumbent, but the incumbent had drifted."""
    arena = Arena({"baseline": 100.0, "incumbent": 110.0, "a": 104.0})
    judged = judge(gate_on(arena), [variant("a")], variant("incumbent"))
    assert not judged.keep and "baseline" in judged.reason


def test_a_baseline_that_is_wrong_ends_before_anything_is_tried() -> None:
    made = compiled()
    gate = MeasuredGate(Arena({"baseline": 100.0}, {"baseline": WRONG}), Interpreter(), made.task.selected(None), {}, 1)  # type: ignore[arg-type]
    told = gate.baseline(variant("baseline"))
    assert isinstance(told, str) and "should be 6" in told
