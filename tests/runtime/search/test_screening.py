"""Which trials the search verifies and races: the rules and the prediction of `tune`, on work that nobody declares."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda.tile as ct
import pytest
from tests.compile.test_screen_recorded import NAMES, ROOT, case_of, sweeps
from tests.processes import PATIENCE, until
from tests.runtime.caller_kernels import (
    CpuMachine,
    double_in_place,
    doubles,
    doubles_in_place,
    found,
    scale,
    space,
    torch,
    vectors,
)

from tilewright.compile.screen import RACED
from tilewright.hardware.architectures import board
from tilewright.hardware.executions import Work
from tilewright.inspect.work import count_launch
from tilewright.languages.cutile import private as cutile_private
from tilewright.languages.cutile.cutile import CuTile
from tilewright.machine_code import cubin
from tilewright.race.rules import Policy
from tilewright.runtime.search import building, screening
from tilewright.runtime.search.device import Shot
from tilewright.runtime.search.searching import SearchResult
from tilewright.runtime.search.trials import Trial
from tilewright.runtime.search.triton_trials import TritonTrial
from tilewright.task.loading import load_task
from tilewright.tileir.run.launching import Launcher, Runnable
from tilewright.worker.client import RaceClient

MANY = [{"TILE": tile, "blocks": blocks} for tile in (64, 128, 256, 512) for blocks in (16, 64, 256, 1024)]
"""More than are raced: four codes, each under four grids."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutile_private, "cache_directory", lambda: None)


def searched(machine: CpuMachine, configs: Any = MANY, kernel: Any = scale) -> SearchResult:
    x, y = vectors()
    return found(
        configs, machine, lambda config: (x, y, config["TILE"], 0), kernel, grid_fn=lambda config: (config["blocks"],)
    )


def test_the_best_predicted_and_the_shipped_one_are_verified_and_raced() -> None:
    machine = CpuMachine(doubles)
    result = searched(machine, [MANY[3], *MANY[:3], *MANY[4:]])
    assert len(machine.raced) <= RACED + 1 and machine.raced[0] == "TILE=64 blocks=1024"
    assert result.outcomes[0].status == "timed"
    pruned = [one for one in result.outcomes if one.status == "pruned"]
    assert len(pruned) == len(MANY) - len(machine.raced) and len(pruned) >= 5
    for one in pruned:
        assert "predicted" in one.reason and one.us is None and one.label not in machine.raced
    beyond = [one.reason for one in pruned if "were raced" in one.reason]
    assert all(reason.endswith(f"; the first {RACED} were raced") for reason in beyond) and beyond


