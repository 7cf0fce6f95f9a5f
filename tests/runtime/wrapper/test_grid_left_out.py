"""`tilewright.tuned` without ``grid=``: the grid is found by trying, or refused. Launches are remembered, not made."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
from tests.runtime.kit_wrapper import World

from tilewright import Space
from tilewright.compile.pool import CompilerPool
from tilewright.errors import GridNotFound, RequestError
from tilewright.runtime.environment import TuningWarning
from tilewright.runtime.search.building import Building
from tilewright.runtime.wrapper import left_out_grid

torch = pytest.importorskip("torch")

STREAM = "the stream"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))


@pytest.fixture
def world() -> World:
    return World()


def blocks(extent: int, tile: int) -> int:
    return -(-extent // tile)


def called(world: World, kernel: Any, *arguments: Any, **changes: Any) -> Any:
    """Calls a tuned kernel without a grid. All configurations are searched; the last one is the fastest."""
    values = {name: (2, 4, 8) for name in kernel._pyfunc.__annotations__ if name.startswith("T")}
    space = Space(constants=values, shipped=dict.fromkeys(values, 4))
    op = world.tuned(kernel, **{"space": space, "grid": None, "arguments": None, "outputs": None, **changes})
    op(STREAM, *arguments)
    return op


def grids(world: World) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Maps the constants of each candidate of the last search to its grid."""
    assert all(type(trial).__name__ == "CuTileTrial" for trial in world.searches[-1]), world.searches[-1]
    return {tuple(dict(trial.config).values()): trial.grid for trial in world.searches[-1]}  # type: ignore[union-attr]


@ct.kernel
def elementwise(x, y, TILE: ct.Constant[int]):
    index = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    ct.scatter(y, index, ct.gather(x, index) * 2)


