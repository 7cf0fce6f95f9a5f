"""The report of a run: what follows from the records, in Markdown, as JSON, and by the command."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from tests.made_runs import (
    DIAGNOSIS,
    DIFF,
    WORKLOADS,
    baseline_iteration,
    crashed,
    metrics,
    outcome,
    predicted,
    raced,
    run_record,
)
from typer.testing import CliRunner

from tilewright.cli import report as cli_report
from tilewright.errors import RequestError, UnknownChoice
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration
from tilewright.race.stats import median_interval
from tilewright.report.evidence import OptimizeEvidence, collect, settings, speedup_of
from tilewright.report.markdown import fenced, text
from tilewright.report.optimize_views import markdown

STEPS = (
    baseline_iteration(20.0),
    raced(1, 15.0, 20.0, keep=True),
    raced(2, 16.0, 15.0, keep=False),
    crashed(3),
    raced(4, 10.0, 15.0, keep=True),
)


def finished(iterations: Sequence[Iteration] = STEPS, us: float = 10.0, **changes: Any) -> OptimizeEvidence:
    final = tuple(replace(metrics(name, us, before_us=20.0), diagnosis=DIAGNOSIS) for name in WORKLOADS)
    run = replace(run_record(), run="20261125-1", started="2026-11-25T10:00:00", finished="2026-11-25T11:00:00")
    run = replace(run, stop_reason="patience", final=final, patch=DIFF)
    return collect(replace(run, **changes), iterations)


def of_predictions() -> OptimizeEvidence:
    run = replace(run_record(measured=False), run="20261125-2", confirm="tilewright optimize there --seed 7")
    run = replace(run, final=tuple(metrics(name, 5.0, measured=False) for name in WORKLOADS))
    return collect(run, [predicted(n, us, keep=True) for n, us in enumerate((20.0, 8.0, 5.0))])


# What follows from the records


def test_the_speedup_is_that_of_the_paired_ratios() -> None:
    report = finished()
    for one in report.workloads:
        assert one.speedup is not None
        ratio = one.after.against_baseline
        assert ratio is not None
        assert one.speedup.centre == 1 / ratio.centre
        assert (one.speedup.low, one.speedup.high) == (1 / ratio.high, 1 / ratio.low)
    assert report.speedup and report.speedup.centre == pytest.approx(2.0, rel=0.02)
    assert report.before_ms == pytest.approx(2 * (report.after_ms or 0), rel=0.02)
    assert [one.n for one in report.kept] == [1, 4]


def test_few_samples_bound_nothing() -> None:
    speedup = speedup_of(median_interval([0.5, 0.5, 0.6]), "x")
    assert speedup is not None
    assert (speedup.centre, speedup.low, speedup.high) == (2.0, None, None)
    assert speedup_of(None, "x") is None


def test_a_run_that_goes_on_stands_where_it_last_kept() -> None:
    report = collect(run_record(), STEPS[:4])
    assert [one.after.measured for one in report.workloads] == [one.measured for one in STEPS[1].outcomes]
    assert report.speedup and report.speedup.centre == pytest.approx(20 / 15, rel=0.02)
    assert report.patch == STEPS[1].diff
    assert "Not finished: the same command resumes it" in markdown(report)


def test_where_nothing_was_kept_the_code_is_as_it_was() -> None:
    for iterations in (STEPS[:1], (STEPS[0], crashed(1), crashed(2)), (STEPS[0], replace(STEPS[2], n=1))):
        report = collect(run_record(), iterations)
        assert report.kept == ()
        assert [one.after for one in report.workloads] == list(report.run.baseline)
        assert report.speedup and report.speedup.centre == 1.0
        assert report.patch == ""
    assert "Nothing was kept in 1 iteration: the code is as it was" in markdown(report)
    assert "No change has been tried yet" in markdown(collect(run_record(), STEPS[:1]))


def test_the_incumbents_line_steps_where_a_change_was_kept() -> None:
    points = finished().points
    assert [point.n for point in points] == [0, 1, 2, 3, 4]
    ms = [STEPS[n].latency_ms for n in (0, 1, 1, 1, 4)]
    assert [point.incumbent_ms for point in points] == ms
    assert points[3].ms is None
    assert points[2].ms == STEPS[2].latency_ms


def test_a_time_that_is_none_makes_no_speedup() -> None:
    """Failure is never a number."""
    run = run_record()
    lost = replace(run.baseline[0], measured=None)
    report = collect(replace(run, baseline=(lost, run.baseline[1])), STEPS[:1])
    assert (report.speedup, report.before_ms) == (None, None)
    assert report.workloads[0].speedup is None
    assert markdown(report)


@given(
    st.recursive(
        st.integers() | st.text(max_size=5) | st.none(), lambda s: st.lists(s) | st.dictionaries(st.text(max_size=4), s)
    )
)
def test_any_setting_is_lines_of_text(value: Any) -> None:
    try:
        lines = list(settings({"name": value}, "x"))
    except ValueError:  # the one key that JSON cannot have
        return
    assert all(isinstance(part, str) for line in lines for part in line)


# Markdown


def test_the_markdown_has_every_part() -> None:
    """Latency, roofline share, mix, diff, environment, reasons, what was ruled out, command."""
    lines = markdown(finished())
    for heading in (
        "Workloads",
        "Iterations",
        "What was ruled out",
        "Instructions",
        "The patch",
        "Environment",
        "Reproduce",
    ):
        assert f"\n## {heading}\n" in lines
    for part in (
        "2 of 4 iterations kept", "Stopped: patience", "spills: none", DIFF,
        "tilewright optimize examples/naive/rms_norm.py --seed 7",
        "clocks_mhz", "NVIDIA H200", "cutile-perf-rms_norm-20261125", "priority 1 × expected 1.5", "A/A noise, small",
    ):  # fmt: skip
        assert part in lines, part
    for attempt in STEPS[1].attempts:
        assert text(attempt.reason) in lines


def test_tables_of_the_markdown_are_whole() -> None:
    """A name with a bar or a line break stays in its cell."""
    odd = replace(STEPS[1], optimization="a | b\n| c `d` <script>", reason="x | y\\")
    lines = markdown(collect(run_record(), [STEPS[0], odd])).split("\n")
    tables = [line for line in lines if line.startswith("|")]
    start = lines.index(next(line for line in tables if "optimization" in line))
    widths = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines[start : start + 4]}
    assert widths == {9}
    assert "<script>" not in re.sub(r"\\<", "", "\n".join(lines))


@given(st.text(alphabet="`~\nab", max_size=40))
def test_a_fence_cannot_be_closed_from_within(content: str) -> None:
    block = fenced(content)
    fence = block.split("\n", 1)[0]
    inside = block.split("\n")[1:-1]
    assert block.endswith(fence)
    assert not any(line.strip().startswith(fence) for line in inside)


def test_a_predicted_run_calls_every_time_predicted() -> None:
    """A predicted gain is never shown as a measured one, and the report ends with how to confirm it."""
    lines = markdown(of_predictions())
    assert "Predicted speed-up 4.00×" in lines
    assert "## Confirm on a GPU" in lines
    assert lines.rstrip().endswith("tilewright optimize there --seed 7\n```")
    for line in lines.splitlines():
        if re.search(r"\b(ms|µs|speed-up|speed of light)\b", line) and line.startswith("| "):
            named = [cell for cell in line.split("|") if re.search(r"\b(ms|µs|speed-up|speed of light)\b", cell)]
            assert all("predicted" in cell.lower() for cell in named), line
    assert "95 %" not in lines


def test_what_was_lossy_or_unverified_is_said() -> None:
    lossy = replace(STEPS[1], risk="lossy", correctness="unverified")
    lines = markdown(collect(run_record(), [STEPS[0], lossy]))
    assert "Lossy, though within the task's tolerance: iteration 1" in lines
    assert "Kept without being verified: iteration 1" in lines


# The command


app = typer.Typer()
app.command()(cli_report.report)


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, str]:
    with Ledger(tmp_path / "home" / "ledger.db") as ledger:
        run = ledger.begin(run_record()).run
        for iteration in STEPS:
            ledger.append(run, iteration)
        ledger.finish(run, "patience", tuple(metrics(name, 10.0, before_us=20.0) for name in WORKLOADS), DIFF)
    return tmp_path / "home", run


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_the_command_prints_markdown_and_writes_the_page(recorded: tuple[Path, str]) -> None:
    home, run = recorded
    done = invoke(run[:12], "--home", home)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("# rms_norm on NVIDIA H200")
    page = home / "runs" / run / "report.html"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert f"wrote {page}" in done.stderr


def test_the_command_writes_what_is_asked_for(recorded: tuple[Path, str], tmp_path: Path) -> None:
    home, run = recorded
    files = {name: tmp_path / f"out.{name}" for name in ("html", "markdown", "patch", "jsonl")}
    options = [part for name, file in files.items() for part in (f"--{name}", file)]
    done = invoke("latest", *options, "--json", "--home", home)
    assert done.exit_code == 0, done.output
    one = json.loads(done.stdout)
    assert {"run", "measured", "baseline", "final", "kept", "stop_reason", "iterations"} <= set(one), "issue 4"
    assert (one["run"], len(one["iterations"])) == (run, len(STEPS))
    assert files["patch"].read_text() == DIFF
    assert len(files["jsonl"].read_text().splitlines()) == 1 + len(STEPS)
    assert files["html"].read_text().startswith("<!DOCTYPE html>")
    assert files["markdown"].read_text().startswith("# rms_norm")
    assert not (home / "runs").exists()
    assert invoke("latest", "--patch", "-", "--home", home).stdout == DIFF


def test_the_patch_applies(recorded: tuple[Path, str], tmp_path: Path) -> None:
    """The patch alone, by git."""
    before = [line[1:] for line in DIFF.splitlines() if line[:1] in " -" and not line.startswith("---")]
    (tmp_path / "rms_norm.py").write_text("\n".join(["#"] * 9 + before) + "\n")
    invoke("latest", "--patch", tmp_path / "p", "--home", recorded[0])
    check = subprocess.run(["git", "apply", "--recount", "p"], cwd=tmp_path, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    assert "ct.load" in (tmp_path / "rms_norm.py").read_text()


def test_an_unknown_run_names_those_there_are(recorded: tuple[Path, str], tmp_path: Path) -> None:
    home, run = recorded
    error = invoke("nothing", "--home", home).exception
    assert isinstance(error, UnknownChoice)
    assert str(error) == f"unknown run 'nothing'; known: latest, {run}"
    error = invoke("latest", "--html", tmp_path / "no" / "page.html", "--home", home).exception
    assert isinstance(error, RequestError)
    assert "cannot write" in str(error)


def test_an_outcome_without_a_ratio_is_shown_without_one() -> None:
    alone = replace(outcome("small", 15.0, 20.0), ratio=None, against_baseline=None)
    report = collect(run_record(), [STEPS[0], replace(STEPS[1], outcomes=(alone,))])
    assert "over the incumbent" not in markdown(report)
    assert report.workloads[0].speedup is not None
