"""Block pointers to tensor descriptors: results stay right, and what is not understood is refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton")

from tests.languages.tileir_from_triton.kit import launch
from tests.playbook.kit import changed_lines
from tests.playbook.triton_tasks import HEAD, MATMUL, imported, kernel

from tilewright.hardware.architectures import board
from tilewright.inspect.work import count
from tilewright.playbook.base import KernelFacts, NotApplicable, Site
from tilewright.playbook.entries.block_pointers import ALL, ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import loaded

PRODUCT = (
    HEAD
    + """
@triton.jit
def matmul(a, b, c, m, n, k, stride_b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1)
    p_a = tl.make_block_ptr(a, (m, k), (k, 1), (row * M, 0), (M, K), (1, 0))
    # b is stored by columns
    p_b = tl.make_block_ptr(base=b, shape=(k, n), strides=(1, stride_b), offsets=(0, column * N),
                            block_shape=(K, N), order=(0, 1))
    total = tl.zeros((M, N), tl.float32)
    for _ in range(0, k, K):
        u = tl.load(p_a, boundary_check=(0, 1))
        v = tl.load(p_b, boundary_check=(0, 1), padding_option="zero")
        total += tl.dot(u, v)
        p_a = tl.advance(p_a, (0, K))
        p_b = tl.advance(p_b, (K, 0))  # the next rows
    p_c = tl.make_block_ptr(c, (m, n), (n, 1), (row * M, column * N), (M, N), (1, 0))
    tl.store(p_c, total.to(p_c.dtype.element_ty), boundary_check=(0, 1))
"""
)
MADE = "p = tl.make_block_ptr(x, (n,), (1,), (tl.program_id(0) * BLOCK_N,), (BLOCK_N,), (0,))\n"


def changed(text: str, name: str = "copy") -> str:
    source = Source("task.py", text)
    return ENTRY.apply(source, Site.at(source, source.functions[name], "block pointers", (ALL,)), ALL)


def test_a_product_stays_right(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((100, 80), (120, 80)))
    arguments = {"a": a, "b": b, "c": np.zeros((100, 120), a.dtype), "m": 100, "n": 120, "k": 80, "stride_b": 80,
                 "M": 32, "N": 64, "K": 32}  # fmt: skip
    launch(imported(changed(PRODUCT, "matmul"), tmp_path).matmul, (4, 2), arguments)
    expected = a.astype(float) @ b.astype(float).T
    np.testing.assert_allclose(arguments["c"].astype(float), expected, rtol=2**-6, atol=2**-6 * abs(expected).max())


def test_what_is_written() -> None:
    old, new = changed_lines(PRODUCT, changed(PRODUCT, "matmul"))
    assert new == [
        "p_a = tl.make_tensor_descriptor(a, [m, k], [k, 1], [M, K])",
        "p_a_offset = 0",
        "p_b = tl.make_tensor_descriptor(b, [n, k], [stride_b, 1], [N, K])",
        "p_b_offset = 0",
        "u = p_a.load([row * M, p_a_offset])",
        "v = tl.trans(p_b.load([column * N, p_b_offset]))",
        "p_a_offset += K",
        "p_b_offset += K  # the next rows",
        "p_c = tl.make_tensor_descriptor(c, [m, n], [n, 1], [M, N])",
        "p_c.store([row * M, column * N], total.to(p_c.dtype))",
    ]
    assert len(old) == 9


@pytest.mark.parametrize(
    ("body", "new"),
    [
        (MADE + "tl.store(y, tl.sum(tl.load(p), 0))",
         "p = tl.make_tensor_descriptor(x, [tl.program_id(0) * BLOCK_N + BLOCK_N], [1], [BLOCK_N])"),
        (MADE + 'tl.store(y, tl.sum(tl.load(p, boundary_check=[0], padding_option="nan"), 0))',
         'p = tl.make_tensor_descriptor(x, [n], [1], [BLOCK_N], padding_option="nan")'),
        (MADE + MADE.replace("p =", "q =").replace("(x,", "(y,")
         + "tl.store(q, tl.load(p, boundary_check=(0,)), boundary_check=(0,))",
         "q.store([tl.program_id(0) * BLOCK_N], p.load([tl.program_id(0) * BLOCK_N]))"),
    ],
)  # fmt: skip
def test_forms_that_are_read(body: str, new: str) -> None:
    assert new in changed_lines(kernel(body), changed(kernel(body)))[1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (MADE + "for i in range(n):\n    v = tl.load(p)\n    p = tl.advance(p, (BLOCK_N,))", "along axis 0 unchecked"),
        (MADE + "helper(p)", "p is used for something other than loads"),
        (MADE + "v = tl.load(p, boundary_check=axes)", "its boundary_check is not written as numbers"),
        (MADE + "v = tl.load(p)\nv = tl.load(p, boundary_check=(0,))", "the accesses of p check different axes"),
        (MADE.replace("(1,)", "(2,)") + "v = tl.load(p, boundary_check=(0,))", "the last stride is 2"),
        (MADE.replace("(n,), (1,)", "shape, (1,)") + "v = tl.load(p)", "its arguments are not written as tuples"),
        (MADE + MADE + "v = tl.load(p)", "p is assigned several times"),
        (MADE.replace("tl.program_id(0)", "n") + "n += 1\nv = tl.load(p, boundary_check=(0,))", "n changes between"),
        ("if n > 3:\n    " + MADE + "v = tl.load(p, boundary_check=(0,))", "p may not be made here"),
        ("v = tl.load(" + MADE[4:-1] + ")", "a block pointer is not assigned to one name"),
    ],
)  # fmt: skip
def test_refused_with_its_reason(body: str, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        changed(kernel(body))


def test_sites(tmp_path: Path) -> None:
    """Of facts without machine code: Triton 3.9 compiles no block pointers."""

    def facts(text: str) -> KernelFacts:
        task, on = loaded(text, tmp_path), board("H200")
        return KernelFacts(task, on, task.selected(None), {}, {}, lambda workload: count(task, workload, on))

    task = MATMUL[MATMUL.index("def launch(") :]
    text = PRODUCT + "\n\n" + task.replace("K, 1, N, 1, N, 1, *sizes", "K, *sizes[:3]")
    [site] = ENTRY.sites(Source("task.py", text), facts(text))
    assert site.values == (ALL,) and site.kernel == "matmul"
    assert ENTRY.sites(Source("task.py", MATMUL), facts(MATMUL)) == []
