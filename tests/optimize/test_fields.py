"""A structural change is judged at its best: with the hints that fit it, and with the change that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.optimize.captured_norm import library, recorded, task_file
from tests.optimize.kit import H200, candidates

from tilewright.inspect.work import bound_of, count
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration
from tilewright.optimize.attempting import Builder, Variant
from tilewright.optimize.fields import FieldBuilder, look_ahead
from tilewright.optimize.gates.predicted import PredictedRanking
from tilewright.optimize.loop import optimize
from tilewright.optimize.optimized import Optimized
from tilewright.playbook.base import KernelFacts
from tilewright.playbook.entries import persistent, rows_per_tile
from tilewright.task.loading import editable_files, load_task, where_is

torch = pytest.importorskip("torch")
ROWS, COLUMNS = 8192, 4096


@pytest.fixture(scope="module")
def no_gpu() -> Iterator[None]:
    """A program asks for the stream also while its launches are only described."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_stream", lambda: None)
        yield


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory, no_gpu: None) -> Optimized:
    """A captured norm, optimised without a GPU by the one move that makes both changes."""
    folder = tmp_path_factory.mktemp("norms")
    with Ledger(folder / "ledger.db") as ledger:
        norms = library(folder)
        x = torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16)
        file = task_file(folder, recorded(norms.normed, x, torch.ones(2, dtype=torch.bfloat16)))
        return optimize(str(file), arch="sm_90", only=("tile_streams",), iterations=1, ledger=ledger, seed=1)


@pytest.fixture(scope="module")
def combined(optimized: Optimized) -> Iteration:
    [iteration] = [each for each in optimized.iterations if each.entry == "tile_streams"]
    return iteration


@pytest.mark.long
def test_the_combination_is_proposed_verified_and_listed(optimized: Optimized, combined: Iteration) -> None:
    """Tile access and a persistent grid, with several rows a tile: correct, and to be confirmed on a GPU."""
    assert combined.correctness == "PASS"
    assert combined.value.startswith("loads only, persistent=4, rows_per_tile=2")
    [(_, name, change)] = optimized.to_confirm
    assert name == combined.optimization
    assert change.speedup > 1.05
    patch = Path(change.patch).read_text()
    assert "+    for row in range(ct.bid(0), ct.cdiv(items, TILE_ROWS), ct.num_blocks(0)):" in patch
    assert "ct.load(x, (row, 0), (TILE_ROWS, BLOCK)" in patch
    assert "(min(D0, hardware.sms * config.BLOCKS_PER_SM" in patch, "the launch of the task is changed, too"


@pytest.mark.long
def test_no_version_makes_only_one_of_the_changes(combined: Iteration) -> None:
    """Tile access alone is not compiled here: it is an entry of its own, and some kernels do not compile with it."""
    assert {attempt.value.split(", ")[0] for attempt in combined.attempts} == {
        "every access",
        "loads only",
        "stores only",
    }
    assert all(", persistent=" in attempt.value for attempt in combined.attempts)


@pytest.mark.long
def test_the_change_is_tried_with_the_hints_that_interact(combined: Iteration) -> None:
    values = [attempt.value for attempt in combined.attempts]
    for hint in ("occupancy=", "worker_warps=8", "latency="):
        assert any(hint in value and "persistent=" in value for value in values), hint


@pytest.mark.long
def test_pairs_that_cannot_gain_are_pruned_with_their_prediction(tmp_path: Path, no_gpu: None) -> None:
    """The look-ahead compiles pairs of structural changes. Only those that are predicted to gain are judged."""
    x = torch.empty(1024, 1024, dtype=torch.bfloat16)
    file = task_file(tmp_path, recorded(library(tmp_path).normed, x, torch.ones(2, dtype=torch.bfloat16)))
    task, texts = load_task(str(file)), {path: path.read_text() for path in editable_files(load_task(str(file)))}
    builder = Builder(
        candidates("torch"), task, where_is(task), H200, task.selected(None), tmp_path / "versions", seconds=60
    )
    start = builder.build_one("start", texts)
    bounds = {workload.name: bound_of(task, workload, H200) for workload in builder.workloads}

    def facts_of(variant: Variant) -> KernelFacts:
        return KernelFacts(
            variant.task, H200, builder.workloads, bounds, variant.codes, lambda one: count(variant.task, one, H200)
        )

    entries = (persistent.ENTRY, rows_per_tile.ENTRY)
    kept, attempts = FieldBuilder(start, entries, (), builder.build, facts_of, PredictedRanking(start)).field(
        look_ahead(), "ahead"
    )
    pruned = [attempt for attempt in attempts if attempt.reason.endswith(": pruned")]
    assert all(" rows_per_tile=" in str(each.value) and "persistent=" in str(each.value) for each in kept)
    assert all(attempt.status == "screened" and attempt.predicted for attempt in pruned)
    assert all(float(attempt.reason.split()[1].rstrip("×")) >= 0.95 for attempt in pruned)
    assert all(variant.predicted_us < 0.95 * start.predicted_us for variant in kept)
    assert any(str(each.value).endswith(", rows_per_tile=4") for each in (*kept, *pruned))
