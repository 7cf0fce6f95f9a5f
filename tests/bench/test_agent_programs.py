"""bench/agent_programs.py: problems are at lines that exist, and claims are matched as the bench's text says."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.bench.kit import BENCH, bench_module

from tilewright.ledger.agent_records import (
    STEPS,
    AgentChange,
    AgentEnd,
    AgentFinding,
    AgentItem,
    AgentMeasurement,
    AgentParts,
    AgentStep,
)
from tilewright.race.stats import Interval

ROOT = Path("/home/user/program")
BEFORE = """import torch


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1) @ v


def step(model, x):
    x = x.to("cuda")
    return model(x)
"""
WITH_SDPA = BEFORE.replace(
    "    scores = q @ k.transpose(-2, -1)\n    return scores.softmax(-1) @ v\n",
    "    return torch.nn.functional.scaled_dot_product_attention(q, k, v)\n",
).replace("import torch\n", "import torch\nfrom torch import nn\n")
PINNED = WITH_SDPA.replace('x.to("cuda")', 'x.pin_memory().to("cuda", non_blocking=True)')


@pytest.fixture(scope="module")
def matching() -> ModuleType:
    return bench_module("agent_matching")


def change(id: str, text: str, site: str, name: str) -> AgentChange:
    return AgentChange(id=id, item=id.partition(".")[0], specialist="profiling", name=name, rationale="It is faster.",
                       site=site, texts={f"{ROOT}/train.py": text})  # fmt: skip


def parts(
    *changes: AgentChange, kept: tuple[str, ...], ratio: float = 0.8, ends: tuple[AgentEnd, ...] = ()
) -> AgentParts:
    items = dict.fromkeys([*(each.item for each in changes), *(end.item for end in ends)])
    return AgentParts(
        measurements=tuple(
            AgentMeasurement(kind="race", about="", change=each.id, ratio=Interval(ratio, ratio, ratio + 0.1, 0.95, 9))
            for each in changes
        ),
        items=tuple(
            AgentItem(id=id, text="work", impact="High", effort="Low", risk="lossless", specialists=("profiling",))
            for id in items
        ),
        findings=(AgentFinding(id="F", kind="host-sync", level="High", text=".item() in train.py:10", item="B"),),
        changes=changes,
        steps=tuple(
            AgentStep(change=each.id, name=name, state="done" if each.id in kept else "failed", evidence="m0")
            for each in changes for name in STEPS
        ),
        ends=ends,
    )  # fmt: skip


def problem(matching: ModuleType, first: int, last: int, *patterns: str) -> object:
    return matching.Problem("p", "", (matching.Lines("train.py", first, last),), patterns, True, False)


def test_a_change_is_at_its_lines_of_the_untouched_program(matching: ModuleType) -> None:
    """Also if a kept change before it has moved them; imports do not count."""
    made = parts(
        change("A.1", WITH_SDPA, f"{ROOT}/train.py:5", "scaled_dot_product_attention"),
        change("B.1", PINNED, f"{ROOT}/train.py:10", "pinned_copies"),
        kept=("A.1", "B.1"),
    )
    first, second = matching.claims_of(made, {"train.py": BEFORE}, ROOT)
    assert set(first.places) == {matching.Lines("train.py", 5, 6), matching.Lines("train.py", 5, 5)}
    assert set(second.places) == {matching.Lines("train.py", 10, 10)}
    attention, copies = problem(matching, 4, 6, "attention"), problem(matching, 9, 11, "pinned")
    assert first.fits(attention)
    assert not first.fits(copies)
    assert second.fits(copies)
    assert matching.verdict_on(second, [attention]) == "real gain"
    assert not first.fits(problem(matching, 4, 6, "data loader")), "at the lines, but of another kind"


def test_what_stands_at_no_problem_without_a_gain_is_false(matching: ModuleType) -> None:
    made = parts(change("A.1", WITH_SDPA, "", "elsewhere"), kept=("A.1",), ratio=0.95)
    (claim,) = matching.claims_of(made, {"train.py": BEFORE}, ROOT)
    assert claim.standing == "kept"
    assert matching.verdict_on(claim, []) == "false"
    (back,) = matching.claims_of(replace(made, steps=()), {"train.py": BEFORE}, ROOT)
    assert matching.verdict_on(back, []) == "taken back"


def test_an_item_without_a_change_is_at_the_lines_that_it_names(matching: ModuleType) -> None:
    blocked = AgentEnd(item="B", status="remaining", why="blocked", reason="it needs a proposer")
    (claim,) = matching.claims_of(parts(kept=(), ends=(blocked,)), {"train.py": BEFORE}, ROOT)
    assert claim.fits(problem(matching, 10, 10, r"\.item\("))
    assert matching.verdict_on(claim, []) == "false"
    there = replace(blocked, why="mechanism already present")
    (claim,) = matching.claims_of(parts(kept=(), ends=(there,)), {"train.py": BEFORE}, ROOT)
    assert matching.verdict_on(claim, []) == "taken back"
    nowhere = parts(kept=(), ends=(replace(blocked, item="C"),))
    assert matching.verdict_on(matching.claims_of(nowhere, {}, ROOT)[0], []) == "to look at"


def test_the_problems_are_at_lines_that_exist() -> None:
    bench = bench_module("agent_programs")
    known = bench.known_programs()
    assert [len(problems) for _, _, problems in known.values()] == [6, *7 * [4]]
    for folder, main, problems in known.values():
        assert (folder / main).is_file()
        for place in (place for each in problems for place in each.places):
            lines = (folder / place.file).read_text().splitlines()
            assert 1 <= place.first <= place.last <= len(lines)
            assert lines[place.first - 1].strip()


def test_printed_results_are_compared() -> None:
    different = bench_module("agent_programs").difference
    assert different("step 1 loss 2.0001\n", "step 1 loss 2.0009\n") is None
    assert different("loss 2.00\ndone in 3.1 s\n", "loss 2.00\ndone in 1.9 s\n") is None
    assert different("loss 2.00\n", "loss 2.10\n")
    assert different("item 17 (0.5)\n", "item 18 (0.5)\n")
    assert different("loss 2.0\n", "loss nan\n")
    assert different("loss 2.0\n", "exit code 1: no module\n")


@pytest.mark.parametrize("script", ["agent_matching", "agent_programs", "agent_latency", "agent_kills_at_writes"])
def test_the_text_of_the_bench_is_there(script: str) -> None:
    assert ast.get_docstring(ast.parse((BENCH / f"{script}.py").read_text()))
