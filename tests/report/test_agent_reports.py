"""The reports of a run of `agent`: their headings, what each end of an item shows, and a run that was killed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.made_agent_runs import (
    AGENT_RUN,
    ATTENTION,
    CHECKPOINTS,
    DIFF,
    POOLING,
    MadeAgentRun,
    asked,
    change,
    one,
    race,
    several,
)
from tests.report.numbers import unexplained, unexplained_in_markdown
from tests.report.test_page import Page

from tilewright.cli.main import main
from tilewright.coordinate.principles import PRINCIPLES, principle_of
from tilewright.ledger.agent_records import STEPS, AgentMeasurement
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.profile import findings
from tilewright.report.agent.multiple import LIGHT_SOURCE
from tilewright.report.agent.views import report_of
from tilewright.report.report import Evidence, report

ONE = ["Optimization Applied: scaled_dot_product_attention", "Prerequisites Checked", "Implementation", "Validation",
       "Result"]  # fmt: skip
SEVERAL = ["Optimization Summary", "Optimizations Applied (in order)", "Cumulative Results", "Remaining Opportunities"]


def made(path: Path, run: Callable[[AgentLedger], str]) -> Evidence:
    with AgentLedger(path / "ledger.db") as ledger:
        name = run(ledger)
    return report(name, ledger=path / "ledger.db")


def headings(markdown: str) -> list[str]:
    return re.findall(r"^##+ (.*)$", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL), re.MULTILINE)


def section(markdown: str, heading: str) -> list[str]:
    """The lines below a heading."""
    lines = markdown.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    return [line for line in lines.splitlines() if line]


def test_one_change_has_the_headings(tmp_path: Path) -> None:
    evidence = made(tmp_path, one)
    text = evidence.markdown()
    assert headings(text) == ONE and text.startswith("## ") and text.count("\n### ") == len(ONE) - 1
    assert section(text, "Prerequisites Checked") == [
        "- [x] Code compatibility verified: train.py:31", "- [x] Hardware requirements met: NVIDIA H200 (sm_90)",
    ]  # fmt: skip
    assert section(text, "Implementation")[0] == "- Specialist: profiling"
    assert section(text, "Implementation")[1].startswith("- Changes: scaled_dot_product_attention at train.py:31: ")
    header, _, throughput, latency, *_ = section(text, "Validation")
    assert header == "| Metric | Before | After | Change |"
    assert re.fullmatch(r"\| Throughput \| [\d.]+ steps/s \| [\d.]+ steps/s \| \+\d+\.\d% .* \|", throughput)
    assert re.fullmatch(r"\| Latency \| [\d.]+ ms \| [\d.]+ ms \| −\d+\.\d% .* \|", latency)
    assert re.fullmatch(r"SUCCESS: Achieved 22\.\d% improvement", section(text, "Result")[0]), "of the user's command"


def test_several_changes_have_the_headings(tmp_path: Path) -> None:
    text = made(tmp_path, several).markdown()
    assert headings(text) == SEVERAL
    assert re.findall(r"^\*\*(.*?)\*\*: ", text, re.MULTILINE) == ["Goal", "Starting Point", "Result"]
    applied = section(text, "Optimizations Applied (in order)")
    assert [line for line in applied if re.match(r"\d", line)] == [
        "1. **scaled_dot_product_attention**", "2. **checkpointing**", "3. **pinned copies**",
    ]  # fmt: skip
    statuses = [line.partition("Status: ")[2] for line in applied if "Status: " in line]
    assert statuses == ["Applied", "Rolled back", "Applied"]
    impacts = [line for line in applied if "Impact: " in line]
    assert len(impacts) == 3
    assert all(re.match(r"   - Impact: [\d.]+ ms → [\d.]+ ms \([+−]\d+\.\d%\), interval ", line) for line in impacts)
    header, _, *rows = section(text, "Cumulative Results")[:5]
    assert header == "| Metric | Baseline | Final | Total Change |"
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == ["Throughput", "Latency", "SOL%"]
    assert rows[2] == "| SOL% | not measured | not measured | not measured |"
    assert "SOL%: not measured, because bytes and operations of a whole program are not counted" in text


def test_each_remaining_opportunity_has_its_reason(tmp_path: Path) -> None:
    lines = section(made(tmp_path, several).markdown(), "Remaining Opportunities")
    reasons = {item.removeprefix("- "): line.strip().removeprefix("- Reason: ").partition(":")[0]
               for item, line in pairwise(lines) if item.startswith("- ")}  # fmt: skip
    assert reasons == {
        "Apply memory pooling for attention buffers (locality)": "mechanism already present",
        "Consider gradient checkpointing for memory reduction (locality)": "applied but no gain",
        "Capture the step as a CUDA graph (batching)": "blocked",
        "GPU 0 is idle for 3.0 % of its time": "dismissed",
    }


def test_a_principle_is_one_of_the_eight() -> None:
    assert list(PRINCIPLES) == [
        "pipeline", "parallelism", "locality", "vectorization", "fusion", "precision", "batching", "async",
    ]  # fmt: skip


def test_the_speed_of_light_is_in_points(tmp_path: Path) -> None:
    def run(ledger: AgentLedger) -> str:
        agent = MadeAgentRun(ledger)
        agent.planned(ATTENTION)
        agent.applied(ATTENTION, "sdpa", 20_000.0, 15_000.0)
        whole = race(20_000.0, 15_000.0, "effect")
        lights = {"speed of light before": 0.351, "speed of light after": 0.463}
        effect = agent.measured(
            type(whole)(
                **{
                    **vars(whole),
                    "values": {**whole.values, **lights},
                    "facts": {**whole.facts, LIGHT_SOURCE: "20 GB at 4.8 TB/s"},
                }
            )
        )
        ledger.finish(agent.run, "done", effect=effect)
        return agent.run

    evidence = made(tmp_path, run)
    assert "| SOL% | 35.1% | 46.3% | +11.2 points |" in evidence.markdown()
    assert "SOL%: measured over limit; the limit is 20 GB at 4.8 TB/s" in evidence.markdown()
    assert unexplained(evidence.html(), evidence.details.records) == []


# How one change can end ---------------------------------------------------------------------------


def _wrong(run: MadeAgentRun) -> None:
    tried = change(ATTENTION, "sdpa")
    run.ledger.proposed(run.run, tried)
    id = run.measured(race(20_000.0, 15_000.0, change=tried.id))
    different = run.outputs(tried, "different", "0.3 where 0.001 is allowed")
    run.stepped(tried, "correctness", "the outputs differ", validate=id, correctness=different)
    run.ended(ATTENTION, "rolled back", "applied but no gain", "the outputs differ", different)
    run.ledger.finish(run.run, "every item has ended")


def _not_possible(run: MadeAgentRun) -> None:
    run.ended(ATTENTION, "remaining", "inapplicable", "train.py has no attention", "train.py")
    run.ledger.finish(run.run, "every item has ended")


def _kernel_alone(run: MadeAgentRun) -> None:
    run.applied(ATTENTION, "sdpa", 20_000.0, 15_000.0)
    run.finished(20_000.0, 20_010.0)


def _as_asked(run: MadeAgentRun) -> None:
    run.applied(ATTENTION, "sdpa", 20_000.0, 20_010.0)
    run.finished(20_000.0, 20_010.0)


@pytest.mark.parametrize(
    ("then", "title", "result"),
    [
        (_wrong, "Optimization Rolled Back: sdpa", "ROLLED BACK: the outputs differ"),
        (_not_possible, "Optimization Not Applied: Enable FlashAttention for self-attention layers",
         "NOT APPLIED: inapplicable: train.py has no attention"),
        (_kernel_alone, "Optimization Applied: sdpa",
         "A GAIN OF THE CHANGE ALONE: 25.0%; the user's own command is not faster beyond the noise"),
        (_as_asked, "Optimization Applied: sdpa", "APPLIED AS ASKED, NO GAIN: faster beyond the noise"),
    ],
)  # fmt: skip
def test_how_one_change_ends(tmp_path: Path, then: Callable[[MadeAgentRun], None], title: str, result: str) -> None:
    evidence = made(tmp_path, lambda ledger: asked(ledger, then))
    text = evidence.markdown()
    assert headings(text) == [title, *ONE[1:]]
    assert section(text, "Result")[0] == result
    assert ("SUCCESS" in text) is False
    assert unexplained(evidence.html(), evidence.details.records) == []


# A run that was killed ----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(len(STEPS)))
def test_a_killed_run_says_where_it_goes_on(tmp_path: Path, steps: int) -> None:
    def killed(run: MadeAgentRun) -> None:
        tried = change(ATTENTION, "sdpa")
        run.ledger.proposed(run.run, tried)
        if steps:
            run.stepped(tried, STEPS[steps - 1])

    evidence = made(tmp_path, lambda ledger: asked(ledger, killed))
    text = evidence.markdown()
    assert headings(text)[0] == "Optimization Not Finished: sdpa"
    assert section(text, "Result")[0] == (
        f"NOT FINISHED: the next step is {STEPS[steps]}; the same command resumes it"
    )  # fmt: skip
    assert "not measured" in text and "not finished" in Page(evidence.html()).text
    assert unexplained_in_markdown(text, evidence.html(), evidence.details.records) == []


def test_a_killed_run_of_several_shows_what_is_open(tmp_path: Path) -> None:
    def killed(ledger: AgentLedger) -> str:
        run = MadeAgentRun(ledger)
        run.baseline()
        run.planned(ATTENTION, POOLING, CHECKPOINTS)
        run.applied(ATTENTION, "sdpa", 20_000.0, 15_000.0)
        run.ledger.proposed(run.run, change(CHECKPOINTS, "checkpointing"))
        return run.run

    evidence = made(tmp_path, killed)
    text = evidence.markdown()
    assert headings(text) == SEVERAL
    assert "not finished: 2 of 3 items are open; the same command resumes it" in text
    assert "   - Status: Not finished: the next step is baseline" in text
    assert text.count("Reason: not tried yet; the same command resumes the run") == 2
    assert "| Latency | 20.13 ms | not measured | not measured |" in text
    assert evidence.patch == DIFF, "of the change that is kept so far"
    assert unexplained(evidence.html(), evidence.details.records) == []


def test_a_run_killed_before_its_last_race(tmp_path: Path) -> None:
    """The item has ended; the user's own command is measured last."""

    def killed(run: MadeAgentRun) -> None:
        made = run.applied(ATTENTION, "sdpa", 20_000.0, 15_000.0)
        ran = AgentMeasurement(kind="operations", about="the changed program", change=made.id, verdict="ran",
                               reason="scaled_dot_product_attention ran 6 times")  # fmt: skip
        run.measured(ran)

    evidence = made(tmp_path, lambda ledger: asked(ledger, killed))
    text = evidence.markdown()
    assert headings(text) == ["Optimization Applied: sdpa", *ONE[1:]]
    assert section(text, "Result")[1] == (
        "NOT FINISHED: the effect on the user's own command is not measured; the same command resumes it"
    )  # fmt: skip
    assert "Proof that the changed code ran: ran, scaled_dot_product_attention ran 6 times" in text
    assert "1 of 1 change applied" in evidence.html()
    assert unexplained(evidence.html(), evidence.details.records) == []


