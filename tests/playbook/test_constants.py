"""Which values of a kernel are known when it is compiled."""

from __future__ import annotations

import libcst as cst
import pytest
from tests.playbook.plain import HEAD

from tilewright.playbook.analyses.constants import constant_parameters, is_constant
from tilewright.source.syntax import Source

TEXT = (
    HEAD
    + """
ConstBool = ct.Constant[bool]
LIMIT = 3


@ct.kernel
def kernel(x, n, TILE: ct.Constant[int], FAST: ConstBool, ANY: ct.Constant, scale: float):
    half = TILE // 2
    count = n + 1
    changing = 1
    for i in range(4):
        changing = changing + 1
        result = TEST
"""
)


def test_the_annotation_says_which_parameters_are_constants() -> None:
    source = Source("task.py", TEXT)
    kernel = source.functions["kernel"]
    assert constant_parameters(source, kernel) == {"TILE", "FAST", "ANY"}
    assert constant_parameters(source, kernel, "int") == {"TILE"}


@pytest.mark.parametrize(
    ("test", "constant"),
    [
        ("TILE == 1", True), ("not FAST", True), ("FAST and half > LIMIT", True), ("x.dtype == ct.float32", True),
        ("-TILE < 2", True), ("n > 1", False), ("count > TILE", False), ("i == 0", False), ("changing == 1", False),
        ("x.shape[0] > 1", False), ("scale > 1.0", False), ("ct.bid(0) == 0", False), ("FAST or n", False),
    ],
)  # fmt: skip
def test_an_expression_of_constants_is_one(test: str, constant: bool) -> None:
    source = Source("task.py", TEXT.replace("TEST", test))
    kernel = source.functions["kernel"]
    [loop] = source.every(cst.For, kernel)
    line = loop.body.body[-1].body[0]
    assert is_constant(source, kernel, line.value) == constant
