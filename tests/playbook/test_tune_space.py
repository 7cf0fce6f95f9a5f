"""Entry C: a few configurations that other machine code and the model speak for (K1 C, X-09)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.playbook.configured import LISTED, LISTED_TASK, MATMUL, SCALE
from tests.playbook.kit import only, verdict

from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import board
from tilewright.playbook.analyses import best_predicted
from tilewright.playbook.analyses.configuration_sites import read_changes
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.playbook.entries import tune_space
from tilewright.playbook.entries.tune_space import ENTRY, OFFERED
from tilewright.records import Configuration
from tilewright.source.syntax import Source
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.testing.entries import EntryContract, codes_of, facts_of, loaded


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compilers of a small machine: fewer tile sizes, and hints for two of them."""
    monkeypatch.setattr(best_predicted, "TILES", 5)
    monkeypatch.setattr(best_predicted, "LEADERS", 2)
    monkeypatch.setattr(best_predicted, "HINTS", ({"occupancy": 2}, {"num_worker_warps": 8}, {"num_worker_warps": 4}))


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(loaded(MATMUL, tmp_path_factory.mktemp("matmul")))


class TestTuneSpace(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"scale": SCALE}


@pytest.mark.long
def test_a_kernel_with_one_configuration_is_tried_with_others(matmul: KernelFacts) -> None:
    site = only(ENTRY.sites(Source("file.py", MATMUL), matmul))
    assert 2 <= len(site.values_to_try()) <= OFFERED
    tiles = [read_changes(str(value)) for value in site.values_to_try()]
    assert any("TILE_M" in one for one in tiles) and any("occupancy" in one for one in tiles)


@pytest.mark.long
def test_every_value_is_another_machine_code(matmul: KernelFacts, tmp_path: Path) -> None:
    source = Source("file.py", MATMUL)
    site = only(ENTRY.sites(source, matmul))
    hashes = {matmul.codes["square"].code_hash}
    for value in site.values_to_try():
        codes = codes_of(loaded(ENTRY.apply(source, site, value), tmp_path))
        assert codes["square"].code_hash not in hashes, value
        hashes.add(codes["square"].code_hash)


def test_the_best_predicted_is_still_correct(matmul: KernelFacts, tmp_path: Path) -> None:
    source = Source("file.py", MATMUL)
    site = only(ENTRY.sites(source, matmul))
    checked = verdict(loaded(ENTRY.apply(source, site, site.values_to_try()[0]), tmp_path))
    assert checked.verdict.startswith("correct"), checked.reason


def test_what_the_space_lists_is_tried_and_nothing_else(tmp_path: Path) -> None:
    """A library's list of configurations: tiles come from its space, hints that it leaves open are added."""
    facts = facts_of(loaded(LISTED + LISTED_TASK, tmp_path))
    sites = ENTRY.sites(Source("listed.py", LISTED), facts)
    assert len(sites) == 2 and sites[0].promise > sites[1].promise
    for value in sites[0].values_to_try():
        changes = read_changes(str(value))
        assert changes.get("TILE_M", 64) in (64, 128) and changes.get("TILE_N", 128) in (64, 128)


@pytest.mark.long
def test_of_a_large_space_tiles_are_compiled_first_and_then_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("examples/rms_norm.py")
    facts = facts_of(replace(task, workloads={name: task.workloads[name] for name in ("16384x4096", "4096x8192")}))
    compiled: list[Configuration] = []
    seen: list[tuple[str, Configuration]] = []

    def counting(task: Task, units: Sequence[Unit], **options: Any) -> Any:
        compiled.extend(unit.configuration for unit in units)
        seen.extend((unit.workload.name, unit.configuration) for unit in units)
        return compile_all(task, units, **options)

    monkeypatch.setattr(best_predicted, "compile_all", counting)
    whole = best_predicted.best_predicted(facts, OFFERED, facts.task.space.constants)
    assert len(seen) == len(set(seen)), "compiled twice"
    every, compiled[:] = set(compiled), []
    monkeypatch.setattr(best_predicted, "DECLARED", 8)
    part = best_predicted.best_predicted(facts, OFFERED, facts.task.space.constants)
    assert len(set(compiled)) < len(every) and part[0] == whole[0]
    assert len({(config["occupancy"], config["num_worker_warps"]) for config in part}) > 2


def test_constants_that_do_not_stand_in_the_source_stay(matmul: KernelFacts) -> None:
    for config in best_predicted.best_predicted(matmul, OFFERED, ()):
        assert (config["TILE_M"], config["TILE_N"], config["TILE_K"]) == (64, 64, 32)


def test_a_tile_that_is_a_whole_row_keeps_its_size(tmp_path: Path) -> None:
    text = SCALE.replace("(x, y, N)", "(x, y, config.TILE)").replace("x, y, M, N:", "x, y, M, N, config:")
    text = text.replace("tw.Space(shipped={})", 'tw.Space(constants={"TILE": (1024,)}, shipped={"TILE": 1024})')
    facts = facts_of(loaded(text, tmp_path))
    assert best_predicted.tile_values("TILE", 1024, facts) == ()
    assert best_predicted.tile_values("TILE", 512, facts) == (1024, 256, 2048, 128)
    assert best_predicted.tile_values("TILE_N", 1024, facts) == ()
    assert best_predicted.tile_values("TILE_K", 1024, facts) == (2048, 512, 4096, 256), "no K is 1024"


def test_it_compiles_once_for_each_source(matmul: KernelFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("file.py", MATMUL)
    first = only(ENTRY.sites(source, matmul)).values_to_try()
    monkeypatch.setattr(tune_space, "best_predicted", lambda *_: pytest.fail("asked again"))
    assert only(ENTRY.sites(source, matmul)).values_to_try() == first


def test_nothing_is_compiled_before_the_site_is_tried(matmul: KernelFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_predicted, "compile_all", lambda *_, **__: pytest.fail("compiled"))
    assert only(ENTRY.sites(Source("file.py", MATMUL + "# another\n"), matmul)).values == ()


def test_no_clusters_are_offered_where_there_are_none(matmul: KernelFacts) -> None:
    task = best_predicted.widened(matmul)
    for name, fits in (("H200", True), ("A100-80GB", False)):
        facts = replace(matmul, board=board(name), task=task)
        assert best_predicted.allowed(facts, task.space.shipped.replace(num_ctas=2)) == fits


@pytest.mark.parametrize("text", ["TILE_M", "=4", "TILE M=4"])
def test_a_value_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(NotApplicable, match="knob=value"):
        read_changes(text)


def test_values_are_read_as_they_are_written() -> None:
    said = read_changes("TILE=64,occupancy=auto,swap=True,scale=0.5,order=rows")
    assert said == {"TILE": 64, "occupancy": None, "swap": True, "scale": 0.5, "order": "rows"}
