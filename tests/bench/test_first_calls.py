"""`bench/tilegym/first_calls.py` without a GPU: its processes, its record and what it makes of it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE

FILE = Path(__file__).parents[2] / "bench" / "tilegym" / "first_calls.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("first_calls", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def phase(bench: Any, **seconds: float) -> dict[str, Any]:
    calls = {name: {"seconds": seconds.get(name, seconds["every"])} for name in bench.OPERATIONS}
    return {"about": {}, "calls": calls, "stderr": ""}


def made(bench: Any) -> dict[str, Any]:
    return {
        "operations": list(bench.OPERATIONS),
        "phases": {
            "unpatched": phase(bench, every=10.0),
            "patched": phase(bench, every=2.5),
            "second": phase(bench, every=0.1),
            "widened": {"about": {}, "calls": {"fmha": {"seconds": 4.0}}, "stderr": ""},
        },
        "steady_us": {
            "fmha": {"unpatched": [100.0, 102.0], "second": [100.0, 102.0], "widened": [50.0, 51.0]},
            "bmm": {"unpatched": [99.0, None], "second": [100.0, 100.0]},
        },
        "outputs": {"fmha": {"second": {"same_bits": True, "largest_difference": 0.0}, "widened": {"failed": "x"}}},
    }


def test_the_summary(bench: Any) -> None:
    found = bench.summary(made(bench))
    assert found["first_process_speedup"] == pytest.approx(4)
    assert found["second_process_speedup"] == pytest.approx(100)
    assert found["worst_steady_speedup"] == pytest.approx(0.99)
    assert found["widened_speedup"] == {"fmha": pytest.approx(2)}
    assert found["same_bits"] == {"fmha": {"second": True, "widened": None}}


def test_a_phase_that_failed_loses_no_other(bench: Any) -> None:
    record = made(bench)
    record["phases"]["patched"]["calls"]["bmm"] = {"failed": "no answer in 120 s"}
    record["summary"] = bench.summary(record)
    assert record["summary"]["first_process_speedup"] is None
    assert record["summary"]["second_process_speedup"] == pytest.approx(100)
    shown = bench.table(record)
    assert "first_process_speedup: not measured" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("bmm")]
    assert line.split()[:5] == ["bmm", "10.00", "-", "0.10", "-"]


SERVES = (
    "import json, sys, time\n"
    "for line in sys.stdin:\n"
    "    request = json.loads(line)\n"
    "    if request['do'] == 'end': sys.exit('as asked')\n"
    "    if request['do'] == 'hang': time.sleep(3600)\n"
    "    print(json.dumps(request), flush=True)\n"
)


def process(bench: Any, tmp_path: Path) -> Any:
    one = bench.Process([sys.executable, "-c", SERVES], os.environ, tmp_path / "stderr.txt")
    one.first_wait = PATIENCE
    return one


def test_a_process_answers(bench: Any, tmp_path: Path) -> None:
    with process(bench, tmp_path) as one:
        assert one.ask(do="about", name="fmha") == {"do": "about", "name": "fmha"}


def test_a_process_that_ends_is_a_failure_with_its_last_words(bench: Any, tmp_path: Path) -> None:
    with process(bench, tmp_path) as one:
        assert "as asked" in one.ask(do="end")["failed"]
        assert "failed" in one.ask(do="about")


def test_a_process_that_hangs_is_a_failure(bench: Any, tmp_path: Path) -> None:
    with process(bench, tmp_path) as one:
        one.ask(do="about")
        assert "no answer" in one.ask(0.2, do="hang")["failed"]
        assert "failed" in one.ask(do="about")


def test_phases_start_fresh_and_the_second_has_the_firsts_caches(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNING", "off")
    given = {phase: bench.environment_of(phase, tmp_path) for phase in bench.PHASES}
    assert not any(name in one for one in given.values() for name in bench.environment_in.__globals__["SWITCHES"])
    caches = {phase: {one[name] for name in bench.CACHES} for phase, one in given.items()}
    assert caches["second"] == caches["patched"]
    assert not caches["unpatched"] & caches["patched"]
    assert not caches["widened"] & caches["patched"]


def test_the_commands(bench: Any) -> None:
    assert "tilewright" not in bench.command_of("unpatched", ["fmha"])
    words = bench.command_of("widened", ["fmha"])
    assert words[1:5] == ["-m", "tilewright", "run", "--widen"]
    assert words[-2:] == ["--program", "fmha"]


def test_the_stages_are_those_of_the_stored_searches(bench: Any, tmp_path: Path) -> None:
    from tests.runtime.made_winners import winner

    from tilewright.runtime.store.winners import Winners

    seconds = {"lower": 0.1, "compile": 4.0, "verify": 0.2, "race": 0.1}
    Winners(tmp_path / "tuned.db").put(winner("a", kernel="fmha", machine={"seconds": seconds}))
    assert bench.stages(str(tmp_path)) == {"fmha": seconds}
