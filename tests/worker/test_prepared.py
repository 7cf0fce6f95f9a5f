"""Examiners of several workloads side by side, within half of a memory that is made up here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="examiners keep their memory in torch")

from tilewright.errors import TaskError  # noqa: E402
from tilewright.records import Configuration  # noqa: E402
from tilewright.space.space import Space  # noqa: E402
from tilewright.task.task import Task  # noqa: E402
from tilewright.task.tensors import Dims, Distribution, Output, Tensor  # noqa: E402
from tilewright.verify.tolerance import FACTOR, TRUSTED_AT_MOST  # noqa: E402
from tilewright.worker.process import examiner as prepared_module  # noqa: E402
from tilewright.worker.process.examiner import (  # noqa: E402
    DeviceExaminer,
    Prepared,
    bytes_needed,
)
from tilewright.worker.process.torch_backend import TorchBackend  # noqa: E402

WORKLOADS = {"a": {"M": 8}, "b": {"M": 8}, "c": {"M": 8}, "large": {"M": 64}}
ONE = 8 * 4 * (1 + 2 + 1 + 4)
"""Bytes of an examiner with M = 8: the input and two sets of it, the output and four copies of it."""


def task() -> Task:
    return Task(
        name="double",
        tensors={"x": Tensor(("M",), "float32"), "y": Output(("M",), "float32")},
        reference=lambda x: 2 * x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda M: M,
        space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
        workloads=WORKLOADS,
    )


def on_cpu(task: Task, dims: Dims) -> TorchBackend:
    return TorchBackend("cpu")


class Memory:
    """What is free, as it would be seen while ``prepared`` holds what it holds."""

    def __init__(self, total: int) -> None:
        self.prepared = Prepared(task(), on_cpu, lambda: total - self.held)

    @property
    def held(self) -> int:
        return sum(bytes_needed(self.prepared.task, one.dims) for one in self.prepared._held.values())

    def new(self, workload: str, seed: int = 0, *, passing: bool = False) -> bool:
        return self.prepared.get(workload, seed, passing=passing)[1]


def test_bytes_are_those_of_the_tensors_and_of_copies_of_the_outputs() -> None:
    assert bytes_needed(task(), {"M": 8}) == ONE


def test_what_fits_is_made_once() -> None:
    memory = Memory(8 * ONE)
    assert [memory.new(name) for name in "abcabc"] == [True] * 3 + [False] * 3
    first, _ = memory.prepared.get("a", 0)
    assert memory.prepared.get("a", 0)[0] is first
    assert memory.new("a", 1), "another seed, other inputs"


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    memory = Memory(4 * ONE)  # two at a time
    assert memory.new("a") and memory.new("b") and not memory.new("a") and memory.new("c")
    assert not memory.new("a")
    assert memory.new("b")
    assert memory.held == 2 * ONE


def test_a_workload_larger_than_half_of_the_memory_is_alone() -> None:
    memory = Memory(10 * ONE)
    assert memory.new("a") and memory.new("large")
    assert memory.held == 8 * ONE
    assert memory.new("a") and memory.held == ONE


def test_a_passing_seed_leaves_with_the_next_one() -> None:
    """A confirmation's inputs never come back; those of the run do."""
    memory = Memory(100 * ONE)
    assert memory.new("a") and memory.new("a", 7, passing=True) and memory.new("b", 7, passing=True)
    assert not memory.new("a", 7, passing=True), "a second look at the same confirmation"
    assert memory.held == 3 * ONE
    assert memory.new("a", 8, passing=True)
    assert memory.held == 2 * ONE and not memory.new("a")


def test_when_the_device_is_full_all_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, full = Memory(100 * ONE), [True]

    def examiner(*args: object) -> DeviceExaminer:
        if memory.prepared._held and full and full.pop():
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return DeviceExaminer(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(prepared_module, "DeviceExaminer", examiner)
    assert memory.new("a") and memory.new("b")
    assert memory.held == ONE and memory.new("a")


def test_a_table_that_cannot_be_sliced_is_refused_before_it_is_drawn() -> None:
    """trust.md 44: its float64 copy alone would take 150 GiB of the host."""
    table = {
        "table": Tensor((400_000, 50_257), "bfloat16"),
        "rows": Tensor(("M",), "int32", Distribution("integers", 0, 400_000)),
    }
    lookup = replace(task(), tensors={**table, "y": Output(("M", 50_257), "bfloat16")}, independent=("M",))
    prepared = Prepared(lookup, on_cpu)
    reason = prepared.too_large("a")
    assert reason is not None and "needs about" in reason and "50% of this machine's" in reason
    assert "declare dimensions independent" in reason
    assert Prepared(task(), on_cpu).too_large("large") is None


def rounded_sums(dims: Dims, factor: float = 1.0) -> Task:
    """Like a captured kernel: the reference of large work is the trusted implementation itself."""

    def trusted(x: torch.Tensor, M: int) -> torch.Tensor:
        return factor * (x.bfloat16().double() + x.double() ** 2).float()

    def reference(x: np.ndarray, M: int, config: Configuration | None = None) -> np.ndarray:
        return x + x**2 if M <= 64 else trusted(torch.from_numpy(x).float(), M).double().numpy()

    return Task(
        name="sums", tensors={"x": Tensor(("M",), "float32"), "y": Output(("M",), "float32")},
        reference=reference, trusted=trusted, launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda M: M, space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}), workloads={"only": dims},
    )  # fmt: skip


def test_if_the_reference_is_the_trusted_implementation_both_have_its_error() -> None:
    """The error comes from a shape with a float64 reference; otherwise only the dtype's roundoff would be allowed."""
    large, small = (
        DeviceExaminer(rounded_sums(dims), dims, TorchBackend("cpu"), 3) for dims in ({"M": 4096}, {"M": 64})
    )
    allowed, measured = large.draws[0].wanted["y"].allowed, small.draws[0].wanted["y"].allowed
    assert measured.worst > 1e-4  # bfloat16 within, float32 outside
    assert 1.5 * measured.worst < allowed.worst < 6 * measured.worst
    assert allowed.total == pytest.approx(1.5 * measured.total, rel=0.5)


def test_the_error_of_both_is_at_most_what_is_trusted() -> None:
    """1.5 times the error of 8 % would be more than any trusted implementation may have."""
    dims = {"M": 4096}
    examiner = DeviceExaminer(rounded_sums(dims, 1.08), dims, TorchBackend("cpu"), 3)
    assert examiner.draws[0].wanted["y"].allowed.total == FACTOR * TRUSTED_AT_MOST
    with pytest.raises(TaskError, match="differs by 0.12 of its norm from the float64 reference"):
        DeviceExaminer(rounded_sums(dims, 1.12), dims, TorchBackend("cpu"), 3)


def test_an_exact_implementation_is_allowed_its_roundoff_alone() -> None:
    exact = replace(rounded_sums({"M": 4096}), reference=lambda x: x, trusted=lambda x: x)
    examiner = DeviceExaminer(exact, {"M": 4096}, TorchBackend("cpu"), 3)
    assert "unit roundoff of float32" in examiner.draws[0].wanted["y"].allowed.why
