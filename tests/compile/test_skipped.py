"""What is left out: the rules, on recorded races, too, and real processes that burn time and are ended."""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE

from tilewright.compile.accumulators import UNFIT
from tilewright.compile.compile import effort
from tilewright.compile.pool import CompilerPool
from tilewright.compile.skipped import (
    EXPECTED_SLOWER,
    LEAST_SECONDS,
    MAY_WIN,
    SLOWER,
    CompileLimit,
    NotCompiled,
    compile_limit,
    expected_slow,
)
from tilewright.errors import ToolFailed
from tilewright.languages.base import Language, Lowered
from tilewright.records import Built, Configuration, Failed
from tilewright.tools import child
from tilewright.tune.schedule import ENOUGH_TO_RACE

RECORDED = Path(__file__).parents[2] / "bench" / "recorded" / "h200-2026-11-23.json.gz"
COMPILERS = 15


def time_of(row: Any) -> float:
    return statistics.median(row["samples_us"])


def recorded() -> list[tuple[str, list[Any]]]:
    """The candidates of each recorded workload that were timed, one of each code, the slowest to compile first."""
    found = []
    for task in json.loads(gzip.decompress(RECORDED.read_bytes()))["tasks"]:
        for workload in task["workloads"]:
            rows = {row["code"]["code_hash"]: row for row in workload["rows"] if row.get("samples_us")}
            name = f"{task['task']} {workload['workload']}"
            found.append((name, sorted(rows.values(), key=lambda row: -effort(row["config"].items()))))
    return found


def compiled_in_turn(rows: Sequence[Any], limited: bool) -> tuple[float, list[Any]]:
    """The time until all compilers have ended, and the candidates whose compilers were ended by the limit."""
    waiting, running, ended, slow, now = list(rows), list[tuple[float, Any]](), list[Any](), list[Any](), 0.0
    while waiting or running:
        while waiting and len(running) < COMPILERS:
            running.append((now, waiting.pop(0)))
        limit = None
        if limited and len(ended) >= ENOUGH_TO_RACE * len(rows):
            timed = [(time_of(row), row["compile_seconds"]) for row in ended]
            limit = compile_limit(timed, [row["compile_seconds"] for row in ended])
        most = limit.seconds if limit else float("inf")
        ends = [(max(now, begun + min(most, row["compile_seconds"])), begun, row) for begun, row in running]
        now = min(end for end, _, _ in ends)
        for end, begun, row in ends:
            if end <= now:
                running.remove((begun, row))
                (slow if row["compile_seconds"] > most else ended).append(row)
    return now, slow


def test_no_recorded_candidate_that_it_ends_is_near_the_fastest_and_much_time_is_saved() -> None:
    before = after = 0.0
    for name, rows in recorded():
        fastest = min(map(time_of, rows))
        whole, _ = compiled_in_turn(rows, limited=False)
        shorter, slow = compiled_in_turn(rows, limited=True)
        before, after = before + whole, after + shorter
        assert all(time_of(row) > 1.2 * fastest for row in slow), name
    assert after < 0.8 * before


def test_the_limit_comes_from_the_candidates_near_the_fastest_and_from_the_median() -> None:
    assert compile_limit([], [1.0]) is None
    near = compile_limit([(100.0, 2.0), (109.0, 4.0), (120.0, 9.0)], [2.0, 4.0, 9.0])
    assert near is not None and near.seconds == SLOWER * 4.0
    slow_field = compile_limit([(100.0, 2.0)], [2.0, 6.0, 7.0])
    assert slow_field is not None and slow_field.seconds == SLOWER * 6.0
    quick = compile_limit([(100.0, 0.1)], [0.1])
    assert quick is not None and quick.seconds == LEAST_SECONDS and "1.5 times as long" in quick.outcome.reason


class Burns(Language):
    """A language whose compiler is a real process; the code says whether it ends or burns processor time."""

    name = "burns"

    def recognises(self, kernel: Any) -> bool:
        return False

    def lower(self, *launch: Any) -> Lowered | Failed:
        raise NotImplementedError

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        code = "while True: pass" if lowered.code.startswith(b"slow") else ""
        try:
            done = child.run([sys.executable, "-c", code], seconds, patience=PATIENCE)
        except ToolFailed as error:
            return Failed("tool", str(error))
        if done.returncode:
            return Failed("compile", done.complaint("burns"))
        return Built(lowered.configuration, lowered.arch, lowered.code, lowered.symbol, 0.0)


@pytest.mark.parametrize("unlimited", [None, 1])
def test_a_compiler_over_its_limit_is_ended_and_others_go_on(unlimited: int | None) -> None:
    """The limit is set while compilers run. A candidate without a limit keeps its compiler, here up to its budget."""
    limit, set_now = CompileLimit(0.3, "as a test"), threading.Event()

    def limit_of(index: int) -> CompileLimit | None:
        return limit if set_now.is_set() and index != unlimited else None

    outcomes: dict[int, Built | Failed] = {}
    with CompilerPool(3, 2.0, lambda cubins: [cubin[0] for cubin in cubins], limit_of=limit_of) as pool:  # type: ignore[misc]
        for index, code in enumerate((b"quick", b"slow 1", b"slow 2")):
            lowered = Lowered(Configuration.of({"AT": index}), "sm_80", "kernel", code)
            pool.add(index, Burns(), lowered, None, always=True)  # type: ignore[arg-type]
        for index, built, _ in pool.outcomes():
            outcomes[index] = built
            set_now.set()
    assert isinstance(outcomes[0], Built)
    assert outcomes[2] == limit.outcome and isinstance(outcomes[2], NotCompiled)
    if unlimited is None:
        assert outcomes[1] == limit.outcome
    else:
        assert isinstance(outcomes[1], Failed) and "budget of 2 s" in outcomes[1].reason


def test_what_is_expected_to_take_much_longer_than_the_fastest_is_slow() -> None:
    slow = expected_slow({0: 100.0, 1: EXPECTED_SLOWER * 100.0, 2: 250.0})
    assert list(slow) == [2] and slow[2].reason == "not compiled: expected to take 2.5× the shortest expected time"
    assert not expected_slow({})
    assert slow[2].may_win(None) and slow[2].may_win(250.0 / MAY_WIN) and not slow[2].may_win(250.0 / MAY_WIN - 1)


def test_a_compiler_is_known_to_be_ended_too_early_if_a_winner_took_longer_to_compile() -> None:
    """The first race times candidates that compile in 1 s. Afterwards, one that needs 1.9 s is the fastest."""
    before = compile_limit([(100.0, 1.0), (105.0, 0.9)], [1.0, 0.9])
    after = compile_limit([(100.0, 1.0), (50.0, 1.9)], [1.0, 0.9, 1.9])
    same = compile_limit([(100.0, 1.0), (101.0, 1.2)], [1.0, 0.9, 1.2])
    assert before and after and same
    ended = before.outcome
    assert ended.limit == before.seconds == 1.5
    assert ended.too_early(after.near)
    assert not ended.too_early(same.near)
    assert not UNFIT.too_early(after.near)
