"""The arena with a worker process that measures nothing: versions fall, and the run goes on (trust.md 29, 34).

The process below answers like `bench.worker`, with the real race and a simulated clock. What a version does stands
in the symbol of its program: ``us=90`` is its true time, ``wrong``, ``hang``, ``crash``, ``unloadable`` what happens.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.optimize.seen import LookBack, LookedBack
from tests.processes import PATIENCE

from tilewright.errors import MachineError, TaskError
from tilewright.executors.local import Local
from tilewright.optimize.decide import LOOKS, following
from tilewright.optimize.gates.arena import Arena, Confirmation, Confirmations, Entrant, PlannedLook, confirm
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Checked
from tilewright.worker.client import Contestant, Eliminated, RaceResult
from tilewright.worker.messages import OpenTask, Program

SRC = str(Path(__file__).parents[2] / "src")
FAKE = f"""\
import dataclasses, os, sys, time
sys.path[:0] = [{SRC!r}, {str(Path(__file__).parent)!r}]
import numpy as np
from tilewright.race import protocol
from tilewright.records import Checked
from tilewright.testing.simulated import NoiseModel, SimulatedClock
from tilewright.worker.messages import *
from tilewright.worker.messages import OpenTask, Program
from seen import LookBack, LookedBack

def say(message):
    send(sys.stdout, message)

def of(source):
    return dict(part.split("=") if "=" in part else (part, "") for part in source.symbol.split("/") if part)

def ends(source, when):
    trouble = of(source)
    if trouble.get("hang") == when:
        time.sleep(3600)
    if trouble.get("crash") == when:
        print("illegal memory access", file=sys.stderr)
        os._exit(1)

opened = receive(sys.stdin)
say(Started())
ready, seeds, checks = set(), [], []
while (step := receive(sys.stdin)) is not None:
    if isinstance(step, PrepareInputs):
        if step.workload == "broken":
            say(Refused("the reference is one constant"))
            continue
        if step.workload == "huge":
            say(Broken("out of GPU memory", dead=False))
            continue
        seeds.append((step.seed, step.passing))
        key = (step.workload, step.seed)
        say(InputsReady((), key not in ready))
        ready.add(key)
    elif isinstance(step, LookBack):
        say(LookedBack(tuple(seeds), opened, tuple(checks)))
    elif isinstance(step, CheckOutputs):
        checks.append(of(step.source).get("name"))
        ends(step.source, "check")
        if "unloadable" in of(step.source):
            say(Broken("the driver refuses the launch", dead=False))
            continue
        wrong = of(step.source).get("wrong")
        bad = wrong == "always" or wrong == "fresh" and seeds[-1][1]
        word, reason = ("incorrect", "y at (0, 1)") if bad else ("correct", "")
        say(OutputsChecked(Checked(word, reason, None, ("seed",))))
    else:
        field, races = step.sources, isinstance(step, RaceField)
        base, careful = (step.shipped, step.careful) if races else (step.copied, False)
        for at, source in enumerate(field):
            say(Running(at))
            ends(source, "capture")
        if not careful:
            say(Running(None))
        for at, source in enumerate(field):
            if careful:
                say(Running(at))
            ends(source, "round")
        true_us = [float(of(source)["us"]) for source in (*field, field[base])]
        clock = SimulatedClock(true_us, NoiseModel(sigma=0.004), seed=step.policy.seed)
        rng = np.random.default_rng(step.policy.seed)
        if races:
            outcome = protocol.race(len(field), clock, step.policy, cost=[()] * len(field), shipped=base, rng=rng,
                                    on_look=lambda rounds, live, _: say(Advanced(rounds, live)))
            noise = protocol.aa_check(clock, base, len(field), 10, rng)
            after = "after timing: y" if of(field[outcome.winner]).get("wrong") == "later" else None
            say(FieldRaced(dataclasses.replace(outcome, noise=noise), {{}}, after))
        else:
            if "throttled" in of(field[0]):
                clock.noise = NoiseModel(disturbed=1.0)
            timed = protocol.interleaved(clock, protocol.Rounds(len(true_us)), step.budget, rng)
            after = "after timing: y" if of(field[0]).get("wrong") == "later" else None
            captures = (len(timed.rows) // step.captures,) * step.captures
            say(RoundsTimed(timed.samples_us, captures, tuple(timed.disturbances), {{"nvml": "none"}}, after))
"""

LOOK = PlannedLook(20, Budget(40, 10.0, 10))


def version(name: str, us: float = 100, trouble: str = "") -> Entrant:
    symbol = f"/name={name}/us={us}/{trouble}"
    contestant = Contestant(name, Program("", symbol, (1,), ()))
    return Entrant(name, {"/ops.py": symbol}, defaultdict(lambda: contestant))


BASE = version("baseline")


@pytest.fixture
def arena() -> Iterator[Callable[..., Arena]]:
    made: list[Arena] = []

    def make(trusted: bool = True, silence: float = PATIENCE, **more: Any) -> Arena:
        task: Any = SimpleNamespace(trusted=print if trusted else None)
        session = Local(None, [sys.executable, "-u", "-c", FAKE])
        session.silence = silence
        made.append(Arena(task, "/ops.py:task", BASE, Policy(), 3, session=session, **more))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


def seen(arena: Arena) -> LookedBack:
    answer = arena.session.run(LookBack()).answer
    assert isinstance(answer, LookedBack)
    return answer


def test_the_worker_opens_the_baseline(arena: Callable[..., Arena]) -> None:
    """What judges is the untouched code, whatever the user's file says meanwhile."""
    one = arena()
    one.verify(BASE, "w")
    assert seen(one).opened == OpenTask("/ops.py:task", tuple(BASE.files.items()))


def test_a_version_is_verified_once(arena: Callable[..., Arena]) -> None:
    one, candidate = arena(), version("1")
    assert one.verify(candidate, "w") == Checked("correct", "", None, ("seed",))
    assert one.verify(candidate, "w") == one.verify(candidate, "w")
    assert seen(one).checks == ("1",)
    one.verify(candidate, "w", seed=9)
    one.verify(candidate, "v")
    assert seen(one).checks == ("1",) * 3
    assert seen(one).seeds == ((3, False), (9, True), (3, False))


def test_without_a_trusted_implementation_the_baseline_is_compared_with(arena: Callable[..., Arena]) -> None:
    """The first correct outputs judge the whole of the next ones: not to be those of a candidate."""
    one = arena(trusted=False)
    one.verify(version("1"), "w")
    one.verify(version("2"), "w")
    one.verify(version("2"), "w", seed=9)
    assert seen(one).checks == ("baseline", "1", "2", "baseline", "2")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("crash=check", "verify: illegal memory access (exit code 1)"),
        ("hang=check", "verify: no answer for 4 s: a kernel hangs"),
        ("unloadable", "verify: the driver refuses the launch"),
    ],
)
def test_a_version_that_does_not_run_falls_and_the_next_is_verified(
    arena: Callable[..., Arena], trouble: str, reason: str
) -> None:
    one = arena(silence=4.0)
    out = one.verify(version("1", trouble=trouble), "w")
    assert isinstance(out, Eliminated) and out.reason == reason
    assert isinstance(one.verify(version("2"), "w"), Checked)


