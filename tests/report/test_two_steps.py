"""The report of a Triton kernel's way to Tile IR: its headings, and where each of its numbers is in the ledger."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.made_runs import baseline_iteration, crashed, raced, run_record, tune_run, tuned, tuned_workload
from tests.report.numbers import assert_explained
from tests.report.test_page import Page

from tilewright.cli.main import main
from tilewright.hardware.architectures import default_board
from tilewright.inspect.kernel_class import CLASSES, class_of, classification
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.tunings import TuneLedger
from tilewright.records import Configuration, TuningResult
from tilewright.report.report import Evidence, report
from tilewright.report.sourced import LEDGER, NOT_MEASURED, stored_at
from tilewright.report.tune_evidence import collect_tune
from tilewright.report.two_steps import to_json_of, two_steps
from tilewright.task.loading import load_task

ROOT = Path(__file__).parents[2]
HEADINGS = [
    "Classification", "Compatibility Check", "Transformations Applied", "Validation", "Benchmark Comparison",
    "Output File",
]  # fmt: skip
SOFTMAX = ROOT / "examples" / "triton" / "softmax.py"


def stored(evidence: Evidence, ledger_id: str) -> Any:
    """What the exported records have at a ledger id, read without the report's own code."""
    evidence.export_jsonl(stream := io.StringIO())
    run, *parts = map(json.loads, stream.getvalue().splitlines())
    kind, *path = ledger_id.split("/")
    value: Any = run
    if kind == "iteration":
        n = int(path.pop(0))
        value = next(each for each in parts if each["n"] == n)
    elif kind == "workload":
        value = parts[int(path.pop(0))]
    for name in path:
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def cells(evidence: Evidence) -> Iterator[tuple[str, Any, list[str]]]:
    """Heading, value and ledger ids of each cell."""
    for heading, rows in to_json_of(evidence.details).items():
        for row in rows:  # type: ignore[union-attr]
            assert isinstance(row, dict)
            ids: Any = row[LEDGER]
            for name, value in row.items():
                if name != LEDGER:
                    yield heading, value, ids.get(name, [])


def assert_numbers_are_in_the_ledger(evidence: Evidence) -> int:
    """Returns how many numbers there are."""
    found = 0
    for heading, value, ids in cells(evidence):
        values = [stored(evidence, each) for each in ids]
        assert [stored_at(evidence.details.records, each) for each in ids] == values
        if isinstance(value, (int, float)):
            found += 1
            first = values[0]
            if len(values) == 2:
                assert value == pytest.approx(values[0] / values[1]), heading
            else:
                assert value in (first, len(first) if isinstance(first, list) else first / 1e3), heading
        elif re.search(r"\d", value):
            assert ids, f"{heading}: {value}"
    return found


def headings(markdown: str) -> list[str]:
    return re.findall(r"^## (.*)$", markdown, re.MULTILINE)


# Real runs on a CPU -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("TILEWRIGHT_HOME", str(home))
        yield home


@pytest.fixture(scope="module")
def tuned_here(home: Path) -> Evidence:
    assert main(["tune", str(SOFTMAX), "--workload", "odd", "--arch", "sm_90"]) == 0
    return report()


@pytest.fixture(scope="module")
def optimized_here(home: Path) -> Evidence:
    """The second step of a kernel that is on Tile IR already."""
    file = home / "on_tile_ir.py"
    text = SOFTMAX.read_text()
    file.write_text(text.replace('"route": "ptx"', '"route": "tileir"').replace('"large": {"M": 16384, "N": 4096}', ""))
    arguments = ["--arch", "sm_90", "--only", "tile_ir_hints", "--only", "occupancy"]
    assert main(["optimize", str(file), *arguments]) == 0
    return report()


