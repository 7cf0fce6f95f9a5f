"""Launches of Triton kernels captured on the GPU: counts, times, graphs, autotuners; made again, checked and tuned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from tests.runtime import captured_triton_kernels as kernels  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.runtime.capture import capture  # noqa: E402
from tilewright.runtime.capture import record as capture_record  # noqa: E402
from tilewright.runtime.capture.rebuilding import rebuilt  # noqa: E402
from tilewright.runtime.capture.record import Recorded  # noqa: E402
from tilewright.runtime.capture.task_file import task_text  # noqa: E402
from tilewright.task.loading import load_task  # noqa: E402
from tilewright.task.task import Task  # noqa: E402
from tilewright.tune.tune import tune  # noqa: E402

tl = triton.language
pytestmark = pytest.mark.gpu


def added(n: int = 1 << 20) -> tuple[Any, ...]:
    x, y = (torch.randn(n, device="cuda") for _ in range(2))
    return x, y, torch.empty_like(x), n


def blocks(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def launch_matmul() -> tuple[Any, ...]:
    """The right matrix is transposed."""
    m, n, k = 512, 384, 256
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = torch.randn(n, k, device="cuda").bfloat16().t()
    c = torch.empty(m, n, device="cuda").bfloat16()
    tiles = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 8, "ACC": tl.float32}
    grid = lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)  # noqa: E731
    strides = (*a.stride(), *b.stride(), *c.stride())
    kernels.matmul[grid](a, b, c, m, n, k, *strides, **tiles, num_warps=8, num_stages=3)
    return a, b, c


def recorded(folder: Path, launches: Callable[[], object], **options: Any) -> tuple[Recorded, ...]:
    with capture.capturing(folder / "c.json", **options):
        launches()
        torch.cuda.synchronize()
    return capture_record.read(folder / "c.json").launches()


def task_of(folder: Path, launches: Callable[[], object]) -> Task:
    (one,) = recorded(folder, launches)
    (folder / "captured.py").write_text(task_text(one, folder))
    return load_task(str(folder / "captured.py"))


def test_launches_pass_are_counted_and_timed(tmp_path: Path) -> None:
    """12 MiB are moved: at least 2.6 µs at 4.8 TB/s. A GPU that is kept busy gives times of the kernel alone."""
    given = added()
    kernels.added[blocks](*given, BLOCK=1024, num_warps=8)  # compiling would outlast the sleep

    def launches() -> None:
        torch.cuda._sleep(1_000_000_000)  # so that launches queue up behind it, also on a busy host
        for _ in range(200):
            made = kernels.added[blocks](*given, BLOCK=1024, num_warps=8)
        assert type(made).__name__ == "CompiledKernel", "what the launch returns passes"

    (one,) = recorded(tmp_path, launches)
    assert (one.count, one.failed, one.in_graph, one.launch.grid) == (200, 0, 0, (1024,))
    assert one.busy.samples >= 10 and not one.at_most
    assert one.gpu.mean_us is not None and 2.0 < one.gpu.mean_us < 1000
    assert torch.equal(given[2], given[0] + given[1])


def test_most_launches_only_pass_and_all_are_counted(tmp_path: Path) -> None:
    given, small = added(), added(1 << 10)

    def launches() -> None:
        for number in range(6000):
            kernels.added[blocks](*(small if number % 4 == 0 else given), BLOCK=1024)

    found = {one.launch.grid: one for one in recorded(tmp_path, launches)}
    assert sum(one.count for one in found.values()) == 6000
    assert 700 < found[1,].count < 2300 and found[1,].failed == 0
    assert torch.equal(given[2], given[0] + given[1]) and torch.equal(small[2], small[0] + small[1])


def test_launches_into_a_graph(tmp_path: Path) -> None:
    given, graph = added(), torch.cuda.CUDAGraph()
    kernels.added[blocks](*given)
    torch.cuda.synchronize()

    def launches() -> None:
        with torch.cuda.graph(graph):
            for _ in range(30):
                kernels.added[blocks](*given)
        given[2].zero_()
        graph.replay()

    (one,) = recorded(tmp_path, launches)
    assert (one.count, one.in_graph) == (30, 30)
    assert torch.equal(given[2], given[0] + given[1])


def test_an_autotuner_of_this_gpu(tmp_path: Path) -> None:
    """Triton's own timing, and its own choice: only the program's launches count, with that configuration."""
    x = torch.randn(8, 125, device="cuda")
    y = torch.empty_like(x)
    tuned = triton.autotune(
        configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 256) for warps in (1, 4)],
        key=["n"], restore_value=["y"],
    )(kernels.scaled.fn)  # fmt: skip

    def launches() -> None:
        for _ in range(3):
            tuned[blocks](x, y, x.numel(), 2.0)

    (one,) = recorded(tmp_path, launches)
    chosen = tuned.best_config
    assert (one.count, one.failed) == (3, 0)
    assert one.launch.constants["BLOCK"] == chosen.kwargs["BLOCK"]
    assert one.launch.hints["num_warps"] == chosen.num_warps
    assert one.launch.autotuned is not None and len(one.launch.autotuned.configurations) == 4
    assert torch.equal(y, x * 2)


def test_data_and_the_launch_made_again(tmp_path: Path) -> None:
    tensors: list[Any] = []
    (one,) = recorded(tmp_path, lambda: tensors.extend(launch_matmul()), data_bytes=1 << 22)
    kernel, grid, args = rebuilt(one.launch, data=one.data)
    assert all(torch.equal(*pair) for pair in zip(args[:2], tensors[:2], strict=True))
    kernel[grid](*args, **one.launch.hints)  # type: ignore[index]
    assert torch.equal(args[2], tensors[2])


@pytest.mark.parametrize("route", ["ptx", "tileir"])
def test_a_captured_matmul_is_correct_on_this_gpu(tmp_path: Path, route: str) -> None:
    """By both routes, against the captured kernel that Triton itself launches."""
    task = task_of(tmp_path, launch_matmul)
    knobs = {"route": route} if route == "ptx" else {"route": route, "num_warps": None}
    (verdict,) = tw.check(task, engine="gpu", configurations=[knobs], seconds=120.0)
    assert verdict.verdict == "correct" and "TTIR" not in verdict.reason, verdict


def test_a_captured_autotuned_kernel_is_tuned(tmp_path: Path) -> None:
    kernels.scaled.cache.clear()
    x = torch.randn(4096, 1024, device="cuda")
    task = task_of(tmp_path, lambda: kernels.scaled[blocks](x, torch.empty_like(x), x.numel(), 2.0))
    (found,) = tune(task, top=3).workloads
    assert found.best is not None, found


def test_a_captured_launch_with_descriptors_is_checked(tmp_path: Path) -> None:
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor
    source, target = (torch.randn(256, 128, device="cuda") for _ in range(2))

    def launches() -> None:
        kernels.moved[(16, 4)](*(descriptor.from_tensor(each, [16, 32]) for each in (source, target)), 16, 32)

    task = task_of(tmp_path, launches)
    assert torch.equal(target, source * 2)
    (verdict,) = tw.check(task, engine="gpu", configurations=[{"route": "tileir"}], seconds=120.0)
    assert verdict.verdict == "correct", verdict


def test_what_a_kernel_updates_is_reset_between_checked_launches(tmp_path: Path) -> None:
    x, total = torch.randn(64, 60, device="cuda"), torch.zeros(1, device="cuda")
    task = task_of(tmp_path, lambda: kernels.normed[(64,)](x, total, 60, 60, BLOCK=64))
    (verdict,) = tw.check(task, engine="gpu", seconds=120.0)
    assert verdict.verdict == "correct", verdict
