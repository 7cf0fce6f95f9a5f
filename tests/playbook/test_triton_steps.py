"""The smaller steps on Triton source: the route, exp2, offsets of 64 bits, knobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("triton")

from tests.languages.tileir_from_triton import kernels, test_kernels
from tests.languages.tileir_from_triton.kit import launch
from tests.playbook.kit import changed_lines, only, verdict
from tests.playbook.triton_tasks import MATMUL, ON_PTX, SOFTMAX, imported, right

from tilewright.hardware.architectures import board
from tilewright.inspect.work import count
from tilewright.playbook.analyses.triton_routes import field
from tilewright.playbook.base import KernelFacts, Site
from tilewright.playbook.entries import ptx_route, tile_ir_hints, tile_ir_route, tile_sizes, triton_exp2, wide_offsets
from tilewright.playbook.entries.tune_space import ENTRY as TUNE_SPACE
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded


class TestTileIrRoute(EntryContract):
    entry = tile_ir_route.ENTRY
    examples: ClassVar = {"on PTX": ON_PTX}
    elsewhere: ClassVar = {"there already": MATMUL}


class TestPtxRoute(EntryContract):
    entry = ptx_route.ENTRY
    examples: ClassVar = {"on Tile IR": MATMUL}
    elsewhere: ClassVar = {"there already": ON_PTX}


class TestTileIrHints(EntryContract):
    entry = tile_ir_hints.ENTRY
    examples: ClassVar = {"a product": MATMUL}
    elsewhere: ClassVar = {"on PTX": ON_PTX}


class TestTritonExp2(EntryContract):
    entry = triton_exp2.ENTRY
    examples: ClassVar = {"softmax": SOFTMAX}
    elsewhere: ClassVar = {"no exponential": MATMUL}


@pytest.mark.long
def test_the_route_and_its_hints(tmp_path: Path) -> None:
    """Hints that were tuned for one route do not reach the other."""
    source = Source(
        "task.py",
        ON_PTX.replace('"num_warps": 4,', '"num_warps": 4, "num_stages": 3,').replace(
            '"num_warps": (4, 8)', '"num_warps": (4, 8), "num_stages": (3,)'
        ),
    )
    [site] = tile_ir_route.ENTRY.sites(source, facts_of(loaded(source.text, tmp_path)))
    assert {"route=tileir", "route=tileir,BLOCK_N=64,num_stages=6,num_worker_warps=8"} <= set(site.values)
    text = tile_ir_route.ENTRY.apply(source, site, "route=tileir,BLOCK_N=64,num_worker_warps=8")
    shipped = loaded(text, tmp_path).space.shipped
    assert (shipped["route"], shipped["num_warps"], shipped["num_stages"]) == ("tileir", None, None)
    assert (shipped["BLOCK_N"], shipped["num_worker_warps"]) == (64, 8)
    [back] = ptx_route.ENTRY.sites(Source("task.py", text), facts_of(loaded(text, tmp_path)))
    again = ptx_route.ENTRY.apply(Source("task.py", text), back, "route=ptx,num_warps=8,num_stages=3")
    shipped = loaded(again, tmp_path).space.shipped
    assert (shipped["route"], shipped["num_warps"], shipped["num_stages"]) == ("ptx", 8, 3)
    assert shipped["num_worker_warps"] is None


def test_a_route_is_tried_with_larger_tiles_that_its_warps_can_hold(tmp_path: Path) -> None:
    text = ON_PTX.replace('"BLOCK_M": 32, "BLOCK_N": 32', '"BLOCK_M": 128, "BLOCK_N": 128')
    facts = facts_of(loaded(text.replace('"M": 100, "N": 72', '"M": 512, "N": 512'), tmp_path))
    on_tile_ir, on_ptx = field(facts, "tileir"), field(facts, "ptx")
    assert {"BLOCK_N": 256, "num_stages": 6, "num_worker_warps": 8} in on_tile_ir
    assert {"BLOCK_N": 256, "num_warps": 8, "num_stages": 3} in on_ptx
    for each in (*on_tile_ir, *on_ptx):
        elements = int(each.get("BLOCK_M") or 128) * int(each.get("BLOCK_N") or 128) // int(each.get("num_ctas") or 1)
        warps = int(each.get("num_warps") or each.get("num_worker_warps") or 4)
        assert elements // (32 * warps) <= 128, "registers of a thread that the sums take"


def test_the_hints_to_try_are_those_of_the_class(tmp_path: Path) -> None:
    [site] = tile_ir_hints.ENTRY.sites(Source("task.py", MATMUL), facts_of(loaded(MATMUL, tmp_path)))
    assert 8 <= len(site.values) <= 12 and "a kernel of the class dot" in site.why
    assert "occupancy=2,num_ctas=2,num_stages=4" in site.values
    text = tile_ir_hints.ENTRY.apply(Source("task.py", MATMUL), site, "occupancy=2,num_ctas=2,num_stages=4")
    shipped = loaded(text, tmp_path).space.shipped
    assert (shipped["occupancy"], shipped["num_ctas"], shipped["num_stages"]) == (2, 2, 4)


def test_hints_of_triton_are_written_as_hints(tmp_path: Path) -> None:
    source, task = Source("task.py", ON_PTX), loaded(ON_PTX, tmp_path)
    [site] = TUNE_SPACE.sites(source, facts_of(task))
    changed = loaded(TUNE_SPACE.apply(source, site, "num_warps=16,BLOCK_M=64"), tmp_path).space
    assert changed.shipped["num_warps"] == 16 and 16 in changed.hints["num_warps"]
    assert "num_warps" not in changed.constants and changed.shipped["BLOCK_M"] == 64


def test_larger_tiles_are_offered(tmp_path: Path) -> None:
    sites = tile_sizes.ENTRY.sites(Source("task.py", MATMUL), facts_of(loaded(MATMUL, tmp_path)))
    assert "BLOCK_M=64,BLOCK_N=64" in {value for site in sites for value in site.values}


@pytest.mark.parametrize(
    ("value", "new"),
    [
        ("fused", "tl.exp2(values * 1.4426950408889634 - tl.max(values, 0) * 1.4426950408889634)"),
        ("scaled", "tl.exp2((values - tl.max(values, 0)) * 1.4426950408889634)"),
    ],
)
def test_exp_as_exp2(value: str, new: str, tmp_path: Path) -> None:
    text = Path(kernels.__file__).read_text()
    source = Source("kernels.py", text)
    [call] = triton_exp2._exponentials(source, source.functions["softmax"])
    done = triton_exp2.ENTRY.apply(source, Site.at(source, call, "", (value,)), value)
    assert changed_lines(text, done)[1] == [f"values = {new}"]
    case: Any = test_kernels.softmax()
    launch(imported(done, tmp_path).softmax, case.grid, case.arguments)
    right(case)


NARROW = SOFTMAX.replace("tl.program_id(0).to(tl.int64)  #", "tl.program_id(0)  #")


def test_row_offsets_of_64_bits(tmp_path: Path) -> None:
    """Offered if some workload's tensor has 2³¹ elements, of facts without machine code."""

    def sites(text: str) -> list[Site]:
        task, on = loaded(text, tmp_path), board("H200")
        facts = KernelFacts(task, on, task.selected(None), {}, {}, lambda workload: count(task, workload, on))
        return wide_offsets.ENTRY.sites(Source("task.py", text), facts)

    large = NARROW.replace('"M": 8, "N": 64', '"M": 1 << 20, "N": 1 << 12')
    assert NARROW != SOFTMAX and sites(NARROW) == []
    text = wide_offsets.ENTRY.apply(Source("task.py", large), only(sites(large)), "int64")
    assert "row = tl.program_id(0).to(tl.int64)  # rows" in text
    assert sites(text) == []
    small = text.replace('"M": 1 << 20, "N": 1 << 12', '"M": 8, "N": 64')
    assert verdict(loaded(small, tmp_path)).verdict.startswith("correct")


def test_a_changed_task_is_correct(tmp_path: Path) -> None:
    source = Source("task.py", SOFTMAX)
    site = only(triton_exp2.ENTRY.sites(source, facts_of(loaded(SOFTMAX, tmp_path))))
    changed = loaded(triton_exp2.ENTRY.apply(source, site, "fused"), tmp_path)
    assert verdict(changed).verdict.startswith("correct")
