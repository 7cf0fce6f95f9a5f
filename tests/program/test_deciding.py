"""What is kept, as a pure function of outputs, race and operations."""

from __future__ import annotations

import pytest

from tilewright.program.deciding import after_the_race, before_the_race, counted, did_not_run
from tilewright.program.outputs import ComparedRuns, SameOutputs
from tilewright.program.race import ProgramRace, Speed
from tilewright.program.run import ProgramFailed
from tilewright.race.interval import Interval

EQUAL = ComparedRuns("equal", "bit by bit")
RAN = counted({"aten::bmm": 4}, {"aten::bmm": 2, "aten::sdpa": 1}, ("sdpa",), ("bmm",))


def raced(low: float, high: float, decided: Speed) -> ProgramRace:
    ratio = Interval(low, (low + high) / 2, high, 0.99, 9)
    return ProgramRace(ratio, 20.0, 20.0 * ratio.centre, {}, 9, decided, "measured")


@pytest.mark.parametrize(
    ("low", "high", "decided", "proposed", "asked"),
    [
        (0.7, 0.8, "faster", True, True),
        (0.97, 1.04, "tied", False, True),
        (1.01, 1.04, "slower", False, True),
        (1.04, 1.2, "slower", False, True),  # perhaps more than 5 % slower, but not surely
        (1.06, 1.2, "slower", False, False),
    ],
)
def test_a_proposed_change_must_be_faster_and_an_asked_one_not_clearly_slower(
    low: float, high: float, decided: Speed, proposed: bool, asked: bool
) -> None:
    race = raced(low, high, decided)
    assert (after_the_race(race, False).kept, after_the_race(race, True).kept) == (proposed, asked)
    for verdict in (after_the_race(race, False), after_the_race(race, True)):
        assert verdict.kept or (verdict.failed_at, verdict.why) == ("validate", "applied but no gain")


@pytest.mark.parametrize("verdict", ["equal", "within tolerance"])
def test_right_outputs_are_raced(verdict: SameOutputs) -> None:
    assert before_the_race(None, ComparedRuns(verdict, ""), RAN) is None


@pytest.mark.parametrize(
    ("failed", "compared", "at", "why", "said"),
    [
        (None, ComparedRuns("different", "step 1 loss"), "correctness", "inapplicable", "step 1 loss"),
        (None, ComparedRuns("unverified", "no outputs"), "correctness", "blocked", "no outputs"),
        (ProgramFailed("exit", "ended", 1, "ValueError: x"), None, "implement", "inapplicable", "ValueError: x"),
        (ProgramFailed("time limit", "300 s"), None, "implement", "blocked", "300 s"),
    ],
)
def test_what_is_not_right_is_not_raced(
    failed: ProgramFailed | None, compared: ComparedRuns | None, at: str, why: str, said: str
) -> None:
    verdict = before_the_race(failed, compared, RAN)
    assert verdict is not None
    assert (verdict.kept, verdict.failed_at, verdict.why) == (False, at, why)
    assert said in verdict.reason and "\n" not in verdict.reason


def test_a_race_that_is_too_short_is_no_verdict_on_a_proposed_change() -> None:
    ratio = Interval(0.0, 0.8, float("inf"), 0.99, 3)
    race = ProgramRace(ratio, 20.0, 16.0, {}, 3, "tied", "3 pairs of runs are too few to tell")
    verdict = after_the_race(race, False)
    assert (verdict.kept, verdict.why) == (False, "blocked") and "too few to tell" in verdict.reason
    assert after_the_race(race, True).kept


def test_a_failed_race_is_no_verdict_on_the_change() -> None:
    verdict = after_the_race(ProgramFailed("race", "too little time"), False)
    assert (verdict.kept, verdict.failed_at, verdict.why) == (False, "validate", "blocked")


def test_the_operations_must_show_that_the_changed_code_ran() -> None:
    same = counted({"aten::bmm": 4}, {"aten::bmm": 4}, ("sdpa",), ("bmm",))
    verdict = before_the_race(None, EQUAL, same)
    assert verdict is not None and (verdict.failed_at, verdict.kept) == ("implement", False)
    assert "bmm (4 before, 4 after)" in verdict.reason
    assert not did_not_run(RAN) and not did_not_run(())
    only_gone = counted({"aten::item": 4}, {"aten::item": 0}, ("never",), ("item",))
    assert not did_not_run(only_gone)  # what a change becomes depends on the device; one pattern is enough
