"""Every number of every report has its source: a ledger id from which it follows, or a quoted line of a trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.made_agent_runs import one, several
from tests.made_runs import tuned
from tests.profile.made_traces import data_parallel, eager_training, graph_replay
from tests.report.numbers import (
    Pieces,
    Quotes,
    assert_explained,
    close,
    leaves,
    numbers_in,
    scaled,
    unexplained,
    unexplained_in_markdown,
)
from tests.report.test_page import RUNS

from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.codec import to_json
from tilewright.ledger.tunings import TuneLedger
from tilewright.profile import thresholds
from tilewright.profile.figures import Profile
from tilewright.profile.profile import profile
from tilewright.report import profile_views as views
from tilewright.report.report import Evidence, report


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


def test_a_number_from_nowhere_is_found(tmp_path: Path) -> None:
    """The check itself can fail: a number without an id, and one that does not follow from its id."""
    evidence = Evidence(RUNS["finished"], tmp_path)
    page, records = evidence.html(), evidence.details.records
    for lie in ("<p>17.3 ms</p>", '<p data-ledger="run/baseline/0/measured/us">17.3 ms</p>'):
        assert unexplained(page.replace("</body>", f"{lie}</body>"), records) == ["17.3 in: 17.3 ms"]
    told = evidence.markdown() + "It takes 17.3 ms.\n"
    assert unexplained_in_markdown(told, page, records) == ["17.3 in: It takes 17.3 ms."]


# Profiles -----------------------------------------------------------------------------------------

TRACES = {"eager": eager_training(), "graph": graph_replay(), "ddp": data_parallel()}


@pytest.fixture(params=TRACES)
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Profile:
    return profile(TRACES[request.param].write(tmp_path / "trace.json"))


def numbers_of(found: Profile) -> set[float]:
    """The numbers of a profile's records, without those of its pictures."""
    plain: Any = to_json(found)
    for gpu in plain["gpus"]:
        del gpu["timeline"]
    counts = [len(gpu.kernels) - views.TOP for gpu in found.gpus] + [len(found.steps_us)]
    return scaled([*leaves(plain), *counts]) | {float(n) for n in range(1, views.TOP + len(found.findings))}


def quotes_of(found: Profile) -> Quotes:
    """What stands in a report as it stands in the records, and the constants with their source."""
    limits = [str(each) for each in vars(thresholds).values() if isinstance(each, thresholds.Threshold)]
    rung = [views.rung(found)]
    return Quotes(to_json(found), [*limits, *rung, *(gpu.label for gpu in found.gpus)])


@pytest.mark.parametrize("view", [views.analysis, views.profiling])
def test_a_profile_as_text(found: Profile, view: Callable[[Profile], str]) -> None:
    known, quotes = numbers_of(found), quotes_of(found)
    text = re.sub(r"```.*?```", "", view(found), flags=re.DOTALL).replace("\\", "")
    wrong = [f"{token} in {line}" for line in text.splitlines() for token in numbers_in(quotes.without(line))
             if not any(close(token, each) for each in known)]  # fmt: skip
    assert wrong == []


def test_the_page_of_a_profile(found: Profile) -> None:
    known, quotes = numbers_of(found), quotes_of(found)
    texts = [
        piece.text for piece in Pieces(views.page(found)).pieces if not piece.quoted and " µs at " not in piece.text
    ]
    wrong = [f"{token} in {text}" for text in texts for token in numbers_in(quotes.without(text))
             if not any(close(token, each) for each in known)]  # fmt: skip
    assert wrong == []


def test_every_figure_of_a_profile_quotes_its_lines(found: Profile) -> None:
    quoted = {raw.source for raw in found.raw}
    for gpu in found.gpus:
        assert all(set(each.lines) <= quoted for each in (*gpu.figures.values(), *gpu.kernels, *gpu.gaps))
    assert all(each.lines for gpu in found.gpus for each in (*gpu.kernels, *gpu.gaps))


def test_the_numbers_of_a_finding_are_those_of_its_evidence(found: Profile) -> None:
    for finding in found.findings:
        known = scaled(figure.value for figure in finding.evidence if figure.value is not None)
        known |= {row.count for trace in found.traces for row in trace.calls} | {10.0}  # launches, and the limit in µs
        text = Quotes({}, [gpu.label for gpu in found.gpus]).without(finding.text)
        names = [row.name for gpu in found.gpus for row in gpu.kernels]
        for token in numbers_in(Quotes({}, names).without(text)):
            assert any(close(token, each) for each in known), f"{token} in {finding.text}"
