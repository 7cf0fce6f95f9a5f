"""Every shipped change keeps the contract, and docs/program-changes.md lists it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.program.changes.attention_programs import RIGHT as ATTENTION
from tests.program.changes.attention_programs import WRONG
from tests.program.changes.executing import rewritten
from tests.program.changes.test_tables import LEFT, RIGHT

from tilewright.profile.findings import RULES
from tilewright.program.changes import program_changes
from tilewright.program.changes.base import ProgramChange
from tilewright.testing.changes import ChangeContract

DOCUMENT = Path(__file__).parents[3] / "docs" / "program-changes.md"
SOURCE = Path(__file__).parents[3] / "src" / "tilewright" / "profile" / "findings.py"


def contract(change: ProgramChange) -> type[ChangeContract]:
    changed = {
        f"{number}": (row.head + row.before, rewritten(change, row.head + row.before))
        for number, row in enumerate(RIGHT)
        if row.change == change.name
    }
    left = {f"{number}": row.head + row.before for number, row in enumerate(LEFT) if row.change == change.name}
    if change.name == "scaled_dot_product_attention":
        changed = {each.name: (each.source, rewritten(change, each.source)) for each in ATTENTION}
        left = {each.name: each.source for each in WRONG}
    return type("Contract", (ChangeContract,), {"change": change, "changed": changed, "left": left})


globals().update({f"Test_{each.name}": contract(each) for each in program_changes()})


@pytest.mark.parametrize("change", program_changes(), ids=lambda each: each.name)
def test_the_document_lists_each_change(change: ProgramChange) -> None:
    (row,) = re.findall(rf"^\| `{change.name}` \|.*$", DOCUMENT.read_text(), re.MULTILINE)
    proposed = row.split("|")[4].strip()
    assert proposed.split(" ")[0] == ("never" if change.never else "if" if change.asked_only else "always")


@pytest.mark.parametrize("change", program_changes(), ids=lambda each: each.name)
def test_it_answers_kinds_of_findings_that_exist(change: ProgramChange) -> None:
    kinds = set(re.findall(r'kind="([a-z0-9-]+)"', SOURCE.read_text()))
    assert len(kinds) >= len(RULES)
    assert set(change.findings) <= kinds
