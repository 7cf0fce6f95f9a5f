"""Real launches with lists, tables and arrays in place: captured here, made a task, and checked on this GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.test_check_gpu import checked
from tests.runtime import captured_kernels as kernels

from tilewright.candidate.client import Candidates
from tilewright.hardware.gpu import detect
from tilewright.optimize.attempting import Builder
from tilewright.optimize.gates.arena import Arena
from tilewright.race.rules import Policy
from tilewright.records import Checked
from tilewright.runtime.capture import capture
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture.task_file import task_text
from tilewright.task.loading import load_task, where_is

torch = pytest.importorskip("torch")
ct = pytest.importorskip("cuda.tile")

Launch = tuple[Any, tuple[int, ...], tuple[Any, ...]]


def lists() -> Launch:
    xs, ys = ([torch.randn(extent, device="cuda") for extent in (10_000, 640, 2_049)] for _ in "xy")
    return kernels.grouped, (32,), (xs, ys, 64, 32)


def a_table() -> Launch:
    lengths = (300, 7, 190, 527)
    offsets = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    x, y = (torch.randn(sum(lengths), 64, device="cuda") for _ in "xy")
    return kernels.by_sequence, (4, 17), (x, offsets, y, 32, 64)


def in_place() -> Launch:
    angle = torch.randn(4096, 64, device="cuda")
    x = torch.randn(4096, 128, device="cuda")
    return kernels.rotated, (512,), (x, angle.cos(), angle.sin(), 8, 64)


def not_reducible() -> Launch:
    """16 M elements, whatever its shape: the launch is verified here, against its own outputs."""
    x, y = torch.randn(2 * kernels.FAR, device="cuda"), torch.empty(kernels.FAR, device="cuda")
    return kernels.far, (kernels.FAR // 1024,), (x, y, 1024)


def a_tuple() -> Launch:
    arrays = (torch.randn(512, 256, device="cuda"), torch.randn(512, 256, device="cuda", dtype=torch.bfloat16))
    return kernels.summed, (64, 8), (arrays, (0.5, 2.0), torch.zeros(512, 256, device="cuda"), (8, 32))


def a_cache() -> Launch:
    places = torch.tensor([5, 4000, 17, 0], dtype=torch.int32, device="cuda")
    new, cache = torch.randn(4, 64, device="cuda"), torch.randn(4, 65_536, 64, device="cuda")
    return kernels.appended, (4,), (new, places, cache, 64)


CHANGES = {
    lists: ("part * 3.0", "part * 3.01"),
    a_table: ("inside = rows < last", "inside = rows < last - sequence"),
    in_place: ("second * cos + first * sin", "second * cos - first * sin"),
    not_reducible: ("places + FAR, check_bounds", "places + FAR - 1, check_bounds"),
    a_tuple: ("* weights[index]", "* weights[0]"),
    a_cache: ("(sequence, place, 0), row)", "(sequence, place, 0), row * 2)"),
}


def captured_task(folder: Path, launched: Callable[[], Launch]) -> str:
    """The task file of a launch that is made and captured here."""
    kernel, grid, args = launched()
    with capture.capturing(folder / "c.json"):
        ct.launch(torch.cuda.current_stream(), grid, kernel, args)
        torch.cuda.synchronize()
    (one,) = capture_record.read(folder / "c.json").launches()
    (folder / "task.py").write_text(task_text(one, folder))
    return str(folder / "task.py")


@pytest.mark.parametrize("launched", CHANGES, ids=lambda one: one.__name__)
def test_a_captured_launch_is_a_task(tmp_path: Path, launched: Callable[[], Launch]) -> None:
    """It is correct, at the captured extents too, and a kernel that computes something else is not."""
    file = captured_task(tmp_path, launched)
    verdict = checked(load_task(file), trusted=True, seconds=90.0)
    assert verdict.verdict == "correct", verdict.reason
    assert verdict.engine == "gpu"
    own = Path(kernels.__file__)
    before, after = CHANGES[launched]
    assert own.read_text().count(before) == 1
    task, gpu = load_task(file), detect()
    assert gpu is not None
    texts = {"same": own.read_text(), "changed": own.read_text().replace(before, after)}
    with Candidates([own]) as candidates:
        builder = Builder(candidates, task, where_is(task), gpu.board, task.selected(None), tmp_path / "copies")
        versions = [builder.build_one(name, {own: text}).entrant for name, text in texts.items()]
    with Arena(task, where_is(task), versions[0], Policy(launch="eager"), 5) as arena:
        found = [arena.verify(version, "captured") for version in versions]
    assert [one.verdict for one in found if isinstance(one, Checked)] == ["correct", "incorrect"], found


@pytest.mark.parametrize(("launched", "how"), [(a_table, "graph"), (in_place, "graph"), (lists, "eager")])
def test_a_captured_launch_is_tuned(tmp_path: Path, launched: Callable[[], Launch], how: Any) -> None:
    """Raced against itself: what is updated starts from the same data each time that it is checked."""
    from tilewright.tune import tune as tuning

    file = captured_task(tmp_path, launched)
    task = load_task(file)
    (found,) = tuning.tune(task, top=2, policy=Policy(launch=how)).workloads
    assert found.best is not None, found