@ct.kernel
def tiles(x, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    ct.store(y, (ct.bid(1), ct.bid(0)), ct.load(x, (ct.bid(1), ct.bid(0)), (TM, TN)))


@ct.kernel
def rows(x, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    total = ct.full((TM, 1), 0, ct.float32)
    for n in range(ct.cdiv(x.shape[1], TN)):
        tile = ct.load(x, (ct.bid(0), n), (TM, TN), padding_mode=ct.PaddingMode.ZERO)
        total = total + ct.sum(tile, axis=1, keepdims=True)
    for n in range(ct.cdiv(x.shape[1], TN)):
        ct.store(y, (ct.bid(0), n), ct.load(x, (ct.bid(0), n), (TM, TN)) / total)


@ct.kernel
def matmul(a, b, c, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    total = ct.full((TM, TN), 0, ct.float32)
    for k in range(ct.cdiv(a.shape[1], TK)):
        left = ct.load(a, (ct.bid(0), k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, ct.load(b, (k, ct.bid(1)), (TK, TN), padding_mode=ct.PaddingMode.ZERO), total)
    ct.store(c, (ct.bid(0), ct.bid(1)), total)


@ct.kernel
def swizzled(x, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    across, down = ct.cdiv(y.shape[1], TN), ct.cdiv(y.shape[0], TM)
    group = ct.bid(0) // (3 * across)
    height = min(down - group * 3, 3)
    m, n = group * 3 + (ct.bid(0) % height), (ct.bid(0) % (3 * across)) // height
    ct.store(y, (m, n), ct.load(x, (m, n), (TM, TN)))


@ct.kernel
def two_outputs(x, y, z, TM: ct.Constant[int], TN: ct.Constant[int]):
    tile = ct.load(x, (ct.bid(0), ct.bid(1)), (TM, TN))
    ct.store(y, (ct.bid(0), ct.bid(1)), tile)
    if ct.bid(1) == 0:
        ct.store(z, (ct.bid(0),), ct.full((TM,), 1, ct.float32))


@ct.kernel
def halves(x, y, TM: ct.Constant[int], TN: ct.Constant[int]):
    """Two stores to one array, whose indices are computed alike from the block."""
    ct.store(y, (ct.bid(0) // 2, ct.bid(1), 0), ct.load(x, (ct.bid(0) // 2, ct.bid(1), 1), (TM, TN, 4)))
    ct.store(y, (ct.bid(0) // 2, ct.bid(1), 1), ct.load(x, (ct.bid(0) // 2, ct.bid(1), 0), (TM, TN, 4)))


FOUND: dict[str, tuple[Any, Callable[[], tuple[Any, ...]], Callable[..., tuple[int, int, int]]]] = {
    "element-wise": (elementwise, lambda: (torch.ones(37), torch.ones(37)), lambda t: (blocks(37, t), 1, 1)),
    "tiles": (
        tiles, lambda: (torch.ones(13, 33), torch.ones(13, 33)), lambda m, n: (blocks(33, n), blocks(13, m), 1),
    ),
    "tiles of a part of an array": (
        tiles, lambda: (torch.ones(13, 33), torch.ones(13, 40)[:, :33]),
        lambda m, n: (blocks(33, n), blocks(13, m), 1),
    ),
    "rows": (rows, lambda: (torch.ones(19, 21), torch.ones(19, 21)), lambda m, n: (blocks(19, m), 1, 1)),
    "matmul": (
        matmul, lambda: (torch.ones(17, 16), torch.ones(16, 30), torch.ones(17, 30)),
        lambda m, n, k: (blocks(17, m), blocks(30, n), 1),
    ),
    "swizzled": (
        swizzled, lambda: (torch.ones(29, 17), torch.ones(29, 17)),
        lambda m, n: (blocks(29, m) * blocks(17, n), 1, 1),
    ),
    "two outputs": (
        two_outputs, lambda: (torch.ones(9, 20), torch.ones(9, 20), torch.ones(9)),
        lambda m, n: (blocks(9, m), blocks(20, n), 1),
    ),
    "two stores to an array": (
        halves,
        lambda: (torch.ones(9, 20, 8), torch.ones(9, 20, 8)),
        lambda m, n: (2 * blocks(9, m) - 1, blocks(20, n), 1),
    ),
    "nothing to store": (elementwise, lambda: (torch.ones(0), torch.ones(0)), lambda t: (1, 1, 1)),
    "one tile": (tiles, lambda: (torch.ones(1, 2), torch.ones(1, 2)), lambda m, n: (1, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_the_grid_of_each_candidate_is_found(world: World, name: str) -> None:
    kernel, arguments, expected = FOUND[name]
    called(world, kernel, *arguments())
    found = grids(world)
    assert found == {sizes: expected(*sizes) for sizes in found} and len(found) == 3 ** len(next(iter(found)))
    ((grid, _, _),) = world.launches
    assert grid == expected(*[8] * len(next(iter(found))))


@ct.kernel
def persistent(x, y, TILE: ct.Constant[int]):
    for index in range(ct.bid(0), ct.cdiv(x.shape[0], TILE), ct.num_blocks(0)):
        ct.store(y, (index,), ct.load(x, (index,), (TILE,)))


@ct.kernel
def atomic(x, y, TILE: ct.Constant[int]):
    index = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    ct.atomic_add(y, index, ct.gather(x, index))


@ct.kernel
def first_columns(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (TILE, 8)))


@ct.kernel
def through_indices(x, y, TILE: ct.Constant[int]):
    index = ct.load(x, (ct.bid(0),), (TILE,))
    ct.scatter(y, index, index)


@ct.kernel
def in_groups(x, y, TILE: ct.Constant[int]):
    """The author's grid is (2, groups): another one, (2 * groups, 1), also stores all elements, but wrong ones."""
    row = ct.bid(0) + ct.bid(1) * 2
    ct.store(y, (row,), ct.load(x, (ct.bid(1),), (TILE,)))


@ct.kernel
def crossed(x, y, TILE: ct.Constant[int]):
    """Both grids (n, 1) and (1, n) store all elements."""
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))
    ct.store(y, (ct.bid(1),), ct.load(x, (ct.bid(1),), (TILE,)))


@ct.kernel
def counted(x, y, n, TILE: ct.Constant[int]):
    if ct.bid(0) < n:
        ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)))


@ct.kernel
def scaled(x, y, n, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * n)


@ct.kernel
def silent(x, y, TILE: ct.Constant[int]):
    ct.load(x, (ct.bid(0),), (TILE,))


ONES = lambda: (torch.ones(64), torch.ones(64))  # noqa: E731
REFUSED: dict[str, tuple[Any, Callable[[], tuple[Any, ...]], dict[str, Any], str]] = {
    "persistent": (persistent, ONES, {}, "reads the number of blocks .*, so it may run with any"),
    "atomic": (atomic, ONES, {}, "an atomic operation"),
    "partly written": (
        first_columns, lambda: (torch.ones(9, 16), torch.ones(9, 16)), {},
        "no block stores 288 of the 576 bytes of 'y'",
    ),
    "data": (
        through_indices, lambda: (torch.ones(8, dtype=torch.int32), torch.ones(8, dtype=torch.int32)), {},
        "depends on data",
    ),
    "two axes together": (in_groups, ONES, {}, "several axes of the grid decide together"),
    "two stores by two axes": (crossed, ONES, {}, "several axes of the grid decide together"),
    "an unkeyed number": (counted, lambda: (*ONES(), 16), {"unkeyed": ("n",)}, "may depend on 'n', whose value"),
    "an unkeyed array": (elementwise, ONES, {"unkeyed": ("y",)}, "'y' is not in the key"),
    "a constant of a float": (
        scaled, lambda: (*ONES(), 1.5), {"arguments": {"TILE": lambda call, config: 4 * int(call.n)}, "space": [{}]},
        "may depend on 'TILE', whose value",
    ),
    "nothing written": (silent, ONES, {}, "writes no array"),
    "a kernel with an error": (elementwise, lambda: (1.5, torch.ones(3)), {}, "cannot be lowered"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("mode", ["now", "off"])
def test_no_wrong_grid_is_launched(world: World, name: str, mode: str) -> None:
    kernel, arguments, changes, why = REFUSED[name]
    with pytest.raises(RequestError, match=why) as said:
        called(world, kernel, *arguments(), **changes, mode=mode)
    text = str(said.value)
    assert text.startswith(f"{kernel._pyfunc.__name__}: no grid= is given") and "fix: pass grid=lambda" in text
    assert "\n" not in text and not world.launches and not world.searches


def test_a_number_that_is_in_the_key_may_decide(world: World) -> None:
    called(world, counted, *ONES(), 32)
    assert grids(world) == {(2,): (32, 1, 1), (4,): (16, 1, 1), (8,): (8, 1, 1)}


def test_the_grid_is_found_once_for_each_key_and_not_at_a_hit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[str]()
    real = left_out_grid.found_grid

    def noted(name: str, *others: Any) -> Any:
        found.append(name)
        return real(name, *others)

    monkeypatch.setattr(left_out_grid, "found_grid", noted)
    x = torch.ones(8, 16)
    space = Space(
        constants={"TM": (2, 4), "TN": (16,)}, hints={"occupancy": (None, 2, 4)},
        shipped={"TM": 2, "TN": 16, "occupancy": None},
    )  # fmt: skip
    op = called(world, tiles, x, torch.empty_like(x), space=space)
    assert len(world.searches[0]) == 6 and len(found) == 2, "hints change no grid"
    for _ in range(3):
        op(STREAM, x, torch.empty_like(x))
    assert len(found) == 2 and {grid for grid, _, _ in world.launches} == {(1, 2, 1)}
    op(STREAM, x[:3], torch.empty_like(x[:3]))
    assert len(found) == 4 and world.launches[-1][0] == (1, 1, 1)
    other = World()  # another process finds the grid of the stored winner only
    called(other, tiles, x, torch.empty_like(x), space=space)
    assert not other.searches and len(found) == 5 and other.launches[-1][0] == (1, 2, 1)


def test_grids_are_found_while_compilers_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the grids of all constants were found before the first compiler started."""
    events, real, submit = list[str](), left_out_grid.found_grid, CompilerPool._submit

    def found_grid(name: str, trial: Any, *others: Any) -> Any:
        events.append("grid")
        if trial.config["TILE"] == 2:
            raise GridNotFound("none here")
        return real(name, trial, *others)

    def compiling(pool: CompilerPool, *others: Any) -> None:
        events.append("compiler")
        submit(pool, *others)

    monkeypatch.setattr(left_out_grid, "found_grid", found_grid)
    monkeypatch.setattr(CompilerPool, "_submit", compiling)
    trials = list[Any]()
    monkeypatch.setattr(world, "search", lambda tried, **_: trials.extend(tried) or 1 / 0)
    with pytest.warns(TuningWarning, match="is not tuned"):
        called(world, elementwise, *ONES())
    with Building(trials, "sm_90", 0) as building:
        built = dict(building.all())
    assert events == ["grid", "compiler", "compiler", "compiler", "grid", "grid"], "the first one's is known"
    assert {number: getattr(each, "reason", "") for number, each in built.items()} == {
        0: "",
        1: "GridNotFound: none here",
        2: "",
    }
    assert [built[number].trial.grid for number in (0, 2)] == [(16, 1, 1), (8, 1, 1)]  # type: ignore[union-attr]


def test_a_grid_of_arguments_that_are_made_at_each_launch_is_kept(world: World) -> None:
    """The argument ``n`` is made from a float, but decides nothing."""
    made = {"n": lambda call, config: call.factor * 2}
    op = called(world, scaled, *ONES(), 0.5, arguments=made, parameters=("x", "y", "factor"))
    op(STREAM, *ONES(), 3.0)
    assert len(world.searches) == 1 and [grid for grid, _, _ in world.launches] == [(8, 1, 1)] * 2
    assert [arguments[2] for _, _, arguments in world.launches] == [1.0, 6.0]


def test_a_grid_that_is_too_large_to_follow_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out_grid, "MOST_BLOCKS", 16)
    called(world, elementwise, torch.ones(32), torch.ones(32))
    for kernel, shape in ((elementwise, (200,)), (tiles, (32, 32))):
        with pytest.raises(
            RequestError, match="16 blocks are followed|more than 16 blocks along x, too many to follow"
        ):
            called(world, kernel, torch.ones(shape), torch.ones(shape))
    assert math.prod(world.launches[0][0]) == 4 and len(world.launches) == 1
