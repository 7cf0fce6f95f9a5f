"""bench/fleet.py: a simulated fleet tunes each workload exactly once, whatever fails."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from tests.bench.kit import BENCH, bench_module

pytest.importorskip("simpy")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return bench_module("fleet")


def job(bench: ModuleType, seconds: float = 1.0, count: int = 10) -> Any:
    units = tuple(bench.Unit(seconds, 100.0 + n, n, n == 0, 1) for n in range(count))
    return bench.Job("made", units, count, verify_seconds=0.1, race_seconds=0.5, launches=0, race_us=0.0)


def test_one_gpu_and_one_core_take_what_one_after_the_other_takes(bench: ModuleType) -> None:
    """All but the last candidate are verified while others compile; then the last one is, and all are raced."""
    found = bench.simulated([job(bench)], gpus=1, cores=1)
    compiled = 10 * (1.0 + bench.READ) + bench.FRONT_END
    assert found.compile_seconds == pytest.approx(compiled)
    assert found.seconds == pytest.approx(compiled + 0.1 + 0.5)
    assert found.gpus["verify"] == pytest.approx(10 * 0.1) and found.cores["compile"] == pytest.approx(12.7)


def test_no_fleet_is_faster_than_its_work_allows(bench: ModuleType) -> None:
    jobs = [job(bench) for _ in range(8)]
    for gpus, cores in ((1, 4), (4, 4), (8, 64)):
        found = bench.simulated(jobs, gpus, cores)
        least = max(sum(each.core_seconds for each in jobs) / cores, 8 * 1.5 / gpus, 80 * bench.FRONT_END)
        assert found.seconds > least and found.finished == dict.fromkeys(range(8), 1)
        assert sum(found.gpus.values()) == pytest.approx(gpus * found.seconds)
        assert sum(found.cores.values()) == pytest.approx(cores * found.seconds)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_each_workload_is_finished_once(bench: ModuleType, seed: int) -> None:
    jobs = [job(bench, seconds=0.2 + 0.1 * (n % 3)) for n in range(12)]
    failures = bench.Failures(gpus_lost=0.7, gpus_busy=0.7, workers_killed=1.0, cores_lost=0.7)
    found = bench.simulated(jobs, 4, 6, failures=failures, seed=seed)
    assert found.finished == dict.fromkeys(range(12), 1)
    assert found.failed["cores lost"] and found.failed["workers killed"] and found.gpus["repeated"] > 0


def test_slow_compilers_are_ended_once_the_first_candidates_are_raced(bench: ModuleType) -> None:
    slow = bench.Unit(60.0, 500.0, None, False, 1)
    one = job(bench)
    one = bench.Job(one.name, (slow, *one.units), 11, one.verify_seconds, one.race_seconds, 0, 0.0)
    found = bench.simulated([one], gpus=1, cores=4)
    assert found.seconds < 15 and found.cores["ended"] > 0


def test_the_document_has_the_tables_of_the_recorded_result(bench: ModuleType) -> None:
    result = json.loads((BENCH / "recorded" / "simulated-fleet-2026-11-28.json").read_text())
    document = (BENCH.parent / "docs" / "fleet.md").read_text()
    tables = [part for part in bench.rows_of(result).split("\n\n") if part.startswith("|")]
    assert len(tables) == 4 and all(each in document for each in (*tables, bench.knees(result)))
    assert bench.picture(result) == (BENCH.parent / "docs" / "fleet.svg").read_text().rstrip("\n")


def test_a_simulated_run_is_near_the_recorded_one(bench: ModuleType) -> None:
    """On the runs in view; those set aside are simulated by hand, once."""
    assert bench.compared(aside=False)["error_factor"] < 1.15
    assert abs(bench.on_two_cores()["error"]) < 0.1
