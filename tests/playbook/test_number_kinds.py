"""Which names of a kernel are integers, floats and float32, by its text."""

from __future__ import annotations

import libcst as cst
import pytest

from tilewright.playbook.analyses.number_kinds import Float32, Floats, Integers
from tilewright.source.syntax import Source

KERNEL = """
import cuda.tile as ct
from limits import LOW, STEP

LOW = LOW * 2
SCALE = 0.5


@ct.kernel
def kernel(a, TILE: ct.Constant[int]):
    t = ct.load(a, (0,), (TILE,))
    x = STATEMENT
"""


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("LOW", ""),  # only `limits` shows the kind of the number that it is computed from
        ("SCALE", "float"),
        ("t * SCALE", "float"),
        ("t.astype(ct.float32)", "float float32"),
        ("t.astype(ct.float32)\n    x += t", "float float32"),
        ("t.astype(ct.float32)\n    x = max(x, t)", "float float32"),
        ("t.astype(ct.float32)\n    x = t", ""),
        ("t.astype(ct.float32)\n    y = ct.mma(t, t, x)\n    x = y.astype(x.dtype)", "float float32"),
        ("ct.exp(t)", "float"),
        ("ct.bid(0) * TILE", "integer"),
        ("ct.bid(0)\n    x += t", ""),
        ("ct.bid(0)\n    for x in range(3):\n        pass", "integer"),
        ("0.5\n    for x in range(3):\n        pass", ""),
    ],
)
def test_a_name_is_of_a_kind_if_all_its_values_are(value: str, kinds: str) -> None:
    source = Source("ops.py", KERNEL.replace("STATEMENT", value))
    kernel = source.kernels["kernel"]
    names = {"integer": Integers, "float": Floats, "float32": Float32}
    node = cst.Name("x")
    assert " ".join(name for name, kind in names.items() if kind(source, kernel).has(node)) == kinds
