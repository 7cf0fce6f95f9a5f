"""The playbook as a whole: complete, listed, documented."""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.playbook import ENTRIES
from tilewright.playbook.base import LAST

ROOT = Path(__file__).parent.parent.parent


def test_ids_are_distinct() -> None:
    ids = [entry.about.id for entry in ENTRIES]
    assert len(ids) == len(set(ids))


def test_every_entry_of_the_package_is_listed() -> None:
    """A file that defines ENTRY and is not in ENTRIES would never be tried."""
    folder = ROOT / "src" / "tilewright" / "playbook" / "entries"
    defining = {path.stem for path in folder.glob("*.py") if re.search(r"^(ENTRY|LOSSY)\b", path.read_text(), re.M)}
    listed = {type(entry).__module__.rsplit(".", 1)[-1] for entry in ENTRIES}
    assert defining == listed


def test_the_catalogue_is_covered() -> None:
    """K1: A to K are entries; L is the seam `handed_in`."""
    letters = {entry.about.id[0] for entry in ENTRIES if entry.about.id[0].isupper()}
    assert letters == set("ABCDEFGHIJK")


def test_the_order_of_k2() -> None:
    """K2: by place, for memory-bound and compute-bound kernels."""

    def order(kind: str, wanted: str) -> list[str]:
        places = {entry.about.id: entry.about.place(kind) for entry in ENTRIES if entry.about.place(kind) != LAST}
        return sorted((name for name in wanted.split() if name in places), key=lambda name: places[name])

    assert order("memory", "G A E C B F") == ["A", "B", "C", "F", "G", "E"]
    assert order("compute", "B G E D C I") == ["D", "G", "C", "I", "B", "E"]


def test_what_rounds_differently_is_marked_lossy() -> None:
    lossy = {entry.about.id for entry in ENTRIES if entry.about.risk == "lossy"}
    assert lossy == {"D-lossy", "H-exp2", "H-ftz", "H-approx"}


def test_the_document_lists_every_entry() -> None:
    text = (ROOT / "docs" / "optimizing.md").read_text()
    for entry in ENTRIES:
        about = entry.about
        assert f"| `{about.id}` {about.name} | {about.what} | {about.risk} |" in text, about.id


def test_every_effect_has_a_source_and_a_date() -> None:
    for entry in ENTRIES:
        effect = entry.about.effect
        assert 0.5 <= effect.low <= effect.high
        assert effect.source
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", effect.date), entry.about.id
