"""The expected outputs of a captured kernel with another configuration, on unusual data."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.records import Configuration
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor
from tilewright.verify.arrays import Array
from tilewright.verify.reference import FloatReference

DIMS = {"M": 48}
LARGE = {"x": np.full(48, 1e6, np.float32)}


def reference(x: Array, config: Configuration | None = None) -> Array:
    """Its own tile is 16. A tile of 32 changes large numbers only, 64 all numbers, and 48 is no tile."""
    tile = 16 if config is None else config["TILE"]
    if tile == 48:
        raise ValueError("no power of two")
    return {16: 2 * x, 32: np.where(x < 1e3, 2 * x, 3 * x), 64: np.zeros_like(x)}[tile]


def task() -> Task:
    return Task(
        name="double", tensors={"x": Tensor(("M",), "float32"), "y": Output(("M",), "float32")}, reference=reference,
        launch=lambda x: None, flops=lambda M: M, workloads={"only": DIMS},  # type: ignore[arg-type,return-value]
        space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
    )  # fmt: skip


@pytest.mark.parametrize(("tile", "factor"), [(16, None), (32, 3), (48, None), (64, None)])
def test_only_a_configuration_that_is_right_on_declared_data_has_other_outputs(tile: int, factor: int | None) -> None:
    """With any other one, a version could be wrong in the same way, on any data that is not declared."""
    one = FloatReference(task())
    wanted = one.wanted(DIMS, LARGE, "large")
    assert not isinstance(wanted, str)
    others = one.of_configuration(DIMS, LARGE, wanted, Configuration.of({"TILE": tile}))
    assert (None if others is None else float(others["y"].values[0]) / 1e6) == factor
