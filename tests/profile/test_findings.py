"""What is found in programs with known faults, and that nothing is found in programs without."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.profile.made_traces import MadeTrace, data_parallel, eager_training, graph_replay

from tilewright.errors import RequestError, ToolFailed
from tilewright.profile import nsight
from tilewright.profile.figures import Profile
from tilewright.profile.findings import level
from tilewright.profile.profile import profile
from tilewright.profile.thresholds import IDLE


def found(made: MadeTrace, folder: Path) -> Profile:
    return profile(made.write(folder / "trace.json"))


def kinds(made: MadeTrace, folder: Path) -> set[str]:
    return {finding.kind for finding in found(made, folder).findings}


def test_an_eager_program_with_every_fault(tmp_path: Path) -> None:
    assert kinds(eager_training(), tmp_path) >= {"launch-calls", "short-kernels", "pageable-copies", "float32-products"}


def test_a_graph_has_no_fault_but_is_counted(tmp_path: Path) -> None:
    result = found(graph_replay(steps=3), tmp_path)
    (gpu,) = result.gpus
    assert result.findings == () and result.bottleneck is None
    assert (gpu.value("graph launches"), gpu.value("activities of graphs")) == (3, 150)
    assert gpu.value("host late") == 0, "the call that launched the graph was before every gap"


def test_exposed_communication(tmp_path: Path) -> None:
    assert "communication" in kinds(data_parallel(), tmp_path)
    overlapped = MadeTrace(rank=1)
    for n in range(10):
        overlapped.launched("gemm_a", n * 100, 50, 0)
        overlapped.launched("gemm_b", n * 100 + 50, 50, 0)
        overlapped.launched("ncclDevKernel_AllReduce", n * 100 + 10, 80, 0, stream=20)
    result = found(overlapped, tmp_path)
    assert result.gpus[0].value("exposed communication") == 0
    assert "communication" not in {finding.kind for finding in result.findings}


def lateness(late: bool) -> MadeTrace:
    """50 µs of idle time between kernels of 50 µs, which the host launches late or all at once."""
    made = MadeTrace()
    for n in range(20):
        made.launched(f"gemm_{n % 4}", 100 * (n + 1), 50, 100 * (n + 1) - 30 if late else n * 5)
    return made


def test_the_cause_of_idle_time(tmp_path: Path) -> None:
    assert kinds(lateness(late=True), tmp_path) == {"host-late"}
    assert kinds(lateness(late=False), tmp_path) == {"idle"}


def test_a_wait_in_the_loop(tmp_path: Path) -> None:
    made = MadeTrace()
    for n in range(20):
        made.launched(f"gemm_{n % 4}", 100 * n + 10, 60, 100 * n + 2)
        made.call("cudaStreamSynchronize", 100 * n + 6, 65)
    made.launched("gemm_0", 2010, 60, 2002)
    made.call("cudaDeviceSynchronize", 2080, 5)  # the profiler's own, after which nothing is launched
    result = found(made, tmp_path)
    (sync,) = [finding for finding in result.findings if finding.kind == "host-sync"]
    assert sync.impact == pytest.approx(20 * 40 / 2060)
    assert {figure.name for figure in sync.evidence} == {"host waited", "host waits"}


def test_without_calls_the_cause_is_not_known(tmp_path: Path) -> None:
    made = MadeTrace()
    for n in range(10):
        made.kernel("gemm", 100 * n, 50)
    (gpu,) = found(made, tmp_path).gpus
    assert gpu.value("unknown") == gpu.value("idle") > IDLE.limit
    assert gpu.value("host late") == 0


def test_findings_quote_evidence_and_have_stable_ids(tmp_path: Path) -> None:
    results = [found(eager_training(), tmp_path) for _ in range(2)]
    assert results[0].findings == results[1].findings
    sources = {raw.source for raw in results[0].raw}
    for finding in results[0].findings:
        assert re.fullmatch(r"[0-9a-f]{8}-[a-z0-9-]+-gpu0", finding.id)
        assert all(figure.value is not None and set(figure.lines) <= sources for figure in finding.evidence)
        assert finding.threshold.startswith(("limit", "idle"))
    impacts = [finding.impact for finding in results[0].findings]
    assert impacts == sorted(impacts, reverse=True)
    assert [level(impact) for impact in (0.3, 0.2, 0.1, 0.05, 0.01)] == ["High", "High", "Medium", "Medium", "Low"]


def test_several_ranks_are_one_profile(tmp_path: Path) -> None:
    paths = [data_parallel(rank=rank).write(tmp_path / f"rank{rank}.json.gz") for rank in (0, 1)]
    result = profile(*paths)
    assert [gpu.label for gpu in result.gpus] == ["rank 0, GPU 0", "rank 1, GPU 1"]
    assert {finding.id.rpartition("-")[2] for finding in result.findings} == {"gpu0", "gpu1"}
    (tmp_path / "other").mkdir()
    with pytest.raises(RequestError, match=r"two traces are named rank0\.json\.gz"):
        profile(paths[0], data_parallel().write(tmp_path / "other" / "rank0.json.gz"))


# Nsight Compute -----------------------------------------------------------------------------------

CSV = """==PROF== Connected to process 4242
"ID","Process ID","Kernel Name","{}","{}","{}","{}"
"","","","%","%","%","nsecond"
"0","4242","ampere_sgemm_128x64_tn","81.5","30.2","45","1,234"
"1","4242","ampere_sgemm_128x64_tn","82.5","30.4","45","1,236"
"2","4242","other","nan","30","","5"
""".format(*nsight.METRICS)


def test_counters_of_hot_kernels(tmp_path: Path) -> None:
    result = replace(found(eager_training(), tmp_path), command=("python", "train.py"))
    assert nsight.hot_kernels(result) == ["ampere_sgemm_128x64_tn"], "and no other"
    counted = nsight.measured(result, {"ncu1.csv": CSV})
    values = {figure.name: figure.value for figure in counted.traces[0].counters}
    assert counted.rung.name == "Nsight Compute"
    assert values["ampere_sgemm_128x64_tn: compute"] == pytest.approx(0.82)
    assert values["ampere_sgemm_128x64_tn: time"] == pytest.approx(1.235)
    assert values["ampere_sgemm_128x64_tn: speed of light"] == pytest.approx(0.82)
    assert (values["other: compute"], values["other: occupancy"]) == (None, None), "NaN and absent: not measured"
    cited = {line for figure in counted.traces[0].counters for line in figure.lines}
    quoted = {raw.source: raw.text for raw in counted.raw}
    assert all(quoted[line] in CSV for line in cited)


def test_what_keeps_nsight_compute_from_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = found(eager_training(), tmp_path)
    with pytest.raises(RequestError, match="--counters runs the program again"):
        nsight.with_counters(traced)
    result = replace(traced, command=("python", "train.py"))
    with pytest.raises(ToolFailed, match="only root read counters"):
        nsight.measured(result, {"ncu1.csv": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"})
    monkeypatch.setenv("PATH", str(tmp_path))
    without = nsight.with_counters(result)
    assert without.rung == result.rung and "not in PATH" in without.why_not_higher
    (tmp_path / "ncu").write_text("#!/bin/sh\necho LibraryNotLoaded >&2; exit 1\n")
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "this sandbox keeps Nsight Compute" in nsight.with_counters(result).why_not_higher


@pytest.mark.parametrize(
    ("compute", "memory", "occupancy", "said"),
    [
        (0.8, 0.3, 0.5, "bound by compute"), (0.3, 0.8, 0.5, "bound by memory"), (0.7, 0.7, 0.5, "near both limits"),
        (0.35, 0.35, 0.2, "bound by latency"), (0.35, 0.35, 0.6, "bound by instructions"),
        (0.1, 0.2, 0.6, "bound by latency or by the launch: both units are far from their peaks"),
        (0.5, 0.5, 0.5, "balanced"), (None, 0.5, 0.5, "not measured: a counter is absent"),
    ],
)  # fmt: skip
def test_bounds(compute: float | None, memory: float | None, occupancy: float | None, said: str) -> None:
    assert nsight.bound(compute, memory, occupancy) == said


@pytest.mark.parametrize(
    ("kernel", "base"),
    [
        ("void at::native::elementwise_kernel<4, at::native::F<int, g<2>>>(int, T)", "elementwise_kernel"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp"),
    ],
)  # fmt: skip
def test_base_names(kernel: str, base: str) -> None:
    assert nsight.base_name(kernel) == base
    words = nsight.command(kernel, Path("log"), ["python", "train.py"])
    assert words[-2:] == ["python", "train.py"]
    (wanted,) = [word.removeprefix("regex:") for word in words if word.startswith("regex:")]
    assert re.fullmatch(wanted, base) and not re.search(wanted, f"{base}_2")
