"""The race of two versions calls no noise a win. The times are simulated; the races of real programs are in bench/."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from tilewright.program.command import ProgramCommand
from tilewright.program.copies import Startable
from tilewright.program.race import FIRST_LOOK, TAIL, ProgramRace, looks, pairs_at_once, raced, time_us
from tilewright.program.run import ProgramFailed, ProgramRun

VERSIONS = {name: [ProgramCommand(("python", f"{name}.py"), Path("/"))] for name in ("before", "after")}


Run: TypeAlias = Callable[[Startable], "ProgramRun | ProgramFailed"]


def each_by(run: Run) -> Callable[[Sequence[Startable]], list[ProgramRun | ProgramFailed]]:
    return lambda programs: [run(program) for program in programs]


class SimulatedMachine:
    """Runs programs on a machine whose speed drifts, where a neighbour comes and goes for several runs, where some runs
    are much slower, and where the steps of one run share a factor. ``ratio``: after / before."""

    def __init__(self, seed: int, ratio: float = 1.0) -> None:
        self.rng, self.ratio, self.drift, self.neighbour, self.seconds = random.Random(seed), ratio, 1.0, 1.0, 0.0
        self.order: list[str] = []

    def __call__(self, program: object) -> ProgramRun:
        name = str(program).split()[1].removesuffix(".py")
        self.order.append(name)
        self.drift *= 1.0 + self.rng.gauss(0.002, 0.01)
        if self.rng.random() < 0.15:
            self.neighbour = self.rng.choice((1.0, 1.3, 2.0))
        of_run = self.drift * self.neighbour * self.rng.lognormvariate(0.0, 0.03) * (1 + (self.rng.random() < 0.05))
        us = 1000.0 * of_run * (self.ratio if name == "after" else 1.0)
        self.seconds += 10.0
        steps = (us * 5, *(us * self.rng.lognormvariate(0.0, 0.1) for _ in range(12)))
        return ProgramRun("optimizer step", 14, "steps", steps, 10.0, "cpu")


def race(machine: SimulatedMachine, seed: int, rounds: int = 25, seconds: float = 1e9) -> ProgramRace:
    done = raced(VERSIONS, each_by(machine), rounds=rounds, seconds=seconds, seed=seed, now=lambda: machine.seconds)
    assert isinstance(done, ProgramRace)
    return done


def test_a_short_race_comes_to_its_first_look() -> None:
    """Each pair takes 20 s. 100 s hold five, and six decide."""
    assert race(SimulatedMachine(3, ratio=0.5), 5, seconds=100.0).rounds == FIRST_LOOK
    assert race(SimulatedMachine(3, ratio=0.5), 5, seconds=45.0).rounds < FIRST_LOOK


def test_a_race_never_begins_a_pair_that_would_pass_its_limit() -> None:
    """Each pair takes 20 s. The time to the first look is longer than what is left."""
    machine = SimulatedMachine(3, ratio=0.5)
    done = raced(VERSIONS, each_by(machine), rounds=25, seconds=1e9, most=90.0, seed=5, now=lambda: machine.seconds)
    assert isinstance(done, ProgramRace) and machine.seconds == 80.0
    assert (done.decided, done.ratio.decided) == ("tied", False) and "too few to tell" in done.reason


def test_the_check_beside_the_first_pair_is_no_time_of_the_race() -> None:
    """The first pair takes 60 s longer, since a change is checked beside it. 150 s hold seven pairs of 20 s."""
    machine, checked = SimulatedMachine(3, ratio=0.5), list[float]()

    def run(programs: Sequence[Startable]) -> list[ProgramRun | ProgramFailed]:
        if len(machine.order) == 2 and not checked:  # after the warm-up
            checked.append(60.0)
            machine.seconds += 60.0
        return [machine(program) for program in programs]

    given = {"rounds": 25, "seconds": 75.0, "seed": 5, "now": lambda: machine.seconds, "aside": lambda: sum(checked)}
    done = raced(VERSIONS, run, **given)
    assert isinstance(done, ProgramRace) and done.rounds == FIRST_LOOK
    machine, checked = SimulatedMachine(3, ratio=0.5), list[float]()
    done = raced(VERSIONS, run, **{**given, "aside": lambda: 0.0})
    assert isinstance(done, ProgramRace) and done.rounds < FIRST_LOOK


def test_equal_versions_are_seldom_called_different() -> None:
    """300 races; promised is half of the 5 % that are allowed here."""
    decided = [race(SimulatedMachine(seed), seed + 1000).decided for seed in range(300)]
    assert decided.count("faster") <= 0.05 * 300
    assert decided.count("slower") <= 0.05 * 300
    assert sum(tail for _, tail in looks(25)) <= TAIL * (1 + 1e-9)


def test_a_real_difference_is_found_and_ends_the_race_early() -> None:
    faster = [race(SimulatedMachine(seed, 0.8), seed) for seed in range(50)]
    assert (
        sum(each.decided == "faster" for each in faster) >= 40
    )  # a fifth of the runs is much slower for another reason
    assert sum(each.rounds for each in faster) / 50 < 13
    assert all(each.ratio.high < 1.0 for each in faster if each.decided == "faster")
    slower = [race(SimulatedMachine(seed, 1.25), seed).decided for seed in range(50)]
    assert slower.count("slower") >= 40


def test_the_progress_of_a_race_goes_up_to_its_end_and_shows_no_unknown_ratio() -> None:
    machine, shown = SimulatedMachine(0, 0.5), list[tuple[int, int | None, str]]()

    def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
        shown.append((done, total, note))

    done = raced(VERSIONS, each_by(machine), rounds=25, seconds=1e9, seed=0, progress=progress)
    assert isinstance(done, ProgramRace) and done.rounds < 25
    assert [done for done, _, _ in shown] == sorted(done for done, _, _ in shown)
    assert shown[-1][:2] == (done.rounds, done.rounds) and str(done.ratio) in shown[-1][2]
    assert not any("unknown" in note for _, _, note in shown)


def test_versions_go_first_equally_often_and_a_first_pair_does_not_count() -> None:
    machine = SimulatedMachine(0)
    done = race(machine, 3, rounds=5)
    first = machine.order[::2]
    assert len(machine.order) == 12 and done.rounds == 5
    assert first.count("before") == first.count("after") == 3
    assert (done.decided, done.ratio.decided) == ("tied", False)
    assert "5 pairs of runs are too few" in done.reason


def test_runs_that_are_started_together_go_on_in_random_order_up_to_the_next_look() -> None:
    """With four copies of each version: 4 pairs, then the 2 that are missing for the first look at 6."""
    machine, batches = SimulatedMachine(0, 0.5), list[int]()

    def run(programs: Sequence[Startable]) -> list[ProgramRun | ProgramFailed]:
        batches.append(len(programs))
        return [machine(program) for program in programs]

    versions = {name: 4 * copies for name, copies in VERSIONS.items()}
    done = raced(versions, run, rounds=25, seconds=1e9, seed=1, warm_up=False)
    assert isinstance(done, ProgramRace) and (done.decided, done.rounds, batches) == ("faster", 6, [8, 4])
    assert len({tuple(machine.order[at : at + 2]) for at in range(0, 12, 2)}) == 2


def test_so_many_runs_start_together_as_the_memory_holds() -> None:
    def run(host: int, **gpu: int) -> ProgramRun:
        return ProgramRun("optimizer step", 20, "steps", (1.0,), 2.0, "cpu", memory={"host": host, **gpu})

    assert 1 <= pairs_at_once(run(1)) <= 6
    assert pairs_at_once(run(1), run(1 << 50)) == 0
    assert pairs_at_once(run(1, **{"gpu": 30 << 30, "gpu, free": 50 << 30})) == 1
    assert pairs_at_once(run(1, **{"gpu": 50 << 30, "gpu, free": 30 << 30})) == 0
    assert pairs_at_once(replace(run(1), unit="process")) == 0
    two = replace(run(1), processes=2)
    assert pairs_at_once(two) == 0, "their processes may meet those of another run"
    assert 1 <= pairs_at_once(two, apart=True) <= max(1, (os.cpu_count() or 1) // 4)


def test_the_warm_up_of_a_run_is_left_out() -> None:
    assert time_us(ProgramRun("forward call", 9, "", (900.0, 500.0, *[100.0] * 6), 1.0, "cpu")) == 100.0
    assert time_us(ProgramRun("process", 0, "", (), 2.0, "cpu")) == 2e6


def test_a_race_ends_when_its_time_is_up() -> None:
    """A pair takes 20 s; the looks are at 6 and 13 pairs, and eight pairs fit besides the warm-up."""
    machine = SimulatedMachine(0)
    assert race(machine, 0, seconds=185.0).rounds == 8
    late = raced(VERSIONS, each_by(SimulatedMachine(0)), rounds=24, seconds=-1.0, seed=0)
    assert isinstance(late, ProgramFailed) and late.stage == "race"


def test_equal_times_are_tied() -> None:
    steady = ProgramRun("process", 0, "", (), 2.0, "cpu")
    done = raced(VERSIONS, each_by(lambda program: steady), rounds=24, seconds=1e9, seed=0)
    assert isinstance(done, ProgramRace)
    assert (done.decided, done.rounds) == ("tied", 6)


@pytest.mark.parametrize("which", ["before", "after"])
def test_a_failed_run_fails_the_race(which: str) -> None:
    def run(program: object) -> ProgramRun | ProgramFailed:
        if f"{which}.py" in str(program):
            return ProgramFailed("exit", "the program ended with exit code 1: out of memory", 1)
        return ProgramRun("process", 0, "", (), 2.0, "cpu")

    done = raced(VERSIONS, each_by(run), rounds=24, seconds=1e9, seed=0)
    assert done == ProgramFailed("exit", f"{which}: the program ended with exit code 1: out of memory", 1)


def test_steps_of_another_kind_are_not_compared() -> None:
    def run(program: object) -> ProgramRun:
        return ProgramRun("process" if "after" in str(program) else "forward call", 9, "", (1.0,), 2.0, "cpu")

    done = raced(VERSIONS, each_by(run), rounds=24, seconds=1e9, seed=0)
    assert isinstance(done, ProgramFailed) and "is a forward call" in done.reason
