"""Recording real launches on the GPU: counts, times, graphs, data; and a captured launch made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runtime import captured_kernels as kernels

from tilewright.runtime.capture import capture
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.described import described
from tilewright.runtime.capture.rebuilding import rebuilt
from tilewright.runtime.capture.record import Recorded
from tilewright.runtime.capture.task_file import task_text

torch = pytest.importorskip("torch")
ct = pytest.importorskip("cuda.tile")


def scaled(size: int = 1 << 20, tile: int = 1024) -> tuple[Any, ...]:
    x, y = torch.randn(size, device="cuda"), torch.empty(size, device="cuda")
    return (size // tile,), kernels.scale, (x, y, tile, 3.0)


def the_one(path: Path) -> Recorded:
    (found,) = capture_record.read(path).launches()
    return found


def test_what_was_launched_and_how_long(tmp_path: Path) -> None:
    """8 MiB are moved: at least 1.7 µs at 4.8 TB/s. A GPU that is kept busy gives times of the kernel alone."""
    launch, stream = scaled(), torch.cuda.current_stream()
    ct.launch(stream, *launch)
    torch.cuda.synchronize()
    with capture.capturing(tmp_path / "c.json"):
        torch.cuda._sleep(100_000_000)  # so that launches queue up behind it
        for _ in range(200):
            ct.launch(stream, *launch)
        torch.cuda.synchronize()
    one = the_one(tmp_path / "c.json")
    assert (one.count, one.in_graph, one.failed) == (200, 0, 0)
    assert one.busy.samples >= 10
    mean = one.gpu.mean_us
    assert not one.at_most and mean is not None and 1.5 < mean < 1000
    assert one.host.mean_us is not None and one.host.mean_us < 1000
    x, y = launch[2][:2]
    assert torch.allclose(y, x * 6)


def test_a_stream_given_as_a_number_is_timed_too(tmp_path: Path) -> None:
    launch, stream = scaled(), torch.cuda.Stream()
    with capture.capturing(tmp_path / "c.json"):
        for _ in range(8):
            ct.launch(stream.cuda_stream, *launch)
        torch.cuda.synchronize()
    assert the_one(tmp_path / "c.json").gpu.samples > 0


def test_launches_into_a_graph_are_recorded_and_the_graph_works(tmp_path: Path) -> None:
    launch = scaled()
    x, y = launch[2][:2]
    ct.launch(torch.cuda.current_stream(), *launch)
    torch.cuda.synchronize()
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with capture.capturing(tmp_path / "c.json"):
        with torch.cuda.graph(graph):
            for _ in range(30):
                ct.launch(torch.cuda.current_stream(), *launch)
        graph.replay()
        torch.cuda.synchronize()
    one = the_one(tmp_path / "c.json")
    assert (one.count, one.in_graph, one.launched) == (30, 30, 0)
    assert one.gpu.samples == 0
    assert torch.allclose(y, x * 6)


def test_where_few_launches_are_looked_at_all_are_made_and_counted(tmp_path: Path) -> None:
    """Of two kinds in turns, and of a graph at the end, whose launches may or may not be looked at."""
    usual, larger = scaled(), scaled(1 << 21)
    stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    with capture.capturing(tmp_path / "c.json"):
        for number in range(8000):
            ct.launch(stream, *(larger if number % 4 == 0 else usual))
        torch.cuda.synchronize()
        usual[2][1].zero_()
        with torch.cuda.graph(graph):
            for _ in range(300):
                ct.launch(torch.cuda.current_stream(), *usual)
        graph.replay()
        torch.cuda.synchronize()
    found = {one.launch.grid: one for one in capture_record.read(tmp_path / "c.json").launches()}
    small, large = found[usual[0]], found[larger[0]]
    assert small.count + large.count == 8300
    assert 1000 < large.count < 3200 and large.failed == small.failed == 0
    assert 1000 < 8300 - small.estimated - large.estimated < 2000
    assert small.in_graph < 1500 and large.in_graph == 0
    for _, _, (x, y, *_) in (usual, larger):
        assert torch.allclose(y, x * 6)


def test_a_keyword_of_the_launch_is_passed_on(tmp_path: Path) -> None:
    launch = scaled()
    with capture.capturing(tmp_path / "c.json"):
        for number in range(1100):
            ct.launch(torch.cuda.current_stream(), *launch, programmatic_dependent_launch=bool(number % 2))
        torch.cuda.synchronize()
    assert the_one(tmp_path / "c.json").count == 1100
    assert torch.allclose(launch[2][1], launch[2][0] * 6)


def test_data_and_the_launch_made_again(tmp_path: Path) -> None:
    """A transposed matrix, with the data that it had."""
    make = lambda *shape: torch.randn(shape, device="cuda").bfloat16()  # noqa: E731
    args = (make(64, 32), make(48, 32).t(), make(64, 48), 16, 16, 16)
    before = args[2].clone()
    with capture.capturing(tmp_path / "c.json", data_bytes=1 << 20):
        ct.launch(torch.cuda.current_stream(), (4, 3), kernels.matmul, args)
        torch.cuda.synchronize()
    one = the_one(tmp_path / "c.json")
    kernel, grid, again = rebuilt(one.launch, data=one.data)
    assert all(torch.equal(*pair) for pair in zip(again[:3], (args[0], args[1], before), strict=True))
    assert described(kernel, grid, again) == one.launch
    ct.launch(torch.cuda.current_stream(), grid, kernel, again)
    assert torch.equal(again[2], args[2])


def test_a_captured_task_is_tuned_here(tmp_path: Path) -> None:
    """The whole way: captured, written, verified and raced against itself."""
    from tilewright.task.loading import load_task
    from tilewright.tune import tune as tuning

    make = lambda *shape: torch.randn(shape, device="cuda").bfloat16()  # noqa: E731
    args = (make(512, 256), make(256, 384), make(512, 384), 64, 64, 64)
    with capture.capturing(tmp_path / "c.json"):
        ct.launch(torch.cuda.current_stream(), (8, 6), kernels.matmul, args)
        torch.cuda.synchronize()
    (tmp_path / "task.py").write_text(task_text(the_one(tmp_path / "c.json"), tmp_path))
    task = load_task(str(tmp_path / "task.py"))
    result = tuning.tune(task, top=3)
    (found,) = result.workloads
    assert found.best is not None, found
