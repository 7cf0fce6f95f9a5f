"""Hostile inputs: what each kind is, and that it stays within what a tensor declares (trust.md 5, 7)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import UnknownChoice
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import Distribution, Output, Tensor, integers, normal, uniform
from tilewright.verify.data import KINDS, SPECIAL, drawn, limits, rounded
from tilewright.verify.images import storage

FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
DIMS = {"M": 64, "N": 48}
STANDARD = normal()


def task(dtype: str, distribution: Distribution) -> Task:
    return Task(
        name="one",
        tensors={"x": Tensor(("M", "N"), dtype, distribution), "y": Output(("M", "N"), dtype)},
        reference=lambda x: x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda M, N: M * N,
        space=Space(constants={"TILE": (16,)}, shipped={"TILE": 16}),
        workloads={"only": DIMS},
    )


def values(kind: str, dtype: str = "float32", distribution: Distribution = STANDARD, seed: int = 0) -> np.ndarray:
    one = drawn(task(dtype, distribution), DIMS, kind, seed)["x"]
    assert one.dtype == storage(dtype) and one.shape == (64, 48)
    return np.asarray(one.astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SPECIAL])
def test_ordinary_kinds_are_finite_in_every_dtype(kind: str, dtype: str) -> None:
    assert np.isfinite(values(kind, dtype)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("low", "high"), [(0.5, 1.5), (-1.0, 1.0), (0.0, 1.0), (-3.0, -2.0)])
def test_a_uniform_distribution_is_a_domain(kind: str, low: float, high: float) -> None:
    found = values(kind, "float32", uniform(low, high))
    finite = found[np.isfinite(found)]
    assert finite.min() >= low and finite.max() <= high


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int32", "int8", "int64", "float32"])
def test_whole_numbers_are_a_domain(kind: str, dtype: str) -> None:
    found = values(kind, dtype, integers(-3, 9))
    assert found.min() >= -3 and found.max() <= 8
    assert np.array_equal(found, np.rint(found))


@given(st.sampled_from(tuple(KINDS)), st.integers(0, 99))
def test_equal_seeds_give_equal_bits(kind: str, seed: int) -> None:
    first, second = values(kind, seed=seed), values(kind, seed=seed)
    assert first.tobytes() == second.tobytes()


def test_kinds_are_what_their_names_say() -> None:
    scale = np.abs(values("declared")).mean()
    assert np.abs(values("large")).mean() > 100 * scale
    assert np.abs(values("tiny")).mean() < scale / 1000
    assert (values("zeros") == 0).mean() > 0.3
    assert np.signbit(values("zeros")[values("zeros") == 0]).any()
    denormal = np.abs(values("denormals"))
    assert ((denormal > 0) & (denormal < limits("float32").smallest_normal)).mean() > 0.3
    rows = values("constant rows")
    assert (rows.std(axis=1) < 0.02 * np.abs(rows).mean(axis=1)).all()
    assert rows.mean(axis=1).std() > 0.1
    whole = values("small integers")
    assert np.array_equal(whole, np.rint(whole)) and set(np.unique(whole)) == set(range(-4, 5))
    assert np.isinf(values("infinities")).any() and np.isnan(values("nans")).any()


@pytest.mark.parametrize("dtype", FLOATS[:-1])
def test_hostile_rows_are_what_their_names_say(dtype: str) -> None:
    """trust.md 43."""
    zero = values("rows of zeros", dtype)
    assert 0.1 < (zero == 0).all(axis=1).mean() < 0.7 and (zero == 0).all(axis=0).any()
    outliers = np.sort(np.abs(values("outliers", dtype)), axis=1)
    ratio = outliers[:, -1] / np.maximum(outliers[:, -2], 1e-9)
    assert 0.3 < (ratio > 100).mean() < 0.7, "in about half of the rows"
    far = values("far from zero", dtype)
    assert (far > 0).all() and far.mean() > 2 * far.std()
    same = np.abs(values("one magnitude", dtype))
    assert (same == same[:, :1]).all()


def test_data_far_from_zero_has_a_mean_of_a_thousand_deviations() -> None:
    for dtype in ("float16", "float32"):
        found = values("far from zero", dtype)
        assert found.mean() > 1000 * found.std() > 0


def test_extremes_of_whole_numbers() -> None:
    assert set(np.unique(values("large", "int32", integers(0, 7)))) == {6}
    assert set(np.unique(values("mixed signs", "int32", integers(0, 7)))) == {0, 6}


def test_what_is_rounded_stays_finite() -> None:
    assert rounded(np.array([1e9, -1e9]), "float8_e4m3fn").astype(np.float64).tolist() == [448.0, -448.0]


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(UnknownChoice, match="large, tiny"):
        drawn(task("float32", normal()), DIMS, "huge", 0)
