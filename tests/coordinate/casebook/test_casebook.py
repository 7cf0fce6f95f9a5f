"""The casebook: its cases are whole, their pointers resolve, and questions find them by their words."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import made_runs

from tilewright.cli import main as cli
from tilewright.coordinate.casebook import book
from tilewright.coordinate.casebook.book import Casebook, casebook, coverage, remember
from tilewright.coordinate.casebook.case import FAMILIES, MEASURED, PATTERNS, SECTIONS, Precedent, read
from tilewright.coordinate.casebook.from_ledger import cases_of, from_ledger
from tilewright.coordinate.casebook.recall import recall
from tilewright.errors import RequestError
from tilewright.ledger.ledger import Ledger
from tilewright.plugins import plugins

ROOT = Path(__file__).parents[3]
TRACE = re.compile(
    rf'CASEBOOK: (matched=({"|".join(FAMILIES)})/[a-z0-9-]+ confidence=(high|medium|low) adapted="[^"\n]+"'
    r'|no-match query="[^"\n]*")'
)
SHIPPED = tuple(read(path) for path in sorted(book.OURS.glob("*/*.md")))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TILEWRIGHT_CASEBOOKS", raising=False)
    return tmp_path


# The shipped cases --------------------------------------------------------------------------------


def test_there_are_thirty_cases_of_every_family_and_pattern() -> None:
    assert len(SHIPPED) >= 30
    assert {case.family for case in SHIPPED} == set(FAMILIES)
    assert {pattern for case in SHIPPED for pattern in case.patterns} == set(PATTERNS), "each principle has a case"


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.slug)
def test_a_shipped_case_is_whole(case: Precedent) -> None:
    assert not case.problems
    assert re.findall(r"^## (.*)$", case.body, re.MULTILINE) == list(SECTIONS)
    assert all(case.section(name) for name in SECTIONS)
    assert 2 <= len(re.findall(r"^- ", case.section("Generalizes to"), re.MULTILINE)) <= 4
    assert (case.maturity == "verified-locally") == bool(case.measured)
    ids = {other.id for other in SHIPPED}
    assert {other for others in case.interactions.values() for other in others} <= ids
    assert case.accuracy_risk == "lossless" or re.search(r"check|accuracy", case.section("Rollback"))


def names_of_tests(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("case", SHIPPED, ids=lambda case: case.slug)
def test_each_pointer_to_a_verification_resolves(case: Precedent) -> None:
    pointers = re.findall(r"^- `(.+)`$", case.section("Verify"), re.MULTILINE)
    assert pointers
    for pointer in pointers:
        program, target, *_ = shlex.split(pointer)
        file, _, test = target.partition("::")
        assert (ROOT / file).is_file(), pointer
        assert program == ("pytest" if file.startswith("tests/") else "python"), pointer
        assert program == "python" or file.rpartition("/")[2].startswith("test_")
        assert not test or test in names_of_tests(ROOT / file), pointer


def test_entries_and_rules_that_cases_name_exist() -> None:
    entries = {entry.about.id for entry in plugins("tilewright.playbook.entries", "ENTRY")}
    named = {name for case in SHIPPED for name in re.findall(r"--only (\w+)", case.body)}
    assert named and named <= entries


def at(data: Any, pointer: str) -> float:
    for part in pointer.strip("/").split("/"):
        data = data[int(part) if isinstance(data, list) else part]
    return float(data)


@pytest.mark.parametrize("case", [case for case in SHIPPED if case.measured], ids=lambda case: case.slug)
def test_each_measured_value_stands_in_a_recorded_file(case: Precedent) -> None:
    for entry in case.measured:
        file, _, pointer = entry.run_ref.partition("#")
        recorded = json.loads((ROOT / file).read_text())
        above, _, below = pointer.partition(" over #")
        value = at(recorded, above) / (at(recorded, below) if below else 1.0)
        assert entry.value == pytest.approx(value, rel=1e-3)
        assert recorded["machine"]["gpu"] == entry.gpu
        assert recorded["date"] == entry.date
        assert file.endswith(f"{entry.date}.json") or entry.date in file


# Questions ----------------------------------------------------------------------------------------

QUESTIONS = {
    "my softmax reaches only a third of the bandwidth, one CTA fits on an SM": "occupancy-for-row-reductions",
    "matmul with large tiles spills registers to local memory": "register-spills-of-large-tiles",
    "GPU idle because kernel launches come too late": "gpu-idle-because-the-host-is-late",
    "loss.item() every step synchronizes my training loop": "host-sync-in-the-training-loop",
    "copies from pageable memory for every batch": "pageable-copies-of-batches",
    "all-reduce of gradients is exposed after the backward pass": "exposed-gradient-all-reduce",
    "first call of TileGym attention is slow because of exhaustive_search": "slow-first-calls-of-tuned-libraries",
    "hand-written attention with bmm and softmax uses too much memory": "attention-as-one-kernel",
    "float32 matmul shows sgemm and no tensor cores": "tf32-for-float32-products",
    "Triton kernel with make_block_ptr is slow through Tile IR": "triton-block-pointers-to-descriptors",
    "SwiGLU runs as separate silu and mul kernels": "fused-silu-mul",
    "is a gain of 2 % between two runs noise?": "noise-kept-as-a-gain",
    "illegal memory access for tensors with more than 2^31 elements": "triton-narrow-offsets-overflow",
    "some ranks wait long in NCCL": "ranks-that-wait-for-the-slowest",
    "autotuning an in-place kernel gives wrong results": "tuning-an-in-place-kernel",
}
UNRELATED = (
    "how do I configure a Kubernetes horizontal pod autoscaler",
    "Rust lifetimes in an async trait",
    "Grafana dashboard for RabbitMQ",
    "train ticket booking app in Django",
    "protobuf schema migration for Next.js",
    "sourdough starter hydration",
    "speed up train.py",
    "make ./ops/host_sync_graph.py faster",
)


def test_questions_find_their_case() -> None:
    wrong = {}
    for question, slug in QUESTIONS.items():
        found = [match.case.slug for match in recall(question, SHIPPED, most=3)]
        if not found or found[0] != slug:
            wrong[question] = found
    assert not wrong


@pytest.mark.parametrize("question", UNRELATED)
def test_what_is_no_such_question_has_no_match(question: str) -> None:
    assert recall(question, SHIPPED) == []


def test_the_whole_text_recalls_and_fields_only_rank() -> None:
    with_field = Precedent(family=FAMILIES[0], slug="a", body="# Zebra stripes in caches", signals=("zebra",))
    without = Precedent(family=FAMILIES[0], slug="b", body="# Zebra stripes in caches")
    others = [Precedent(family=FAMILIES[0], slug=f"c{n}", body=f"# Something about {n}") for n in range(9)]
    found = recall("zebra stripes", [without, with_field, *others])
    assert [match.case.slug for match in found] == ["a", "b"], "no field is needed to be found"


@pytest.mark.parametrize("question", [*QUESTIONS, *UNRELATED, 'a "quoted"\nquestion', "?!", "x" * 5000])
def test_exactly_one_trace_line(home: Path, capsys: pytest.CaptureFixture[str], question: str) -> None:
    assert cli.main(["casebook", question]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("CASEBOOK:")]
    assert len(lines) == 1 and TRACE.fullmatch(lines[0])


def test_the_rate_of_questions_without_a_match(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert coverage().no_match_rate is None
    for question in ("my softmax is memory bound", "sourdough starter", "tiles that spill registers"):
        assert cli.main(["casebook", question]) == 0
    assert "3 questions so far, 1 without a match (33%)" in capsys.readouterr().out
    with (home / "home" / book.QUESTIONS).open("a") as file:
        file.write("not json\n[]\n")
    assert (coverage().questions, coverage().without_match) == (3, 1)
    assert cli.main(["casebook", "tiles that spill registers", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["no_match_rate"] == pytest.approx(1 / 4) and TRACE.fullmatch(found["trace"])
    assert found["matches"][0]["name"] == "kernel-and-fusion/register-spills-of-large-tiles"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remember(Casebook().ask("my softmax is slow"), tmp_path / "file" / "below")


def test_no_question_and_lists(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["casebook"]) == 2 and cli.main(["casebook", " "]) == 2
    assert cli.main(["casebook", "x", "--book", str(home / "gone")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and "no such casebook" in errors[2]
    assert cli.main(["casebook", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(SHIPPED)


# Casebooks of others ------------------------------------------------------------------------------

THEIRS = """---
id: case-zebra
type: case
family: kernel-and-fusion
maturity: full
bottleneck: [memory-bound]
signals: [zebra stripes, gnu herds]
architectures: [sm_90]
phase: any
patterns: [locality]
accuracy_risk: lossless
apply_via_kind: config-knob
measured:
  - metric: latency
    value: 2.0
    gpu: H100
