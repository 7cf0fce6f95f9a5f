"""The page of a report: one file that loads nothing, with every iteration in it, and charts that are to scale."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made_runs import DIFF, baseline_iteration, crashed, metrics, raced, run_record
from tests.report.test_evidence import STEPS, finished, of_predictions

from tilewright.ledger.records import Iteration
from tilewright.machine_code.cubin import CLASSES
from tilewright.report.charts import OTHERS, in_order, latencies, mix, mix_classes, ranges, roofline
from tilewright.report.evidence import OptimizeEvidence, collect
from tilewright.report.markup import diff, tag
from tilewright.report.optimize_views import markdown, page
from tilewright.report.svg import Axis, around

HOSTILE = "<script>alert('x')</script> & \"quoted\" ]]> --> \x00\x1b[31m \ud800"


class Page(HTMLParser):
    """Elements with their attributes, and the text; fails where tags do not nest."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(source.replace("<wbr>", ""))  # a place to wrap is no element with an end
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def of_class(self, *names: str) -> list[tuple[str, dict[str, str | None]]]:
        return [one for one in self.elements if set(names) <= set((one[1].get("class") or "").split())]


def made(workloads: int, iterations: list[Iteration], us: float = 10.0) -> OptimizeEvidence:
    names = tuple(f"workload-{n}" for n in range(workloads))
    final = tuple(metrics(name, us, before_us=20.0) for name in names)
    run = replace(run_record(workloads=names), final=final, patch=DIFF, stop_reason="patience", finished="2026")
    return collect(run, iterations)