@pytest.mark.long
@pytest.mark.parametrize("command", ["tuned_here", "optimized_here"])
def test_a_run_on_a_cpu_has_the_sections_and_every_number_is_in_the_ledger(
    command: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence: Evidence = request.getfixturevalue(command)
    assert headings(evidence.markdown())[: len(HEADINGS)] == HEADINGS
    page = evidence.html()
    assert [page.index(f"<h2>{heading}</h2>") for heading in HEADINGS] == sorted(
        page.index(f"<h2>{heading}</h2>") for heading in HEADINGS
    )
    assert assert_numbers_are_in_the_ledger(evidence) >= 10
    assert_explained(evidence, 20)
    capsys.readouterr()
    assert main(["report", evidence.run, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["two_steps"]) == HEADINGS


@pytest.mark.parametrize("command", ["tuned_here", "optimized_here"])
def test_what_needs_a_gpu_is_not_measured(command: str, request: pytest.FixtureRequest) -> None:
    rows: Any = to_json_of(request.getfixturevalue(command).details)
    assert {row["value"] for row in rows["Compatibility Check"] if row[""] == "GPU"} == {NOT_MEASURED}
    benchmark = rows["Benchmark Comparison"]
    assert {row["ms"] for row in benchmark} == {row["speedup"] for row in benchmark} == {NOT_MEASURED}
    assert any(isinstance(row["predicted ms"], float) for row in benchmark)


def test_tune_shows_both_backends(tuned_here: Evidence) -> None:
    rows: Any = to_json_of(tuned_here.details)["Benchmark Comparison"]
    assert [(row["version"], row["backend"]) for row in rows] == [
        ("source form", "ptx"), ("Tile IR, without hints", "tileir"), ("hints tuned", "tileir"),
    ]  # fmt: skip
    assert rows[0]["predicted speedup"] == 1.0
    assert rows[2]["predicted ms"] <= rows[1]["predicted ms"]


def test_tune_shows_the_configurations(tuned_here: Evidence) -> None:
    rows: Any = to_json_of(tuned_here.details)
    assert rows["Transformations Applied"][1]["configuration"].startswith("ROOM=1,route=tileir,num_warps=auto,occ")
    best = tuned_here.details.result.workloads[0].best  # type: ignore[union-attr]
    assert best is not None and rows["Output File"][-1]["value"] == str(best.configuration)


def test_a_backend_on_which_nothing_works_is_said() -> None:
    """As with a ptxas that cannot be executed."""
    result = tuned_workload("small")
    best = replace(result.candidates[0], configuration=Configuration.of({"route": "tileir", "occupancy": None}))
    only = replace(result, candidates=(best,), best=best, shipped=best.configuration)
    run = replace(tune_run(), language="triton")
    rows: Any = to_json_of(collect_tune(run, TuningResult(run.task, run.machine, True, (only,), "run", {})))
    assert rows["Transformations Applied"][0]["configuration"] == "none works"
    assert [row["status"] for row in rows["Benchmark Comparison"]] == ["none works", "raced", "raced"]


def test_the_second_step_tries_the_configurations_of_the_class(optimized_here: Evidence) -> None:
    rows: Any = to_json_of(optimized_here.details)
    kind = {row[""]: row["value"] for row in rows["Classification"]}
    assert kind["class"] == "norm" and (kind["at least"], kind["at most"]) == (6, 10)
    (hints,) = [row for row in rows["Transformations Applied"] if row["step"] == "hints tuned"
                and str(row["change"]).startswith("Tile IR hints")]  # fmt: skip
    assert kind["at least"] <= hints["values tried"] == kind["configurations of its class"] <= kind["at most"]


# Runs on a GPU, made -------------------------------------------------------------------------------


def made(path: Path, arch: str, gpu: str | None) -> Evidence:
    run = run_record(measured=gpu is not None)
    run = replace(
        run, language="triton", machine=replace(run.machine, arch=arch, gpu=gpu),
        classification={"class": "dot", "configurations": 12, "shipped": "BLOCK_M=128,route=ptx"},
    )  # fmt: skip
    with Ledger(path) as ledger:
        name = ledger.begin(run).run
        ledger.append(name, baseline_iteration())
        value = "a, b, tile_ir_route=route=tileir"
        ledger.append(name, replace(raced(1, 15.0, 20.0, keep=True), entry="descriptors", value=value))
        ledger.append(name, crashed(2))
        ledger.append(name, replace(raced(3, 12.0, 15.0, keep=True), entry="tile_ir_hints", value="occupancy=2"))
        ledger.finish(name, "every entry was tried", (), "")
    return report(name, ledger=path)


@pytest.mark.parametrize(("arch", "gpu"), [("sm_80", "A100"), ("sm_90", "H200"), ("sm_100", "B200")])
def test_hopper_is_filled_as_blackwell_is(tmp_path: Path, arch: str, gpu: str) -> None:
    evidence = made(tmp_path / "ledger.db", arch, gpu)
    rows: Any = to_json_of(evidence.details)["Benchmark Comparison"]
    assert [(row["version"], row["backend"]) for row in rows[::2]] == [
        ("source form", "ptx"), ("source form → Tile IR form", "tileir"), ("hints tuned", "tileir"),
    ]  # fmt: skip
    baseline, form, hints = (row["ms"] for row in rows[::2])
    assert baseline == pytest.approx(0.020, rel=0.02) and hints < form < baseline
    assert rows[-1]["speedup"] == pytest.approx(baseline / hints, rel=0.02)
    assert assert_numbers_are_in_the_ledger(evidence) > 20
    assert NOT_MEASURED not in evidence.markdown()


def test_other_languages_have_no_such_sections(tmp_path: Path) -> None:
    with TuneLedger(tmp_path / "ledger.db") as ledger:
        name = tuned(ledger)
    evidence = report(name, ledger=tmp_path / "ledger.db")
    assert two_steps(evidence.details) == () and not {*HEADINGS} & {*headings(evidence.markdown())}
    assert "Transformations Applied" not in Page(evidence.html()).text


# Classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "fewest", "most"), [("dot", 8, 12), ("norm", 6, 10), ("elementwise", 10, 15),
                                                      ("reduction", 6, 10)])  # fmt: skip
