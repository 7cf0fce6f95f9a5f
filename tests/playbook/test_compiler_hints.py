"""The entries for one compiler hint each: occupancy, num_worker_warps, num_ctas (X-09, X-10)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.playbook.configured import LISTED, LISTED_TASK, MATMUL, SCALE
from tests.playbook.kit import only, verdict

from tilewright.hardware.architectures import board
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.playbook.entries import clusters, occupancy, worker_warps
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, codes_of, facts_of, loaded

HINTED = SCALE.replace("tw.Space(shipped={})", 'tw.Space(hints={"num_ctas": (1, 2)}, shipped={"num_ctas": 2})')
ENTRIES: dict[str, Any] = {one.hint: one for one in (occupancy.ENTRY, worker_warps.ENTRY, clusters.ENTRY)}


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(SCALE, tmp_path_factory.mktemp("scale")))


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(MATMUL, tmp_path_factory.mktemp("matmul")))


class TestOccupancy(EntryContract):
    entry = occupancy.ENTRY
    examples: ClassVar = {"scale": SCALE, "matmul": MATMUL}


class TestWorkerWarps(EntryContract):
    entry = worker_warps.ENTRY
    examples: ClassVar = {"scale": SCALE}


class TestClusters(EntryContract):
    entry = clusters.ENTRY
    examples: ClassVar = {"scale": SCALE, "hinted": HINTED}


def test_memory_bound_kernels_are_asked_for_more_ctas_first(scale: KernelFacts) -> None:
    site = only(occupancy.ENTRY.sites(Source("file.py", SCALE), scale))
    assert scale.kind == "memory" and site.values == (4, 2, 8)
    assert "CTAs fit on an SM" in site.why


def test_values_that_ask_for_more_than_fits_come_first_where_enough_fit(scale: KernelFacts) -> None:
    for registers, values in ((32, (4, 2, 8)), (127, (8, 4, 2)), (255, (4, 2, 8))):
        codes = {name: replace(code, registers=registers, threads=128) for name, code in scale.codes.items()}
        site = only(occupancy.ENTRY.sites(Source("file.py", SCALE), replace(scale, codes=codes)))
        assert site.values == values, registers


def test_a_hint_as_it_stands_is_not_offered(tmp_path: Path) -> None:
    """The decorator's hint counts where the space is silent."""
    text = SCALE.replace("@ct.kernel", "@ct.kernel(occupancy=4)")
    site = only(occupancy.ENTRY.sites(Source("file.py", text), facts_of(loaded(text, tmp_path))))
    assert site.values == (2, 8, 1)


def test_clusters_are_offered_where_there_is_multicast(scale: KernelFacts) -> None:
    found = {}
    for name in ("A100-80GB", "H200", "B200", "RTX 5090"):
        sites = clusters.ENTRY.sites(Source("file.py", SCALE), replace(scale, board=board(name)))
        found[name] = [site.values for site in sites]
    assert found == {"A100-80GB": [], "H200": [(2, 4)], "B200": [(2, 4)], "RTX 5090": []}


def test_what_the_registers_say_decides_the_promise(scale: KernelFacts) -> None:
    source = Source("file.py", SCALE)
    (name, code), *_ = scale.codes.items()
    for registers, better in ((255, True), (32, False)):
        facts = replace(scale, codes={name: replace(code, registers=registers, local_stores=0, shared_bytes=0)})
        for entry in (occupancy.ENTRY, worker_warps.ENTRY):
            assert (only(entry.sites(source, facts)).promise == 1.0) == better, entry.about.id


@pytest.mark.parametrize(("hint", "value"), [("occupancy", 2), ("num_worker_warps", 8), ("num_ctas", 2)])
def test_a_hint_is_shipped_and_correct(matmul: KernelFacts, tmp_path: Path, hint: str, value: int) -> None:
    entry, source = ENTRIES[hint], Source("file.py", MATMUL)
    task = loaded(entry.apply(source, only(entry.sites(source, matmul)), value), tmp_path)
    assert task.space.shipped[hint] == value
    assert codes_of(task)["square"].code_hash != matmul.codes["square"].code_hash
    assert verdict(task, H200).verdict.startswith("correct")


def test_a_library_s_kernel_gets_the_hint_in_its_decorator(tmp_path: Path) -> None:
    facts = facts_of(loaded(LISTED + LISTED_TASK, tmp_path))
    source = Source("listed.py", LISTED)
    site = worker_warps.ENTRY.sites(source, facts)[0]
    assert "@ct.kernel(num_worker_warps=8)" in worker_warps.ENTRY.apply(source, site, 8)


@pytest.mark.parametrize("value", [3, "many"])
def test_a_value_that_no_compiler_takes_is_refused(scale: KernelFacts, value: Any) -> None:
    source = Source("file.py", SCALE)
    site = only(worker_warps.ENTRY.sites(source, scale))
    with pytest.raises(NotApplicable, match="num_worker_warps"):
        worker_warps.ENTRY.apply(source, site, value)
