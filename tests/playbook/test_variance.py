"""The mean and the variance of a row are computed in one pass, and keep their digits."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from tests.playbook.kit import verdict
from tests.playbook.plain import HEAD, applied, launch_facts
from tests.playbook.row_loops import TWICE

from tilewright.inspect.work import count
from tilewright.playbook.analyses.chunk_loops import SHORT
from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.variance import ENTRY, ONE_LOOP
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, loaded
from tilewright.verify.images import POISONS, ROW_MAJOR, images_for
from tilewright.verify.interpreted import InterpreterEngine

PLANTED = Path("bench/planted/traffic.py").read_text().replace('"M": 4096, "N": 65536', '"M": 600, "N": 16384')
STATISTICS = (
    HEAD
    + """
@ct.kernel
def statistics(x, mean_of, variance_of, COLUMNS: ct.Constant[int], TILE: ct.Constant[int]):
    row = ct.bid(0)
    total = ct.zeros((1, 1), ct.float32)
    for n in range(ct.num_tiles(x, axis=1, shape=(1, TILE))):
        values = ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        total += ct.sum(values, axis=1, keepdims=True)  # of a chunk
    mean = total / COLUMNS
    ct.store(mean_of, (row,), mean.reshape((1,)))
    squares = ct.zeros((1, 1), ct.float32)
    # the variance
    for n in range(ct.num_tiles(x, axis=1, shape=(1, TILE))):
        inside = n * TILE + ct.arange(TILE, dtype=ct.int32)[None, :] < COLUMNS
        again = ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        centred = ct.where(inside, again - mean, 0.0)
        squares += ct.sum(centred**2, axis=1, keepdims=True)
    ct.store(variance_of, (row,), (squares / COLUMNS).reshape((1,)))


def launch(x, mean, variance, M, N, config):
    return tw.Launch(statistics, (M,), (x, mean, variance, N, config.TILE))


