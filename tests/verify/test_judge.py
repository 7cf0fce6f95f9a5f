"""The judge says the same of NumPy's arrays and of torch's. Its comparison in float32 accepts only what the one in
float64 accepts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

torch = pytest.importorskip("torch", reason="the judge compares tensors too")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tilewright.verify.arrays import HOST, Arrays, Tensors  # noqa: E402
from tilewright.verify.judge import Wanted, Wrong, compared, judge_finite, judge_values, judge_whole  # noqa: E402
from tilewright.verify.tolerance import Allowance, allowance, error_of, squares_of, surely_near  # noqa: E402

TENSORS = Tensors(torch)
ANY = st.floats(-1e6, 1e6) | st.sampled_from([0.0, float("nan"), float("inf"), float("-inf")])
PAIRS = hnp.array_shapes(min_dims=1, max_dims=2, max_side=6).flatmap(
    lambda shape: st.tuples(*(hnp.arrays(np.float32, shape, elements=ANY.map(np.float32)) for _ in "ab"))
)


@given(PAIRS, st.booleans(), st.sampled_from([0.0, 1e-3]))
def test_errors_are_the_same(pair: tuple[Any, Any], special: bool, negligible: float) -> None:
    out, ref = pair
    here = error_of(out, ref, HOST, negligible=negligible, special=special)
    for expected in (torch.from_numpy(ref), ref):  # an array of the host is copied to the device
        there = error_of(torch.from_numpy(out), expected, TENSORS, negligible=negligible, special=special)
        assert there.worst == pytest.approx(here.worst) and there.total == pytest.approx(here.total)


def test_pieces_of_a_host_array_meet_those_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.verify.arrays.CHUNK", 16)
    ref = np.arange(100, dtype=np.float64).reshape(10, 10)
    out = torch.from_numpy(ref).to(torch.float32)
    out[7, 3] = -1.0
    found = error_of(out, ref, TENSORS)
    assert (found.index, found.got, found.wanted) == ((7, 3), -1.0, 73.0)
    assert found.total == pytest.approx(error_of(out.numpy(), ref).total)


@pytest.mark.parametrize("size", [16, 160])
def test_the_host_waits_as_often_for_many_pieces_as_for_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both judges copy their rows of numbers, and `error_of` reads the two elements of the largest error."""
    waits = Counter[str]()

    class Copies(Tensors):
        def numbers(self, rows: Any) -> Any:
            waits["rows"] += 1
            return super().numbers(rows)

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            waits["elements"] += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr("tilewright.verify.arrays.CHUNK", 16)
    arrays, ref = Copies(torch), torch.arange(size, dtype=torch.float32)
    with Reads():
        judge_finite("y", ref, arrays)
        error_of(ref, ref + 1, arrays)
    assert waits == {"rows": 3, "elements": 2}


@given(PAIRS)
def test_verdicts_are_the_same(pair: tuple[Any, Any]) -> None:
    out, ref = pair
    words = []
    for arrays, as_array in ((HOST, np.asarray), (TENSORS, torch.from_numpy)):
        wanted = {"y": Wanted(as_array(ref), "float32", allowance("float32", None), special=True)}
        shares = compared(wanted, {"y": as_array(out)}, arrays).share
        try:
            judge_values(wanted, {"y": as_array(out)}, arrays)
            judge_finite("y", as_array(out), arrays)
            words.append(("right", pytest.approx(shares)))
        except Wrong as wrong:
            words.append((str(wrong).split(" is ")[0].split("[")[0], pytest.approx(shares)))
    assert words[0][0] == words[1][0]


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_whole_numbers_are_compared_as_they_are(dtype: str) -> None:
    ref = np.array([2**60 if dtype == "int64" else 1, 0]).astype(dtype)
    out = ref.copy()
    out[0] = ref[0] - 1 if dtype != "bool" else False
    for arrays, as_array in ((HOST, np.asarray), (TENSORS, torch.from_numpy)):
        assert error_of(as_array(out), as_array(ref), arrays).worst > 0
        assert error_of(as_array(ref), as_array(ref), arrays).worst == 0


def test_the_largest_of_many_errors_may_be_larger_than_that_of_a_slice() -> None:
    """Two float32 sums of 24 long rows differ only by rounding; the slice is one row, whose errors are small."""
    wanted = Wanted(np.ones(1), "float32", Allowance(1.2e-7, 1.2e-7, "one row"))
    one = np.ones(24, np.float32)
    other = one.copy()
    other[7] *= 1 + 8 * 2**-23
    judge_whole("y", one, other, "the first correct candidate", wanted)
    with pytest.raises(Wrong, match="outside the slices, 'y' differs"):
        judge_whole("y", one, other, "the first correct candidate", replace(wanted, values=np.ones(24)))
    other[7] = 1 + 2**-8
    with pytest.raises(Wrong, match="outside the slices, 'y' differs"):
        judge_whole("y", one, other, "the first correct candidate", wanted)


