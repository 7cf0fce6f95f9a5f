"""The built-in proposer with scripted models of pydantic-ai: no key, no network. A real model only where a key is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.kit import SCALE, repository
from tests.optimize.proposing.patches import diff
from tests.optimize.proposing.test_asked import FASTER, ran

from tilewright.errors import RequestError
from tilewright.optimize.proposing.command import ProposerCommand
from tilewright.optimize.proposing.protocol import read_answer

pytest.importorskip("pydantic_ai", reason="the extra agents is not installed")

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tilewright.optimize.proposing import model as built_in

REAL = os.environ.get("TILEWRIGHT_TEST_MODEL", "")
"""A model of pydantic-ai whose key is in the environment, for the test with a real one."""


def scripted(*answers: dict[str, Any] | str) -> tuple[FunctionModel, list[str]]:
    """A model that gives these answers, and what it was told."""
    left, told = [*answers], list[str]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told.append("\n".join(str(part.content) for part in messages[-1].parts if hasattr(part, "content")))
        said = left.pop(0)
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        (tool,) = info.output_tools
        return ModelResponse(parts=[ToolCallPart(tool.name, said)])

    return FunctionModel(answer), told


def test_a_models_patch_goes_through_the_loop_and_its_failure_comes_back(tmp_path: Path) -> None:
    file = repository(tmp_path / "user")
    wrong = {"title": "reference", "patch": diff(SCALE, SCALE.replace("lambda x: 2 * x", "lambda x: x"), "ops.py")}
    right = {"title": "factor first", "expected": "fewer moves", "patch": diff(SCALE, FASTER, "ops.py")}
    model, told = scripted(wrong, right, {"done": "at the bound"})

    def ask(request: Any, seconds: float) -> str:
        return json.dumps(built_in.proposed_by(model, json.loads(json.dumps(request))))

    rows, reason = ran(file, ask, 0.9)
    assert [(row.site, row.status, bool(row.tampering)) for row in rows] == [
        ("reference", "revert", True), ("factor first", "keep", False),
    ]  # fmt: skip
    assert reason == "the proposer has nothing left: at the bound"
    assert SCALE in told[0] and "speed_of_light_us" in told[0]
    assert "changes reference= of the task" in told[1] and FASTER in told[2]


def test_a_model_that_answers_prose_is_asked_once_more_and_then_refused() -> None:
    request = {"files": {"ops.py": SCALE}, "history": []}
    model, told = scripted("I would use shared memory.", {"title": "t", "files": {"ops.py": FASTER}})
    assert read_answer(json.dumps(built_in.proposed_by(model, request))).files == {"ops.py": FASTER}
    assert len(told) == 2
    with pytest.raises(UnexpectedModelBehavior):
        built_in.proposed_by(scripted(*["prose"] * 9)[0], request)


def test_the_command_of_the_model_speaks_the_protocol(tmp_path: Path) -> None:
    """`test` is the model of pydantic-ai that fills every field at random: an answer that the gate refuses."""
    rows, _ = ran(repository(tmp_path / "user"), ProposerCommand("model:test"), failures=1)
    assert rows[0].status == "crash" and rows[0].unusable and "\n" not in rows[0].reason


@pytest.mark.parametrize(
    ("name", "said"),
    [("no-such-provider:x", "Unknown model: no-such-provider:x"), ("nothing", "Unknown model: nothing")],
)
def test_a_model_that_cannot_be_used_is_one_line_before_anything_runs(name: str, said: str) -> None:
    with pytest.raises(RequestError, match="--propose model:") as error:
        ProposerCommand(f"model:{name}")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_without_the_extra_the_line_names_it(tmp_path: Path) -> None:
    (tmp_path / "pydantic_ai.py").write_text("raise ImportError('not here')\n")
    words = [sys.executable, "-m", "tilewright.optimize.proposing.model", "test", "--check"]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 3 and "fix: pip install 'tilewright[agents]'" in done.stderr


@pytest.mark.skipif(not REAL, reason="TILEWRIGHT_TEST_MODEL names no model")
def test_a_real_model_answers_in_the_form(tmp_path: Path) -> None:
    rows, reason = ran(repository(tmp_path / "user"), ProposerCommand(f"model:{REAL}"), *[1.05] * 3, attempts=1)
    assert rows or "nothing left" in reason
    assert all(not row.reason.startswith("the proposer") for row in rows)
