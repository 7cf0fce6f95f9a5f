"""A Triton kernel whose blocks loop over several items: the text, the launch, and that results stay right."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("triton")

from tests.playbook.kit import changed_lines, only, verdict
from tests.playbook.triton_tasks import MATMUL

from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries.descriptors import ENTRY as DESCRIPTORS
from tilewright.playbook.entries.tile_ir_route import ENTRY as TILE_IR
from tilewright.playbook.entries.triton_persistent import ENTRY
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded

PLAIN = Path(__file__).parents[2].joinpath("bench", "triton_plain_matmul.py").read_text()
TUTORIAL = MATMUL.replace('"M": 100, "N": 72', '"M": 640, "N": 640')
FEW = PLAIN.replace('"M": 4096, "N": 4096', '"M": 512, "N": 512')
LOOPED = PLAIN.replace(
    "    block = tl.program_id(0)\n",
    "    for block in range(tl.program_id(0), 1 << 20, tl.num_programs(0)):\n        pass\n",
)


class TestTritonPersistent(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"by pointers": TUTORIAL}
    elsewhere: ClassVar = {"few blocks": FEW, "a loop already": LOOPED}


def by_descriptors(tmp_path: Path) -> str:
    """The matmul on Tile IR, as `descriptors` writes it."""
    source = Source("task.py", PLAIN)
    site = only(DESCRIPTORS.sites(source, facts_of(loaded(PLAIN, tmp_path))))
    source = Source("task.py", DESCRIPTORS.change(source, site, "a, b, c"))
    route = only(TILE_IR.sites(source, facts_of(loaded(source.text, tmp_path))))
    return TILE_IR.change(source, route, "route=tileir,BLOCK_N=256,num_stages=6,num_worker_warps=8")


@pytest.mark.long
def test_descriptors_are_made_before_the_loop(tmp_path: Path) -> None:
    text = by_descriptors(tmp_path)
    source = Source("task.py", text)
    site = only(ENTRY.sites(source, facts_of(loaded(text, tmp_path))))
    assert site.values == ("BLOCKS_PER_SM=1", "BLOCKS_PER_SM=2", "BLOCKS_PER_SM=1,num_stages=4",
                           "BLOCKS_PER_SM=1,num_stages=6")  # fmt: skip
    new = ENTRY.change(source, site, "BLOCKS_PER_SM=1,num_stages=4")
    added = [line.strip() for line in changed_lines(text, new)[1]]
    assert "for block in range(tl.program_id(0), items, tl.num_programs(0)):" in added
    assert "(min(blocks, hardware.sms * config.BLOCKS_PER_SM // (config.num_ctas or 1)),)," in added
    assert new.index("c_desc = ") < new.index("for block in range(")
    changed = loaded(new, tmp_path)
    assert changed.space.shipped["num_stages"] == 4 and changed.space.shipped["num_ctas"] is None
    assert verdict(changed).verdict.startswith("correct")
    assert facts_of(changed).launches[0].grid == (132,)


def test_a_value_names_the_number_of_blocks(tmp_path: Path) -> None:
    source = Source("task.py", PLAIN)
    site = only(ENTRY.sites(source, facts_of(loaded(PLAIN, tmp_path))))
    with pytest.raises(NotApplicable, match="gives no BLOCKS_PER_SM"):
        ENTRY.apply(source, site, "num_stages=4")
