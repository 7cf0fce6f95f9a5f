"""Proposals are checked when they are made, and a specialist proposes nothing unless it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import RequestError
from tilewright.specialists import specialist_of
from tilewright.specialists.proposal import NoProposal, ProgramProposal
from tilewright.testing.specialists import delegation_to

TEXTS = {Path("/program/train.py"): "print(1)\n"}


def proposal(**fields: object) -> ProgramProposal:
    known = {"name": "change", "rationale": "less work", "texts": TEXTS, "risk": "lossless", "site": "train.py:1"}
    return ProgramProposal(**{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"texts": {}}, "changes no file"),
        ({"texts": {Path("train.py"): ""}}, "absolute path"),
        ({"ran": ("aten::(",)}, "the pattern 'aten::('"),
    ],
)
def test_a_proposal_that_cannot_be_tried_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        proposal(**fields)
    assert message in str(raised.value)


def test_a_specialist_that_changes_no_program_says_so() -> None:
    specialist = specialist_of("cute-dsl")
    proposed = specialist.propose(delegation_to(specialist))
    assert isinstance(proposed, NoProposal)
    assert (proposed.why, "cute-dsl" in proposed.reason) == ("blocked", True)
