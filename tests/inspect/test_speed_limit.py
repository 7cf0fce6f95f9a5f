"""Times in which a board cannot do the counted work are refused, and no time in which it can (trust.md 23)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.hardware.architectures import board_for_gpu, default_board
from tilewright.inspect.speed_limit import Roofline, SpeedLimit, fastest_tflops
from tilewright.race.rules import Policy
from tilewright.records import Configuration
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.worker.client import Contestant
from tilewright.worker.messages import Configured, Program

EXAMPLES = Path(__file__).parents[2] / "examples"
H200 = default_board("sm_90")
OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def work(x, y, REPEAT: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), 0), (64, 1024))
    for _ in range(REPEAT):
        t = t * t
    ct.store(y, (ct.bid(0), 0), t)

@ct.kernel
def rows(x, at, y):
    row = ct.gather(at, ct.bid(0))
    ct.store(y, (ct.bid(0), 0), ct.load(x, (row, 0), (1, 1024)))

def task_of(name, repeat, flops, **more):
    return tw.Task(
        name=name,
        tensors={"x": tw.Tensor(("M", 1024), "float32"), "y": tw.Output(("M", 1024), "float32")},
        reference=lambda x: x,
        launch=lambda x, y, M, config: tw.Launch(work, (M // 64,), (x, y, config.REPEAT)),
        flops=flops,
        space=tw.Space(constants={"REPEAT": (1000, 1)}, shipped={"REPEAT": repeat}),
        workloads={"only": {"M": 16384}},
        **more,
    )

busy = task_of("busy", 1000, lambda M: 1000 * 1024 * M)
less = task_of("less", 1, lambda M: 1024 * M, bytes_moved=lambda M: 1024 * 4 * M + 4096 * 1024)
looked_up = tw.Task(
    name="looked_up",
    tensors={"x": tw.Tensor(("M", 1024), "float32"), "at": tw.Tensor(("M",), "int32", tw.integers(0, 100)),
             "y": tw.Output(("M", 1024), "float32")},
    reference=lambda x, at: x[at.astype(int)],
    launch=lambda x, at, y, M: tw.Launch(rows, (M,), (x, at, y)),
    flops=lambda M: 0,
    space=tw.Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
    workloads={"only": {"M": 16384}},
)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("limits") / "ops.py"
    path.write_text(OPS)
    return path


def refusal(task: Task, us: float, workload: str = "only", *, config: Configuration | None = None, **how: str) -> str:
    limit = SpeedLimit(task, H200, replace(Policy(), **how))  # type: ignore[arg-type]
    return limit.refusal(workload, Contestant("one", Configured(config or task.space.shipped)), us) or ""


def test_a_product_takes_the_time_of_its_work() -> None:
    task = load_task(str(EXAMPLES / "naive" / "matmul.py"))
    reason = refusal(task, 120, "4096")
    assert "measured 120 µs, but H200 needs at least 138.9 µs for its work: 67.1 MB at 4800 GB/s, 137 GFLOP" in reason
    assert not refusal(task, 130, "4096"), "a clock above the one of the vendor's rate"


def test_with_a_cold_l2_the_inputs_come_from_memory() -> None:
    """16 MiB are read in 3.5 µs; what is written may stay in the L2."""
    task = load_task(str(EXAMPLES / "rms_norm.py"))
    assert "at least 3.497 µs" in refusal(task, 3.1, "2048x4096")
    assert not refusal(task, 3.2, "2048x4096")
    assert not refusal(task, 0.5, "2048x4096", l2="warm")
    assert refusal(task, 0.02, "2048x4096", l2="warm"), "its operations remain"


def test_an_output_beyond_the_l2_goes_to_memory() -> None:
    """128 MiB are read and as many written, of which the L2 can hold 60."""
    task = load_task(str(EXAMPLES / "rms_norm.py"))
    assert "at least 42.8" in refusal(task, 38, "16384x4096")


def test_a_candidate_that_needs_less_work_may_be_faster(file: Path) -> None:
    """It is judged by its own count, and by the shipped one only if that is less."""
    busy = load_task(f"{file}:busy")
    assert "16.8 GFLOP" in refusal(busy, 20, l2="warm")
    one = Configuration.of({"REPEAT": 1})
    assert not refusal(busy, 20, config=one, l2="warm")
    assert "at least 14.85" in refusal(busy, 12, config=one), "71 MB move all the same"


def test_a_version_is_counted_in_its_own_code(file: Path) -> None:
    busy = load_task(f"{file}:busy")
    quick = load_task(f"{file}:less")
    limit, program = SpeedLimit(busy, H200, Policy(l2="warm")), Program("", "work", (1,), ())
    assert limit.refusal("only", Contestant("1", program), 20)
    assert not limit.refusal("only", Contestant("2", program, task=quick), 20)


def test_what_the_task_declares_as_enough_is_enough(file: Path) -> None:
    assert not refusal(load_task(f"{file}:less"), 2.0)


def test_work_that_depends_on_data_is_not_counted(file: Path) -> None:
    """A hundred rows are read again and again, from the L2."""
    assert not refusal(load_task(f"{file}:looked_up"), 0.1)


@pytest.mark.parametrize(
    ("dtype", "tflops"),
    [("bfloat16", 989.45), ("float32", 494.7), ("float8_e4m3fn", 1978.9), ("int8", 1978.9), ("float64", 494.7)],
)
def test_the_rate_is_the_highest_that_the_dtype_allows(file: Path, dtype: str, tflops: float) -> None:
    busy = load_task(f"{file}:busy")
    other = replace(busy, tensors={**busy.tensors, "x": replace(busy.tensors["x"], dtype=dtype)})
    assert fastest_tflops(other, H200) == pytest.approx(tflops)


def test_estimated_rates_refuse_nothing() -> None:
    """An unknown GPU may be faster than what is assumed for it."""
    known, unknown = H200, board_for_gpu("NVIDIA H900", 132, 1 << 38, arch="sm_90")
    assert Roofline(known, Policy()).refused(0.1, [(1e6, 0.0)], 100.0) is not None
    assert Roofline(unknown, Policy()).refused(0.1, [(1e6, 0.0)], 100.0) is None
