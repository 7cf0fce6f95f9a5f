"""An order relation with an exact quotient becomes one with a product, where the divisor is at least 1."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.playbook.kit import changed_lines, verdict
from tests.playbook.plain import HEAD, SCALE_ROWS, applied, launch_facts

from tilewright.playbook.entries.comparison import ENTRY, PRODUCT
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, loaded

ABOVE = (
    HEAD
    + """
@ct.kernel
def above(x, z, y, T: ct.Constant[int]):
    row = ct.bid(0)
    columns = ct.arange(T, dtype=ct.int32)
    values = ct.load(x, (row, 0), (1, T), padding_mode=ct.PaddingMode.ZERO)
    other = ct.load(z, (row, 0), (1, T), padding_mode=ct.PaddingMode.ZERO)
    # from 1 on
    count = columns.astype(ct.float32)[None, :] + 1.0
    mean = (values - 0.5) / count  # of so many
    larger = other > mean
    ct.store(y, (row, 0), ct.where(larger, values, 0.0))


task = tw.Task(
    name="above",
    tensors={name: tw.Tensor(("M", "N"), "float32") for name in "xz"} | {"y": tw.Output(("M", "N"), "float32")},
    reference=lambda x, z: np.where(z * np.arange(1, x.shape[1] + 1) > x - 0.5, x, 0),
    launch=lambda x, z, y, M, N: tw.Launch(above, (M,), (x, z, y, 1 << (N - 1).bit_length())),
    flops=lambda M, N: 3 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 4096, "N": 1000}},
)
"""
)
COUNT = "columns.astype(ct.float32)[None, :] + 1.0"
WIDE = ABOVE.replace("\n@ct.kernel", "\nHALF = np.float64(0.5)\n\n\n@ct.kernel").replace("- 0.5)", "- HALF)")
DIRECT = ABOVE.replace("    mean = (values - 0.5) / count  # of so many\n", "").replace(
    "other > mean", "ct.less_equal(ct.truediv(values - 0.5, count), other)"
)


class TestComparison(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"named": ABOVE, "direct": DIRECT}
    elsewhere: ClassVar = {"no quotient": SCALE_ROWS, "a constant of float64": WIDE}


def test_the_named_quotient_disappears(tmp_path: Path) -> None:
    new = applied(ENTRY, ABOVE, tmp_path, PRODUCT)
    removed = ["mean = (values - 0.5) / count  # of so many", "larger = other > mean"]
    assert changed_lines(ABOVE, new) == (removed, ["# of so many", "larger = other * count > values - 0.5"])
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("other > (values - 0.5) / count", "other * count > values - 0.5"),
        ("values / count <= other - 1", "values <= (other - 1) * count"),
        ("other >= ct.truediv(values, count)", "other * count >= values"),
        ("ct.greater(other, values / count)", "ct.greater(other * count, values)"),
        ("(values / count < -other) & (other < 1)", "(values < -other * count) & (other < 1)"),
    ],
)
def test_each_relation_keeps_its_sides(before: str, after: str, tmp_path: Path) -> None:
    text = ABOVE.replace("    mean = (values - 0.5) / count  # of so many\n", "").replace("other > mean", before)
    assert after in applied(ENTRY, text, tmp_path, PRODUCT)


@pytest.mark.parametrize(
    "divisor",
    [
        "ct.astype(ct.maximum(ct.sum((other > 0).astype(ct.int32), 1, keepdims=True), 1), ct.float32) + 0 * COUNT",
        "ct.full((1, T), 3, ct.float32)",
        "(columns * 2 + 1)[None, :].astype(ct.float32) * 1.5",
        "ct.where(other > 0, ct.ones((1, T), ct.float32), 2.0)",
        "ct.arange(T, dtype=ct.float32, start=1)[None, :]",
    ],
)
def test_divisors_of_at_least_1(divisor: str, tmp_path: Path) -> None:
    text = ABOVE.replace(
        f"count = {COUNT}", f"count = {divisor.replace('COUNT', 'columns.astype(ct.float32)[None, :]')}"
    )
    assert ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (COUNT, "columns.astype(ct.float32)[None, :]", "not proven"),
        (COUNT, "columns.astype(ct.float16)[None, :] + 1.0", "not proven"),
        (COUNT, "(columns + 1)[None, :]", "not proven"),
        (COUNT, "ct.exp(other) + 1.0", "not proven"),
        (COUNT, "ct.maximum(other, 1.0)", "not proven"),
        (COUNT, "ct.full((1, T), 0.5, ct.float32)", "not proven"),
        (COUNT, "(columns * columns)[None, :].astype(ct.float32) + 1.0", "not proven"),
        (COUNT, "ct.arange(T, dtype=ct.float32, start=-1)[None, :] + 1.0", "not proven"),
        (COUNT, "ct.arange(T, dtype=ct.float32, step=-1)[None, :] + 1.0", "not proven"),
        (COUNT, "ct.full((1, T), 1e39, ct.float32)", "not proven"),
        (
            COUNT,
            "ct.maximum(ct.sum((other > 0).astype(ct.int64)), 1).astype(ct.int32).astype(ct.float32)",
            "not proven",
        ),
        (
            "    mean = (values - 0.5) / count  # of so many\n    larger = other > mean",
            "    larger = values / count >= ct.max((values) / count, 1, keepdims=True)",
            "the same quotient is computed elsewhere",
        ),
        (
            "    mean = (values - 0.5) / count  # of so many\n    larger = other > mean",
            "    again = count\n    larger = values / count >= ct.max(values / again, 1, keepdims=True)",
            "the same quotient is computed elsewhere",
        ),
        ("larger = ", "values = values + mean\n    larger = ", "mean is read elsewhere"),
        ("larger = ", "count = count + 1.0\n    larger = ", "count may have another value"),
        (
            "other > mean",
            "other > ct.sum(values, 1, keepdims=True) / ct.full((1, 1), 2, ct.float32)",
            "fewer quotients",
        ),
        ("values, 0.0)", "values.astype(ct.float64), 0.0).astype(ct.float32)", "computes in float64"),
    ],
)
def test_other_comparisons_say_why_they_stay(old: str, new: str, reason: str, tmp_path: Path) -> None:
    text = ABOVE.replace(old, new)
    assert text != ABOVE and not ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))
    assert reason in ENTRY.why_not(Source("task.py", text), launch_facts(text, tmp_path))


NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(NUMBERS, NUMBERS, st.floats(1, 2**24, width=32), st.integers(-2, 2))
def test_both_forms_err_only_within_a_rounding(a: float, b: float, c: float, steps: int) -> None:
    """Beside any numbers, also those next to a quotient: where the two forms disagree, the two sides are as good as
    equal, or b is infinite and the product overflows."""
    with np.errstate(all="ignore"):
        near = np.float32(b) / np.float32(c)
        for first in (np.float32(a), near + steps * np.spacing(near)):
            quotient, product = np.float32(b) / np.float32(c), first * np.float32(c)
            if (first > quotient) != (product > np.float32(b)) or (first >= quotient) != (product >= np.float32(b)):
                exact = float(first) * c
                close = abs(exact - b) <= 2.0**-23 * abs(b) + 2.0**-149 * c
                assert close or (np.isinf(b) and product == b)
