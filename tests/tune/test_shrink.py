"""A-19, A-20, F-4: a tuned space becomes at most eight configurations; the gain over what ships is a number."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made_runs import MACHINE, times

import tilewright as tw
from tilewright.cli.tune_ending import last_line, next_steps
from tilewright.records import Bound, Candidate, Checked, Configuration, TuningResult, Workload, WorkloadResult
from tilewright.tune.advice import TuningAdvice
from tilewright.tune.as_json import to_json
from tilewright.tune.shrink import MOST, WITHIN, code, shrink

TILES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SPACE = tw.Space(constants={"TILE": TILES}, hints={"occupancy": (None, 2)}, shipped={"TILE": 16, "occupancy": None})
RIGHT, WRONG = Checked("correct", "as the reference"), Checked("incorrect", "y[3] is 7")
BOUND = Bound("memory", "made up", 1.0, 1.0, 1.0)


def config(tile: int) -> Configuration:
    return SPACE.shipped.replace(TILE=tile)


def workload(name: str, us: Mapping[int, float], wrong: tuple[int, ...] = ()) -> WorkloadResult:
    rows = [
        Candidate(config(tile), "timed", "", measured=times(time), checked=WRONG if tile in wrong else RIGHT)
        for tile, time in us.items()
    ]
    right = [row for row in rows if row.checked is RIGHT and row.measured]
    best = min(right, key=lambda row: row.measured.us if row.measured else 0.0)
    return WorkloadResult(Workload(name, {"N": 1}), BOUND, best, (), tuple(rows), SPACE.shipped, "fastest")


def result(*workloads: WorkloadResult) -> TuningResult:
    return TuningResult("scale", MACHINE, True, workloads, "run", {"total": 1.0})


@given(st.lists(st.dictionaries(st.sampled_from(TILES), st.floats(1.0, 2.0), min_size=1), min_size=1, max_size=12))
def test_the_shrunk_space_is_small_and_has_what_ships_and_wins(drawn: list[dict[int, float]]) -> None:
    made = result(*(workload(f"w{n}", us | {16: us.get(16, 2.0)}) for n, us in enumerate(drawn)))
    shrunk = shrink(made)
    kept = [each.configuration for each in shrunk.kept]
    assert kept[0] == SPACE.shipped and len(set(kept)) == len(kept) <= MOST
    winners = {each.best.configuration for each in made.workloads if each.best}
    if len(winners | {SPACE.shipped}) <= MOST and not shrunk.unserved:
        served = {name for each in shrunk.kept for name in each.serves}
        assert served == {each.workload.name for each in made.workloads}
    names: dict[str, tw.Space] = {}
    exec(f"import tilewright as tw\nspace = {code(shrunk, SPACE)}", names)
    assert names["space"].configurations(90, {}) == tuple(kept), "the text is the space"


def test_a_configuration_within_5_percent_stays_and_others_go() -> None:
    one = workload("one", {16: 200.0, 32: 100.0, 64: 103.0, 128: 120.0, 256: 90.0}, wrong=(256,))
    shrunk = shrink(result(one, workload("two", {16: 100.0, 32: 300.0, 128: 95.5})))
    assert {int(each.configuration["TILE"]): each.why for each in shrunk.kept} == {  # type: ignore[arg-type]
        16: "within 5 % on two",
        32: "wins one",
        128: "wins two",
        64: "within 5 % on one",
    }
    assert WITHIN == 1.05 and shrunk.unserved == ()


def test_the_gain_over_what_ships_is_in_json_and_on_the_last_line() -> None:
    made = result(workload("one", {16: 200.0, 32: 100.0}), workload("two", {16: 100.0, 32: 100.5}))
    plain = to_json(made)
    first, second = plain["workloads"]  # type: ignore[misc]
    assert first["speedup_over_shipped"] == pytest.approx(2.0, rel=0.02)
    assert first["shipped_us"] == pytest.approx(200.0, rel=0.02) and second["speedup_over_shipped"] == 1.0
    assert plain["speedup_over_shipped"] == pytest.approx(2.0**0.5, rel=0.02)
    assert last_line(made).startswith("correctness: PASS; speedup_over_shipped: 1.4")
    assert " over 2 workloads; shipped_us: one 2" in last_line(made)
    assert " over 1 workload; " in last_line(result(made.workloads[0]))


def test_what_was_not_measured_has_no_gain() -> None:
    lacking = result(workload("one", {32: 100.0}))
    assert to_json(lacking)["speedup_over_shipped"] is None and last_line(lacking).endswith(
        "speedup_over_shipped: unknown"
    )


@pytest.mark.parametrize(
    ("shipped_us", "missing", "shrunk", "said"),
    [
        (200.0, (), False, ["--shrink", "then: change the code: tilewright optimize f.py"]),
        (200.0, (), True, ["then: change the code"]),
        (101.0, ("one value of TILE_M",), False, ["widen it: one value of TILE_M"]),
        (101.0, (), False, ["the space does not help; change the code"]),
    ],
)
def test_the_output_says_what_to_do_next(
    shipped_us: float, missing: tuple[str, ...], shrunk: bool, said: list[str]
) -> None:
    made = result(workload("one", {16: shipped_us, 32: 100.0}))
    lines = list(next_steps(made, TuningAdvice("matmul", "tiles", missing), "f.py", shrunk))
    assert len(lines) == len(said) and all(part in line for part, line in zip(said, lines, strict=True))
