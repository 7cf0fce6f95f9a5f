"""A sample of bench/faults.py: a fault of each kind loses nothing, leaves nothing, and is no traceback."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from tests.bench.kit import bench_module

faults = bench_module("faults")
PARTS = {"fake tools": "journal", "full disk": "ledger", "kill": "versions"}


@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_fault_of_each_kind(kind: str, tmp_path: Path) -> None:
    place = tmp_path / f"fault-{faults.KINDS.index(kind)}-{random.randrange(10**9)}"
    faults.made(place)
    record = faults.inject(kind, PARTS.get(kind, "store"), place, random.Random(kind), False)
    found = {name: record[name] for name in faults.FOUND if name != "destroyed" and record[name]}
    assert not found, (record["detail"], found, record["output"])


@pytest.mark.parametrize("part", ["ledger", "versions"])
def test_a_disk_that_is_full_and_gets_room_again(part: str, tmp_path: Path) -> None:
    place = tmp_path / "fault-disk"
    faults.made(place)
    if (disk := faults.own_disk(place)) is None:
        pytest.skip("only root may mount a file system")
    try:
        filler = faults.filled(disk, 65_536)
        status = os.statvfs(disk)
        assert status.f_bavail * status.f_frsize == 65_536
        filler.unlink()
        record = faults.injected("full disk", part, place, random.Random(part), False, disk)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    found = {name: record[name] for name in faults.FOUND if record[name]}
    assert not found and "of the disk" in record["detail"], (record["detail"], found, record["output"])


def test_what_is_lost_and_left_is_counted(tmp_path: Path) -> None:
    """A step that was told and is not there, a lock and a temporary file are found: the counts can fail."""
    place = tmp_path / "counted"
    faults.made(place)
    (place / "tmp" / "tilewright-x").touch()
    (place / "home").mkdir()
    (place / "home" / "run.lock").touch()
    (place / "program" / "notes.txt").write_text("changed\n")
    assert not faults.there(place, "winner 1234") and not faults.there(place, "commit 1234")
    assert faults.left(place) == ["temporary tilewright-x", "home/run.lock"]
    assert faults.touched(place) == [" M notes.txt", "changed\n"]
