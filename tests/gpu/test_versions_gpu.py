"""Versions of one kernel on a GPU: equal ones tie, a wrong one is found, one that hangs is survived."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tilewright.candidate.client import Candidates
from tilewright.hardware.gpu import detect
from tilewright.optimize.attempting import Builder
from tilewright.optimize.gates.arena import PLAN, Arena, Confirmation, Confirmations, Entrant, PlannedLook, confirm
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Checked
from tilewright.task.loading import load_task, where_is
from tilewright.worker.client import Eliminated
from tilewright.worker.messages import InputsReady, PrepareInputs

TEXT = """\
import cuda.tile as ct
import tilewright as tw

TILE = 1024
TRIPS = 2000

@ct.kernel
def double(x, y, TRIPS: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0),), (TILE,))
    value = tile * 0.0 + 3.0
    for _ in range(TRIPS):
        value = value * 0.5 + 0.25
    ct.store(y, (ct.bid(0),), tile * (value * 4.0))

task = tw.Task(
    name="double",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, N, config: tw.Launch(double, (N // TILE,), (x, y, TRIPS)),
    flops=lambda N: N,
    independent=("N",),
    space=tw.Space(constants={"TILE": (TILE,)}, shipped={"TILE": TILE}),
    workloads={"small": {"N": 64 * TILE}, "large": {"N": 4096 * TILE}},
)
"""
FASTER = ("TRIPS = 2000", "TRIPS = 1000")
WRONG = ("value * 4.0", "value * 4.004")
CRASHES = ("ct.store(y, (ct.bid(0),), tile", "ct.scatter(y, (ct.arange(TILE, dtype=ct.int32) + 2000000000,), tile")
UNCHECKED = ("(value * 4.0))", "(value * 4.0), check_bounds=False)")
HANGS = (
    "    ct.store(y, (ct.bid(0),), tile * (value * 4.0))",
    """    n = 0
    while n < 1:
        tile = tile + value
        ct.store(y, (ct.bid(0),), tile)
        if ct.num_blocks(0) < 0:
            n = n + 1""",
)
LOOK = PlannedLook(10, Budget(100, 2.0, 40))

Make = Callable[..., Entrant]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    folder = tmp_path_factory.mktemp("versions")
    file = folder / "double.py"
    file.write_text(TEXT)
    task, gpu = load_task(str(file)), detect()
    assert gpu is not None
    with Candidates([file]) as candidates:
        builder = Builder(candidates, task, where_is(task), gpu.board, task.selected(None), folder / "copies")

        def make(name: str, *changes: tuple[str, str]) -> Entrant:
            text = TEXT
            for before, after in changes:
                assert before in text
                text = text.replace(before, after)
            return builder.build_one(name, {file: text}).entrant

        yield make


@pytest.fixture
def arena(made: Make) -> Iterator[Arena]:
    base = made("baseline")
    file = next(iter(base.files))
    with Arena(load_task(file), f"{file}:double", base, Policy(), 5) as one:
        one.session.silence = 10.0
        yield one


def test_two_versions_are_verified_and_raced(arena: Arena, made: Make) -> None:
    base, faster, same = made("baseline"), made("faster", FASTER), made("same")
    for workload in ("small", "large"):
        for version in (base, faster, same):
            checked = arena.verify(version, workload)
            assert isinstance(checked, Checked) and checked.verdict == "correct", checked
        race = arena.race(workload, [base, faster, same])
        assert not race.eliminated
        times = {one.name: one.measured.us for one in race.raced if one.measured}
        assert times["faster"] < 0.9 * times["baseline"]


def test_a_faster_version_is_kept_and_an_identical_one_is_not(arena: Arena, made: Make) -> None:
    """P-22; the identical one is another file with the same text."""
    base, workloads = made("baseline"), ("small", "large")
    faster = confirm(arena, workloads, made("faster", FASTER), base, base, 101)
    assert isinstance(faster, Confirmations) and faster.decision.keep, faster
    same = confirm(arena, workloads, made("same"), base, base, 102)
    assert isinstance(same, Confirmations) and not same.decision.keep, same
    assert all(one.verdict in ("same", "undecided") for one in same.decision.by_workload.values())
    slower = confirm(arena, workloads, base, made("faster", FASTER), base, 103)
    assert isinstance(slower, Confirmations) and slower.decision.decided and not slower.decision.keep


def test_a_confirmation_has_pairs_of_all_three(arena: Arena, made: Make) -> None:
    """X-15, trust.md 24, 25: incumbent, its copy and the baseline in the same rounds, with the monitor's record."""
    found = arena.confirm("small", made("faster", FASTER), made("same"), made("baseline"), 104, LOOK)
    assert isinstance(found, Confirmation)
    assert {len(us) for us in (found.candidate_us, found.incumbent_us, found.copy_us, found.baseline_us)} == {100}
    assert found.incumbent_us != found.baseline_us
    assert found.monitors[0]["nvml"] and found.checked.verdict == "correct"
    assert found.captures == (10,) * 10 and abs(found.noise.centre - 1) < 0.03


def test_captures_leave_nothing_behind(arena: Arena, made: Make) -> None:
    """trust.md 42: each capture loads its own code and makes its own graphs; all of it is given back."""
    free = []
    for seed in (105, 106):
        found = arena.confirm("small", made("faster", FASTER), made("same"), made("baseline"), seed, PLAN[2])
        assert (
            isinstance(found, Confirmation) and 16 <= len(found.captures) <= PLAN[2].captures
        )  # as many as its time allows
        free.append(pytest.importorskip("torch").cuda.mem_get_info()[0])
    assert free[0] - free[1] < 64 << 20


def test_a_wrong_version_is_incorrect_and_not_confirmed(arena: Arena, made: Make) -> None:
    """P-21: by the baseline's reference, whatever the version's file says of it."""
    lying = made("wrong", WRONG, ("reference=lambda x: 2 * x", "reference=lambda x: 2.002 * x"))
    checked = arena.verify(lying, "small")
    assert isinstance(checked, Checked) and checked.verdict == "incorrect"
    fallen = confirm(arena, ["small"], lying, made("baseline"), made("baseline"), 105)
    assert isinstance(fallen, Eliminated) and fallen.checked is not None


@pytest.mark.parametrize(("name", "changes"), [("hangs", (HANGS,)), ("crashes", (CRASHES, UNCHECKED))])
def test_a_version_that_breaks_the_worker_falls_and_the_run_goes_on(
    arena: Arena, made: Make, name: str, changes: tuple[tuple[str, str], ...]
) -> None:
    """trust.md 14, 29."""
    base, broken = made("baseline"), made(name, *changes)
    assert isinstance(arena.verify(base, "small"), Checked)
    fallen = arena.verify(broken, "small")
    assert isinstance(fallen, Eliminated) and fallen.name == name, fallen
    race = arena.race("small", [base, made("faster", FASTER), broken])
    assert [one.name for one in race.eliminated] == [name] and len(race.raced) == 2
    assert isinstance(arena.verify(base, "small"), Checked)


def test_workloads_stay_prepared_side_by_side(arena: Arena, made: Make) -> None:
    for _ in range(2):
        for workload in ("small", "large"):
            arena.client.prepare(workload)
    answer = arena.session.run(PrepareInputs("small", 5)).answer
    assert isinstance(answer, InputsReady) and answer.new is False
