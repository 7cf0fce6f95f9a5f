"""New tile sizes that make a served shape ragged come with zero padding."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.configured import MATMUL
from tests.playbook.kit import changed_lines, verdict

from tilewright.playbook.base import Site
from tilewright.playbook.entries.tile_sizes import ENTRY
from tilewright.source.syntax import Source
from tilewright.task.task import Task
from tilewright.testing.entries import facts_of, loaded

PADDING = ", padding_mode=ct.PaddingMode.ZERO"
WHOLE = MATMUL.replace(PADDING, "").replace(
    "serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0", "serves=lambda M, N, K: M % 64 == N % 64 == K % 32 == 0"
)
"""No load names a padding, and the task serves only whole tiles."""
NOT_64 = "{'M': 64, 'N': 64, 'K': 96}"


def _sites(text: str, folder: Path) -> dict[str, Site]:
    facts = facts_of(loaded(text, folder))
    return {site.what.partition(" of ")[0]: site for site in ENTRY.sites(Source("task.py", text), facts)}


def _with(text: str, site: Site, start: str) -> str:
    value = next(value for value in site.values if str(value).startswith(start))
    return ENTRY.apply(Source("task.py", text), site, value)


def _on(text: str, dims: str, folder: Path) -> Task:
    return loaded(text.replace('{"M": 512, "N": 512, "K": 512}', dims), folder)


def test_a_larger_tile_comes_with_padding_where_the_task_serves_half_of_it(tmp_path: Path) -> None:
    site = _sites(WHOLE, tmp_path)["TILE_K"]
    assert "TILE_K=64,zero_padding=True" in site.values
    text = _with(WHOLE, site, "TILE_K=64")
    assert text.count("padding_mode=ct.PaddingMode.ZERO") == 2
    assert verdict(_on(text, NOT_64, tmp_path)).verdict.startswith("correct")
    bare = text.replace(PADDING, "")
    wrong = verdict(_on(bare, NOT_64, tmp_path))
    assert wrong.verdict == "incorrect" and "nothing wrote" in wrong.reason  # so that the padding is what mends it


def test_a_smaller_tile_needs_no_padding(tmp_path: Path) -> None:
    text = WHOLE.replace('"TILE_K": (32,)', '"TILE_K": (64,)').replace('"TILE_K": 32', '"TILE_K": 64')
    text = text.replace("K % 32", "K % 64")
    site = _sites(text, tmp_path)["TILE_K"]
    assert "TILE_K=32" in site.values
    assert "padding_mode" not in _with(text, site, "TILE_K=32")


@pytest.mark.parametrize(
    "text",
    [
        WHOLE.replace("K % 32 == 0", "K % 256 == 0"),  # 64 divides what is served
        WHOLE.replace("serves=lambda M, N, K: M % 64 == N % 64 == K % 32 == 0", "serves=lambda M, N: True"),
        MATMUL,  # every load has its padding
    ],
    ids=["whole tiles", "ragged before", "padded"],
)
def test_no_padding_is_added_where_nothing_becomes_ragged(text: str, tmp_path: Path) -> None:
    for site in _sites(text, tmp_path).values():
        assert not any("zero_padding" in str(value) for value in site.values if "TILE_K" in str(value))


def test_the_padding_is_written_in_functions_that_the_kernel_calls_too(tmp_path: Path) -> None:
    moved = WHOLE.replace("@ct.kernel", HELPER + "@ct.kernel").replace(
        "left = ct.load(a, (row, k), (TILE_M, TILE_K))", "left = tile_of(a, row, k, TILE_M, TILE_K)"
    )
    assert moved.count("tile_of") == 2
    added = changed_lines(moved, _with(moved, _sites(moved, tmp_path)["TILE_K"], "TILE_K=64"))[1]
    assert sum("PaddingMode.ZERO" in line for line in added) == 2


HELPER = """def tile_of(array, row, column, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    return ct.load(array, (row, column), (ROWS, COLUMNS))


"""
