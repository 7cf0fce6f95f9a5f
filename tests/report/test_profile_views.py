"""The reports of a profile: their headings, the form that the autopilot reads, and that each number has its line."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.profile.made_traces import MadeTrace, data_parallel, eager_training, graph_replay

from tilewright.coordinate.analysis import read_analysis
from tilewright.errors import RequestError
from tilewright.profile.figures import Profile
from tilewright.profile.profile import profile
from tilewright.report import profile_views as views

MADE = {"eager": eager_training(), "graph": graph_replay(), "ddp": data_parallel()}


@pytest.fixture(params=sorted(MADE))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Profile:
    return profile(MADE[request.param].write(tmp_path / "trace.json"))


def headings(text: str) -> list[str]:
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.findall(r"^## (.*)$", outside, re.MULTILINE)


def test_the_analysis_report_has_four_sections(made: Profile) -> None:
    text = views.analysis(made)
    assert headings(text) == ["Summary", "Metrics", "Findings", "Recommendations"]
    (bottleneck,) = re.findall(r"^Primary bottleneck: (.+)$", text, re.MULTILINE)
    assert len(re.findall(r"^Evidence: (.+)$", text, re.MULTILINE)) == 1
    advice = re.findall(r"^(\d+)\. \[(High|Medium|Low)\] (.+)$", text, re.MULTILINE)
    assert [int(n) for n, _, _ in advice] == list(range(1, len(made.findings) + 1))
    assert (bottleneck == "none") == (not advice)
    for finding, (_, level, line) in zip(made.findings, advice, strict=True):
        assert level == finding.level
        assert finding.id in line, "the next delegation quotes it"


def test_autopilot_reads_the_recommendations(made: Profile) -> None:
    if not made.findings:
        with pytest.raises(RequestError, match="no finding"):
            views.for_agent(made)
        return
    found = read_analysis(views.for_agent(made))
    assert found.bottleneck.startswith(f"{made.findings[0].kind}: ") and "trace.json:" in found.evidence
    assert [item.level for item in found.recommendations] == [finding.level for finding in made.findings]
    assert all(finding.id in item.text for finding, item in zip(made.findings, found.recommendations, strict=True))


def test_autopilot_reads_names_with_characters_that_cannot_be_printed(tmp_path: Path) -> None:
    made = MadeTrace()
    made.launched("gemm\u200b\x07 a", 5, 2, 1)
    assert read_analysis(views.for_agent(profile(made.write(tmp_path / "trace.json"))))


def test_the_profiling_report_has_its_sections(made: Profile) -> None:
    text = views.profiling(made)
    assert headings(text) == [
        "Workload", "Trace", "Iterations", "Top Kernels", "CUDA API", "Bottleneck", "Recommendations", "Trace Files",
    ]  # fmt: skip
    (gpu,) = made.gpus
    for row in gpu.kernels[: views.TOP]:
        assert f"| {row.count} |" in text and f"{row.share:.1%}".removesuffix("%") in text
    quoted = text.partition("## Trace Files")[2]
    cited = set(re.findall(r"trace\.json:\d+:\d+", text.partition("## Trace Files")[0]))
    assert cited and all(f"{source}  {{" in quoted for source in cited), "each cited line is quoted"


def test_every_measured_number_has_its_line(made: Profile) -> None:
    for line in views.analysis(made).splitlines():
        if line.startswith(("| GPU 0", "| rank")):
            _, _, value, how, lines = (cell.strip() for cell in line.removeprefix("|").removesuffix("|").split(" | "))
            assert "trace.json:" in lines or value in ("0", "0.0 %") or "share of the idle time" in how, line


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    made = MadeTrace()
    made.kernel("gemm", 0, 50)
    made.add("cuda_profiler_range", "k", 0, 1, 1, 1, dram__bytes="?")
    found = profile(made.write(tmp_path / "trace.json"))
    assert "k: dram__bytes | not measured" in views.analysis(found)
    assert "trace.json: not measured; the trace has no calls of the host" in views.profiling(found)
    assert "has no calls of the host" in views.page(found)


class Checked(HTMLParser):
    """Checks that each element is closed, and collects the bars of the pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.bars: list[tuple[str, float, float]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)
        if tag == "rect":
            given = dict(attrs)
            if given.get("x"):
                self.bars.append((str(given["class"]), float(str(given["x"])), float(str(given["width"]))))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page(made: Profile) -> None:
    page = views.page(made)
    checked = Checked()
    checked.feed(page)
    assert not checked.open
    for title in ("Where the time goes", "Findings", "Kernels", "Numbers and their lines", made.gpus[0].timeline.name):
        assert title in page
    classes = {colour for colour, _, _ in checked.bars}
    assert "mix0" in classes, "compute is drawn"
    assert not re.search(r"<script|src=|href=\"http", page)


def test_the_split_bar_is_the_split(tmp_path: Path) -> None:
    made = profile(eager_training().write(tmp_path / "trace.json"))
    (gpu,) = made.gpus
    checked = Checked()
    checked.feed(views.split_bar(gpu))
    width = sum(width for _, _, width in checked.bars)
    compute = sum(width for colour, _, width in checked.bars if colour == "mix0")
    assert compute / width == pytest.approx(gpu.value("compute"), abs=0.01)


def test_steps_without_the_profiler_have_their_spread(made: Profile) -> None:
    timed = replace(made, steps_us=(1000.0, 3000.0, 2000.0))
    for text in (views.profiling(timed), views.page(timed)):
        assert "3 steps without the profiler, by events: median 2.000 ms (mean 2.000, std 0.8165, " in text


def test_names_with_markup_stay_text(tmp_path: Path) -> None:
    made = MadeTrace()
    made.launched("<script>alert(1)</script>|`x`", 5, 2, 1)
    found = profile(made.write(tmp_path / "trace.json"))
    assert "<script>" not in views.page(found)
    (row,) = [line for line in views.profiling(found).splitlines() if line.startswith("| 1 |")]
    assert r"\<script>" in row and r"\|" in row
