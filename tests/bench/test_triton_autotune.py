"""`bench/triton_autotune.py` without a GPU: its kernels, its phases, and what it makes of a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bench.kit import bench_module


@pytest.fixture
def bench() -> Any:
    return bench_module("triton_autotune")


def phase(seconds: float, whole: float) -> dict[str, Any]:
    return {"calls": {"matmul": {"seconds": seconds, "configurations": 16}, "head_norm": {"seconds": 1.0}},
            "whole_seconds": whole, "about": {}, "stderr": ""}  # fmt: skip


def made(bench: Any, **changed: Any) -> dict[str, Any]:
    record = {
        "operations": ["matmul", "head_norm"],
        "phases": {"unpatched": phase(29.0, 40.0), "patched": phase(5.0, 16.0), "second": phase(0.5, 8.0)},
        "steady_us": {"matmul": {"unpatched": [100.0, 102.0], "second": [99.0, 101.0]},
                      "head_norm": {"unpatched": [50.0, None, 50.0], "second": [51.0, 51.0, 51.0]}},
        "outputs": {"matmul": {"same_bits": False, "wrong": None}, "head_norm": {"wrong": "'head_norm'[0] is 1"}},
        **changed,
    }  # fmt: skip
    return {**record, "summary": bench.summary(record)}


def test_the_summary_and_the_table(bench: Any) -> None:
    record = made(bench)
    found = record["summary"]
    assert found["first_process_speedup"] == pytest.approx(5) and found["second_process_speedup"] == pytest.approx(20)
    assert found["whole_first_speedup"] == pytest.approx(2.5) and found["whole_second_speedup"] == pytest.approx(5)
    assert found["slower"] == ["head_norm"] and found["worst_steady_speedup"] == pytest.approx(50 / 51)
    assert found["outputs_equal"] == ["matmul"]
    record |= {"machine": {"gpu": "NVIDIA H200"}, "date": "2026-11-24", "seconds": 100.0}
    shown = bench.result({**record, "searches": {"product_kernel": {"seconds": {"race": 0.5}, "outcomes": []}}})
    assert shown["gpu"] == "NVIDIA H200" and shown["search_seconds"] == {"product_kernel": {"race": 0.5}}
    lines = bench.table(record).splitlines()
    assert lines[1].split() == ["matmul", "16", "29.00", "5.00", "0.50", "1.010x", "equal"]
    assert lines[2].split()[-2:] == ["NOT", "EQUAL"] and "second_process_speedup: 20" in lines


def test_a_phase_that_failed_loses_no_other(bench: Any) -> None:
    record = made(bench, outputs={"matmul": {"failed": "no answer"}})
    record["phases"]["patched"]["calls"]["matmul"] = {"failed": "no answer in 120 s"}
    found = bench.summary(record)
    assert found["first_process_speedup"] is None and found["second_process_speedup"] == pytest.approx(20)
    assert found["outputs_equal"] == []
    assert bench.table({**record, "summary": found}).splitlines()[1].split()[2:5] == ["29.00", "-", "0.50"]


def test_phases_start_fresh_and_the_second_has_the_firsts_caches(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNING", "off")
    given = {phase: bench.environment_of(phase, tmp_path) for phase in bench.PHASES}
    assert not any(name in one for one in given.values() for name in bench.environment_in.__globals__["SWITCHES"])
    caches = {phase: {one[name] for name in bench.CACHES} for phase, one in given.items()}
    assert caches["second"] == caches["patched"] and not caches["unpatched"] & caches["patched"]
    assert "tilewright" not in bench.command_of("unpatched", ["matmul"])
    assert bench.command_of("second", ["matmul"])[1:5] == ["-m", "tilewright", "run", "--"]


def test_every_kernel_gets_through_the_front_end(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a GPU every configuration is compiled and launched; here the first of each kernel is lowered."""
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a driver for the CPU takes the place of the GPU's")
    from tests.runtime.triton_on_cpu import CpuDevice, on_cpu

    from tilewright.languages.base import Lowered
    from tilewright.languages.triton.live import LIVE
    from tilewright.records import Configuration
    from tilewright.runtime.environment import Environment
    from tilewright.runtime.patch import autotuned, autotuner
    from tilewright.runtime.store.winners import Winners

    kernels = bench_module("triton_autotune_kernels")
    lowered: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def search(trials: Any, **options: Any) -> Any:
        first = trials[0].specified()
        lowered[trials[0].kernel.__name__] = LIVE.lower(first.lowered, first.hints, Configuration(()), CpuDevice.arch)
        raise Stop

    for name, value in {"DEVICE": "cpu", "ROWS": 128, "CHANNELS": 256, "HEADS": 2}.items():
        monkeypatch.setattr(kernels, name, value)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(autotuned.AutotuneQuestion, "raised", (Stop,))
    environment = Environment(
        search=search, winners=Winners(tmp_path / "tuned.db"), board=lambda device: "NVIDIA H200 sm_90"
    )
    monkeypatch.setattr(autotuned, "Environment", lambda: environment)
    assert set(kernels.OPERATIONS) == set(bench.NAMES) == set(kernels.KERNELS) and autotuner.install()
    try:
        with on_cpu({}):
            for make in kernels.OPERATIONS.values():
                call = make()
                with pytest.raises(Stop):
                    call()
    finally:
        autotuner.uninstall()
    assert len(lowered) == 6 and all(isinstance(each, Lowered) for each in lowered.values()), lowered
