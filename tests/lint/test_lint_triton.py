"""The readings by hand of findings in the Triton kernels of Liger and FLA are whole, and say what the documents say."""

from __future__ import annotations

import json
from pathlib import Path

from tilewright.lint.rules import named

RECORDED = Path(__file__).parents[2] / "bench" / "recorded" / "lint-triton-2026-11-22.json"


def test_every_finding_has_a_verdict_and_a_reason() -> None:
    drawn, aside = json.loads(RECORDED.read_text())["samples"]
    assert (drawn["true"], len(drawn["findings"])) == (47, 50)
    assert (aside["true"], len(aside["findings"])) == (4, 8)
    for sample in (drawn, aside):
        for one in sample["findings"]:
            assert named([one["code"]])
            assert one["verdict"] in {"true", "false"}
            assert len(one["sentence"].split()) >= 4
        assert sum(one["verdict"] == "true" for one in sample["findings"]) == sample["true"]
