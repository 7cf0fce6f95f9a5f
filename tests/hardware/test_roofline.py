"""The roofline verdict: names by P-05, times by the board, and a reason that says both."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import RequestError
from tilewright.hardware.architectures import BOARDS, board
from tilewright.inspect.work import classify

H200 = board("H200")


def test_a_large_product_is_compute_bound_by_both_rules() -> None:
    """4096³ bfloat16: 2 × 4096³ FLOP over 3 × 4096² × 2 bytes."""
    bound = classify(2 * 4096**3, 3 * 4096**2 * 2, "bfloat16", H200)
    assert bound.kind == "compute"
    assert bound.intensity == pytest.approx(1365.3, abs=0.1)
    assert bound.ridge == pytest.approx(206.1, abs=0.1)
    assert bound.speed_of_light_us == pytest.approx(137.4e9 / 989.4e12 * 1e6, rel=1e-3)
    assert bound.why == (
        "1365 FLOP/B: above 50 and above the ridge of 206 (H200, bfloat16: 989 TFLOP/s over "
        "4.8 TB/s): compute; work 139 µs is the larger term (traffic 21 µs)"
    )


def test_a_pure_copy_is_memory_bound() -> None:
    bound = classify(0, 4.8e9, "bfloat16", H200)
    assert (bound.kind, bound.intensity) == ("memory", 0)
    assert bound.speed_of_light_us == pytest.approx(1000)
    assert bound.why.startswith("0 FLOP/B: below 10 and under the ridge of 206")
    assert bound.why.endswith("memory; traffic 1000 µs is the larger term (work 0 µs)")


def test_where_the_rules_disagree_the_reason_says_both() -> None:
    bound = classify(60e9, 1e9, "bfloat16", H200)
    assert bound.kind == "compute", "P-05 names the kind"
    assert bound.speed_of_light_us == pytest.approx(1e9 / 4.8e12 * 1e6), "the roofline sets the time"
    assert "above 50 but under the ridge of 206" in bound.why
    assert "traffic 208 µs is the larger term (work 60.6 µs)" in bound.why


def test_the_other_disagreement_memory_by_name_but_above_the_ridge() -> None:
    """float64 on a board without float64 tensor cores: 1.64 TFLOP/s over 1.79 TB/s."""
    bound = classify(5e9, 1e9, "float64", board("RTX 5090"))
    assert bound.kind == "memory"
    assert "below 10 but above the ridge of 0.914" in bound.why
    assert bound.speed_of_light_us == pytest.approx(5e9 / (104.8e12 / 64) * 1e6)


@pytest.mark.parametrize(
    ("intensity", "kind"), [(9.99, "memory"), (10, "balanced"), (30, "balanced"), (50, "balanced"), (50.01, "compute")]
)
def test_the_thresholds_of_p05_belong_to_balanced(intensity: float, kind: str) -> None:
    assert classify(intensity * 1000, 1000, "bfloat16", H200).kind == kind


def test_float32_uses_the_cuda_cores() -> None:
    bound = classify(66.9e12, 1e9, "float32", H200)
    assert bound.speed_of_light_us == pytest.approx(1e6)
    assert bound.ridge == pytest.approx(66.9e12 / 4.8e12)
    assert "H200, float32: 66.9 TFLOP/s of the CUDA cores over 4.8 TB/s" in bound.why


def test_the_board_decides_the_time_not_the_name() -> None:
    kinds = {classify(60e9, 1e9, "bfloat16", found).kind for found in BOARDS.values()}
    times = {classify(60e9, 1e9, "bfloat16", found).speed_of_light_us for found in BOARDS.values()}
    assert kinds == {"compute"}
    assert len(times) > 10


def test_equal_terms_are_called_equal() -> None:
    bound = classify(989.4e6, 4.8e6, "bfloat16", H200)
    assert "and at the ridge of 206" in bound.why
    assert bound.why.endswith("work 1 µs and traffic 1 µs are equal")
    assert bound.speed_of_light_us == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("flops", "bytes_"), [(-1, 10), (10, 0), (10, -1), (math.nan, 10), (10, math.nan), (math.inf, 10), (10, math.inf)]
)
def test_impossible_counts_are_refused_in_one_line(flops: float, bytes_: float) -> None:
    with pytest.raises(RequestError, match="cannot classify") as refused:
        classify(flops, bytes_, "bfloat16", H200)
    assert "\n" not in str(refused.value)


@given(
    flops=st.floats(0, 1e18),
    bytes_=st.floats(1, 1e15),
    name=st.sampled_from(sorted(BOARDS)),
    dtype=st.sampled_from(["bfloat16", "float32", "float8_e4m3fn", "int8", "float64", "bool"]),
)
def test_speed_of_light_is_the_larger_term_and_the_reason_names_it(
    flops: float, bytes_: float, name: str, dtype: str
) -> None:
    found = BOARDS[name]
    bound = classify(flops, bytes_, dtype, found)
    work, traffic = flops / (found.tflops(dtype) * 1e12) * 1e6, bytes_ / (found.bandwidth_gbs * 1e9) * 1e6
    assert bound.speed_of_light_us == pytest.approx(max(work, traffic))
    if work > 1.001 * traffic:
        assert "work" in bound.why.split("; ")[1].split(" is the larger term")[0]
    if traffic > 1.001 * work:
        assert "traffic" in bound.why.split("; ")[1].split(" is the larger term")[0]
    assert bound.kind in bound.why and "FLOP/B" in bound.why and "\n" not in bound.why
