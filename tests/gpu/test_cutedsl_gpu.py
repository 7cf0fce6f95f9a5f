"""Kernels in CuTe DSL on the GPU: each schedule of the example is right, and written kernels are; the example is raced.

    python -m pytest -m gpu tests/gpu/test_cutedsl_gpu.py

Needs nvidia-cutlass-dsl and torch. The example needs Hopper.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'")

from tests.languages.cutedsl import kernels  # noqa: E402

from tilewright.cli.main import main  # noqa: E402
from tilewright.hardware.gpu import detect  # noqa: E402
from tilewright.languages.cutedsl import LANGUAGE  # noqa: E402
from tilewright.specialists.writing.writing import source_of, write_task  # noqa: E402
from tilewright.task.task import Launch  # noqa: E402
from tilewright.verify.check import check  # noqa: E402

pytestmark = pytest.mark.gpu
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "cute_gemm.py")


def hopper() -> bool:
    gpu = detect()
    return gpu is not None and gpu.arch == "sm_90"


on_hopper = pytest.mark.skipif(not hopper(), reason="the kernel is for Hopper (sm_90)")


def test_a_launch_on_a_stream_computes() -> None:
    a, b, out = (torch.randn(1000, device="cuda") for _ in range(3))
    launch = LANGUAGE.runner(Launch(kernels.add, (8,), (a, b, out, 2.0)), {})
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(stream.cuda_stream)
    stream.synchronize()
    torch.testing.assert_close(out, 2 * a + b)


def test_a_graph_may_outlive_the_launch_that_it_recorded() -> None:
    a, b, out = (torch.randn(1000, device="cuda") for _ in range(3))
    launch = LANGUAGE.runner(Launch(kernels.add, (8,), (a, b, out, 2.0)), {})
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        launch(stream.cuda_stream)
    del launch
    gc.collect()
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, 2 * a + b)
    graph.reset()


SHIPPED, PINGPONG = "", "SCHEDULE=pingpong,TILE_N=128"
SCHEDULES = [
    SHIPPED, "PERSISTENT=False,SWIZZLE=1", "CLUSTER_M=1", "CLUSTER_M=1,CLUSTER_N=2", "TILE_M=256,TILE_N=128", PINGPONG,
    f"{PINGPONG},CLUSTER_M=1", "SCHEDULE=pingpong,TILE_M=64,CLUSTER_M=1,CLUSTER_N=2",
]  # fmt: skip


@on_hopper
@pytest.mark.parametrize("values", SCHEDULES)
def test_each_schedule_of_the_product_is_right(values: str) -> None:
    """Reduced shapes, and all workloads at their full size."""
    (verdict,) = check(EXAMPLE, engine="gpu", configurations=values, workloads=("odd", "4096"), quick=True)
    assert verdict.verdict == "correct", verdict.reason


@on_hopper
@pytest.mark.parametrize("values", [SHIPPED, PINGPONG])
def test_all_data_and_edges_of_the_product_are_right(values: str) -> None:
    """Cases that depend on few of the knobs. compute-sanitizer watches the first case, if it is installed."""
    (verdict,) = check(EXAMPLE, engine="gpu", configurations=values, workloads=("odd", "4096"), seconds=300)
    assert verdict.verdict == "correct", (verdict.reason, verdict.tools)


@pytest.mark.parametrize("name", ["silu_mul", "gelu", "bias_gelu", "swiglu", "residual_add", "gemm_bias_relu"])
def test_a_written_kernel_is_right(name: str, tmp_path: Path) -> None:
    if name.startswith("gemm") and not hopper():
        pytest.skip("products are written for Hopper (sm_90)")
    file = tmp_path / f"{name}.py"
    file.write_text(write_task(source_of(name.replace("_", " ")), "cutedsl", file.name).text)
    (verdict,) = check(str(file), engine="gpu")
    assert verdict.verdict == "correct", verdict.reason


@on_hopper
def test_the_product_is_raced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    assert main(["tune", EXAMPLE, "--workload", "4096", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["measured"] is True
    statuses = [each["status"] for each in result["workloads"][0]["candidates"]]
    assert statuses.count("raced") >= 4 and "wrong" not in statuses and "failed" not in statuses, statuses
