"""Ordinary ways to write kernels with block pointers: each becomes descriptors, and its results stay right.

The three in SET_ASIDE were written before the first run. The change was not adapted to them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from tests.languages.tileir_from_triton.kit import launch
from tests.playbook.test_block_pointers import changed
from tests.playbook.triton_tasks import HEAD, imported

MAKE_A = "tl.make_block_ptr(a, (m, k), (k, 1), (row * M, 0), (M, K), (1, 0))"
MAKE_B = "tl.make_block_ptr(b, (k, n), (n, 1), (0, column * N), (K, N), (1, 0))"
MAKE_C = "tl.make_block_ptr(c, (m, n), (n, 1), (row * M, column * N), (M, N), (1, 0))"
LOOP = """for _ in range(0, k, K):
    total += tl.dot(tl.load(p_a, boundary_check=(0, 1)), tl.load(p_b, boundary_check=(0, 1)), input_precision="ieee")
"""
APART = "    p_a = tl.advance(p_a, (0, K))\n    p_b = tl.advance(p_b, (K, 0))\n"
STORE = f"p_c = {MAKE_C}\ntl.store(p_c, total, boundary_check=(0, 1))\n"
BEGIN = f"p_a = {MAKE_A}\np_b = {MAKE_B}\n"
SEEN = {
    "one line": BEGIN + LOOP + "    p_a = tl.advance(p_a, (0, K)); p_b = tl.advance(p_b, (K, 0))\n" + STORE,
    "a tuple": BEGIN + LOOP + "    p_a, p_b = tl.advance(p_a, (0, K)), tl.advance(p_b, (K, 0))\n" + STORE,
    "made in a tuple": f"p_a, p_b = {MAKE_A}, {MAKE_B}\n" + LOOP + APART + STORE,
    "another order": BEGIN.replace("(1, 0))", "(0, 1))") + LOOP + APART + STORE,
    "steps in a list": BEGIN + LOOP + APART.replace("(0, K)", "[0, K]").replace("(K, 0)", "[K, 0]") + STORE,
    "one axis": BEGIN + LOOP.replace("p_b, boundary_check=(0, 1)", "p_b, boundary_check=(0,)") + APART + STORE,
    "a named step": "step = K\n" + BEGIN + LOOP + APART.replace("(0, K)", "(0, step)").replace("(K, 0)", "(step, 0)")
    + STORE,
}  # fmt: skip
SET_ASIDE = {
    "batches": BEGIN.replace("(a,", "(a + tl.program_id(2) * m * k,") + LOOP + APART + STORE,
    "a loop of whole blocks": BEGIN + LOOP.replace("range(0, k, K)", "range(tl.cdiv(k, K))") + APART + STORE,
    "keywords and a comment": BEGIN.replace("(a, (m, k), (k, 1),", "(base=a, shape=(m, k), strides=(k, 1), offsets=")
    .replace("offsets= (row * M, 0), (M, K), (1, 0)", "offsets=(row * M, 0), block_shape=(M, K), order=(1, 0)")
    + LOOP + APART.replace("(K, 0))", "(K, 0))  # down") + STORE,
}  # fmt: skip


def check(body: str, folder: Path) -> None:
    lines = "row, column = tl.program_id(0), tl.program_id(1)\ntotal = tl.zeros((M, N), tl.float32)\n" + body
    text = (
        HEAD + "@triton.jit\ndef copy(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):\n"
        + "".join(f"    {line}\n" for line in lines.splitlines())
    )  # fmt: skip
    new = changed(text)
    assert "make_block_ptr" not in new and "advance" not in new
    a, b = (np.random.default_rng(2).standard_normal(shape).astype(np.float32) for shape in ((40, 48), (48, 24)))
    arguments = {"a": a, "b": b, "c": np.zeros((40, 24), a.dtype), "m": 40, "n": 24, "k": 48, "M": 32, "N": 8, "K": 32}
    launch(imported(new, folder).copy, (2, 3), arguments)
    np.testing.assert_allclose(arguments["c"], a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SEEN)
def test_written_as_users_do(name: str, tmp_path: Path) -> None:
    check(SEEN[name], tmp_path)


@pytest.mark.parametrize("name", SET_ASIDE)
def test_set_aside(name: str, tmp_path: Path) -> None:
    check(SET_ASIDE[name], tmp_path)