RUNS = {
    "finished": finished(),
    "predicted": of_predictions(),
    "nothing kept": made(1, [baseline_iteration(), raced(1, 22.0, 20.0, keep=False)], us=20.0),
    "only crashes": made(2, [baseline_iteration(), *(crashed(n) for n in range(1, 6))], us=20.0),
    "only the baseline": collect(run_record(), STEPS[:1]),
    "one workload": made(1, list(STEPS)),
    "twelve workloads": made(12, [baseline_iteration(), *(raced(n, 19.0, 20.0, keep=True) for n in range(1, 26))]),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_run_makes_a_page(name: str) -> None:
    report = RUNS[name]
    source = page(report)
    parsed = Page(source)
    ids = [attributes.get("id") for _, attributes in parsed.elements]
    for one in report.iterations:
        assert f"iteration-{one.n}" in ids
        assert one.optimization in parsed.text
        assert " ".join(one.reason.split()) in parsed.text
    for standing_ in report.run.baseline:
        assert standing_.workload in parsed.text
    assert len([one for one in parsed.elements if "data-n" in one[1]]) == len(report.iterations)
    assert "nan" not in re.findall(r'="([^"]*)"', source)


@pytest.mark.parametrize("name", RUNS)
def test_the_page_needs_nothing_else(name: str) -> None:
    """No script, no font, no picture from elsewhere: it can be mailed, and read in ten years."""
    source = page(RUNS[name])
    parsed = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & {
        element for element, _ in parsed.elements
    }
    attributes = [one for _, own in parsed.elements for one in own]
    assert not {"src", "href", "srcset", "xlink:href", "action"} & set(attributes)
    assert not [one for one in attributes if one.startswith("on")]
    assert not re.search(r"https?://|//\w+\.\w+/|url\(|@import", source)
    policy = [attributes.get("content") or "" for _, attributes in parsed.elements if attributes.get("http-equiv")]
    assert policy[0].startswith("default-src 'none'")


def test_both_views_show_what_limits_the_kernel() -> None:
    for text in (markdown(RUNS["finished"]), page(RUNS["finished"])):
        assert "What limits the kernel" in text and "evidence from machine code and measured time" in text
        assert "4 CTAs an SM × 2 KiB = 8 KiB under way" in text and "launch, start and end of the grid" in text
        assert "not tried: the run ended before" in text


def test_text_of_a_record_is_never_markup() -> None:
    """A diff with <script> in it is a diff."""
    odd = replace(
        STEPS[1], optimization=HOSTILE, reason=HOSTILE, site=HOSTILE, value=HOSTILE, why_chosen=HOSTILE, 
        diff=f"+{HOSTILE}", comparison=HOSTILE, ruled_out=(HOSTILE,), environment={HOSTILE: HOSTILE},
    )  # fmt: skip
    run = replace(run_record(workloads=(HOSTILE,)), kernel=HOSTILE, stop_reason=HOSTILE, patch=f"+{HOSTILE}")
    run = replace(run, board=HOSTILE, reproduce=HOSTILE, dtype=HOSTILE)
    source = page(collect(run, [STEPS[0], odd]))
    parsed = Page(source)
    assert "<script" not in source
    assert "script" not in {element for element, _ in parsed.elements}
    assert parsed.text.count("<script>alert('x')</script>") >= 9
    assert source.encode()


@given(st.text(), st.text())
def test_no_text_escapes_its_element(content: str, value: str) -> None:
    source = str(tag("p", content, title=value))
    parsed = Page(source)
    assert [element for element, _ in parsed.elements] == ["p"]
    assert set(parsed.elements[0][1]) == {"title"}


def test_a_diff_keeps_its_lines_and_their_signs() -> None:
    shown = diff(DIFF)
    lines = [line for line in Page(shown).words if line.strip()]
    assert lines == DIFF.splitlines()
    kinds = [
        (attributes.get("class"), line)
        for (_, attributes), line in zip(Page(shown).elements[2:], DIFF.splitlines(), strict=True)
    ]
    assert all((kind == "added") == (line[0] == "+" and line[:3] != "+++") for kind, line in kinds)
    assert all((kind == "removed") == (line[0] == "-" and line[:3] != "---") for kind, line in kinds)


# Charts


def ms_at(chart: Page, y: float) -> float:
    """The value at a height, by the labels of the axis alone."""
    ticks = [
        (float(attributes["y"] or 0) - 4, float(attributes["data-value"] or 0))
        for _, attributes in chart.of_class("tick", "y")
    ]
    (y1, v1), (y2, v2) = ticks[0], ticks[-1]
    assert y1 != y2
    return v1 + (y - y1) / (y2 - y1) * (v2 - v1)


def test_intervals_are_drawn_to_scale() -> None:
    chart = Page(str(latencies(finished())))
    timed = [one for one in STEPS if one.interval_ms is not None]
    lines = [attributes for _, attributes in chart.of_class("interval")]
    assert len(lines) == len(timed) == 4
    for attributes, one in zip(lines, timed, strict=True):
        assert one.interval_ms is not None
        low, high = (ms_at(chart, float(attributes[edge] or 0)) for edge in ("y1", "y2"))
        assert (low, high) == pytest.approx(one.interval_ms, abs=2e-5)
        assert low < high
    marks = [
        float(attributes["cy"] or 0)
        for element, attributes in chart.elements
        if element == "circle" and "cy" in attributes
    ][:-2]  # the last two are the legend's
    shown = [ms_at(chart, at) for at in marks]
    assert shown == pytest.approx([one.latency_ms for one in timed], abs=2e-5)


def test_the_baseline_is_a_line_at_its_latency() -> None:
    chart = Page(str(latencies(finished())))
    line = next(attributes for element, attributes in chart.of_class("baseline") if element == "line")
    assert line["y1"] == line["y2"]
    assert ms_at(chart, float(line["y1"] or 0)) == pytest.approx(STEPS[0].latency_ms, abs=2e-5)


def test_what_has_no_time_stands_below_the_plot() -> None:
    """A crash is not a latency of 0."""
    chart = Page(str(latencies(RUNS["only crashes"])))
    marks = [attributes for _, attributes in chart.of_class("point", "crash") if "data-n" in attributes]
    assert [attributes["data-n"] for attributes in marks] == ["1", "2", "3", "4", "5"]
    assert chart.text.count("no time") >= 5
    assert len(chart.of_class("interval")) == 1


def test_kept_and_reverted_differ_in_more_than_colour() -> None:
    source = page(finished())
    assert re.search(r"\.point\.keep circle \{ fill: var\(--keep\)", source)
    assert re.search(r"\.point\.revert circle \{ fill: var\(--page\)", source)
    chart = Page(str(latencies(finished())))
    kinds = [
        (attributes.get("class") or "").split()[1]
        for _, attributes in chart.of_class("point")
        if "data-n" in attributes
    ]
    assert kinds == [one.status for one in STEPS]


def test_the_roofline_has_each_workload_before_and_after() -> None:
    report = RUNS["twelve workloads"]
    chart = Page(str(roofline(report.run, report.workloads)))
    assert len(chart.of_class("moved")) == 12
    for _, attributes in chart.of_class("moved"):
        assert float(attributes["y2"] or 0) < float(attributes["y1"] or 0), "faster is higher"
        assert attributes["x1"] == attributes["x2"], "the same work"
    assert "1-12" in chart.text, "dots in one place share their label"
    assert "4.8 TB/s" in chart.text
    assert "bfloat16" in chart.text


@given(st.sets(st.integers(1, 30), min_size=1))
def test_numbers_in_short_are_the_same_numbers(numbers: set[int]) -> None:
    parts = [part.split("-") for part in ranges(sorted(numbers)).split(", ")]
    assert {n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)} == numbers