def test_wrong_outputs_are_a_verdict(arena: Callable[..., Arena]) -> None:
    checked = arena().verify(version("1", trouble="wrong=always"), "w")
    assert isinstance(checked, Checked) and checked.verdict == "incorrect"


def test_what_is_wrong_with_the_task_or_the_machine_is_raised(arena: Callable[..., Arena]) -> None:
    with pytest.raises(TaskError, match="one constant"):
        arena().verify(BASE, "broken")
    with pytest.raises(MachineError, match="huge could not be prepared on the GPU: out of GPU memory"):
        arena().verify(BASE, "huge")


def medians(race: RaceResult) -> dict[str, float]:
    return {one.name: round(one.measured.us) for one in race.raced if one.measured}


def test_a_race_times_all_and_drops_the_slow(arena: Callable[..., Arena]) -> None:
    race = arena().race("w", [BASE, version("1", 90), version("2", 300), version("3", 80)])
    assert medians(race) == {"baseline": 100, "1": 90, "2": 300, "3": 80}
    assert {one.name: one.state for one in race.raced} == {
        "baseline": "dropped", "1": "dropped", "2": "dropped", "3": "leader"
    }  # fmt: skip
    slow = race.raced[2].measured
    assert slow and len(slow.samples_us) <= 8
    assert race.record["policy"]["max_rounds"] == 200


@pytest.mark.parametrize("when", ["capture", "round"])
@pytest.mark.parametrize("how", ["crash", "hang"])
def test_a_race_goes_on_without_what_breaks_it(arena: Callable[..., Arena], how: str, when: str) -> None:
    """In a round of all nobody knows who it was: the race is run again one by one."""
    one = arena(silence=4.0)
    race = one.race("w", [BASE, version("1", 90), version("bad", 80, f"{how}={when}")])
    assert [fallen.name for fallen in race.eliminated] == ["bad"]
    assert race.eliminated[0].reason.startswith("race: ")
    assert medians(race) == {"baseline": 100, "1": 90}


def test_a_winner_that_is_wrong_after_timing_leaves(arena: Callable[..., Arena]) -> None:
    """trust.md 12."""
    race = arena().race("w", [BASE, version("1", 90), version("cheat", 50, "wrong=later")])
    assert race.eliminated == (
        Eliminated("cheat", "after timing: y", Checked("incorrect", "after timing: y")),
    )  # fmt: skip
    assert medians(race) == {"baseline": 100, "1": 90}


def too_fast(workload: str, contestant: Contestant, us: float) -> str | None:
    return f"{workload} takes the board 60 µs" if us < 60 else None


