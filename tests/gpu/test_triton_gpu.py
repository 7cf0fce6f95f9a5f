"""Triton kernels on the GPU: both routes launched through the driver, and Triton's own launch gives the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton  # noqa: E402
from tests.languages.triton import kernels as given  # noqa: E402
from tests.languages.triton import test_in_place as in_place  # noqa: E402
from tests.languages.triton.launched_kernels import CASES, Case  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.cli.main import main  # noqa: E402
from tilewright.compile.compile import Unit, compile_all  # noqa: E402
from tilewright.hardware.gpu import detect  # noqa: E402
from tilewright.launching.driver import ProgramLaunch  # noqa: E402
from tilewright.report.report import report  # noqa: E402
from tilewright.report.two_steps import NOT_MEASURED, to_json_of  # noqa: E402
from tilewright.task.loading import load_task  # noqa: E402
from tilewright.task.task import Task  # noqa: E402
from tilewright.task.tensors import ArraySpec, Descriptor  # noqa: E402
from tilewright.worker.process.buffers import Buffers  # noqa: E402
from tilewright.worker.process.torch_backend import TorchBackend  # noqa: E402
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
    buffers = Buffers(task, workload.dims, TorchBackend("cuda"))
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
    buffers = Buffers(task, workload.dims, TorchBackend("cuda"))
    buffers.draw(7)
    tensors = buffers.tensors()
    ProgramLaunch(program_of(task, compiled), tensors)(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    ours = tensors["out"].clone()
    launch = task.launched(config, workload.dims, tensors, gpu.board)
    launch.kernel[launch.grid](*launch.args, num_warps=8)
    torch.cuda.synchronize()
    assert torch.equal(ours, tensors["out"])


def tensor_of(array: ArraySpec) -> Any:
    """Numbers that the name determines; whole numbers are zeros, which counters need."""
    dtype = getattr(torch, array.dtype)
    if array.dtype == "int32":
        return torch.zeros(array.shape, dtype=dtype, device="cuda")
    generator = torch.Generator("cuda").manual_seed(len(array.name) + ord(array.name[0]))
    numbers = torch.randn(array.shape, device="cuda", generator=generator) * 8
    return (numbers if dtype.is_floating_point else numbers.abs()).to(dtype)


def real(argument: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(argument, ArraySpec):
        return tensors[argument.name]
    if isinstance(argument, Descriptor):
        base = tensors[argument.base.name]
        return TensorDescriptor.from_tensor(base, list(argument.block_shape), argument.padding)
    return tuple(real(each, tensors) for each in argument) if isinstance(argument, tuple) else argument


def arrays_of(arguments: Any) -> dict[str, ArraySpec]:
    found: dict[str, ArraySpec] = {}
    for each in arguments:
        if isinstance(each, tuple):
            found |= arrays_of(each)
        elif isinstance(each, Descriptor | ArraySpec):
            array = each.base if isinstance(each, Descriptor) else each
            found[array.name] = array
    return found


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.arch == 90])
def test_a_launch_is_tritons_own(name: str) -> None:
    """Scalars of all types, tuples, descriptors of the device and the host with 1 to 3 axes, shared memory above
    48 KiB, clusters of 2 and 16, a cooperative grid, dependent launches: all bytes of all tensors, twice."""
    found = detect()
    assert found is not None
    case: Case = replace(CASES[name], arch=int(found.arch.removeprefix("sm_")))
    launch, arrays = case.launch, arrays_of(case.launch.args)
    ours, theirs = ({name: tensor_of(array) for name, array in arrays.items()} for _ in range(2))
    before = {name: tensor.clone() for name, tensor in ours.items()}
    program, _ = case.program()
    bound, stream = ProgramLaunch(program, ours), torch.cuda.current_stream().cuda_stream
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    for _ in range(2):
        for tensor in (ours, theirs):  # a counter starts from 0 in each launch
            if "n" in tensor:
                tensor["n"].zero_()
        bound(stream)
        launch.kernel[launch.grid](*(real(each, theirs) for each in launch.args), **case.options)
    torch.cuda.synchronize()
    changed = [name for name in arrays if not torch.equal(ours[name].view(torch.uint8), before[name].view(torch.uint8))]
    assert changed, "the kernel wrote nothing"
    for name in arrays:
        assert torch.equal(ours[name].view(torch.uint8), theirs[name].view(torch.uint8)), name
    if launch.kernel is CASES["NaN outside"].launch.kernel:
        edge = ours["out"][448:]
        assert edge.isnan().all() if program.parameters[1].nan else (edge == 0).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("kernel", [in_place.swapped, in_place.swapped_by_descriptors], ids=["pointers", "descriptors"])
def test_an_output_in_place_of_an_input_on_tile_ir(kernel: Any) -> None:
    task, found = in_place.task_of(kernel), detect()
    assert found is not None
    unit = Unit(task.workload("small"), task.space.shipped, found.board)
    (compiled,) = compile_all(task, [unit], seconds=60)
    memory = torch.randn(8, 128, device="cuda")
    expected = torch.cat([memory[:, 64:], memory[:, :64]], 1)
    ProgramLaunch(program_of(task, compiled), {"out": memory, "x": memory})(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    assert torch.equal(memory, expected)


def test_both_routes_are_raced() -> None:
    result = tw.tune(EXAMPLE, workloads=["odd"], store=False)
    best = result.workloads[0].best
    assert result.measured and best is not None and best.measured is not None
    assert {each.configuration["route"] for each in result.workloads[0].candidates} == {"ptx", "tileir"}


@pytest.mark.parametrize("command", ["tune", "optimize"])
def test_the_report_of_the_two_steps_is_filled(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Hopper as on Blackwell: nothing but the compilers of this machine is needed."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    limits = ["--only", "tile_ir_route", "--iterations", "1"] if command == "optimize" else ["--top", "6"]
    assert main([command, EXAMPLE, "--workload", "odd", *limits]) == 0
    rows: Any = to_json_of(report().details)
    assert all(row["value"] != NOT_MEASURED for row in rows["Compatibility Check"])
    measured = {row["backend"]: row for row in rows["Benchmark Comparison"] if isinstance(row["ms"], float)}
    assert {"ptx", "tileir"} <= measured.keys() and all(row["speedup"] > 0 for row in measured.values())
