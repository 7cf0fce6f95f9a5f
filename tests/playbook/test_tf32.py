"""Entry D: the TF32 guard (K1 D), lossless only where the task declares the precision."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import verdict
from tests.playbook.plain import HALF_PRODUCT, SINGLE_PRODUCT, TF32_PRODUCT, applied, launch_facts

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries.tf32 import ENTRY
from tilewright.playbook.entries.tf32_lossy import ENTRY as LOSSY
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, loaded

CAST = "left.astype(ct.tfloat32), right.astype(ct.tfloat32)"


class TestTf32(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"declared": TF32_PRODUCT}
    elsewhere: ClassVar = {"float32 is declared": SINGLE_PRODUCT, "float16": HALF_PRODUCT}


class TestLossyTf32(EntryContract):
    entry = LOSSY
    examples: ClassVar = {"float32": SINGLE_PRODUCT}
    elsewhere: ClassVar = {"tf32 is declared": TF32_PRODUCT, "float16": HALF_PRODUCT}


def test_which_of_the_two_is_lossless() -> None:
    assert (ENTRY.about.risk, LOSSY.about.risk) == ("lossless", "lossy")


@pytest.mark.long
def test_the_cast_reaches_the_tensor_cores_and_stays_correct(tmp_path: Path) -> None:
    new = applied(ENTRY, TF32_PRODUCT, tmp_path, "tfloat32")
    assert f"total = ct.mma({CAST}, total)" in new
    before, after = (codes_of(loaded(text, tmp_path))["large"] for text in (TF32_PRODUCT, new))
    assert (before.tensor_path, after.tensor_path) == ("none", "HMMA"), "a tile of 64 rows would take HGMMA"
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


OPERATORS = {
    "total += left @ right": f"total = ct.mma({CAST}, total)",
    "total = total + left @ right": f"total = ct.mma({CAST}, total)",
    "total = ct.matmul(left, right) + total": f"total = ct.mma({CAST}, total)",
    "part = left @ right\n        total = total + part":
        f"part = ct.mma({CAST}, ct.zeros((left.shape[0], right.shape[1]), ct.float32))",
}  # fmt: skip


@pytest.mark.parametrize("written", OPERATORS)
def test_a_product_by_operator_sums_in_float32(written: str, tmp_path: Path) -> None:
    new = applied(ENTRY, TF32_PRODUCT.replace("total = ct.mma(left, right, total)", written), tmp_path, "tfloat32")
    assert OPERATORS[written] in new
    assert verdict(loaded(new, tmp_path)).verdict.startswith("correct")


def test_expressions_as_operands(tmp_path: Path) -> None:
    text = TF32_PRODUCT.replace("ct.mma(left, right, total)", "ct.mma(left * 2.0, right, acc=total)")
    new = applied(ENTRY, text, tmp_path, "tfloat32")
    assert "ct.mma((left * 2.0).astype(ct.tfloat32), right.astype(ct.tfloat32), acc=total)" in new


def test_a_shape_that_is_not_at_hand_is_refused(tmp_path: Path) -> None:
    text = TF32_PRODUCT.replace("total = ct.mma(left, right, total)", "total = total * 0.5 + left @ (right * 2.0)")
    source = Source("task.py", text)
    assert not ENTRY.sites(source, launch_facts(text, tmp_path))


def test_what_is_cast_already_is_left_alone(tmp_path: Path) -> None:
    text = TF32_PRODUCT.replace("ct.PaddingMode.ZERO)\n", "ct.PaddingMode.ZERO).astype(ct.tfloat32)\n")
    source = Source("task.py", text)
    assert not ENTRY.sites(source, launch_facts(text, tmp_path))
    with pytest.raises(NotApplicable):
        ENTRY.apply(source, Site("product", 13, 16, "", ("tfloat32",)), "tfloat32")
