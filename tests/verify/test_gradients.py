"""The reference of a backward task must be the gradient of the forward reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import TaskError
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor
from tilewright.verify.reference import check_gradients

SPACE = Space(constants={"TILE": (16,)}, shipped={"TILE": 16})
DIMS = {"M": 12, "K": 9, "N": 7}
SHAPES = {"a": ("M", "K"), "b": ("K", "N"), "d_y": ("M", "N")}


def task(tensors: dict[str, Any], reference: Callable[..., Any], **more: Any) -> Task:
    return Task(
        name="product", tensors=tensors, reference=reference, launch=lambda: None,  # type: ignore[arg-type,return-value]
        flops=lambda M, N, K: 2 * M * N * K, space=SPACE, workloads={"only": DIMS}, **more,
    )  # fmt: skip


def forward(reference: Callable[..., Any], backward: Callable[..., Any], given: str = "ab", wanted: str = "ab") -> Task:
    inputs = {name: Tensor(SHAPES[name], "float32") for name in given}
    outputs = {f"d_{name}": Output(SHAPES[name], "float32") for name in wanted}
    gradient = task({**inputs, "d_y": Tensor(SHAPES["d_y"], "float32"), **outputs}, backward)
    tensors = {name: Tensor(SHAPES[name], "float32") for name in "ab"}
    return task({**tensors, "y": Output(("M", "N"), "float32")}, reference, backward=gradient)


def test_a_right_gradient_passes() -> None:
    check_gradients(forward(lambda a, b: a @ b, lambda a, b, d_y: (d_y @ b.T, a.T @ d_y)), DIMS, 0)


@pytest.mark.parametrize("seed", range(5))
def test_kinks_are_no_mistake(seed: int) -> None:
    def backward(a: Any, b: Any, d_y: Any) -> Any:
        inner = d_y * (a @ b > 0)
        return inner @ b.T, a.T @ inner

    check_gradients(forward(lambda a, b: np.maximum(a @ b, 0), backward), DIMS, seed)


def test_part_of_the_gradients_is_enough() -> None:
    check_gradients(forward(lambda a, b: a @ b, lambda b, d_y: d_y @ b.T, "b", "a"), DIMS, 0)


@pytest.mark.parametrize(
    ("backward", "name"),
    [
        (lambda a, b, d_y: (d_y @ b.T, -(a.T @ d_y)), "d_b"),
        (lambda a, b, d_y: (2 * d_y @ b.T, a.T @ d_y), "d_a"),
        (lambda a, b, d_y: (d_y @ b.T * 1.001, a.T @ d_y), "d_a"),
        (lambda a, b, d_y: (0 * a, a.T @ d_y), "d_a"),
    ],
)
def test_a_wrong_gradient_is_named(backward: Callable[..., Any], name: str) -> None:
    with pytest.raises(TaskError, match=f"'{name}' gives .* finite differences of the forward reference"):
        check_gradients(forward(lambda a, b: a @ b, backward), DIMS, 0)


def test_names_must_fit() -> None:
    wrong = task({"q": Tensor(("M", "N"), "float32"), "d_a": Output(("M", "K"), "float32")}, lambda q: q)
    tensors = {"a": Tensor(("M", "K"), "float32"), "y": Output(("M", "K"), "float32")}
    with pytest.raises(TaskError, match="input 'q' is neither an input nor the gradient of an output; known: a, d_y"):
        task(tensors, lambda a: a, backward=wrong)
    wrong = task({"d_y": Tensor(("M", "K"), "float32"), "a": Output(("M", "K"), "float32")}, lambda d_y: d_y)
    with pytest.raises(TaskError, match="output 'a' is the gradient of no input; known: d_a"):
        task(tensors, lambda a: a, backward=wrong)
