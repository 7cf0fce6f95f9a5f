"""Pointers to tensor descriptors: where the change applies, where it is refused, and that results stay right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("triton")

from tests.languages.tileir_from_triton import kernels, test_kernels
from tests.languages.tileir_from_triton.kit import launch
from tests.playbook.kit import changed_lines, verdict
from tests.playbook.triton_tasks import MATMUL, ON_PTX, imported, kernel, right

from tilewright.playbook.base import NotApplicable, Site
from tilewright.playbook.entries import tile_ir_route
from tilewright.playbook.entries.descriptors import ENTRY, descriptors_in
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded

ODD = MATMUL.replace("serves=lambda N, K: N % 8 == 0 and K % 8 == 0,", "")
EVEN = (
    re.sub(r"(_ptrs), mask=offs_k.*", r"\1)", MATMUL).replace("K % 8 == 0", "K % 32 == 0").replace('"K": 80', '"K": 96')
)
TRANSPOSED = MATMUL.replace("K, 1, N, 1, N, 1", "K, 1, 1, K, N, 1").replace(
    '"b": tw.Tensor(("K", "N"),', '"b": tw.Tensor(("N", "K"),'
)
SPACED_OUT = MATMUL.replace("K, 1, N, 1, N, 1", "K, 1, 2 * N, 2, N, 1").replace(
    '"b": tw.Tensor(("K", "N"),', '"b": tw.Tensor(("K", "2 * N"),'
)
BLOCK = "[:, None] * stride + columns[None, :]"
ROWS = """
rows_ = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
"""
CORNER = "p = x + tl.arange(0, BLOCK_M)[:, None] * stride + tl.arange(0, BLOCK_N)[None, :]\n"
INSIDE = "mask=(rows_[:, None] < rows) & (columns[None, :] < n)"


class TestDescriptors(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"matmul": MATMUL, "on PTX": ON_PTX}
    elsewhere: ClassVar = {"odd strides": ODD}


def changed(text: str, name: str = "copy") -> str:
    """The text with all loads and stores of a kernel that can go through descriptors."""
    source = Source("task.py", text)
    found = ", ".join(sorted({block.pointer for block in descriptors_in(source, name)[0]}))
    return ENTRY.apply(source, Site(name, *source.place(source.functions[name]), "", (found,)), found)


def refused(text: str, name: str = "copy") -> str:
    """The reasons why loads and stores of a kernel cannot go through a descriptor."""
    return "; ".join(descriptors_in(Source("task.py", text), name)[1])


def test_the_tutorial_s_matmul() -> None:
    old, new = changed_lines(MATMUL, changed(MATMUL, "matmul"))
    assert new == [
        "a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_am, stride_ak], [BLOCK_M, BLOCK_K])",
        "b_desc = tl.make_tensor_descriptor(b_ptr, [K, N], [stride_bk, stride_bn], [BLOCK_K, BLOCK_N])",
        "a = a_desc.load([BLOCK_M * pid_m, BLOCK_K * k])",
        "b = b_desc.load([BLOCK_K * k, BLOCK_N * pid_n])",
        "c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [stride_cm, stride_cn], [BLOCK_M, BLOCK_N])",
        "c_desc.store([BLOCK_M * pid_m, BLOCK_N * pid_n], c)",
    ]
    assert "a_ptrs += BLOCK_K * stride_ak" in old and "offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M" in old


def test_a_matmul_that_loads_inside_of_its_product() -> None:
    """Rows and columns wrap round, and are converted to 64 bits."""
    text = Path(__file__).parents[2].joinpath("bench", "triton_plain_matmul.py").read_text()
    _, new = changed_lines(text, changed(text, "matmul"))
    loads = "a_desc.load([BLOCK_M * block_m, BLOCK_K * step]), b_desc.load([BLOCK_K * step, BLOCK_N * block_n]), total"
    assert loads in " ".join(new)


def rms_norm() -> Any:
    """Rows of multiples of 16 bytes."""
    x, w = test_kernels.normal(5, 296), test_kernels.normal(296)
    wide = x.astype(float)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * w.astype(float)
    arguments = {"x": x, "weight": w, "y": np.zeros_like(x), "n": 296, "eps": 1e-6, "BLOCK": 128}
    return test_kernels.Case(kernels.rms_norm, (5,), arguments, {"y": expected})


@pytest.mark.parametrize(
    "make",
    [test_kernels.softmax, test_kernels.matmul, rms_norm, test_kernels.rope,
     test_kernels.attention],
)  # fmt: skip
def test_our_kernels_stay_right(make: Any, tmp_path: Path) -> None:
    """Against float64, on the interpreter."""
    case, text = make(), Path(kernels.__file__).read_text()
    name = case.kernel.fn.__name__
    done = changed(text, name)
    assert "make_tensor_descriptor" in "".join(changed_lines(text, done)[1])
    launch(getattr(imported(done, tmp_path), name), case.grid, case.arguments)
    right(case)


@pytest.mark.parametrize("text", [MATMUL, EVEN], ids=["masks", "no masks"])
def test_a_changed_task_is_correct(text: str, tmp_path: Path) -> None:
    """As `optimize` would verify it, on shapes that do not divide by the blocks."""
    done = changed(text, "matmul")
    assert done.count("_desc.load(") == 2 and done.count("_desc = ") == 3
    assert done.index("b_desc = ") < done.index("for k in range")
    assert verdict(loaded(done, tmp_path)).verdict.startswith("correct")


def test_the_values_name_tensors(tmp_path: Path) -> None:
    def values(text: str) -> tuple[object, ...]:
        [site] = ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path)))
        return site.values

    names = ("a_ptr, b_ptr, c_ptr", "a_ptr, b_ptr", "c_ptr")
    assert values(MATMUL) == names
    assert values(TRANSPOSED) == ("a_ptr, b_ptr.T, c_ptr", "a_ptr, b_ptr.T", "c_ptr")
    assert values(ON_PTX) == names


def test_the_other_route_is_tried_with_the_new_source(tmp_path: Path) -> None:
    """With its own hints and larger tiles: only both changes together may be faster."""
    assert ENTRY.about.together == ("tile_ir_route",) and tile_ir_route.ENTRY.about.all_values
    source = Source("task.py", ON_PTX)
    [site] = ENTRY.sites(source, facts_of(loaded(ON_PTX, tmp_path)))
    changed = Source("task.py", ENTRY.apply(source, site, site.values[0]))
    [route] = tile_ir_route.ENTRY.sites(changed, facts_of(loaded(changed.text, tmp_path)))
    best = "route=tileir,BLOCK_N=64,num_stages=6,num_worker_warps=8"
    assert {"route=tileir", best} <= set(route.values)
    new = " ".join(changed_lines(ON_PTX, tile_ir_route.ENTRY.apply(changed, route, "route=tileir"))[1])
    assert "'tileir'" in new and '"num_warps": None' in new and '"num_warps": (4, 8, None)' in new
    assert "num_worker_warps" not in new
    shipped = loaded(tile_ir_route.ENTRY.apply(changed, route, best), tmp_path).space.shipped
    assert (shipped["BLOCK_N"], shipped["num_stages"], shipped["num_worker_warps"]) == (64, 6, 8)


def test_a_store_alone() -> None:
    assert changed_lines(MATMUL, ENTRY.apply(*_at(MATMUL), "c_ptr"))[1] == [
        "c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [stride_cm, stride_cn], [BLOCK_M, BLOCK_N])",
        "c_desc.store([BLOCK_M * pid_m, BLOCK_N * pid_n], c)",
    ]


def _at(text: str) -> tuple[Source, Site]:
    source = Source("task.py", text)
    return source, Site("matmul", *source.place(source.functions["matmul"]), "", ("c_ptr",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ODD, "rows of a_ptr may be 81 elements apart, not a multiple of 16 bytes; if no such shape is launched, say"),
        (SPACED_OUT, "matmul line 30: the last stride of b_ptr is 2, not 1"),
    ],
)
def test_what_the_launch_passes_is_checked(text: str, said: str, tmp_path: Path) -> None:
    facts = facts_of(loaded(text, tmp_path))
    assert any(said in finding for finding in ENTRY.findings(Source("task.py", text), facts))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            f"{ROWS}v = tl.load(x + rows_{BLOCK}, {INSIDE})\ntl.store(y + rows_{BLOCK}, v, {INSIDE})",
            ["x_desc = tl.make_tensor_descriptor(x, [rows, n], [stride, 1], [BLOCK_M, BLOCK_N])",
             "v = x_desc.load([BLOCK_M * tl.program_id(0), BLOCK_N * tl.program_id(1)])",
             "y_desc = tl.make_tensor_descriptor(y, [rows, n], [stride, 1], [BLOCK_M, BLOCK_N])",
             "y_desc.store([BLOCK_M * tl.program_id(0), BLOCK_N * tl.program_id(1)], v)"],
            id="a mask without other",
        ),
        pytest.param(
            "x += tl.program_id(0) * stride\nfor start in range(0, n, BLOCK_N):\n"
            "    at = start + tl.arange(0, BLOCK_N)\n    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)",
            ["x_desc = tl.make_tensor_descriptor(x, [n], [1], [BLOCK_N])",
             "y_desc = tl.make_tensor_descriptor(y, [n], [1], [BLOCK_N])",
             "y_desc.store([start], x_desc.load([start]))"],
            id="a pointer moved before the loop",
        ),
        pytest.param(
            "row = tl.program_id(0).to(tl.int64)\nat = row * BLOCK_N + tl.arange(0, BLOCK_N)\n"
            "tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)",
            ["x_desc = tl.make_tensor_descriptor(x, [n], [1], [BLOCK_N])",
             "y_desc = tl.make_tensor_descriptor(y, [n], [1], [BLOCK_N])",
             "y_desc.store([(BLOCK_N * row).to(tl.int32)], x_desc.load([(BLOCK_N * row).to(tl.int32)]))"],
            id="an offset of 64 bits",
        ),
        pytest.param(
            "at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)\nif stride > 1:\n"
            "    v = tl.load(x + at)\nelse:\n    v = tl.load(x + at, mask=at < n, other=0)\ntl.store(y, tl.sum(v, 0))",
            ["x_desc = tl.make_tensor_descriptor(x + BLOCK_N * tl.program_id(0), [BLOCK_N], [1], [BLOCK_N])",
             "x_desc_2 = tl.make_tensor_descriptor(x, [n], [1], [BLOCK_N])",
             "v = x_desc.load([0])", "v = x_desc_2.load([BLOCK_N * tl.program_id(0)])"],
            id="without a mask",
        ),
        pytest.param(
            f"{CORNER}for k in range(tl.cdiv(n, BLOCK_N)):\n    v = tl.load(p)\n    p += BLOCK_N",
            ["x_desc = tl.make_tensor_descriptor(x, [BLOCK_M, BLOCK_N * tl.cdiv(n, BLOCK_N)], [stride, 1], "
             "[BLOCK_M, BLOCK_N])",
             "v = x_desc.load([0, BLOCK_N * k])"],
            id="blocks of a loop without a mask",
        ),
        pytest.param(
            f"{CORNER}for start in range(0, rows, BLOCK_M):\n    v = tl.load(p + start * stride)",
            ["x_desc = tl.make_tensor_descriptor(x, [BLOCK_M * tl.cdiv(rows, BLOCK_M), BLOCK_N], [stride, 1], "
             "[BLOCK_M, BLOCK_N])",
             "v = x_desc.load([start, 0])"],
            id="rows of a loop without a mask",
        ),
        pytest.param(
            "for i in range(rows):\n    first = i * stride\n    for start in range(0, n, BLOCK_N):\n"
            "        at = start + tl.arange(0, BLOCK_N)\n        v = tl.load(x + first + at, mask=at < n)",
            ["x_desc = tl.make_tensor_descriptor(x + i * stride, [n], [1], [BLOCK_N])", "v = x_desc.load([start])"],
            id="a descriptor for each row of a loop",
        ),
        pytest.param(
            "p = x + tl.arange(0, BLOCK_N)\nfor k in range(0, n):\n    p += BLOCK_N\n    v = tl.load(p)",
            ["x_desc = tl.make_tensor_descriptor(x + BLOCK_N, [BLOCK_N * n], [1], [BLOCK_N])",
             "v = x_desc.load([BLOCK_N * k])"],
            id="advanced before the load",
        ),
        pytest.param(
            "at = tl.arange(0, BLOCK_N)\nfor start in range(0, n, BLOCK_N):\n"
            "    v = tl.load(x + at, mask=at + start < n)\n    x += BLOCK_N",
            ["x_desc = tl.make_tensor_descriptor(x, [n], [1], [BLOCK_N])", "v = x_desc.load([start])"],
            id="a parameter that the loop advances",
        ),
    ],
)  # fmt: skip
def test_forms_that_are_read(body: str, expected: list[str]) -> None:
    new = changed_lines(kernel(body), changed(kernel(body)))[1]
    assert sorted(new) == sorted(expected)


AT = "at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (AT + "v = tl.load(x + at, mask=at < n, other=1.0)", "it loads 1.0; a descriptor loads 0"),
        (AT + "v = tl.load(x + at, mask=at < n, other=-0.0)", "it loads -0.0"),
        (AT + "v = tl.load(x + at, mask=at < n, other=other)", "it loads other"),
        (AT + "v = tl.load(x + at, mask=at <= n)", "its mask is not made of comparisons index < bound"),
        (AT + "v = tl.load(x + at, mask=(at < n) | (at > rows))", "its mask is not made of comparisons"),
        (AT + "v = tl.load(x + at, mask=rows < n)", "its mask compares something other than one index"),
        (AT + "v = tl.load(x + at, mask=(at < n) & (at < rows))", "its mask does not limit axis 0 by one bound"),
        (AT + "v = tl.load(x + at, mask=2 * at < n)", "its mask does not limit axis 0 by one bound"),
        (AT + "v = tl.load(x + at, mask=at - 1 < n)", "does not show that BLOCK_N * tl.program_id(0) - 1 is not"),
        (AT + "v = tl.load(x + at, mask=at + rows < n)", "is not negative"),
        (AT + "v = tl.load(x + 2 * at, mask=at < n)", "the stride of its last axis is 2, which is never 1"),
        (AT + "inside = at < n\nn = rows\nv = tl.load(x + at, mask=inside)", "names of its address change before the"),
        (AT + "if n > 3:\n    at = at + 1\nv = tl.load(x + at)", "its addresses are not a pointer plus strides"),
        (AT + "q = x if n > 3 else y\nv = tl.load(q + at)", "its addresses are not a pointer plus strides"),
        (AT + "v = tl.load(x + tl.load(y) * BLOCK_N + at, mask=tl.load(y) + at < n)", "not a pointer plus strides"),
        ("i = tl.load(y)\nat = i + tl.arange(0, BLOCK_N)\nv = tl.load(x + at, mask=at < n)", "that i is not negative"),
        (AT + "for k in range(8, 0, stride - 1):\n    v = tl.load(x + k * n + at)", "addresses are not a pointer plus"),
        (AT + "for i in range(n):\n    for k in range(n):\n        v = tl.load(x + at)\n        x += 8\n    x += n",
         "its addresses are not a pointer plus"),
        (AT + "v = tl.load(x + at * at)", "its addresses are not a pointer plus strides times ranges"),
        (AT + "v = tl.load(x + tl.load(y + at))", "its addresses are not a pointer plus strides times ranges"),
        (AT + "v = tl.load(x + at, volatile=True)", "volatile=True has no counterpart"),
        (AT + "v = tl.load(x + at)\ntl.store(x + at, v)", "the kernel both reads and writes x"),
        (AT + "v = tl.load(x + at)\ntl.atomic_add(x + at, v)", "the kernel both reads and writes x"),
        (AT + "z = x\nv = tl.load(z + at)\ntl.store(x + n + at, v)", "the kernel both reads and writes x"),
        (AT + "v = tl.load(x + (at % n))", "the text does not show that rows beyond n, which wrap round, are not used"),
        (AT + "v = tl.load(x + at[None, :])", "it takes one element along an axis"),
        ("for i in range(n):\n    v = tl.load(x + tl.arange(0, BLOCK_N))\n    if i:\n        x += 1", "not a pointer"),
        ("while n > 0:\n    v = tl.load(x + tl.arange(0, BLOCK_N))\n    x += BLOCK_N", "not a pointer plus"),
    ],
)  # fmt: skip
def test_refused_with_its_reason(body: str, reason: str) -> None:
    assert reason in refused(kernel(body))


WRAPPED = [
    ("c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)", "c_mask = offs_cn[None, :] < N"),
    ("accumulator = tl.dot(a, b, accumulator)", "accumulator = tl.dot(a, b, accumulator) + tl.sum(a)"),
    ("c = accumulator.to(tl.bfloat16)", "c = (accumulator / tl.sum(accumulator, 0)).to(tl.bfloat16)"),
    ("c = accumulator.to(tl.bfloat16)", "c = accumulator.T.to(tl.bfloat16)"),
    ("offs_cm[:, None] < M)", "offs_cm[:, None] < N)"),
]


@pytest.mark.parametrize(("old", "new"), WRAPPED)
def test_rows_that_wrap_round_must_not_be_used(old: str, new: str) -> None:
    assert MATMUL.count(old) == 1
    _, reasons = descriptors_in(Source("task.py", MATMUL.replace(old, new)), "matmul")
    assert any(re.search("a_ptrs.*rows beyond M, which wrap round, are not used", reason) for reason in reasons)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total.to(c.dtype", "(total + tl.sum(tl.load(left))).to(c.dtype"),
        ("    at_m =", "    total += tl.sum(tl.load(left))\n    at_m ="),
        ("total.to(c.dtype", "total.reshape(BLOCK_N, BLOCK_M).trans(1, 0).to(c.dtype"),
        ("total.to(c.dtype", "total[:, :].cumsum(0).to(c.dtype"),
        ("(at_m[:, None] < M) & ", ""),
    ],
)
def test_rows_that_wrap_round_inside_of_a_product(old: str, new: str) -> None:
    text = Path(__file__).parents[2].joinpath("bench", "triton_plain_matmul.py").read_text()
    assert text.count(old) == 1
    _, reasons = descriptors_in(Source("task.py", text.replace(old, new)), "matmul")
    assert any(re.search("left.*rows beyond M, which wrap round, are not used", reason) for reason in reasons)


def test_a_tensor_that_is_not_there_is_refused() -> None:
    with pytest.raises(NotApplicable, match="no block of d can be replaced"):
        ENTRY.apply(*_at(MATMUL), "d")


@pytest.mark.parametrize(
    "helper",
    [
        "moved(p):\n    if p:\n        p += 8\n    return p",
        "moved(p):\n    return moved(p)",
        "moved(p, n):\n    return p",
    ],
    ids=["a branch", "itself", "more parameters"],
)
def test_a_helper_is_read_if_it_only_returns_an_expression(helper: str) -> None:
    text = kernel("v = tl.load(moved(x) + tl.arange(0, BLOCK_N))")
    assert "are not a pointer plus" in refused(f"{text}\n\n@triton.jit\ndef {helper}\n")
    assert not refused(f"{text}\n\n@triton.jit\ndef moved(p):\n    q = p + 8\n    return q\n")
