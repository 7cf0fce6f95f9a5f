"""A question for a new kernel is answered by its specialists in turn; other questions are about a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli.main import main
from tilewright.coordinate.kernel_questions import KernelQuestion, answers, kernel_question
from tilewright.report.report import report
from tilewright.report.two_steps import to_json_of

QUESTIONS = {
    "Write a TileIR kernel for fused SiLU-mul": [("triton", ""), ("tileir", "")],
    "Write a Triton kernel for softmax": [("triton", "")],
    "write a cuTile kernel for ops.py:rms_norm": [("cutile", "ops.py:rms_norm")],
    "Write a Triton kernel for a sparse convolution": [("triton", "")],
    "speed up train.py": None,
    "Write a Triton kernel for model.py": None,
    "my softmax kernel is slow": None,
    "write me a cute cat": None,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_who_writes_what(question: str) -> None:
    asked = kernel_question(question)
    assert (asked and [(each.specialist, each.file) for each in asked.delegations]) == QUESTIONS[question]


def test_without_a_kernel_nobody_goes_on() -> None:
    """Tile IR is not asked to go on with a file that Triton did not write."""
    asked = kernel_question("Write a TileIR kernel for a sparse convolution")
    assert isinstance(asked, KernelQuestion) and len(asked.delegations) == 2
    ((delegation, answer),) = answers(asked)
    assert delegation.specialist == "triton" and answer.summary.startswith("needs a proposer: ") and not answer.file


@pytest.mark.long
def test_the_command_line_ends_with_both_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    question = "Write a TileIR kernel for fused SiLU-mul"
    assert main(["agent", question]) == 0
    said = capsys.readouterr()
    assert "by triton, then tileir" in said.out and "planned only" in said.err
    assert main(["agent", question, "--yes", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["answers"]
    assert (first["specialist"], second["specialist"]) == ("triton", "tileir")
    assert Path(first["file"]).is_relative_to(tmp_path / "home") and "by Triton's compiler" in second["summary"]
    rows: Any = to_json_of(report(second["summary"].rpartition(" ")[2]).details)
    assert {row["backend"] for row in rows["Benchmark Comparison"]} >= {"ptx", "tileir"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"], "the user's folder stays as it is"
    assert main(["agent", "Write a Triton kernel for a sparse convolution", "--yes"]) == 1
    assert "needs a proposer: " in capsys.readouterr().out
