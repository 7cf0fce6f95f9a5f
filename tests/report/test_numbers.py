"""Every number of every report has its source: a ledger id from which it follows, or a quoted line of a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.made_agent_runs import one, several
from tests.made_runs import tuned
from tests.report.numbers import sourced_numbers, unexplained, unexplained_in_markdown
from tests.report.test_page import RUNS

from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.tunings import TuneLedger
from tilewright.report.report import Evidence, report

ROOT = Path(__file__).parents[2]


def assert_explained(evidence: Evidence, least: int) -> None:
    page, records = evidence.html(), evidence.details.records
    assert unexplained(page, records) == []
    assert unexplained_in_markdown(evidence.markdown(), page, records) == []
    assert len(sourced_numbers(page)) >= least


@pytest.mark.parametrize("name", RUNS)
def test_optimize(name: str, tmp_path: Path) -> None:
    assert_explained(Evidence(RUNS[name], tmp_path), 10)


@pytest.mark.parametrize("measured", [True, False])
def test_tune(measured: bool, tmp_path: Path) -> None:
    with TuneLedger(tmp_path / "ledger.db") as ledger:
        run = tuned(ledger, measured=measured)
    assert_explained(report(run, ledger=tmp_path / "ledger.db"), 40)


@pytest.mark.parametrize("made", [one, several])
def test_agent(made: Callable[[AgentLedger], str], tmp_path: Path) -> None:
    with AgentLedger(tmp_path / "ledger.db") as ledger:
        run = made(ledger)
    assert_explained(report(run, ledger=tmp_path / "ledger.db"), 8)
