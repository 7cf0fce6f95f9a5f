"""The report of a run, of `tune` and of `optimize` alike: found by name, as Markdown and as one page."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_runs import DIFF, baseline_iteration, raced, run_record, tile, times, tune_run, tuned, tuned_workload
from tests.report.test_page import HOSTILE, Page

import tilewright
from tilewright.cli.main import main
from tilewright.errors import RequestError, UnknownChoice
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Attempt
from tilewright.ledger.tunings import TuneLedger
from tilewright.records import Configuration, TuningResult, WorkloadResult
from tilewright.report import charts, tune_views
from tilewright.report import report as reporting
from tilewright.report.report import Evidence, report
from tilewright.report.tune_evidence import TuneEvidence, collect_tune, knobs
from tilewright.task.loading import load_task

EXAMPLE = Path(__file__).parents[2] / "examples" / "rms_norm.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


@pytest.fixture
def run(path: Path) -> str:
    with TuneLedger(path) as ledger:
        return tuned(ledger)


def optimized(path: Path) -> str:
    with Ledger(path) as ledger:
        name = ledger.begin(run_record()).run
        ledger.append(name, baseline_iteration())
        ledger.append(name, raced(1, 15.0, 20.0, keep=True))
        ledger.finish(name, "patience", (), DIFF)
    return name


def evidence(*results: WorkloadResult, measured: bool = True) -> TuneEvidence:
    record = tune_run(measured=measured)
    return collect_tune(record, TuningResult(record.task, record.machine, measured, results, "run", {}))


# Found by name


def test_latest_is_the_newest_run_of_either_command(path: Path, run: str) -> None:
    assert report(ledger=path).run == run
    loop = optimized(path)
    assert report("latest", ledger=path).run == loop
    with TuneLedger(path) as ledger:
        newest = tuned(ledger)
    assert report(ledger=path).run == newest
    assert report(loop, ledger=path).run == loop
    assert report(run[: len(run) - 2], ledger=path).run == run


def test_latest_is_the_run_that_finished_last(path: Path) -> None:
    with TuneLedger(path) as ledger:
        interrupted, later = tuned(ledger, finish=False), tuned(ledger)
        assert report(ledger=path).run == later
        ledger.resume("key")
        ledger.finish(interrupted, {})
        assert [one.run for one in ledger.runs()] == [interrupted, later]
    assert report(ledger=path).run == interrupted


def test_a_run_is_found_by_the_file_of_its_task(path: Path, tmp_path: Path) -> None:
    file, same_name = tmp_path / "norm.py", tmp_path / "other.py"
    for copy in (file, same_name):
        copy.write_text(EXAMPLE.read_text())
    with TuneLedger(path) as ledger:
        of_file, _ = (ledger.begin(replace(tune_run(), where=f"{one}:rms_norm")).run for one in (file, EXAMPLE))
    assert report(load_task(str(file)), ledger=path).run == report(str(file), ledger=path).run == of_file
    with pytest.raises(RequestError, match=rf"^no run of {same_name}:rms_norm in .*; `tilewright tune {same_name}` "):
        report(str(same_name), ledger=path)


def test_without_a_run_it_says_what_makes_one(path: Path) -> None:
    with pytest.raises(RequestError, match=f"^no runs in {path}; `tilewright tune FILE` makes one, and --home"):
        report(ledger=path)


def test_an_unknown_run_names_the_runs_of_both(path: Path, run: str) -> None:
    loop = optimized(path)
    with pytest.raises(UnknownChoice, match=f"unknown run 'nope'; known: latest, {loop}, {run}"):
        report("nope", ledger=path)
    with pytest.raises(UnknownChoice, match="unknown run 'lates'; did you mean 'latest'[?] known: latest, "):
        report("lates", ledger=path)


def test_the_public_name_is_the_function(path: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(path.parent))
    assert tilewright.report is report
    assert tilewright.report().markdown() == report(run, ledger=path).markdown()


def test_tune_changes_no_code_and_has_no_patch(path: Path, run: str) -> None:
    with pytest.raises(RequestError, match=rf"run {run} is of `tune`, .*: it has no patch"):
        assert report(run, ledger=path).patch
    assert report(optimized(path), ledger=path).patch == DIFF


def test_json_lines_hold_every_candidate_with_its_samples(path: Path, run: str) -> None:
    stream = io.StringIO()
    report(run, ledger=path).export_jsonl(stream)
    first, *workloads = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["record"], first["run"], first["seed"]) == ("run", run, 7)
    assert [line["record"] for line in workloads] == ["workload"] * 2
    best = tuned_workload("small").candidates[0]
    assert best.measured is not None
    assert tuple(workloads[0]["candidates"][0]["measured"]["samples_us"]) == best.measured.samples_us
    assert {one["status"] for one in workloads[0]["candidates"]} == {
        "raced", "failed", "wrong", "screened", "duplicate",
    }  # fmt: skip


# What it shows


def test_both_views_show_every_candidate_with_its_reason(path: Path, run: str) -> None:
    found = report(run, ledger=path)
    markdown, page = found.markdown(), Page(found.html())
    for name in ("small", "large"):
        for candidate in tuned_workload(name).candidates:
            shown = knobs(candidate.configuration, ("TILE", "occupancy"))
            assert f"| {shown} |" in markdown and shown in page.text
            assert candidate.reason in page.text
    assert markdown.startswith("# rms_norm on NVIDIA H200 (sm_90)\n")
    assert "Speed-up 1.30× over the configuration shipped today (geometric mean, 2 workloads)." in markdown
    assert "Speed-up 1.30× over the configuration shipped today (geometric mean, 2 workloads)." in page.text
    assert "A/A noise: two copies of one kernel differ by +0.02%" in page.text
    assert "tilewright tune examples/rms_norm.py:rms_norm --arch sm_90 --fresh" in page.text


def test_the_page_of_tune_needs_nothing_else(path: Path, run: str) -> None:
    source = report(run, ledger=path).html()
    elements = {element for element, _ in Page(source).elements}
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & elements
    assert "http://" not in source and "https://" not in source


def test_the_race_is_to_scale(path: Path, run: str) -> None:
    found = report(run, ledger=path).details
    assert isinstance(found, TuneEvidence)
    small = found.workloads[0]
    picture = Page(str(charts.race(small)))
    rows = picture.of_class("racer")
    us = [float(attributes["data-us"] or "") for _, attributes in rows if "data-us" in attributes]
    medians = [one.measured.us for one in small.candidates if one.measured]
    assert us == medians == sorted(medians)
    marks = [attributes for _, attributes in picture.of_class("median")]
    x = [
        float(one.get("cx") or 0) or float(one.get("x") or 0) + float(one.get("width") or 0) / 2
        for one in marks[: len(medians)]
    ]
    scale = (x[-1] - x[0]) / (us[-1] - us[0])
    for at, time in zip(x, us, strict=True):
        assert at == pytest.approx(x[0] + scale * (time - us[0]), abs=0.02)
    for candidate in small.candidates:
        if candidate.measured:
            low, high = candidate.measured.interval_us
            assert any(
                float(line["x1"] or 0) == pytest.approx(x[0] + scale * (low - us[0]), abs=0.02)
                and float(line["x2"] or 0) == pytest.approx(x[0] + scale * (high - us[0]), abs=0.02)
                for _, line in picture.of_class("interval")
            )


def test_the_winner_and_the_shipped_are_marked(path: Path, run: str) -> None:
    found = report(run, ledger=path).details
    assert isinstance(found, TuneEvidence)
    picture = Page(str(charts.race(found.workloads[0])))
    assert "TILE=128,occupancy=4, winner" in picture.text
    assert "TILE=64,occupancy=auto, shipped today" in picture.text
    assert len([one for one in picture.of_class("racer", "winner") if "data-us" in one[1]]) == 1
    assert [name for name, _ in picture.of_class("median")].count("rect") == 2, "the shipped one, and the legend"


def test_a_duplicate_of_the_shipped_configuration_was_raced_for_it() -> None:
    result = tuned_workload("small")
    workload = evidence(replace(result, shipped=tile(256, 1))).workloads[0]
    assert [one.configuration for one in workload.candidates if workload.is_shipped(one)] == [tile(256)]
    assert workload.change.before.measured == result.candidates[3].measured


def test_a_race_of_one_candidate_and_one_without_an_interval() -> None:
    result = tuned_workload("small")
    few = times(15.0, rounds=3)
    alone = replace(result.candidates[0], measured=replace(few, interval_us=(0.0, float("inf"))))
    source = str(charts.race(evidence(replace(result, candidates=(alone,), best=alone)).workloads[0]))
    assert "too few samples for an interval" in source
    assert "inf" not in source.replace("info", "") and not Page(source).of_class("interval")


def test_a_predicted_run_is_called_that_and_has_no_race(path: Path) -> None:
    with TuneLedger(path) as ledger:
        run = tuned(ledger, measured=False, finish=False)
    found = report(run, ledger=path)
    page, markdown = Page(found.html()), found.markdown()
    for said in (page.text, markdown):
        assert "There was no race: all times are predicted." in said
        assert "predicted speed-up" in said.lower()
        assert "Not finished: the same command resumes it." in said
        assert "measured, µs" not in said
    assert page.of_class("badge", "predicted")
    assert not page.of_class("racer")
    assert "TFLOP/s" in page.text, "the roofline stays, at predicted times"


def test_a_predicted_time_is_never_compared_with_a_measured_one() -> None:
    result = tuned_workload("small")
    crashed = replace(result.candidates[2], status="failed", reason="race: illegal address", measured=None)
    found = evidence(replace(result, candidates=(*result.candidates[:2], crashed, *result.candidates[3:])))
    (change,) = found.changes
    assert change.before.predicted is None and change.before.measured is None
    assert change.speedup is None and found.speedup is None
    assert "the one shipped today has no time to compare with" in tune_views.markdown(found)


def test_a_workload_for_which_nothing_works() -> None:
    result = tuned_workload("small")
    none = replace(result, best=None, tied=(), candidates=result.candidates[4:6], race=None, reason="all failed")
    text = tune_views.markdown(evidence(none, tuned_workload("large")))
    assert "No configuration works for small (2 workloads in all)." in text
    assert "none works" in text
    assert Page(tune_views.page(evidence(none))).text.count("Best: none; all failed.") == 1


def test_what_is_shipped_may_be_the_best() -> None:
    result = tuned_workload("small")
    text = tune_views.markdown(evidence(replace(result, shipped=tile(128, 4))))
    assert "The configuration shipped today is the best on 1 workload." in text


def test_an_unverified_best_is_said() -> None:
    result = tuned_workload("small")
    best = replace(result.candidates[0], checked=None)
    text = tune_views.markdown(evidence(replace(result, best=best, candidates=(best, *result.candidates[1:]))))
    assert "Not verified: the best configuration of workload small (nothing was compared)." in text


def test_a_warning_about_several_workloads_is_said_once() -> None:
    results = []
    for result in (tuned_workload("small"), tuned_workload("large")):
        best = replace(result.candidates[0], checked=None)
        results.append(replace(result, best=best, candidates=(best, *result.candidates[1:])))
    text = tune_views.markdown(evidence(*results))
    assert "Not verified: the best configuration of workloads small, large (nothing was compared)." in text


def test_a_long_configuration_may_wrap_after_a_comma() -> None:
    result = tuned_workload("small")
    best = replace(result.candidates[0], configuration=Configuration.of({"TILE_M": 128, "TILE_N": 64}))
    source = tune_views.page(evidence(replace(result, best=best, candidates=(best, *result.candidates[1:]))))
    assert '<td data-label="best configuration">TILE_M=128,<wbr>TILE_N=64</td>' in source
    assert re.search(r"<strong><span [^>]*>TILE_M=128,<wbr>TILE_N=64</span></strong>", source)


def test_an_error_names_the_option_that_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (("report", "latest"), ("report", "--list")):
        assert main([*arguments, "--home", str(tmp_path / "file")]) == 3
        said = capsys.readouterr().err
        assert "--home" in said and "TILEWRIGHT_HOME" not in said


def test_results_have_a_short_text(path: Path, run: str) -> None:
    found = report(ledger=path)
    assert str(found) == f"run {run} of {found.details.run.task}"
    assert isinstance(found.details, TuneEvidence)
    text = str(found.details.result)
    assert len(text) < 300 and "workload " in text and "µs measured" in text
    assert str(replace(found.details.result.workloads[0], best=None)).endswith(f": none, {found_reason(found)}")


def found_reason(found: Evidence) -> str:
    assert isinstance(found.details, TuneEvidence)
    return found.details.result.workloads[0].reason


def test_text_of_a_tuned_record_is_never_markup() -> None:
    result = tuned_workload(HOSTILE)
    odd = replace(result.candidates[0], configuration=Configuration.of({"TILE": HOSTILE}), reason=HOSTILE)
    source = tune_views.page(evidence(replace(result, best=odd, candidates=(odd, *result.candidates[1:]))))
    assert "<script" not in source
    assert "script" not in {element for element, _ in Page(source).elements}


# On a narrow page


@pytest.mark.parametrize("kind", ["tune", "predicted", "optimize"])
def test_everything_wide_scrolls_or_stacks(path: Path, kind: str) -> None:
    """At 400 pixels nothing is cut off: tables stack, charts and code stand in boxes that scroll."""
    if kind == "optimize":
        name = optimized(path)
    else:
        with TuneLedger(path) as ledger:
            name = tuned(ledger, measured=kind == "tune")
    source = report(name, ledger=path).html()
    boxes = Boxes(source)
    assert boxes.tables and boxes.charts
    assert set(boxes.tables) <= {"stacked", "iterations", "plain"}
    assert all(boxes.charts), "each chart in a box that scrolls"
    style = source[source.index("<style>") : source.index("</style>")]
    narrow = style[style.index("@media (max-width: 720px)") :]
    for table in ("stacked", "iterations", "plain"):
        assert f"table.{table}" in narrow
    assert ".scroll { overflow-x: auto; }" in style and "overflow-x: hidden" not in style
    assert "pre {" in style and "overflow-x: auto" in style[style.index("pre {") :][:200]


class Boxes(Page):
    """Of each table its class, of each chart whether a box that scrolls is around it."""

    def __init__(self, source: str) -> None:
        self.tables: list[str | None] = []
        self.charts: list[bool] = []
        self._classes: list[str] = []
        super().__init__(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        attributes = dict(attrs)
        if tag == "table":
            self.tables.append(attributes.get("class"))
        if tag == "svg" and attributes.get("role") == "img":
            self.charts.append("scroll" in self._classes)
        if tag != "meta":
            self._classes.append(attributes.get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        self._classes.pop()


# The command


def test_the_command_reports_a_run_of_tune(path: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(path.parent)]
    assert main(["report", *home]) == 0
    said = capsys.readouterr()
    assert said.out == report(run, ledger=path).markdown()
    page = path.parent / "runs" / run / "report.html"
    assert f"wrote {page}" in said.err and page.read_text() == report(run, ledger=path).html()
    assert main(["report", run[:-3], "--json", *home]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["run"], len(printed["workloads"])) == (run, 2)
    assert main(["report", "latest", "--patch", "-", *home]) == 2
    assert "it has no patch" in capsys.readouterr().err


def test_the_command_lists_the_runs(path: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    loop = optimized(path)
    assert main(["report", "--list", "--home", str(path.parent)]) == 0
    newest, oldest = capsys.readouterr().out.splitlines()
    assert newest.split() == [loop, "optimize", "rms_norm", "NVIDIA", "H200", "patience"]
    assert oldest.split() == [run, "tune", "rms_norm", "NVIDIA", "H200", "finished"]
    assert main(["report", "--list", "--json", "--home", str(path.parent)]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["run"], first["iterations"], first["kept"]) == (loop, 2, 1)
    assert (second["run"], second["workloads"]) == (run, ["small", "large"])


def test_of_a_large_run_the_first_attempts_are_shown_and_the_others_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [Attempt(value=f"value {n}", status="failed", reason="it spills") for n in range(8)]
    values[6] = Attempt(value="value 6", status="tampering", reason="it reached for the reference")
    with Ledger(path) as ledger:
        run = ledger.begin(run_record()).run
        ledger.append(run, baseline_iteration())
        ledger.append(run, replace(raced(1, 10.0, 20.0, keep=True), attempts=tuple(values)))
    whole = report(run, ledger=path)
    monkeypatch.setattr(reporting, "LARGE", 6)
    monkeypatch.setattr(reporting, "SHOWN", 3)
    large = report(run, ledger=path)
    for text in (large.markdown(), large.html()):
        assert "value 2" in text and "value 3" not in text and "it reached for the reference" in text
        assert "4 more: 4 failed; see" in text and f"report {run} --jsonl -" in text
    assert "8 values tried" in large.html()
    lines = []
    for each in (whole, large):
        each.export_jsonl(stream := io.StringIO())
        lines.append(stream.getvalue())
    assert lines[0] == lines[1] and '"value 7"' in lines[1]
    assert large.complete() == whole.details
