"""The trusted implementation in its process, its failures as reasons, and the reference as a yardstick."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import NoGpu
from tilewright.space.space import Space
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor
from tilewright.verify import trusted as module
from tilewright.verify.images import storage
from tilewright.verify.reference import FloatReference
from tilewright.verify.trusted import Single, Trusted, to_precision, yardstick
from tilewright.worker.session import Session

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="the trusted implementation computes in torch")

FILE = """
import os
import numpy as np
import tilewright as tw

def implementation(a, b, HOW):
    import torch
    print("what an implementation prints is not an answer")
    if HOW == "raise":
        raise ValueError("no such kernel\\nsecond line")
    if HOW == "exit":
        os._exit(3)
    if HOW == "shape":
        return (a @ b).mT, a
    if HOW == "count":
        return a
    return a @ b, a.float()

product = tw.Task(
    name="product",
    tensors={"a": tw.Tensor(("M", "K"), "bfloat16"), "b": tw.Tensor(("K", "N"), "bfloat16"),
             "c": tw.Output(("M", "N"), "bfloat16"), "d": tw.Output(("M", "K"), "float8_e4m3fn")},
    reference=lambda a, b: (a @ b, a), trusted=implementation, launch=lambda a: None,
    flops=lambda M, N, K: 2 * M * N * K,
    space=tw.Space(constants={"TILE": (1,)}, shipped={"TILE": 1}),
    workloads={"only": {"M": 4, "N": 3, "K": 8, "HOW": "well"}},
)
"""
DIMS = {"M": 4, "N": 3, "K": 8, "HOW": "well"}


@pytest.fixture
def inputs() -> dict[str, Any]:
    rng, bfloat16 = np.random.default_rng(0), storage("bfloat16")
    return {"a": rng.normal(size=(4, 8)).astype(bfloat16), "b": rng.normal(size=(3, 8)).astype(bfloat16).T}


@pytest.fixture
def trusted(tmp_path: Path) -> Iterator[Trusted]:
    (tmp_path / "product.py").write_text(FILE)
    made = Trusted(load_task(str(tmp_path / "product.py")))
    yield made
    made.close()


@needs_torch
def test_outputs_are_those_of_torch_in_the_declared_dtypes(trusted: Trusted, inputs: dict[str, Any]) -> None:
    import torch

    found = trusted.outputs(DIMS, inputs)
    assert isinstance(found, dict), found
    assert {name: str(array.dtype) for name, array in found.items()} == {"c": "bfloat16", "d": "float8_e4m3fn"}
    a, b = (torch.tensor(inputs[name].astype(np.float32)).bfloat16() for name in "ab")
    assert np.array_equal(found["c"].astype(np.float32), (a @ b).float().numpy())
    assert np.array_equal(found["d"].astype(np.float32), a.to(torch.float8_e4m3fn).float().numpy())


@needs_torch
def test_a_failing_implementation_is_a_reason_and_the_next_case_is_asked_again(
    trusted: Trusted, inputs: dict[str, Any]
) -> None:
    for how, words in [
        ("raise", "ValueError: no such kernel"), ("exit", "exit code 3"), ("shape", "the task declares (4, 3)"),
        ("count", "returned Tensor for the outputs c, d"),
    ]:  # fmt: skip
        reason = trusted.outputs({**DIMS, "HOW": how}, inputs)
        assert isinstance(reason, str) and words in reason and "\n" not in reason
        assert "trusted of task 'product'" in reason
    assert isinstance(trusted.outputs(DIMS, inputs), dict)


def test_a_task_without_one_says_so() -> None:
    assert Trusted(task()).outputs({"N": 3}, {}) == "task 'sum' names no trusted implementation"


def test_a_task_in_no_file_says_so() -> None:
    made = Trusted(replace(task(), trusted=lambda x: x, launch=eval("lambda x: None")))
    assert "is in no file" in str(made.outputs({"N": 3}, {}))


def test_no_torch_is_a_reason(trusted: Trusted, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Any, step: Any, **_: Any) -> Any:
        raise NoGpu("measuring needs torch")

    monkeypatch.setattr(Session, "run", run)
    assert trusted.outputs(DIMS, inputs) == "torch is not installed"
    monkeypatch.undo()
    assert trusted.outputs(DIMS, inputs) == "torch is not installed", "asked once"


def test_a_closed_one_starts_nothing(trusted: Trusted, inputs: dict[str, Any]) -> None:
    trusted.close()
    assert trusted.outputs(DIMS, inputs) == "closed"


def task(dtype: str = "float32", **changes: Any) -> Task:
    one = Task(
        name="sum",
        tensors={"x": Tensor(("M", "N"), dtype), "y": Output(("M",), dtype)},
        reference=lambda x: x.sum(axis=1),
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda M, N: M * N,
        space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
        workloads={"only": {"M": 5, "N": 700}},
    )
    return replace(one, **changes)


@pytest.mark.parametrize(
    ("dtype", "roundoff"),
    [("float64", 2.0**-53), ("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8),
     ("float8_e4m3fn", 2.0**-4)],
)  # fmt: skip
def test_the_yardstick_is_off_by_the_roundoff_of_its_dtype(dtype: str, roundoff: float) -> None:
    x = np.random.default_rng(1).uniform(0, 0.5, (50, 700)).astype(storage(dtype))
    found = yardstick(task(dtype), {"M": 50, "N": 700}, {"x": x})
    assert isinstance(found, Single) and found.outputs["y"].dtype == storage(dtype)
    exact = x.astype(np.longdouble).sum(axis=1)
    worst = float(np.max(np.abs(found.outputs["y"].astype(np.longdouble) - exact) / exact))
    assert roundoff / 16 < worst < 16 * roundoff


@pytest.mark.parametrize(("precision", "roundoff"), [("tf32", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_the_yardstick_takes_the_inputs_as_the_declared_arithmetic_does(precision: str, roundoff: float) -> None:
    x = np.random.default_rng(1).normal(size=(50, 700)).astype(np.float32)
    found = yardstick(task(precision=precision, reference=lambda x: x[:, 0]), {"M": 50, "N": 700}, {"x": x})
    assert isinstance(found, Single)
    worst = np.max(np.abs(found.outputs["y"] - x[:, 0]) / np.abs(x[:, 0]))
    assert roundoff / 4 < worst <= roundoff


def test_tf32_is_rounded_to_nearest_even() -> None:
    step = 2.0**-10
    values = np.array(
        [1 + step / 2, 1 + 3 * step / 2, 1 + 0.51 * step, -1 - 0.49 * step, np.inf, np.nan, 0.0], np.float32
    )
    found = to_precision(values, "tf32")
    assert np.array_equal(
        found, np.array([1, 1 + 2 * step, 1 + step, -1, np.inf, np.nan, 0], np.float32), equal_nan=True
    )


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool"])
def test_whole_numbers_stay_exact(dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 100, (5, 700)).astype(dtype)
    one = task(dtype, tensors={"x": Tensor(("M", "N"), dtype), "y": Output(("M",), "int32")})
    found = yardstick(one, {"M": 5, "N": 700}, {"x": x})
    assert isinstance(found, Single)
    assert np.array_equal(found.outputs["y"], x.astype(np.int64).sum(axis=1))


@pytest.mark.parametrize(
    ("reference", "words"),
    [(lambda x: 1 / 0, "in float32: ZeroDivisionError"), (lambda x: (x, x), "returned 2 arrays for the outputs y")],
)
def test_a_reference_that_fails_is_a_reason(reference: Any, words: str) -> None:
    reason = yardstick(task(reference=reference), {"M": 5, "N": 700}, {"x": np.ones((5, 700), np.float32)})
    assert isinstance(reason, str) and words in reason


@pytest.mark.parametrize(
    ("reference", "promoted"),
    [(lambda x: x[:, 0] + 0.3, False), (lambda x, M: x[:, 0] + np.arange(M) * 0.01, True),
     (lambda x: x[:, 0] / np.sqrt(2), True), (lambda x: x[:, 0].astype(np.float64), True)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_an_output_that_numpy_promotes_is_named(reference: Any, promoted: bool, dtype: str) -> None:
    x = np.ones((5, 700), storage(dtype))
    found = yardstick(task(dtype, reference=reference), {"M": 5, "N": 700}, {"x": x})
    assert isinstance(found, Single) and found.promoted == ({"y"} if promoted else set())


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-24), ("float64", 2.0**-53)])
def test_a_promoted_output_may_have_the_roundings_of_a_kernel(dtype: str, unit: float) -> None:
    """The float32 reference shows none of them; twice four roundoffs, as for a number that is an input."""
    one = task(dtype, reference=lambda x, M: x[:, 0] + np.arange(M) * 0.01)
    inputs = {"x": np.full((5, 700), 1e-30, dtype)}
    wanted = FloatReference(one).wanted({"M": 5, "N": 700}, inputs, "tiny")
    assert isinstance(wanted, dict)
    assert wanted["y"].allowed.worst == wanted["y"].allowed.total == 8 * unit


def test_the_worker_is_the_command_that_is_run() -> None:
    assert module.COMMAND[1:] == ("-m", "tilewright.worker.process.trusted")
