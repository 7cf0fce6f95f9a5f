"""The laws of reduced shapes, edges and hidden draws (trust.md 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.records import Configuration
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor
from tilewright.verify import shapes
from tilewright.verify.shapes import Limit


def product(serves: Callable[..., bool] | None = None, tile: int = 64, **dims: Any) -> Task:
    space = Space(
        constants={"TILE_M": (tile,), "TILE_N": (128,), "GROUP": (8,)},
        shipped={"TILE_M": tile, "TILE_N": 128, "GROUP": 8},
    )
    return Task(
        name="product",
        tensors={
            "a": Tensor(("B", "M", "K"), "float32"),
            "b": Tensor(("B", "K", "N"), "float32"),
            "c": Output(("B", "M", "N"), "float32"),
        },
        reference=lambda a, b: a @ b,
        launch=lambda a: None,  # type: ignore[arg-type,return-value]
        flops=lambda B, M, N, K: 2 * B * M * N * K,
        independent=("B", "M", "N"),
        space=space,
        workloads={"only": {"B": 4, "M": 4000, "N": 4097, "K": 2000, "causal": True, "mode": "fast", **dims}},
        serves=serves,
    )


extents = st.integers(1, 5000)


def test_one_dimension_keeps_its_extent_where_a_run_is_affordable() -> None:
    """A sum's whole length, with as few independent results as needed."""
    dims, tiles = moduli(task := product(K=4096))
    changed = shapes.deep(task, dims, tiles, "K")
    assert changed is not None and changed["K"] == 4096 and shapes.DEEP.allows(task, changed)
    dims, tiles = moduli(task := product(K=1 << 24))
    changed = shapes.deep(task, dims, tiles, "K")
    assert changed is not None and 4096 < shapes.extent(changed, "K") < 1 << 24
    dims, tiles = moduli(task := product(K=200))
    assert shapes.deep(task, dims, tiles, "K") is None, "the reduced shape is as long"


def test_a_dimension_that_needs_a_multiple_of_a_number_without_a_knob_is_reduced() -> None:
    task = product(lambda K, **others: K % 512 == 0, K=1 << 20, M=64, N=128)
    dims, tiles = moduli(task)
    assert shapes.reduced(task, dims, tiles)["K"] == 512
    task = product(lambda K, **others: K == 1 << 20, K=1 << 20, M=64, N=128)
    assert shapes.reduced(task, dims, tiles)["K"] == 1 << 20, "no other extent is served"


def moduli(task: Task) -> tuple[dict[str, Any], dict[str, shapes.Tiles]]:
    dims = dict(task.workloads["only"])
    return dims, shapes.moduli(task, task.space.shipped, dims)


@given(extents, extents, extents, extents, st.sampled_from([1, 16, 64, 128]))
def test_reduced_keeps_the_remainders_and_never_grows(b: int, m: int, n: int, k: int, tile: int) -> None:
    task = product(tile=tile, B=b, M=m, N=n, K=k)
    dims, tiles = moduli(task)
    small = shapes.reduced(task, dims, tiles)
    assert task.promises(small)
    assert (small["causal"], small["mode"]) == (True, "fast")
    for name in "BMNK":
        after, before = shapes.extent(small, name), shapes.extent(dims, name)
        assert 1 <= after <= before
        if not (tiles[name].free and after <= 2):
            assert after % tiles[name].least == before % tiles[name].least


@given(extents, extents)
def test_reduced_is_within_the_limit_where_that_is_possible(m: int, n: int) -> None:
    task = product(M=m, N=n)
    dims, tiles = moduli(task)
    small = shapes.reduced(task, dims, tiles, Limit(flop=1e9, elements=1 << 18))
    assert Limit(flop=1e9, elements=1 << 18).allows(task, small)


def test_a_shape_of_one_whole_tile_stays() -> None:
    task = product(B=1, M=64, N=128, K=128)
    dims, tiles = moduli(task)
    assert shapes.reduced(task, dims, tiles) == dims


def test_two_tiles_where_that_is_affordable() -> None:
    task = product(B=1, M=4096, N=4096, K=4096)
    dims, tiles = moduli(task)
    small = shapes.reduced(task, dims, tiles, Limit(flop=1e9, elements=1 << 20))
    assert (small["M"], small["N"], small["K"]) == (256, 256, 256)


def test_a_batch_goes_first() -> None:
    dims, tiles = moduli(task := product(B=32, M=256, N=256, K=256))
    assert tiles["B"].free and not tiles["M"].free and not tiles["K"].free
    assert shapes.extent(shapes.reduced(task, dims, tiles), "B") <= 2


def test_the_modulus_is_at_least_sixteen() -> None:
    task = product(tile=1)
    found = shapes.moduli(task, Configuration.of({"TILE_M": 1, "SPLIT": True}), task.workloads["only"])
    assert {one.sizes for one in found.values()} == {(16,)}


def test_only_what_is_served() -> None:
    task = product(lambda M, N: M % 4 == 0 and N > 100)
    dims, tiles = moduli(task)
    small = {**dims, "N": 129, "M": 64, "B": 1, "K": 16}
    found = [shapes.reduced(task, dims, tiles), *shapes.edges(task, small, tiles)]
    found += shapes.hidden(task, small, tiles, np.random.default_rng(0))
    assert len(found) > 5
    assert all(task.promises(one) for one in found)


def test_where_nothing_within_the_limit_is_served_it_is_a_small_one_that_is() -> None:
    """Not the workload itself, which may be a thousand times the work."""
    task = product(lambda M, N: M % 128 == 0 and N >= 128)
    dims, tiles = moduli(task)
    dims |= {"M": 4096, "N": 4096}
    found = shapes.reduced(task, dims, tiles, Limit(flop=1.0, elements=1))
    assert task.promises(found)
    assert max(found["M"], found["N"]) <= 256


def test_edges_lie_about_the_tile() -> None:
    task = product()
    dims, tiles = moduli(task)
    small = {**dims, "B": 1, "M": 64, "N": 128, "K": 32}
    found = {(name, one[name]) for one in shapes.edges(task, small, tiles) for name in "MN" if one[name] != small[name]}
    assert {("M", 1), ("M", 63), ("M", 65), ("M", 61), ("N", 1), ("N", 127), ("N", 129)} <= found


def test_a_dimension_of_powers_of_two_has_edges_too() -> None:
    task = product(lambda K: K & (K - 1) == 0)
    dims, tiles = moduli(task)
    small = {**dims, "B": 1, "M": 64, "N": 128, "K": 32}
    assert {one["K"] for one in shapes.edges(task, small, tiles)} >= {1, 64}


def test_hidden_shapes_depend_on_the_seed_alone() -> None:
    task = product()
    dims, tiles = moduli(task)
    small = {**dims, "B": 1, "M": 64, "N": 128, "K": 32}
    draws = [list(shapes.hidden(task, small, tiles, np.random.default_rng(seed))) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0] and all(one != small for one in draws[0])


@pytest.mark.parametrize("workload", [{"M": 1, "N": 1, "K": 1, "B": 1}])
def test_nothing_is_smaller_than_one(workload: dict[str, int]) -> None:
    task = product(**workload)
    dims, tiles = moduli(task)
    assert shapes.reduced(task, dims, tiles) == dims
    assert list(shapes.halved(task, dims, "BMNK")) == []
