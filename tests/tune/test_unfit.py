"""Candidates whose accumulators cannot fit: `tune` leaves them out too, with a reason, and compiles them if it must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewright.compile.accumulators import UNFIT
from tilewright.languages.cutile.cutile import CuTile
from tilewright.ledger.tunings import TuneLedger
from tilewright.records import Candidate, WorkloadResult
from tilewright.task.loading import load_task
from tilewright.tune import tune as tuning
from tilewright.tune.tune import tune

OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def product(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], OFF: ct.Constant[float]):
    total = ct.full((TILE_M, TILE_N), OFF, ct.float32)
    for k in range(ct.cdiv(a.shape[1], 64)):
        total = ct.mma(ct.load(a, (ct.bid(0), k), (TILE_M, 64)), ct.load(b, (k, ct.bid(1)), (64, TILE_N)), total)
    ct.store(c, (ct.bid(0), ct.bid(1)), total.astype(c.dtype))

def launch(a, b, c, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(product, grid, (a, b, c, config.TILE_M, config.TILE_N, OFF.get(config.TILE_M, 0.0)))

OFF = {OFF}
task = tw.Task(
    name="product",
    tensors={{"a": tw.Tensor(("M", "K"), "bfloat16"), "b": tw.Tensor(("K", "N"), "bfloat16"),
             "c": tw.Output(("M", "N"), "bfloat16")}},
    reference=lambda a, b: a @ b,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    space=tw.Space(
        constants={{"TILE_M": (64, 128, 256), "TILE_N": (128,)}}, shipped={{"TILE_M": {SHIPPED}, "TILE_N": 128}}
    ),
    workloads={{"square": {{"M": 512, "N": 512, "K": 512}}}},
)
"""


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "detect", lambda: None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that a compiler was started for."""
    seen: list[Any] = []
    real = CuTile.assemble

    def counting(self: CuTile, lowered: Any, seconds: float) -> Any:
        seen.append(lowered.configuration.TILE_M)
        return real(self, lowered, seconds)

    monkeypatch.setattr(CuTile, "assemble", counting)
    return seen


def tuned(folder: Path, shipped: int, off: dict[int, float], **more: Any) -> WorkloadResult:
    file = folder / "ops.py"
    file.write_text(OPS.format(SHIPPED=shipped, OFF=off))
    return tune(load_task(str(file)), arch="sm_90", seed=1, budget=120.0, **more).workloads[0]


def by_tile(result: WorkloadResult) -> dict[Any, Candidate]:
    return {candidate.configuration.TILE_M: candidate for candidate in result.candidates}


def test_what_cannot_fit_is_not_compiled_and_says_why(tmp_path: Path, started: list[Any]) -> None:
    with TuneLedger(tmp_path / "ledger.db") as store:
        found = by_tile(tuned(tmp_path, 64, {}, store=store))
        assert by_tile(store.load(store.runs()[0].run).workloads[0]) == found, "the ledger keeps the row"
    assert sorted(started) == [64, 128]
    assert (found[256].status, found[256].reason, found[256].code) == ("screened", UNFIT.reason, None)
    assert found[64].status == found[128].status == "predicted"


def test_what_is_shipped_is_always_compiled(tmp_path: Path, started: list[Any]) -> None:
    found = by_tile(tuned(tmp_path, 256, {}, store=False))
    assert sorted(started) == [64, 128, 256]
    assert found[256].code is not None and found[256].checked is not None and found[256].checked.right


@pytest.mark.long
def test_where_no_other_is_correct_it_is_compiled_too(tmp_path: Path, started: list[Any]) -> None:
    result = tuned(tmp_path, 64, {64: 1.0, 128: 1.0}, store=False)
    found = by_tile(result)
    assert sorted(started) == [64, 128, 256]
    assert found[64].status == found[128].status == "wrong"
    assert result.best is not None and result.best.configuration.TILE_M == 256