@pytest.mark.parametrize("many", [False, True])
def test_trials_are_launched_while_the_work_is_counted_and_raced_afterwards(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting ends only after a second trial was verified. Where times are predicted, its stack chose it."""
    verified, counted, launched = threading.Event(), threading.Event(), set[str]()
    count = building.Building.counted

    def slowly(*given: Any) -> Any:
        assert verified.wait(PATIENCE), "nothing is launched before the work is counted"
        work = count(*given)
        counted.set()
        return work

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        doubles(trial, args)
        launched.add(trial.label)
        if len(launched) > 1:
            verified.set()

    class Machine(CpuMachine):
        def clock(self, shots: Sequence[Shot], policy: Policy) -> Any:
            assert counted.is_set(), "the race begins while the work is counted"
            return super().clock(shots, policy)

    monkeypatch.setattr(building.Building, "counted", slowly)
    result = searched(Machine(does), MANY if many else MANY[:3])
    assert any(one.status == "pruned" for one in result.outcomes) == many


def test_of_few_trials_nvdisasm_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer to start than to launch them."""
    monkeypatch.setattr(building, "read_all", lambda cubins: pytest.fail("nvdisasm is not needed"))
    machine = CpuMachine(doubles)
    searched(machine, MANY[: RACED + 1])
    assert len(machine.raced) == RACED + 1


@pytest.mark.parametrize("program", ["/nowhere/nvdisasm", "/bin/true"])
@pytest.mark.filterwarnings("ignore::tilewright.runtime.store.warn_once.TunedStoreWarning")
def test_without_nvdisasm_all_that_do_not_spill_are_raced(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubin, "find_nvdisasm", lambda: Path(program))
    machine = CpuMachine(doubles, {"TILE=128 blocks=64": 5.0})
    result = searched(machine)
    assert len(machine.raced) == len(MANY) and result.outcomes[result.best].label == "TILE=128 blocks=64"


@ct.kernel
def looked_up(x, y, TILE: ct.Constant[int], UNUSED: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row = ct.gather(x, ct.bid(0) * 0).astype(ct.int32)
    ct.store(y, (row,), ct.load(x, (row,), (TILE,)) * 2)


def test_where_work_depends_on_data_all_that_do_not_spill_are_raced() -> None:
    machine = CpuMachine(doubles)
    searched(machine, kernel=looked_up)
    assert len(machine.raced) == len(MANY)


def test_where_nothing_can_be_predicted_nvdisasm_reads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers that end before the count are read in full: the number of instructions then decides no tie."""
    searches: list[building.Building] = []
    assemble, read = CuTile.assemble, building.read_all
    read_in_full: list[int] = []

    def uncounted(self: building.Building, *_: Any) -> None:
        assert until(lambda: read_in_full)
        searches.append(self)

    def after_the_first(self: CuTile, lowered: Any, seconds: float) -> Any:
        built = assemble(self, lowered, seconds)
        if "_I64_" not in lowered.symbol:  # TILE=64, the first
            assert until(lambda: searches and not searches[0].predicts)
        return built

    def reading(cubins: Sequence[bytes]) -> Any:
        read_in_full.append(len(cubins))
        return read(cubins)

    monkeypatch.setattr(building.Building, "counted", uncounted)
    monkeypatch.setattr(CuTile, "assemble", after_the_first)
    monkeypatch.setattr(building, "read_all", reading)
    costs: list[int] = []
    race = RaceClient.race

    def raced(self: RaceClient, workload: str, contestants: Any, **rest: Any) -> Any:
        costs.extend(len(each.cost) for each in contestants)
        return race(self, workload, contestants, **rest)

    monkeypatch.setattr(RaceClient, "race", raced)
    machine = CpuMachine(doubles)
    searched(machine)
    assert read_in_full == [1] and len(machine.raced) == len(MANY) and set(costs) == {3}


def test_on_an_unknown_board_all_that_do_not_spill_are_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuMachine, "board", None)
    machine = CpuMachine(doubles)
    searched(machine)
    assert len(machine.raced) == len(MANY)


def test_those_that_are_wrong_leave_their_places_to_others() -> None:
    def does(trial: Any, args: Any) -> None:
        args[1].copy_(args[0] * (2.1 if trial.config["blocks"] == 16 and trial.config["TILE"] > 64 else 2))

    machine = CpuMachine(does)
    result = searched(machine)
    assert [one.status for one in result.outcomes].count("wrong") >= 1
    assert len(machine.raced) in (RACED, RACED + 1)


def test_a_time_that_the_board_cannot_reach_is_refused() -> None:
    """trust.md 23, in the caller's process: the race is run again without it."""
    x, y = vectors()
    machine = CpuMachine(doubles, {"TILE=128": 1e-4})
    result = found(space(64, 128, 256), machine, lambda c: (x, y, c["TILE"], 0))
    cheat = result.outcomes[1]
    assert (cheat.status, cheat.stage) == ("wrong", "race") and result.best == 0
    assert cheat.reason.startswith("measured ") and "but H200 needs at least 0.0008533 µs for its work" in cheat.reason
    assert machine.raced == ["TILE=64", "TILE=256"]


def test_a_limit_that_the_shipped_configuration_breaks_is_none() -> None:
    """Then the count is wrong, or the clock is."""
    x, y = vectors()
    machine = CpuMachine(doubles, {"TILE=64": 1e-4, "TILE=128": 0.5e-4})
    result = found(space(64, 128), machine, lambda c: (x, y, c["TILE"], 0))
    assert [one.status for one in result.outcomes] == ["timed", "timed"] and result.best == 1


def test_outputs_are_poisoned_before_each_timed_launch() -> None:
    """trust.md 38: a kernel that leaves out the work if the output already holds the answer."""
    x, y = vectors()
    held: list[bool] = []
    machine = CpuMachine(doubles)

    def does(trial: Any, args: Any) -> None:
        if machine.raced:
            held.append(torch.equal(args[1], args[0] * 2))
        doubles(trial, args)

    machine.does = does
    found(space(64, 128), machine, lambda c: (x, y, c["TILE"], 0))
    assert len(held) > 20 and not any(held) and bool((y == 7.0).all())


@pytest.mark.parametrize("late", [False, True])
def test_what_is_right_only_when_it_is_not_timed_is_not_the_best(late: bool) -> None:
    """trust.md 38: the winner's timed launch is judged too, and the race is run again without it."""
    x, y = vectors()
    machine = CpuMachine(doubles, {"TILE=128": 5.0, "TILE=256": 7.0})
    launches = {"TILE=128": 0}

    def does(trial: Any, args: Any) -> None:
        launches["TILE=128"] += trial.label == "TILE=128"
        if trial.label == "TILE=128" and machine.raced and (not late or launches["TILE=128"] > 10):
            return
        doubles(trial, args)

    machine.does = does
    result = found(space(64, 128, 256), machine, lambda c: (x, y, c["TILE"], 0))
    cheat = result.outcomes[1]
    assert (cheat.status, cheat.stage) == ("wrong", "race") and cheat.reason.startswith("after timing: 'y'[")
    assert result.best == 2 and machine.raced == ["TILE=64", "TILE=256"] and bool((y == 7.0).all())


def test_an_in_place_winner_is_right_after_timing() -> None:
    x, _ = vectors()
    before = x.clone()
    machine = CpuMachine(doubles_in_place, {"TILE=128": 5.0})
    result = found(space(64, 128), machine, lambda config: (x, config["TILE"]), double_in_place)
    assert result.best == 1 and result.outcomes[1].status == "timed" and torch.equal(x, before)


@pytest.mark.parametrize("place", range(len(NAMES)), ids=NAMES)
def test_on_recorded_sweeps_the_best_that_are_raced_hold_the_winner(place: int) -> None:
    """With the work as the search counts it: the best of them is within 1 % of the winner."""
    (name, recorded), on = sweeps()[place], board("H200")
    task = load_task(str(Path(ROOT) / "examples" / f"{name}.py"))
    arrays = task.arrays(recorded["dims"])
    runnable = Launcher(task, on).runnable(task.space.shipped, recorded["dims"], arrays)
    assert isinstance(runnable, Runnable)
    work = count_launch(runnable, arrays, PATIENCE, screening.COUNTED_BLOCKS)
    assert work is not None
    case = case_of(name, recorded, Work(work.flops, work.bytes, next(iter(work.dtypes), "float32"), work.written))
    assert case.stand_in(case.winner) in case.ranked
    assert case.regret(RACED) <= 1.01, case.line()


@pytest.mark.parametrize(("raced", "kept"), [(0, [0, 1]), (TritonTrial.raced_stack, [0, 1, 2, 3])])
def test_a_language_says_how_much_stack_is_raced(raced: int, kept: list[int]) -> None:
    """In the recorded races, cuTile kernels with more than 128 bytes are slow, and Triton kernels with 512 or more."""
    stacks = (0, 128, 136, 511, 512, 4096)
    ready: Any = {
        index: SimpleNamespace(code=SimpleNamespace(stack_bytes=stack), trial=SimpleNamespace(raced_stack=raced))
        for index, stack in enumerate(stacks)
    }
    order, out = screening._by_stack(ready, kept=0)
    assert order == kept and set(out) == set(range(6)) - set(kept)
    assert screening._by_stack(ready, kept=5)[0] == [*kept, 5], "what others are compared with is always raced"
