"""Triton kernels on the GPU: both routes launched through the driver, and Triton's own launch gives the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.languages.triton import kernels as given  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.compile.compile import Unit, compile_all  # noqa: E402
from tilewright.hardware.gpu import detect  # noqa: E402
from tilewright.task.loading import load_task  # noqa: E402
from tilewright.task.task import Task  # noqa: E402
from tilewright.worker.process.buffers import Buffers  # noqa: E402
from tilewright.worker.process.driver import ProgramLaunch  # noqa: E402
from tilewright.worker.programs import program_of  # noqa: E402

pytestmark = pytest.mark.gpu
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "triton" / "softmax.py")


def products(kernel: object, **hints: tuple[object, ...]) -> Task:
    def launch(a, b, c, M, N, K, config):
        return tw.Launch(kernel, (M // 128, N // 128), (a, b, c, M, N, K, 128, 128, config.BLOCK_K))

    shipped = {"BLOCK_K": 64, **{name: values[0] for name, values in hints.items()}}
    return tw.Task(
        name="triton_product",
        tensors={"a": tw.Tensor(("M", "K"), "bfloat16"), "b": tw.Tensor(("K", "N"), "bfloat16"),
                 "c": tw.Output(("M", "N"), "bfloat16")},
        reference=lambda a, b: a @ b, launch=launch, flops=lambda M, N, K: 2 * M * N * K,
        space=tw.Space(constants={"BLOCK_K": (64,)}, hints=hints, shipped=shipped),
        workloads={"small": {"M": 1024, "N": 1024, "K": 1024}},
    )  # fmt: skip


@pytest.mark.parametrize("route", ["ptx", "tileir"])
def test_a_check_on_the_gpu_runs_its_own_cubin(route: str) -> None:
    (verdict,) = tw.check(EXAMPLE, engine="gpu", configurations=[{"route": route}], workloads=["odd"])
    assert verdict.verdict == "correct" and "TTIR" not in verdict.reason, verdict


@pytest.mark.parametrize(
    ("kernel", "hints"),
    [
        (given.matmul, {"num_warps": 8, "num_stages": 4}),  # more than 48 KiB of dynamic shared memory
        (given.descriptor_matmul, {"num_warps": 8, "num_stages": 3}),  # scratch for descriptors made on the device
        (given.matmul, {"num_warps": 4, "num_stages": 3, "num_ctas": 2}),  # a cluster
        (given.descriptor_matmul, {"route": "tileir", "occupancy": 1}),
    ],
)
def test_the_product_is_right(kernel: object, hints: dict[str, object]) -> None:
    task, gpu = products(kernel, **{name: (value,) for name, value in hints.items()}), detect()
    assert gpu is not None
    workload = task.workload("small")
    (compiled,) = compile_all(task, [Unit(workload, task.space.shipped, gpu.board)], seconds=60)
    buffers = Buffers(task, workload.dims, "cuda")
    buffers.draw(7)
    tensors = buffers.tensors()
    launch, stream = ProgramLaunch(program_of(task, compiled), tensors), torch.cuda.current_stream().cuda_stream
    launch(stream)
    torch.cuda.synchronize()
    torch.testing.assert_close(tensors["c"], tensors["a"] @ tensors["b"], rtol=2e-2, atol=2e-1)


def test_tritons_own_launch_gives_the_same_bits() -> None:
    task, gpu = load_task(EXAMPLE), detect()
    assert gpu is not None
    workload = task.workload("odd")
    config = task.space.shipped.replace(num_warps=8)
    (compiled,) = compile_all(task, [Unit(workload, config, gpu.board)], seconds=60)
    buffers = Buffers(task, workload.dims, "cuda")
    buffers.draw(7)
    tensors = buffers.tensors()
    ProgramLaunch(program_of(task, compiled), tensors)(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    ours = tensors["out"].clone()
    launch = task.launched(config, workload.dims, tensors, gpu.board)
    launch.kernel[launch.grid](*launch.args, num_warps=8)
    torch.cuda.synchronize()
    assert torch.equal(ours, tensors["out"])


def test_both_routes_are_raced() -> None:
    result = tw.tune(EXAMPLE, workloads=["odd"], store=False)
    best = result.workloads[0].best
    assert result.measured and best is not None and best.measured is not None
    assert {each.configuration["route"] for each in result.workloads[0].candidates} == {"ptx", "tileir"}