def test_a_program_without_steps_has_its_whole_time(tmp_path: Path) -> None:
    def begun(ledger: AgentLedger) -> str:
        run = MadeAgentRun(ledger)
        run.measured(AgentMeasurement(kind="baseline", about="train.py", values={"wall time, s": 26.98, "steps": 6.0},
                                      device="this CPU"))  # fmt: skip
        return run.run

    assert "**Starting Point**: 26.98 s from start to end; on this CPU; " in made(tmp_path, begun).markdown()


def test_a_run_killed_before_its_plan(tmp_path: Path) -> None:
    evidence = made(tmp_path, lambda ledger: ledger.begin(AGENT_RUN).run)
    assert headings(evidence.markdown()) == SEVERAL
    assert section(evidence.markdown(), "Remaining Opportunities")[0] == "- none"
    assert "no change was made" in Page(evidence.html()).text


# The page, the command ----------------------------------------------------------------------------


@pytest.mark.parametrize("run", [one, several])
def test_the_page_has_the_same_sections(tmp_path: Path, run: Callable[[AgentLedger], str]) -> None:
    evidence = made(tmp_path, run)
    page = Page(evidence.html())
    for heading in (ONE if run is one else SEVERAL)[1:]:
        assert f"<h2>{heading}</h2>" in evidence.html()
    assert "CASEBOOK: no-match" in page.text and 'data-ledger="' in evidence.html()
    assert not {"script", "link", "img"} & {name for name, _ in page.elements}


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = made(tmp_path, several)
    assert main(["report", evidence.run, "--home", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["finished"], found["title"]) == (evidence.run, True, "Optimization Summary")
    assert list(found["sections"]) == SEVERAL[1:]
    rows = found["sections"]["Cumulative Results"]["rows"]
    assert rows[1]["Total Change"] < 0 and rows[1]["ledger"]["Baseline"][0].startswith(f"{evidence.run}/m")
    assert main(["report", evidence.run, "--home", str(tmp_path), "--markdown", "-"]) == 0
    assert capsys.readouterr().out == evidence.markdown()
    assert main(["report", evidence.run, "--home", str(tmp_path), "--jsonl", "-", "--patch", "-"]) == 0
    out = capsys.readouterr().out
    records = [json.loads(line) for line in out.removeprefix(DIFF).splitlines()]
    kinds = {record["record"] for record in records}
    assert kinds == {"run", "measurement", "finding", "item", "change", "step", "end"}
    assert {line["id"] for line in records if line["record"] == "measurement"} >= {f"{evidence.run}/m0"}
    assert report_of(evidence.details).sections[1].ids  # type: ignore[arg-type]


def test_a_program_names_its_newest_run(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise SystemExit('a report must not run it')")
    with AgentLedger(tmp_path / "ledger.db") as ledger:
        runs = [ledger.begin(replace(AGENT_RUN, where=str(program))).run for _ in range(2)]
    assert report(str(program), ledger=tmp_path / "ledger.db").run == runs[-1]


# Principles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Enable FlashAttention for self-attention layers", "fusion"),
        ("Apply memory pooling for attention buffers", "locality"),
        ("Consider gradient checkpointing for memory reduction", "locality"),
        ("Capture the step as a CUDA graph", "batching"),
        ("use bf16 autocast", "precision"),
        ("do not call .item() in the loop", "async"),
        ("overlap the all-reduce with the backward pass", "pipeline"),
        ("use tensor parallelism over 4 GPUs", "parallelism"),
        ("load with TMA and tensor cores", "vectorization"),
        ("buy a faster machine", ""),
    ],
)
def test_a_recommendation_has_its_principle(text: str, name: str) -> None:
    assert principle_of(text) == name


def test_each_finding_of_a_profile_has_a_principle() -> None:
    source = Path(findings.__file__).read_text()
    tags = re.findall(r'tag="(\w+)"', source)
    assert len(tags) == len(findings.RULES) and set(tags) <= set(PRINCIPLES)
