"""Entries that state facts: static extents and strides, and numbers that are multiples (cutile-facts 1.6)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.configured import LISTED, LISTED_TASK, MATMUL, SCALE
from tests.playbook.kit import changed_lines, only, verdict

from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.playbook.entries import divisible, static_shapes
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded

FLAT = '''\
import cuda.tile as ct
import tilewright as tw


@ct.kernel
def shift(x, y, width, TILE: ct.Constant[int]):
    """Each row by itself, in an array without rows."""
    start = ct.bid(0) * width  # where the row begins
    columns = ct.arange(TILE, dtype=ct.int32)
    ct.scatter(y, start + columns, ct.gather(x, start + columns) + 1)


task = tw.Task(
    name="shift",
    tensors={"x": tw.Tensor(("M * N",), "float32"), "y": tw.Output(("M * N",), "float32")},
    reference=lambda x: x + 1,
    launch=lambda x, y, M, N, config: tw.Launch(shift, (M,), (x, y, N, N)),
    flops=lambda M, N: M * N,
    serves=lambda N: N in (64, 128, 1024),
    space=tw.Space(shipped={}),
    workloads={"rows": {"M": 512, "N": 1024}, "short": {"M": 512, "N": 64}},
)
'''
ANY_WIDTH = FLAT.replace("    serves=lambda N: N in (64, 128, 1024),\n", "").replace("(x, y, N, N)", "(x, y, N, 1024)")
IN_PARTS = FLAT.replace("(x, y, N, N)", "(x, y, N // config.PARTS, N)").replace(
    "Space(shipped={})", 'Space(constants={"PARTS": (1, 16)}, shipped={"PARTS": 1})'
)
CLAIMED = FLAT.replace("    start =", "    width = ct.assume_divisible_by(width, 16)\n    start =")
LONGER = MATMUL.replace(
    '"square": {"M": 512,', '"square": {"M": 512, "N": 512, "K": 512}, "longer": {"M": 1024,'
).replace("ct.kernel\ndef product(a, b, c,", "ct.kernel\ndef product(a, b: ct.Array, c,")


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(LONGER, tmp_path_factory.mktemp("longer")))


class TestStaticShapes(EntryContract):
    entry = static_shapes.ENTRY
    examples: ClassVar = {"one workload": SCALE, "two": LONGER}


class TestDivisible(EntryContract):
    entry = divisible.ENTRY
    examples: ClassVar = {"flat": FLAT}
    elsewhere: ClassVar = {
        "any width is served": ANY_WIDTH, "it is said": CLAIMED, "no number": SCALE, "a knob divides it": IN_PARTS,
    }  # fmt: skip


def test_what_all_workloads_share_is_static(longer: KernelFacts) -> None:
    source = Source("file.py", LONGER)
    site = only(static_shapes.ENTRY.sites(source, longer))
    shapes = "a.shape[1] b.shape[0] b.shape[1] c.shape[1]"
    strides = " ".join(f"{name}.strides[{axis}]" for name in "abc" for axis in (0, 1))
    assert site.values == (shapes, f"{shapes} {strides}")


def test_the_annotation_is_written_and_its_name_imported(longer: KernelFacts) -> None:
    source = Source("file.py", LONGER)
    site = only(static_shapes.ENTRY.sites(source, longer))
    text = static_shapes.ENTRY.apply(source, site, "a.shape[1] b.shape[0] b.shape[1] b.strides[0] b.strides[1]")
    gone, new = changed_lines(LONGER, text)
    assert gone == [
        "def product(a, b: ct.Array, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):"
    ]
    assert new[0] == "from typing import Annotated"
    a = "a: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(1,))]"
    b = "b: Annotated[ct.Array, ct.ArrayAnnotation(static_shape_dims=(0, 1), static_stride_dims=(0, 1))]"
    assert new[1].startswith(f"def product({a}, {b}, c, TILE_M")


def test_in_one_workload_what_is_independent_may_change(tmp_path: Path) -> None:
    facts = facts_of(loaded(SCALE, tmp_path))
    site = only(static_shapes.ENTRY.sites(Source("file.py", SCALE), facts))
    assert site.values[0] == "x.shape[1] y.shape[1]"


@pytest.mark.parametrize("value", [0, 1])
def test_static_extents_are_other_code_and_correct(longer: KernelFacts, tmp_path: Path, value: int) -> None:
    """Also for the shapes beside the workloads: a launch compiles for the extents that it has."""
    source = Source("file.py", LONGER)
    site = only(static_shapes.ENTRY.sites(source, longer))
    task = loaded(static_shapes.ENTRY.apply(source, site, site.values[value]), tmp_path)
    assert codes_of(task)["longer"].code_hash != longer.codes["longer"].code_hash
    checked = verdict(task)
    assert checked.verdict.startswith("correct"), checked.reason


def test_a_claim_stands_first_in_the_kernel_and_is_correct(tmp_path: Path) -> None:
    facts, source = facts_of(loaded(FLAT, tmp_path)), Source("file.py", FLAT)
    site = only(divisible.ENTRY.sites(source, facts))
    text = divisible.ENTRY.apply(source, site, 16)
    assert text == FLAT.replace("    start =", "    width = ct.assume_divisible_by(width, 16)\n    start =")
    task = loaded(text, tmp_path)
    assert codes_of(task)["rows"].copies != facts.codes["rows"].copies, "wider accesses"
    checked = verdict(task)
    assert checked.verdict.startswith("correct"), checked.reason


def test_a_library_s_kernel_has_other_callers(tmp_path: Path) -> None:
    facts = facts_of(loaded(LISTED + LISTED_TASK, tmp_path))
    assert not divisible.ENTRY.sites(Source("listed.py", LISTED), facts)


def test_an_annotation_of_one_s_own_is_left(longer: KernelFacts) -> None:
    text = LONGER.replace("product(a,", "product(a: ct.IndexedWithInt64,")
    source = Source("file.py", text)
    site = only(static_shapes.ENTRY.sites(source, longer))
    assert "a." not in str(site.values)
    with pytest.raises(NotApplicable, match="another annotation"):
        static_shapes.ENTRY.apply(source, site, "a.shape[1]")