def test_a_version_faster_than_the_board_leaves(arena: Callable[..., Arena]) -> None:
    """trust.md 23: in the race, which is run again, and in the confirmation."""
    one, cheat = arena(too_fast=too_fast), version("cheat", 50)
    race = one.race("w", [BASE, version("1", 90), cheat])
    reason = "w takes the board 60 µs"
    assert race.eliminated == (Eliminated("cheat", reason, Checked("incorrect", reason)),)
    assert medians(race) == {"baseline": 100, "1": 90}
    assert one.confirm("w", cheat, BASE, BASE, 9, LOOK) == race.eliminated[0]


def test_without_the_incumbent_there_is_no_race(arena: Callable[..., Arena]) -> None:
    race = arena().race("w", [version("gone", 100, "crash=capture"), version("1", 90)])
    assert race.raced == () and [one.name for one in race.eliminated] == ["gone"]


def test_a_confirmation_pairs_candidate_incumbent_and_baseline(arena: Callable[..., Arena]) -> None:
    """X-15: both are kept in view; trust.md 24: and the incumbent against itself."""
    one = arena()
    found = one.confirm("w", version("2", 80), version("1", 90), BASE, 9, LOOK)
    assert isinstance(found, Confirmation)
    for us, true in zip(
        (found.candidate_us, found.incumbent_us, found.copy_us, found.baseline_us), (80, 90, 90, 100), strict=True
    ):
        assert len(us) == LOOK.budget.rounds and abs(sorted(us)[20] / true - 1) < 0.01
    assert found.captures == (2,) * 20 and found.noise.n == 20
    assert all(seed == (9, True) for seed in seen(one).seeds), "fresh inputs to verify and to time"
    twice = found.plus(found)
    assert len(twice.copy_us) == 80 == sum(twice.captures) and len(twice.monitors) == 2


def test_the_runs_own_inputs_stay_when_a_confirmation_uses_them(arena: Callable[..., Arena]) -> None:
    """As the baseline and the last incumbent do: else each next verification would compute the references anew."""
    one = arena()
    one.confirm("w", version("1", 90), BASE, BASE, one.seed, LOOK)
    assert all(seed == (one.seed, False) for seed in seen(one).seeds)


def test_an_incumbent_that_is_the_baseline_is_timed_once(arena: Callable[..., Arena]) -> None:
    found = arena().confirm("w", version("1", 90), replace(BASE, name="incumbent"), BASE, 9, LOOK)
    assert isinstance(found, Confirmation)
    assert found.baseline_us == found.incumbent_us != found.copy_us


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("wrong=fresh", "on fresh inputs: y at (0, 1)"),
        ("wrong=later", "after timing: y"),
        ("crash=check", "verify: illegal memory access (exit code 1)"),
        ("crash=round", "confirmation: illegal memory access (exit code 1)"),
        ("hang=capture", "confirmation: no answer for 4 s: a kernel hangs"),
        ("throttled", "confirmation: every round was disturbed: thermal throttling (simulated)"),
    ],
)
def test_a_candidate_may_fall_in_its_confirmation(arena: Callable[..., Arena], trouble: str, reason: str) -> None:
    one = arena(silence=4.0)
    fallen = confirm(one, ["v", "w"], version("bad", 50, trouble), BASE, BASE, 9)
    assert isinstance(fallen, Eliminated) and (fallen.name, fallen.reason) == ("bad", reason)
    assert (fallen.checked is not None) == ("wrong" in trouble)
    assert isinstance(one.confirm("w", version("1", 90), BASE, BASE, 10, LOOK), Confirmation)


def test_an_incumbent_that_falls_is_named(arena: Callable[..., Arena]) -> None:
    fallen = arena().confirm("w", version("1"), version("old", 90, "crash=capture"), BASE, 9, LOOK)
    assert isinstance(fallen, Eliminated) and fallen.name == "old"


@pytest.mark.parametrize(("us", "keep", "looks"), [(80, True, 1), (120, False, 1), (99.5, False, 3)])
def test_a_confirmation_takes_as_many_looks_as_it_needs(
    arena: Callable[..., Arena], us: float, keep: bool, looks: int
) -> None:
    found = confirm(arena(), ["v", "w"], version("1", us), BASE, BASE, 9)
    assert isinstance(found, Confirmations)
    assert found.decision.keep == keep, found.decision.reason
    captures = tuple(rounds for count, rounds in LOOKS[:looks] for _ in range(count))
    assert {one.captures for one in found.by_workload.values()} == {captures}
    assert {len(one.monitors) for one in found.by_workload.values()} == {looks}


def test_a_confirmation_counts_misses_as_decide_does(arena: Callable[..., Arena]) -> None:
    found = confirm(arena(), ["w"], version("1", 130), BASE, BASE, 9)
    assert isinstance(found, Confirmations)
    after = following(found.decision.keep, 1 - found.decision.overall.centre, "base", misses=1)
    assert "in a row" in str(after.stop_reason)