SPECIAL = (0.0, -0.0, 1e-45, -1e-40, 1.2e-38, 1e-30, 1.0, -1.0, 1 + 2**-7, 3e38, -3e38, np.inf, -np.inf, np.nan)
"""Numbers at which a comparison in float32 could differ from one in float64."""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@given(data=st.data(), bound=st.sampled_from([0.0, 2e-7, 0.01, 1.0, 3e38]), off=st.sampled_from([0, 2**-22, 0.5]))
def test_what_is_surely_near_has_at_most_this_error(data: st.DataObject, dtype: str, bound: float, off: float) -> None:
    """The comparison in float32 decides only what the one in float64 decides, too."""
    number = st.sampled_from(SPECIAL) | st.floats(-10, 10, width=16)
    pairs = data.draw(st.lists(st.tuples(number, number | st.none()), min_size=1, max_size=9))
    ref = torch.tensor([one for one, _ in pairs], dtype=torch.float64).to(getattr(torch, dtype))
    changed = [one * (1 + off) if other is None else other for one, other in pairs]
    out = torch.tensor(changed, dtype=torch.float64).to(ref.dtype)
    storage = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for arrays, a, b in (
        (TENSORS, out, ref),
        (HOST, out.double().numpy().astype(storage), ref.double().numpy().astype(storage)),
    ):
        if surely_near(a, b, bound, arrays):
            assert error_of(a, b, arrays).worst <= bound and bool(torch.isfinite(out.double()).all())


@pytest.mark.parametrize(("arrays", "as_array"), [(HOST, np.asarray), (TENSORS, torch.from_numpy)])
def test_one_element_decides_whether_all_are_surely_near(arrays: Arrays, as_array: Callable[..., Any]) -> None:
    ref = np.linspace(-3, 3, 70_001, dtype=np.float32)  # several pieces on the host
    rms = math.sqrt(float(np.square(ref, dtype=np.float64).mean()))
    out = ref + np.float32(0.009) * (abs(ref) + np.float32(rms))
    assert surely_near(as_array(out), as_array(ref), 0.01, arrays)
    assert surely_near(as_array(out), as_array(ref), 0.01, arrays, squares=squares_of(as_array(ref), arrays))
    for wrong in (ref[-1] + 0.011 * (abs(ref[-1]) + rms), math.nan, math.inf):
        out[-1] = wrong
        assert not surely_near(as_array(out), as_array(ref), 0.01, arrays)
    tiny = np.array([1e-45, 1e-45], np.float32)  # the error of 1 is 4e44; in float32, the bound would be infinite
    assert not surely_near(as_array(tiny + np.float32(1)), as_array(tiny), 1e39, arrays)


@pytest.mark.parametrize(("arrays", "as_array"), [(HOST, np.asarray), (TENSORS, torch.from_numpy)])
@pytest.mark.parametrize(
    ("out", "ref"),
    [
        (np.array([1 + 1e-9, 1, 1]), np.ones(3)), (np.array([2**60 - 1]), np.array([2**60])),
        (np.ones(3, np.float16), np.ones(3, np.float32)), (np.ones(0, np.float32), np.ones(0, np.float32)),
    ],
)  # fmt: skip
def test_what_float32_cannot_compare_is_left_to_float64(
    arrays: Arrays, as_array: Callable[..., Any], out: Any, ref: Any
) -> None:
    assert not surely_near(as_array(out), as_array(ref), 1e-11, arrays)
    if out.dtype == np.float64:
        with pytest.raises(Wrong, match="outside the slices"):
            judge_whole("y", out, ref, "another", Wanted(ref, "float64", Allowance(0.0, 0.0, "no error")))


def test_an_error_just_above_the_bound_is_not_near() -> None:
    """Without the margin for its own rounding, three of these would be."""
    rng = np.random.default_rng(0)
    for _ in range(3000):
        ref = rng.normal(size=rng.integers(1, 6)).astype(np.float32)
        out = (ref * (1 + 0.01 * rng.normal(size=ref.size))).astype(np.float32)
        assert not surely_near(out, ref, error_of(out, ref).worst * (1 - 1e-9))