def test_a_class_has_as_many_configurations_as_it_says(name: str, fewest: int, most: int) -> None:
    found = CLASSES[name]
    assert (found.fewest, found.most) == (fewest, most)
    assert fewest <= len({tuple(each.items()) for each in found.configurations}) == len(found.configurations) <= most


KERNEL = """
import triton
import triton.language as tl
import tilewright as tw

@triton.jit
def kernel(x, out, N: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, N)
    values = tl.load(x + row * N + at)
    BODY

task = tw.Task(
    name="kernel",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "out": tw.Output((SHAPE,), "float32")},
    reference=lambda x: x, launch=lambda x, out, M, N: tw.Launch(kernel, (M,), (x, out, N)), flops=lambda N: N,
    space=tw.Space(constants={}, shipped={}), workloads={"small": {"M": 8, "N": 64}},
)
"""


@pytest.mark.parametrize(
    ("body", "shape", "name"),
    [
        ("tl.store(out + row * N + at, values * 2)", '"M", "N"', "elementwise"),
        ("tl.store(out + row * N + at, values / tl.sum(values, 0))", '"M", "N"', "norm"),
        ("tl.store(out + row, tl.sum(values, 0))", '"M"', "reduction"),
        ("tl.store(out + row * N + at, tl.gather(values, at, 0))", '"M", "N"', None),
    ],
)
def test_the_class_is_read_from_the_kernel(body: str, shape: str, name: str | None, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "task.py").write_text(KERNEL.replace("BODY", body).replace("SHAPE", shape))
    task, board = load_task(str(tmp_path / "task.py")), default_board("sm_90")
    found = class_of(task, task.workload("small"), board)
    assert (found and found.name) == name
    assert classification("triton", task, task.workload("small"), board)["class"] == name
    assert classification("cutile", task, task.workload("small"), board) == {}


def test_a_product_is_a_dot() -> None:
    pytest.importorskip("triton")
    task = load_task(str(ROOT / "examples" / "triton" / "matmul.py"))
    found = class_of(task, task.workload("odd"), default_board("sm_100"))
    assert found is CLASSES["dot"]
