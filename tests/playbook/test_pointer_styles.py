"""Pointers to descriptors in the styles of other authors: which accesses are rewritten, and which are refused where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.playbook.kit import verdict
from tests.playbook.pointer_styles import SET_ASIDE, STYLES

from tilewright.playbook.entries.descriptors import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import facts_of, loaded

REWRITTEN = {
    "matmul_tutorial": "a_ptr, b_ptr, c_ptr",
    "softmax_rows": "output_ptr",
    "layer_norm": "B, W, X, Y",
    "batched_matmul": "a_ptr, b_ptr, c_ptr",
    "transposed_operand": "w_ptr.T, x_ptr, y_ptr",
    "helper_offsets": "out_ptr, x_ptr, y_ptr",
    "int64_offsets": "x_ptr, y_ptr",
    "masks_by_cdiv": "A, B, C",
    "strides_as_arguments": "x_ptr, y_ptr",
    "program_id_1": "gate_up_ptr, out_ptr",
    "pointer_increments": "out_ptr",
    "recomputed_pointers": "w_ptr, x_ptr, y_ptr",
}
"""Style → the tensors that get descriptors."""
REFUSED = {
    "softmax_rows": [r"softmax_kernel line \d+: tl.load\(input_ptrs, .*outside the mask it loads -float\(\"inf\"\)"],
    "strides_as_arguments": [r"add_bias line \d+: tl.load\(bias_ptr \+ rn, .*one element along an axis"],
    "pointer_increments": [r"column_sum line \d+: tl.load\(ptrs, .*its addresses are not"],
}  # fmt: skip
"""Style → what is said of the others. The steps of a ``while`` loop are not read."""


def test_four_of_twelve_were_set_aside() -> None:
    assert len(STYLES) == 12 and set(SET_ASIDE) < set(STYLES) and len(SET_ASIDE) == 4


@pytest.mark.parametrize("style", STYLES)
def test_an_access_is_rewritten_or_refused_with_its_line(style: str, tmp_path: Path) -> None:
    source = Source("task.py", STYLES[style])
    facts = facts_of(loaded(source.text, tmp_path))
    [site] = ENTRY.sites(source, facts)
    names = str(site.values[0])
    assert names == REWRITTEN[style]
    findings = ENTRY.findings(source, facts)
    assert len(findings) == len(REFUSED.get(style, []))
    for finding, wanted in zip(findings, REFUSED.get(style, []), strict=True):
        assert re.search(wanted, finding), finding
    changed = ENTRY.change(source, site, names)
    assert changed.count("make_tensor_descriptor(") >= len(names.split(", "))
    assert verdict(loaded(changed, tmp_path)).verdict.startswith("correct")
