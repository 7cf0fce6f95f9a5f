"""The plugin for coding agents: its manifests agree, its skills are valid, and they speak of tools that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tilewright import __version__
from tilewright.mcp import answers

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "plugins" / "tilewright"
SKILLS = sorted((PLUGIN / "skills").iterdir())
SPAN = re.compile(r"`([a-z_]+)`")
NOT_TOOLS = {
    "quick", "reproduce", "unverified", "local_stores", "registers", "tensor_path", "bound", "changes", "running",
    "edit", "command", "traces", "missing", "run", "mcp", "skills", "tilewright",
}  # fmt: skip
"""Names of arguments, fields and states in the texts."""


def read(file: str) -> dict[str, Any]:
    return json.loads((PLUGIN / file).read_text())  # type: ignore[no-any-return]


def test_the_manifests_of_the_three_hosts_agree() -> None:
    files = (".claude-plugin/plugin.json", ".codex-plugin/plugin.json", "gemini-extension.json")
    manifests = [read(file) for file in files]
    for manifest in manifests:
        assert (manifest["name"], manifest["version"]) == ("tilewright", __version__)
        assert manifest["description"] == manifests[0]["description"]
    server = {"tilewright": {"command": "tilewright", "args": ["mcp"]}}
    assert read(".mcp.json")["mcpServers"] == read("gemini-extension.json")["mcpServers"] == server
    claude = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())["plugins"][0]
    codex = json.loads((ROOT / ".agents" / "plugins" / "marketplace.json").read_text())["plugins"][0]
    assert ROOT / claude["source"] == ROOT / codex["source"]["path"] == PLUGIN


@pytest.mark.parametrize("skill", SKILLS, ids=lambda path: path.name)
def test_a_skill_is_valid_and_speaks_of_tools_that_exist(skill: Path) -> None:
    validator = pytest.importorskip("skills_ref")
    assert validator.validate(skill) == []
    pytest.importorskip("mcp")
    from tilewright.mcp.server import described

    tools = {tool["name"] for tool in described()}
    said = set(SPAN.findall((skill / "SKILL.md").read_text()))
    assert said & tools and said - tools <= NOT_TOOLS


@pytest.mark.parametrize("skill", SKILLS, ids=lambda path: path.name)
def test_one_prompt_is_for_a_skill_and_four_are_for_none(skill: Path) -> None:
    """The router decides, without a model: what is no performance question gets no specialist."""
    found = json.loads((skill / "evals" / "evals.json").read_text())
    wanted = {each["question"]: each["expected_skill"] for each in found["evals"]}
    assert found["skill_name"] == skill.name and sorted(wanted.values(), key=str) == [None] * 4 + [skill.name]
    assert {question: bool(answers.route(question).specialists) for question in wanted} == {
        question: skill is not None for question, skill in wanted.items()
    }
