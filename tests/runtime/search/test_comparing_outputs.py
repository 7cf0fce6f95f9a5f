"""What two right configurations may differ by, and what they may not (requirements X-24, trust.md 3, 4, 13)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.caller_kernels import torch

from tilewright.runtime.search.comparing_outputs import Expected, difference
from tilewright.verify import arrays
from tilewright.verify.tolerance import NO_ERROR, Error

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn")


def numbers(dtype: str = "float32", n: int = 4096, seed: int = 0) -> Any:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def wrong(out: Any, ref: Any, itself: Error = NO_ERROR) -> str | None:
    return Expected("y", ref, itself).wrong(out)


@pytest.mark.parametrize("dtype", FLOATS)
def test_another_order_of_adding_is_right(dtype: str) -> None:
    """Products in tiles of 32 against tiles of 64, rounded to the dtype at the end."""
    a, b = numbers(n=256 * 512).view(256, 512), numbers(n=512 * 64, seed=1).view(512, 64)
    sums = [
        sum(a[:, k : k + tile] @ b[k : k + tile] for k in range(0, 512, tile)).to(getattr(torch, dtype))  # type: ignore[union-attr]
        for tile in (32, 64)
    ]
    assert wrong(sums[0], sums[1]) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_coarser_arithmetic_is_not(dtype: str) -> None:
    """trust.md 4: every element rounded to a quarter of the digits."""
    ref = numbers(dtype)
    coarse = ref.to(torch.float8_e4m3fn).to(ref.dtype)
    assert "of its norm" in (wrong(coarse, ref) or "")


def test_all_elements_off_the_same_way_are_not_right_although_none_is_far_off() -> None:
    """By three unit roundoffs: rounding alone would go either way."""
    ref = numbers("bfloat16")
    found = difference(ref * (1 + 3 * 2**-8), ref)
    assert found.worst < Expected("y", ref).allowed.worst
    assert wrong(ref * (1 + 3 * 2**-8), ref) is not None


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_wrong_element_shows_and_is_named(dtype: str) -> None:
    ref = numbers(dtype).view(64, 64)
    out = ref.clone()
    out[3, 5] = 0.0 if abs(float(ref[3, 5])) > 1 else 3.0
    assert "'y'[3, 5]" in (wrong(out, ref) or "")


def test_zeros_never_pass() -> None:
    """trust.md 3: relative to the output's own scale, however small that is."""
    ref = numbers() * 1e-6
    assert wrong(torch.zeros_like(ref), ref) is not None


def test_nan_and_infinities_must_stand_at_the_same_places() -> None:
    """trust.md 13."""
    ref = numbers()
    ref[7], ref[9] = float("nan"), float("inf")
    assert wrong(ref * (1 + 1e-7), ref) is None
    for place, value in ((7, 0.0), (8, float("nan")), (9, float("-inf")), (9, 1e38)):
        out = ref.clone()
        out[place] = value
        assert f"'y'[{place}]" in (wrong(out, ref) or "")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_whole_numbers_must_be_equal(dtype: str) -> None:
    ref = (torch.arange(64) % 2).to(getattr(torch, dtype))
    out = ref.clone()
    assert wrong(out, ref) is None
    out[5] = 0
    assert wrong(out, ref) is not None


def test_large_whole_numbers_that_float64_cannot_tell_apart() -> None:
    ref = torch.full((4,), 2**60)
    assert wrong(ref + 1, ref) is not None


def test_below_the_smallest_normal_number_nothing_differs() -> None:
    """Kernels may flush denormals to zero."""
    ref = torch.full((16,), 1e-40)
    assert wrong(torch.zeros(16), ref) is None
    assert wrong(torch.full((16,), 1e-30), torch.zeros(16)) is not None


def test_another_shape_cannot_be_compared() -> None:
    assert "4×2 float32, where the reference configuration writes 8 float32" in (
        wrong(torch.zeros(4, 2), torch.zeros(8)) or ""
    )


def test_what_shipped_differs_by_from_itself_is_allowed() -> None:
    ref, again, other = numbers(), numbers() + 0.01 * numbers(seed=1), numbers() + 0.01 * numbers(seed=2)
    assert wrong(other, ref) is not None
    assert wrong(other, ref, difference(again, ref)) is None
    assert wrong(ref + numbers(seed=3), ref, difference(again, ref)) is not None


def test_against_a_shipped_one_that_does_not_agree_with_itself_nothing_is_right() -> None:
    ref = numbers()
    assert "differs by" in (wrong(ref, ref, difference(numbers(seed=1), ref)) or "")
    gone = ref.clone()
    gone[0] = float("nan")
    assert wrong(ref, ref, difference(gone, ref)) is not None


def test_the_worst_element_is_found_in_any_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK", 1000)
    ref = numbers()
    out = ref.clone()
    out[3500] += 2
    assert difference(out, ref).index == (3500,)


def test_a_view_with_strides_is_compared_by_its_elements() -> None:
    whole = numbers().view(64, 64)
    assert wrong(whole.T, whole.T.contiguous()) is None