---
# Zebra

## Apply via
ZEBRA=1
"""


def test_casebooks_of_others_are_read_in_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "theirs" / "cases" / "kernel-and-fusion"
    folder.mkdir(parents=True)
    (folder / "zebra.md").write_text(THEIRS)
    (folder / "broken.md").write_text("---\nid: [case-broken\n---\n# Okapi\nOkapi kernels wait for the okapi cache.\n")
    (folder / "README.md").write_text("about")
    (folder / "binary.md").write_bytes(b"\xff\xfe\x00")
    assert cli.main(["casebook", "okapi cache", "--book", str(home / "theirs")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("CASEBOOK: matched=kernel-and-fusion/broken "), "its text is found all the same"
    lines = err.splitlines()
    assert len(lines) == 3 and all(line.startswith("note: ") for line in lines)
    assert any("broken.md line 3: did not find" in line for line in lines)
    assert any("binary.md: cannot be read: it is not UTF-8" in line for line in lines)
    assert any("measured entry 1 lacks workload, run_ref, date" in line for line in lines)
    (zebra,) = [case for case in casebook([home / "theirs"]).cases if case.slug == "zebra"]
    assert zebra.measured == () and zebra.section("Apply via") == "ZEBRA=1", "an entry has all six fields or is none"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("id: case-zebra", "id: case-horse"), "id is 'case-horse', not 'case-zebra' after its file"),
        (("family: kernel-and-fusion", "family: communication"), "family is 'communication'"),
        (("maturity: full", "maturity: old"), "maturity is 'old'; known: stub, full, verified-locally"),
        (("signals: [zebra stripes, gnu herds]", "signals: [one]"), "signals has 1 values, not 2 to 5"),
        (("[memory-bound]", "[slow]"), "bottleneck 'slow' is not in the vocabulary"),
        (("[locality]", "[magic]"), "patterns 'magic' is not in the vocabulary"),
        (("phase: any", "phase: any\ncolour: red"), "unknown field 'colour'"),
        (("phase: any", "phase: any\ninteractions:\n  loves: [x]"), "interaction 'loves' is unknown"),
    ],
)
def test_what_is_wrong_with_a_front_matter_is_one_line(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    (folder := tmp_path / "kernel-and-fusion").mkdir()
    whole = THEIRS.partition("measured:")[0] + "---\n# Zebra\n"
    (folder / "zebra.md").write_text(whole)
    assert read(folder / "zebra.md").problems == ()
    (folder / "zebra.md").write_text(whole.replace(*change))
    (problem,) = read(folder / "zebra.md").problems
    assert why in problem and "\n" not in problem


def test_the_environment_names_casebooks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CASEBOOKS", str(home))
    assert casebook().folders == (home,)
    monkeypatch.setenv("TILEWRIGHT_CASEBOOKS", str(home / "gone"))
    with pytest.raises(RequestError, match="no such casebook"):
        casebook()


# Cases from the ledger ----------------------------------------------------------------------------


def test_what_was_measured_becomes_a_case(home: Path) -> None:
    run = replace(made_runs.run_record(), run="20261122-120000-1", started="2026-11-22T12:00:00")
    iterations = [
        made_runs.baseline_iteration(),
        made_runs.raced(1, 15.0, 20.0, keep=True),
        made_runs.raced(2, 18.0, 15.0, keep=False),
        made_runs.crashed(3),
    ]
    (case,) = cases_of(run, iterations)
    (entry,) = case.measured
    assert entry.value == pytest.approx(20 / 15, rel=0.02)
    assert (entry.gpu, entry.workload, entry.date) == ("NVIDIA H200", "small, large", "2026-11-22")
    assert entry.run_ref == "run 20261122-120000-1, iteration 1"
    assert all(str(getattr(entry, name)) for name in MEASURED)
    assert "iteration 2: 0.8" in case.section("Counter-signals"), "a roll-back is a counter-signal"
    assert case.maturity == "verified-locally" and case.id == f"case-{case.slug}"


def test_what_was_predicted_or_lacks_a_field_is_not_measured() -> None:
    kept = [made_runs.baseline_iteration(), made_runs.raced(1, 15.0, 20.0, keep=True)]
    assert list(cases_of(made_runs.run_record(measured=False), kept)) == []
    (case,) = cases_of(replace(made_runs.run_record(), run="r", started=""), kept)
    assert case.measured == () and case.maturity == "stub", "all six fields or none"


def test_questions_reach_the_ledger(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert from_ledger(home / "none.db") == ()
    (home / "home").mkdir()
    with Ledger(home / "home" / "ledger.db") as ledger:
        run = ledger.begin(made_runs.run_record())
        ledger.append(run.run, made_runs.baseline_iteration())
        ledger.append(run.run, made_runs.raced(1, 15.0, 20.0, keep=True))
    assert cli.main(["casebook", f"what helped in run {run.run} of rms_norm"]) == 0
    assert f"run {run.run}" in capsys.readouterr().out
    (home / "home" / "ledger.db").write_bytes(b"no database")
    assert cli.main(["casebook", "my softmax is slow"]) == 0, "a broken ledger loses its own cases alone"
