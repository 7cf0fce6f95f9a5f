"""Entries E and F: keywords of loads and stores (K1 E, K1 F, K3)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.configured import MATMUL, SCALE
from tests.playbook.kit import changed_lines, only, verdict

from tilewright.hardware.architectures import board
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.playbook.entries import allow_tma, latency
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded

HINTED = SCALE.replace("(1, TILE))", "(1, TILE), latency=10)")
WITHOUT = SCALE.replace("t * 2)", "t * 2, allow_tma=False)")
CHAINED = SCALE.replace("(1, TILE))", "(1, TILE), latency=4,  # far\n        ).reshape((1, TILE))")
IMPORTED = SCALE.replace("ct.load(", "load(").replace("\nimport til", "\nfrom cuda.tile import load\nimport til")
CHOSEN = SCALE.replace("(1, TILE))", "(1, TILE), latency=AHEAD)").replace("\n\n@ct", "\n\nAHEAD = 4\n\n@ct", 1)


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(MATMUL, tmp_path_factory.mktemp("matmul")))


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(SCALE, tmp_path_factory.mktemp("scale")))


class TestLatency(EntryContract):
    entry = latency.ENTRY
    examples: ClassVar = {
        "scale": SCALE, "hinted": HINTED, "matmul": MATMUL, "chained": CHAINED, "imported": IMPORTED, "chosen": CHOSEN,
    }  # fmt: skip


class TestAllowTma(EntryContract):
    entry = allow_tma.ENTRY
    examples: ClassVar = {"matmul": MATMUL, "without": WITHOUT}
    elsewhere: ClassVar = {"no TMA in the machine code": SCALE}


def test_loads_of_a_product_come_before_its_store(matmul: KernelFacts) -> None:
    sites = latency.ENTRY.sites(Source("file.py", MATMUL), matmul)
    assert [(site.what, site.values) for site in sites] == [
        ("latency of all loads of product", (3, 6, 2, 10)),
        ("latency of load of a", (3, 6, 2, 10)),
        ("latency of load of b", (3, 6, 2, 10)),
        ("latency of store of c", (3, 1, 6)),
    ]


def test_one_load_or_all_of_them(matmul: KernelFacts) -> None:
    source = Source("file.py", MATMUL)
    one, all_ = (only(latency.ENTRY.sites(source, matmul), what) for what in ("load of b", "all loads"))
    for site, names in ((one, ["b"]), (all_, ["a", "b"])):
        _, new = changed_lines(MATMUL, latency.ENTRY.apply(source, site, 6))
        assert [line[line.index("ct.load(") + 8] for line in new] == names
        assert all(line.endswith("padding_mode=ct.PaddingMode.ZERO, latency=6)") for line in new)


def test_a_hint_that_stands_is_changed_in_its_place(scale: KernelFacts) -> None:
    for text, before in ((HINTED, "latency=10)"), (CHAINED, "latency=4,  # far")):
        source = Source("file.py", text)
        site = only(latency.ENTRY.sites(source, scale), "load")
        changed = latency.ENTRY.apply(source, site, 1)
        assert changed == text.replace(before, before.replace("10", "1").replace("4", "1"))


def test_a_hint_that_is_chosen_elsewhere_is_left(scale: KernelFacts) -> None:
    assert [site.what for site in latency.ENTRY.sites(Source("file.py", CHOSEN), scale)] == ["latency of store of y"]


@pytest.mark.parametrize("value", [0, 11, "far"])
def test_a_latency_that_cutile_does_not_take_is_refused(scale: KernelFacts, value: int) -> None:
    source = Source("file.py", SCALE)
    with pytest.raises(NotApplicable, match="1 to 10"):
        latency.ENTRY.apply(source, latency.ENTRY.sites(source, scale)[0], value)


def test_the_stores_come_first_and_both_ways_are_tried(matmul: KernelFacts, scale: KernelFacts) -> None:
    sites = allow_tma.ENTRY.sites(Source("file.py", MATMUL), matmul)
    assert [(site.what, site.values) for site in sites] == [
        ("no TMA for the store of c", (False,)),
        ("no TMA for the load of a", (False,)),
        ("no TMA for the load of b", (False,)),
    ]
    source = Source("file.py", WITHOUT)
    back = only(allow_tma.ENTRY.sites(source, scale))
    assert back.values == (True,)
    assert allow_tma.ENTRY.apply(source, back, True) == SCALE


def test_there_is_no_tma_before_hopper(matmul: KernelFacts) -> None:
    facts = replace(matmul, board=board("A100-80GB"))
    assert not allow_tma.ENTRY.sites(Source("file.py", MATMUL), facts)


def test_a_store_without_tma_is_other_code_and_correct(matmul: KernelFacts, tmp_path: Path) -> None:
    source = Source("file.py", MATMUL)
    site = only(allow_tma.ENTRY.sites(source, matmul), "store")
    task = loaded(allow_tma.ENTRY.apply(source, site, False), tmp_path)
    assert not any(name.startswith("UTMASTG") for name in codes_of(task)["square"].copies)
    assert verdict(task).verdict.startswith("correct")


def test_a_latency_reaches_the_machine_code_and_is_correct(matmul: KernelFacts, tmp_path: Path) -> None:
    source = Source("file.py", MATMUL)
    site = only(latency.ENTRY.sites(source, matmul), "all loads")
    task = loaded(latency.ENTRY.apply(source, site, 10), tmp_path)
    assert codes_of(task)["square"].code_hash != matmul.codes["square"].code_hash
    assert verdict(task).verdict.startswith("correct")