def test_a_rate_lies_on_the_roof_where_it_is_the_roof() -> None:
    """A memory-bound workload at the speed of light touches the slope."""
    run = run_record(workloads=("w",))
    bound = run.baseline[0].bound
    assert bound is not None
    at_light = metrics("w", bound.speed_of_light_us, measured=False)
    report = collect(replace(run, measured=False, baseline=(at_light,), final=(at_light,)), [])
    chart = Page(str(roofline(report.run, report.workloads)))
    dot = chart.of_class("after")[0][1]
    roof = re.findall(r"[\d.]+", chart.of_class("roof")[0][1]["d"] or "")
    x1, y1, x2, y2 = map(float, roof[:4])
    x, y = float(dot["cx"] or 0), float(dot["cy"] or 0)
    assert x1 < x < x2
    assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.1)


def test_a_kernel_without_arithmetic_has_no_roofline() -> None:
    run = run_record()
    copies = tuple(replace(one, flops=0.0) for one in run.baseline)
    report = collect(replace(run, baseline=copies), STEPS[:1])
    assert roofline(report.run, report.workloads) is None
    assert "Roofline" not in Page(page(report)).text


def test_bars_are_as_long_as_they_count() -> None:
    report = finished()
    chart = Page(str(mix(report)))
    bars = [float(attributes["width"] or 0) for element, attributes in chart.elements if element == "rect"]
    counts = [report.run.baseline[0].mix[name] for name in in_order(report.run.baseline[0].mix)]
    assert len(bars) == 2 * len(counts), "before and after, once for the workloads that share their code"
    scale = bars[0] / counts[0]
    assert bars == pytest.approx([count * scale for count in counts] * 2, abs=0.02)


def test_many_classes_share_the_last_colour() -> None:
    counts = {name: n + 1 for n, (name, _) in enumerate(CLASSES[:10])}
    run = run_record()
    report = collect(replace(run, baseline=tuple(replace(one, mix=counts) for one in run.baseline)), STEPS[:1])
    assert mix_classes(report) == [*list(counts)[3:], OTHERS], "the seven largest"
    chart = Page(str(mix(report)))
    bars = [float(attributes["width"] or 0) for element, attributes in chart.elements if element == "rect"]
    assert bars[7] / bars[0] == pytest.approx((1 + 2 + 3) / 4, rel=0.01)


def test_a_version_whose_instructions_are_unknown_has_no_bars() -> None:
    run = run_record()
    report = collect(replace(run, baseline=tuple(replace(one, mix={}) for one in run.baseline)), STEPS[:1])
    assert mix(report) is None
    assert page(report)


# Scales


@given(st.floats(1e-4, 1e6), st.floats(1.001, 1e5))
def test_ticks_are_round_and_inside(low: float, factor: float) -> None:
    for scale in (Axis(low, low * factor, 300, 20), Axis(low, low * factor, 300, 20, logarithmic=True)):
        ticks = scale.ticks()
        assert all(scale.low * (1 - 1e-6) <= value <= scale.high * (1 + 1e-6) for value in ticks)
        assert len(ticks) <= 10
        assert ticks == sorted(ticks)
        for value in ticks:
            assert 19.9 <= scale(value) <= 300.1


@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=20))
def test_a_scale_around_values_holds_them(values: list[float]) -> None:
    scale = around(values, 300, 20)
    assert all(20 <= scale(value) <= 300 for value in values)


def test_a_predicted_page_says_so_at_every_number() -> None:
    parsed = Page(page(RUNS["predicted"]))
    assert "predicted, not measured" in parsed.text
    assert "predicted latency, ms" in parsed.text
    assert "predicted TFLOP/s" in parsed.text
    assert "Confirm on a GPU tilewright optimize there --seed 7" in parsed.text
    headers = re.findall(r"<th[^>]*>([^<]*(?:ms|µs|speed-up|light)[^<]*)</th>", page(RUNS["predicted"]))
    assert headers
    assert all(header.startswith("predicted ") for header in headers)
