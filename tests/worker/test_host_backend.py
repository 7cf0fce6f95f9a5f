"""Inputs that are drawn on the host, and when a workload needs torch. The rest of the backend is in
test_without_torch.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import ITEM_BYTES, Distribution, Output, Tensor, integers, normal, offsets, uniform
from tilewright.verify.images import storage
from tilewright.worker.process import choosing, host_backend
from tilewright.worker.process.choosing import needs_torch
from tilewright.worker.process.host_backend import Drawn, drawn

DIMS = {"M": 6}


def task() -> Task:
    return Task(
        name="t",
        tensors={"x": Tensor(("M",), "float32"), "y": Output(("M",), "float32")},
        reference=lambda x: x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda M: M,
        space=Space(constants={"TILE": (1,)}, shipped={"TILE": 1}),
        workloads={"only": DIMS},
    )


@pytest.mark.parametrize("dtype", sorted(set(ITEM_BYTES) - {"float8_e8m0fnu", "bool"}))
@pytest.mark.parametrize(
    ("how", "low", "high"),
    [(integers(0, 4), 0, 3), (uniform(1, 2), 1, 2), (normal(3, 0.25), 1, 5)],
    ids=["integers", "uniform", "normal"],
)
def test_values_follow_their_distribution(dtype: str, how: Distribution, low: float, high: float) -> None:
    values = drawn(how, (20, 20), dtype, (3, 0))
    assert values.dtype == storage(dtype) and values.shape == (20, 20)
    wide = values.astype(np.float64)
    assert low <= wide.min() and wide.max() <= high
    if how.kind == "integers":
        assert set(wide.reshape(-1)) == set(range(low, high + 1))  # type: ignore[arg-type]
    elif how.kind == "normal" and dtype == "float64":
        assert wide.mean() == pytest.approx(3, abs=0.1) and wide.std() == pytest.approx(0.25, rel=0.2)


@pytest.mark.parametrize("how", [normal(0, 1), offsets("M", most=100).under(DIMS, "x")], ids=["normal", "offsets"])
def test_equal_keys_draw_equal_values_and_others_do_not(how: Distribution) -> None:
    """trust.md 20."""
    made = [drawn(how, (50,), "float64", key) for key in ((1, 0), (1, 0), (2, 0), (1, 1))]
    assert np.array_equal(made[0], made[1])
    assert not any(np.array_equal(a, b) for a, b in combinations(made[1:], 2))


def test_each_piece_has_other_values_whatever_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_backend, "PIECE", 64)
    values = drawn(normal(0, 1), (1000,), "float32", (1,))
    assert len(set(values.tolist())) > 990
    monkeypatch.setattr(host_backend, "in_threads", lambda function, items: [*map(function, reversed(items))])
    assert np.array_equal(values, drawn(normal(0, 1), (1000,), "float32", (1,)))


def test_what_was_drawn_is_kept_within_the_limit() -> None:
    kept = Drawn(100)
    first = kept.get(normal(0, 1), (10,), "float32", (1,))
    assert kept.get(normal(0, 1), (10,), "float32", (1,)) is first and first.size == 40
    second = kept.get(normal(0, 1), (10,), "float32", (2,))
    assert kept.get(normal(0, 1), (10,), "float32", (1,)) is first
    kept.get(normal(0, 1), (10,), "float32", (3,))
    assert kept.get(normal(0, 1), (10,), "float32", (1,)) is first, "the one used longest ago went"
    again = kept.get(normal(0, 1), (10,), "float32", (2,))
    assert again is not second and np.array_equal(again, second)
    assert kept.get(normal(0, 1), (1000,), "float32", (2,)).size == 4000, "more than the limit"


def test_torch_is_needed_by_a_trusted_implementation_and_for_large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not needs_torch(task(), DIMS)
    assert needs_torch(replace(task(), trusted=lambda x: x), DIMS)
    monkeypatch.setattr(choosing, "HOST_ELEMENTS", 11)
    for found in (None, object()):
        monkeypatch.setattr(choosing, "find_spec", lambda name, found=found: found)
        assert needs_torch(task(), DIMS) is (found is not None), "without torch, the host compares large tensors too"