task = tw.Task(
    name="statistics",
    tensors={
        "x": tw.Tensor(("M", "N"), "float32"),
        "mean": tw.Output(("M",), "float32"),
        "variance": tw.Output(("M",), "float32"),
    },
    reference=lambda x: (x.mean(axis=1), x.var(axis=1)),
    launch=launch,
    flops=lambda M, N: 4 * M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE": (256,)}, shipped={"TILE": 256}),
    workloads={"rows": {"M": 300, "N": 4000}},
)
"""
)
REUSED = (
    STATISTICS.replace("total", "mean")
    .replace("(squares / COLUMNS)", "squares")
    .replace("    ct.store(variance_of", "    squares = squares / COLUMNS\n    ct.store(variance_of")
)
UNSHIFTED = STATISTICS.replace("again - mean", "again").replace(
    "(squares / COLUMNS)", "(squares / COLUMNS - mean * mean)"
)  # fmt: skip


LAST = "    ct.store(variance_of, (row,), (squares / COLUMNS).reshape((1,)))\n"


class TestVariance(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"planted": PLANTED, "statistics": STATISTICS}
    elsewhere: ClassVar = {"a mean": TWICE, "squares of elements": UNSHIFTED}


@pytest.mark.parametrize(
    ("text", "passes"),
    [(PLANTED, (4, 3 + 1 / 16)), (STATISTICS, (2, 1 + 1 / 16)), (REUSED, (2, 1 + 1 / 16))],
    ids=["planted", "statistics", "a mean with the name of the sum"],
)
def test_the_row_is_read_once_less_and_the_result_is_right(
    text: str, passes: tuple[float, float], tmp_path: Path
) -> None:
    """Reads and writes of the row. Its first of 16 chunks is read once more."""
    new = loaded(applied(ENTRY, text, tmp_path, ONE_LOOP), tmp_path)
    name = new.selected(None)[0].name
    moved = [count(task, task.workload(name), H200).moved for task in (loaded(text, tmp_path), new)]
    assert moved[1] / moved[0] == pytest.approx(passes[1] / passes[0], rel=0.02)
    assert verdict(new).verdict.startswith("correct")


def test_the_differences_are_from_the_mean_of_the_first_chunk(tmp_path: Path) -> None:
    new = applied(ENTRY, STATISTICS, tmp_path, ONE_LOOP)
    kernel = new[new.index("    n_first") : new.index("def launch")].rstrip()
    assert kernel == '''
    n_first = 0
    total_first = total
    values_first = ct.load(x, (row, n_first), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    total_squared = ct.sum(values_first * values_first, axis=1, keepdims=True)
    total_first += ct.sum(values_first, axis=1, keepdims=True)  # of a chunk
    mean_pivot = total_first / COLUMNS * (x.shape[1] / min(TILE, x.shape[1]))
    mean_pivot_squares = total_squared / COLUMNS * (x.shape[1] / min(TILE, x.shape[1]))
    mean_pivot = ct.where(2.0 * mean_pivot * mean_pivot > mean_pivot_squares, mean_pivot, 0.0)
    squares = ct.zeros((1, 1), ct.float32)
    # the variance
    for n in range(ct.num_tiles(x, axis=1, shape=(1, TILE))):
        inside = n * TILE + ct.arange(TILE, dtype=ct.int32)[None, :] < COLUMNS
        again = ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        centred = ct.where(inside, again - mean_pivot, 0.0)
        total = total + ct.sum(centred, axis=1, keepdims=True)
        squares += ct.sum(centred**2, axis=1, keepdims=True)
    mean_shift = total / COLUMNS
    mean = mean_pivot + mean_shift
    ct.store(mean_of, (row,), mean.reshape((1,)))
    ct.store(variance_of, (row,), ct.maximum(squares / COLUMNS - mean_shift * mean_shift, 0.0, propagate_nan=True).reshape((1,)))
'''.strip("\n").rstrip()  # fmt: skip  # noqa: E501


def hostile() -> npt.NDArray[np.float32]:
    """Rows whose variance is lost where digits cancel."""
    x = np.random.default_rng(3).normal(size=(8, 4000))
    x[0] += 1e4
    x[1] -= 1e6
    x[2, 0] = 1e6  # the first element is far from all others
    x[3, :256] += 1e4  # the first chunk is
    x[4, 256:] += 1e4  # all other chunks are
    x[5] = 1e4  # no deviation
    x[6] = np.linspace(1e4, 2e4, 4000)
    return x.astype(np.float32)


def errors(text: str, folder: Path) -> npt.NDArray[np.float64]:
    """The relative errors of the variances of the hostile rows; in the units of the mean for rows that are constant."""
    task, x = loaded(text, folder), hostile()
    dims = {"M": len(x), "N": x.shape[1]}
    images = images_for(task, dims, {"x": x}, ROW_MAJOR, POISONS[0])
    ran = InterpreterEngine(task, H200).run(task.space.shipped, dims, images)
    assert not ran.findings and ran.failed is None and ran.refused is None
    wide = x.astype(np.float64)
    assert images["mean"].array == pytest.approx(wide.mean(axis=1), rel=1e-6, abs=1e-3)
    expected = wide.var(axis=1)
    return np.abs(images["variance"].array - expected) / np.where(expected == 0, 1e4, expected)


def test_hostile_rows_keep_their_digits(tmp_path: Path) -> None:
    """With a mean of 10⁴ and a deviation of 1 in float32, among others. Sums of squares without a pivot lose them."""
    shifted = errors(applied(ENTRY, STATISTICS, tmp_path, ONE_LOOP), tmp_path)
    assert shifted.max() < 2e-5, shifted
    assert errors(STATISTICS, tmp_path).max() < 0.05, "as good as two passes"
    assert errors(UNSHIFTED, tmp_path)[[0, 1]].min() > 0.1


def test_rows_that_fit_into_registers_promise_less(tmp_path: Path) -> None:
    """`one_pass` reads them once."""
    long = STATISTICS.replace('"N": 4000', '"N": 100000')
    promises = [
        ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))[0].promise for text in (STATISTICS, long)
    ]
    assert promises == [SHORT, 1.0]


def test_a_divisor_between_the_loops_is_computed_before_the_pivot(tmp_path: Path) -> None:
    text = STATISTICS.replace("    mean = total / COLUMNS", "    inverse = 1.0 / COLUMNS\n    mean = total * inverse")
    new = applied(ENTRY, text.replace("squares / COLUMNS", "squares * inverse"), tmp_path, ONE_LOOP)
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("squares / COLUMNS", "squares / (COLUMNS - 1)", "squares is not divided in the same way as the sum"),
        ("centred**2", "centred**3", "the second loop sums no squares"),
        ("again - mean", "again * mean", "does more with mean than to subtract it"),
        ("        squares +=", "        ct.store(mean_of, (row,), mean)\n        squares +=", "stores in a loop"),
        ("ct.sum(centred**2, axis=1, keepdims=True)", "ct.sum(centred**2)", "not reduced in the same way"),
        ("mean = total / COLUMNS", "mean = ct.sqrt(total)", "ct.sqrt\\(total\\) is no mean of total"),
        (
            "centred = ct.where(inside, again - mean",
            "centred = ct.where(inside, (again - mean) * 2",
            "not just the differ",
        ),
        ("again - mean", "2.0 * again - mean", "does not subtract the mean from the elements"),
        ("ct.sum(values, axis=1", "ct.sum(values * values, axis=1", "does not subtract the mean from the elements"),
        ("inside = n * TILE", "inside = 2 * n * TILE", "mask their elements in different ways"),
        ("where(inside,", "where(inside & (again > 0.0),", "mask their elements in different ways"),
        (
            "total = ct.zeros((1, 1), ct.float32)",
            "total = ct.full((1, 1), 1.0, ct.float32)",
            "total does not begin at 0",
        ),
        (
            "    squares = ct",
            "    ct.store(mean_of, (row,), total)\n    squares = ct",
            "needs total for more than the mean",
        ),
        (LAST, LAST + "    ct.store(mean_of, (row,), total)\n", "needs total for more than the mean"),
        (LAST, LAST + "    ct.store(mean_of, (row,), squares)\n", "needs squares for more than the variance"),
        (LAST, LAST + "    ct.store(mean_of, (row,), values)\n", "needs values after the loop that computes total"),
        (LAST, LAST + "    ct.store(mean_of, (row,), centred)\n", "needs centred after the loop that computes squares"),
        ("COLUMNS).resh", "COLUMNS - mean * mean).resh", "corrects the variance by the mean"),
        ("keepdims=True)  # of a chunk", "keepdims=True) + total", "do not compute|compute more than a mean"),
    ],
)
def test_it_says_what_it_does_not_change(before: str, after: str, reason: str) -> None:
    source = Source("task.py", STATISTICS.replace(before, after))
    site = Site.at(source, source.kernels["statistics"], "", (ONE_LOOP,))
    with pytest.raises(NotApplicable, match=reason):
        ENTRY.apply(source, site, ONE_LOOP)


def test_a_name_with_an_underscore_at_its_end_stays(tmp_path: Path) -> None:
    new = applied(ENTRY, STATISTICS.replace("centred", "total_"), tmp_path, ONE_LOOP)
    assert new == applied(ENTRY, STATISTICS, tmp_path, ONE_LOOP).replace("centred", "total_")
