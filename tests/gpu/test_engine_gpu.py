"""The engine on a GPU: bytes, names of kernels, crashes and hangs; and compute-sanitizer where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.records import Configuration
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.tileir.watch.findings import OUT_OF_BOUNDS, UNINITIALISED
from tilewright.verify.engine import RunOptions
from tilewright.verify.images import images_for
from tilewright.verify.on_gpu import GpuEngine
from tilewright.verify.sanitizer_tool import find, sanitize

HERE = Path(__file__).parent
TASKS = HERE.parent / "exploits" / "tasks.py"
HONEST = HERE.parent / "exploits" / "honest.py"
OLD = HERE / "exploit_tasks.py"
N = {"N": 512}


@contextmanager
def engine_of(task: Task) -> Iterator[GpuEngine]:
    made = GpuEngine(task)
    try:
        yield made
    finally:
        made.close()


def cheat(name: str) -> Task:
    return load_task(f"{TASKS}:{name}")


def images(task: Task, layout: str = "row-major", dims: Any = N, seed: int = 0) -> Any:
    rng, specs = np.random.default_rng(seed), task.arrays(dims)
    inputs = {name: rng.normal(size=specs[name].shape) for name in task.inputs}
    return images_for(task, dims, inputs, layout, 0xFF)


@pytest.mark.parametrize("layout", ["row-major", "transposed", "sliced", "misaligned"])
def test_a_correct_kernel_on_every_layout(layout: str) -> None:
    task, dims = load_task(f"{HONEST}:any_strides"), {"M": 24, "N": 80}
    with engine_of(task) as engine:
        one = images(task, layout, dims)
        ran = engine.run(task.space.shipped, dims, one, RunOptions(launches=3))
    assert ran.failed is None, ran.failed
    wanted = one["x"].array.astype(np.float64) + one["bias"].array.astype(np.float64)
    assert np.max(np.abs(one["y"].array.astype(np.float64) - wanted)) < 0.05
    assert all(image.damaged() is None for image in one.values())
    assert ran.touched_early == ()
    assert ran.declared is not None and ran.declared.startswith("any_strides_K")
    assert ran.kernels in (None, (ran.declared,) * 3), "the exact name of what was compiled"


def test_the_profiler_names_the_kernels() -> None:
    """trust.md 15: without names nothing can be said about which kernels ran."""
    task = cheat("identity")
    with engine_of(task) as engine:
        ran = engine.run(task.space.shipped, N, images(task), RunOptions(launches=2))
        assert ran.kernels is not None, engine.kernels_why
    assert ran.declared is not None and ran.kernels == (ran.declared,) * 2
    assert ran.uploads == 0


def test_work_of_the_launch_function_is_seen() -> None:
    """trust.md 15: it writes the output itself, or lets the library compute and the kernel copy."""
    task = cheat("answers_itself")
    with engine_of(task) as engine:
        assert engine.run(task.space.shipped, N, images(task)).touched_early == ("y",)
    task = cheat("borrows")
    with engine_of(task) as engine:
        ran = engine.run(task.space.shipped, N, images(task))
    assert ran.touched_early == ()
    assert ran.kernels is not None
    assert [name for name in ran.kernels if "copies" not in name], "the library's kernels are named too"


def test_a_copy_from_the_host_is_counted() -> None:
    """trust.md 40."""
    task = cheat("fetches_from_the_host")
    with engine_of(task) as engine:
        ran = engine.run(task.space.shipped, N, images(task))
        assert ran.kernels == (ran.declared,) and ran.uploads == 1, engine.kernels_why


def test_a_kernel_whose_name_holds_the_declared_one_is_another() -> None:
    """trust.md 40."""
    task = cheat("named_alike")
    with engine_of(task) as engine:
        ran = engine.run(task.space.shipped, N, images(task))
    assert ran.declared is not None and ran.kernels is not None
    assert len(ran.kernels) == 2 and ran.kernels[1] == ran.declared != ran.kernels[0]
    assert ran.declared.split("_K")[0] in ran.kernels[0]


def test_a_result_kept_by_pointer_is_at_the_same_pointer_again() -> None:
    """trust.md 20, 21: contents A, then B at the same addresses, B at others."""
    task = cheat("kept_by_pointer")
    with engine_of(task) as engine:
        outputs = []
        for seed in (0, 1, 1):
            one = images(task, seed=seed)
            assert engine.run(task.space.shipped, N, one).failed is None
            outputs.append(one["y"].array.tobytes())
    assert outputs[0] == outputs[1], "the cheat was served from what it kept"
    assert outputs[1] != outputs[2]


def test_an_output_in_place_is_written_over_its_input() -> None:
    task, dims = load_task(f"{HONEST}:turns_in_place"), {"M": 11}
    with engine_of(task) as engine:
        apart, over = images(task, dims=dims), images(task, dims=dims)
        engine.run(task.space.shipped, dims, apart)
        engine.run(task.space.shipped, dims, over, RunOptions(alias={"y": "x"}))
    assert np.array_equal(apart["y"].array, over["x"].array)


def test_a_crash_is_a_reason_and_the_next_run_works() -> None:
    """trust.md 14."""
    task = cheat("crashes")
    with engine_of(task) as engine:
        one = images(task)
        ran = engine.run(task.space.shipped, N, one)
        assert ran.failed is not None
        assert "illegal" in ran.failed.reason or "CUDA" in ran.failed.reason
        assert engine.session.losses == 1
        assert engine.run(task.space.shipped, N, images(task)).failed is not None, "another process, the same crash"


def test_a_hang_is_a_reason() -> None:
    task = load_task(f"{OLD}:deadly")
    made = GpuEngine(task, silence=20.0)
    try:
        dims = {"N": 64 * 1024}
        config = Configuration.of({"KERNEL": "hang"})
        ran = made.run(config, dims, images(task, dims=dims))
        assert ran.failed is not None and "hangs" in ran.failed.reason
        assert made.run(Configuration.of({"KERNEL": "double"}), dims, images(task, dims=dims)).failed is None
    finally:
        made.close()


def test_a_launch_function_that_fails_is_a_reason() -> None:
    task = cheat("launch_fails")
    with engine_of(task) as engine:
        ran = engine.run(task.space.shipped, {"N": 100}, images(task, dims={"N": 100}))
        assert ran.failed is not None and "no kernel for this shape" in ran.failed.reason
        assert engine.session.losses == 0


needs_sanitizer = pytest.mark.skipif(find() is None, reason="compute-sanitizer is not on this machine")


@needs_sanitizer
@pytest.mark.parametrize(
    ("name", "tool", "kind"),
    [("identity", "memcheck", None), ("identity", "racecheck", None), ("identity", "initcheck", None),
     ("crashes", "memcheck", OUT_OF_BOUNDS), ("writes_beyond", "memcheck", OUT_OF_BOUNDS),
     ("wrong_the_second_time", "initcheck", UNINITIALISED)],
)  # fmt: skip
def test_compute_sanitizer_finds_what_is_wrong_and_nothing_else(name: str, tool: str, kind: str | None) -> None:
    """trust.md 9, 11."""
    task = cheat(name)
    (said,) = sanitize(task, task.space.shipped, N, images(task), tools=(tool,))
    assert said.reason is None, said.reason
    assert {one.kind for one in said.findings} == ({kind} if kind else set()), said.findings
