"""Each technique changes something for the better in a kernel that nobody tuned for it, by counted code.

Counted on 2026-11-28 with tileiras 13.4 for sm_90, each entry's first value:

| kernel | entry | before | after |
|---|---|---|---|
| ROUTER | rows_per_tile=4 | 319 instructions × 16,384 blocks | 376 × 4,096 |
| QK_NORM | tokens | 4 accesses one after another, 98 synchronising instructions | 3, 92 |
| RETENTION | hoisting | 2,153 instructions, 22 global loads | 738, 1 |
| PEAKS | padding | 1,248 instructions, the loads as LDG: TMA fills in no -inf | 800, TMA |
| TOKEN_QUANT | divisible | 404 instructions, 48 registers, 16 LDG.16 | 327, 34, 2 LDG.128 |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tests.playbook.plain import launch_facts
from tests.playbook.untuned import PEAKS, QK_NORM, RETENTION, ROUTER, TOKEN_QUANT

from tilewright.compile.screen import work_of
from tilewright.hardware.prediction import predict
from tilewright.playbook.base import Entry
from tilewright.playbook.entries import divisible, hoisting, padding, rows_per_tile, tokens
from tilewright.records import MachineCode
from tilewright.source.syntax import Source
from tilewright.task.task import Task
from tilewright.testing.entries import H200, codes_of, loaded
from tilewright.tileir.analysis.tokens import TokenChains
from tilewright.tileir.run.launching import Launcher, Runnable


@dataclass(frozen=True)
class Version:
    """A version of a kernel: its task, the code for the one workload, and the number of blocks."""

    task: Task
    code: MachineCode
    blocks: int
    us: float

    @property
    def issued(self) -> int:
        """The instructions of all blocks, if each runs once."""
        return self.code.instructions * self.blocks


def version(text: str, folder: Path) -> Version:
    task = loaded(text, folder)
    [workload], [code] = task.selected(None), codes_of(task).values()
    grid = task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), H200).grid
    return Version(task, code, math.prod(grid), predict(code, grid, work_of(task, workload.dims), H200).us)


def before_and_after(entry: Entry, text: str, folder: Path) -> tuple[Version, Version]:
    """The kernel, and the kernel with the first value of the entry's first site, which is predicted to be faster."""
    source = Source("task.py", text)
    site = entry.sites(source, launch_facts(text, folder))[0]
    versions = version(text, folder), version(entry.change(source, site, site.values[0]), folder)
    assert versions[1].us < versions[0].us
    return versions


def test_rows_in_one_tile_share_their_instructions(tmp_path: Path) -> None:
    before, after = before_and_after(rows_per_tile.ENTRY, ROUTER, tmp_path)
    assert after.blocks * 4 == before.blocks
    assert after.issued < before.issued / 2.5
    assert after.us < before.us / 2


def chain(task: Task) -> int:
    """The most memory operations of the kernel that run one after another."""
    [workload] = task.selected(None)
    runnable = Launcher(task, H200).runnable(task.space.shipped, workload.dims, task.arrays(workload.dims))
    assert isinstance(runnable, Runnable)
    chains = TokenChains(runnable.module.entry())
    return 1 + max(chains.length(op) for op in chains.ops)


def test_a_load_that_need_not_wait_shortens_the_chain(tmp_path: Path) -> None:
    before, after = before_and_after(tokens.ENTRY, QK_NORM, tmp_path)
    assert chain(after.task) < chain(before.task)
    assert after.code.mix["synchronisation"] < before.code.mix["synchronisation"]
    assert after.code.instructions < before.code.instructions


def test_what_is_loaded_once_is_not_loaded_in_every_iteration(tmp_path: Path) -> None:
    before, after = before_and_after(hoisting.ENTRY, RETENTION, tmp_path)
    assert after.code.mix["global load"] < before.code.mix["global load"] / 4
    assert after.code.instructions < before.code.instructions / 2
    assert after.us < before.us / 1.5


def test_without_its_padding_a_load_goes_through_tma(tmp_path: Path) -> None:
    before, after = before_and_after(padding.ENTRY, PEAKS, tmp_path)
    assert any(copy.startswith("LDG") for copy in before.code.copies)
    assert not any(copy.startswith("LDG") for copy in after.code.copies)
    assert any(copy.startswith("UTMALDG") for copy in after.code.copies)
    assert after.code.instructions < before.code.instructions / 1.3
    assert after.us < before.us / 1.15


def test_a_multiple_of_16_makes_accesses_wide(tmp_path: Path) -> None:
    before, after = before_and_after(divisible.ENTRY, TOKEN_QUANT, tmp_path)
    assert before.code.copies["LDG.16"] == 8 * after.code.copies["LDG.128"]
    assert after.code.instructions < before.code.instructions / 1.15
    assert after.code.registers < before.code.registers
