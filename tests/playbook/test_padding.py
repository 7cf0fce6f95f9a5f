"""Padding of tile loads: what the GPU does not fill, and what nothing needs."""

from pathlib import Path
from typing import ClassVar

from tests.playbook.gathers import copy
from tests.playbook.kit import changed_lines, only, verdict

from tilewright.hardware.architectures import board
from tilewright.playbook.entries.padding import ENTRY, NONE, ZERO
from tilewright.source.syntax import Source
from tilewright.testing.entries import EntryContract, facts_of, loaded

AMPERE = board("A100-80GB")
BARE = copy("ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, 256)))")
PADDED = BARE.replace("(1, 256))", "(1, 256), padding_mode=ct.PaddingMode.NEG_INF)")
FIXED = PADDED.replace("    independent=", "    serves=lambda N: N == 256,\n    independent=").replace(
    "'N': 200", "'N': 256"
)


class TestPadding(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"fixed": FIXED}
    elsewhere: ClassVar = {"ragged": PADDED, "bare": BARE, "half tiles": FIXED.replace("N == 256", "N % 128 == 0")}


class TestPaddingOnAmpere(EntryContract):
    entry = ENTRY
    board = AMPERE
    examples: ClassVar = {"bare": BARE}
    elsewhere: ClassVar = {"padded": PADDED}


def test_padding_goes_only_where_the_task_promises_no_ragged_shape(tmp_path: Path) -> None:
    source = Source("task.py", FIXED)
    site = only(ENTRY.sites(source, facts_of(loaded(FIXED, tmp_path))), "padding of x")
    text = ENTRY.apply(source, site, NONE)
    assert changed_lines(FIXED, text)[1] == ["ct.store(y, (ct.bid(0), 0), ct.load(x, (ct.bid(0), 0), (1, 256)))"]
    assert verdict(loaded(text, tmp_path)).verdict.startswith("correct")


def test_zero_is_written_where_the_gpu_fills_in_nothing(tmp_path: Path) -> None:
    """K1 A: on Ampere ``padding_mode=ZERO`` is obligatory."""
    source = Source("task.py", BARE)
    site = only(ENTRY.sites(source, facts_of(loaded(BARE, tmp_path), AMPERE)), "load of x")
    text = ENTRY.apply(source, site, ZERO)
    assert "ct.load(x, (ct.bid(0), 0), (1, 256), padding_mode=ct.PaddingMode.ZERO)" in text
    assert verdict(loaded(text, tmp_path), AMPERE).verdict.startswith("correct")
