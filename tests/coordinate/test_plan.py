"""A plan has seven named steps (C-12) and delegations that are never crossed (C-03); the coordinator edits nothing."""

from __future__ import annotations

import ast
import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.test_house import SRC, modules, own_imports, tree

from tilewright.coordinate.agent_plan import AgentRequest, command_line
from tilewright.coordinate.plan import STEPS, ChangePlan, StepState, check_pair, done, failed, lines_of, plan_of
from tilewright.coordinate.priority import WorkItem
from tilewright.coordinate.routing import CATEGORIES
from tilewright.errors import RequestError, UnknownChoice
from tilewright.ledger.codec import from_json, to_json
from tilewright.specialists import specialists

ITEM = WorkItem("R1", "Write a TileIR kernel for SiLU-mul", "High", specialists=("triton", "tileir"))


def made(**options: object) -> ChangePlan:
    return plan_of(ITEM, "one step of train.py", **options)  # type: ignore[arg-type]


def test_the_steps_are_named_and_in_order() -> None:
    assert STEPS == ("baseline", "backup", "prerequisites", "implement", "validate", "correctness", "finish")
    plan = made()
    for number, name in enumerate(STEPS):
        assert plan.next_step is not None and plan.next_step.name == name
        plan = done(plan, name, f"measurement {number}")
    assert plan.next_step is None
    assert [step.evidence for step in plan.steps] == [f"measurement {number}" for number in range(7)]
    assert not plan.reverts


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.booleans()), max_size=12))
def test_no_order_of_events_leaves_a_gap(events: list[tuple[str, bool]]) -> None:
    plan = made()
    for name, is_done in events:
        due = plan.next_step
        try:
            plan = done(plan, name, "m1") if is_done else failed(plan, name, "it does not fit")  # type: ignore[arg-type]
        except RequestError as error:
            assert due is None or due.name != name, error
        else:
            assert due is not None and due.name == name
        states = [step.state for step in plan.steps]
        order = ["done", "failed", "left out", "pending"]
        assert states[:-1] == sorted(states[:-1], key=order.index)
        assert {step.state for step in plan.steps} <= set(get_args(StepState))
        assert all(step.evidence for step in plan.steps if step.state == "done")
        assert states.count("failed") <= 1 or states[-1] == "failed"
        assert from_json(ChangePlan, to_json(plan)) == plan, "a plan is resumed from what the ledger stores"


def test_a_failure_leaves_out_the_rest_and_reverts_if_files_may_have_changed() -> None:
    for place, name in enumerate(STEPS[:-1]):
        plan = made()
        for before in STEPS[:place]:
            plan = done(plan, before, "m1")
        plan = failed(plan, name, "slower by 8 %\nthan before")
        assert plan.failed is not None and plan.failed.reason == "slower by 8 % than before"
        assert plan.next_step is not None and plan.next_step.name == "finish"
        assert plan.reverts == (place > 1)
        assert all(step.reason == f"{name} failed" for step in plan.steps[place + 1 : -1])


def test_steps_without_evidence_or_reason_are_refused() -> None:
    with pytest.raises(RequestError, match="step 'baseline' has no evidence"):
        done(made(), "baseline", " ")
    with pytest.raises(RequestError, match="failed without a reason"):
        failed(made(), "baseline", "")
    with pytest.raises(RequestError, match="step 'finish' is out of order; the next is 'baseline'"):
        done(made(), "finish", "m1")
    with pytest.raises(UnknownChoice, match="unknown step 'deploy'; known: baseline"):
        done(made(), "deploy", "m1")  # type: ignore[arg-type]


def test_each_specialist_gets_a_delegation_with_the_same_context_and_findings() -> None:
    plan = made(file="train.py", context="this machine", findings=("F3", "F7"), constraints=("outputs equal",))
    assert [each.specialist for each in plan.delegations] == ["triton", "tileir"]
    assert {each.context for each in plan.delegations} == {"this machine"}
    for each in plan.delegations:
        assert "Findings: F3, F7" in str(each)
        assert each.metrics
    with pytest.raises(RequestError, match="names no metric"):
        made(metrics=())
    with pytest.raises(RequestError, match="'plan my week' is for no specialist"):
        plan_of(WorkItem("R1", "plan my week", "High"), "a week")


def test_specialists_are_never_crossed() -> None:
    for category, specialist in itertools.product(CATEGORIES, (each.name for each in specialists())):
        if specialist in CATEGORIES[category]:
            check_pair(category, specialist)
        else:
            with pytest.raises(RequestError, match=f"{category} does not go to {specialist}; send it to "):
                check_pair(category, specialist)
    check_pair("cute_dsl", "kernel-cute-specialist")
    with pytest.raises(RequestError, match="does not go to triton"):
        plan_of(ITEM, "one step", category="cute_dsl")
    with pytest.raises(UnknownChoice, match=r"unknown category 'kernels'; did you mean 'kernel'\? known: cuda_graph"):
        check_pair("kernels", "triton")


def test_a_plan_is_shown_step_by_step() -> None:
    lines = lines_of(failed(done(made(), "baseline", "m1"), "backup", "the disk is full"))
    assert lines[0] == "R1: Write a TileIR kernel for SiLU-mul [High] by triton, then tileir"
    assert lines[1].endswith("(done)") and lines[2].endswith("(failed: the disk is full)")
    assert lines[7].startswith("  7. finish: ") and not lines[7].endswith(")")


# The coordinator edits nothing -----------------------------------------------------------------------

ROOM = [
    module for module in modules()
    if module.split(".")[0] == "coordinate" and module.split(".")[1:2] != ["casebook"]
]  # fmt: skip
"""The casebook writes its own cases from what was measured; nothing else of the coordinator writes."""
EDITING = ("optimize", "playbook", "runtime", "tune", "race", "worker", "candidate", "executors", "libcst", "cli")
"""The rooms that change files or run kernels."""
WRITING = {"write_text", "write_bytes", "unlink", "rename", "replace_file", "mkdir", "rmdir", "symlink_to", "touch",
           "chmod", "system", "Popen", "run", "copy", "copyfile", "move", "rmtree"}  # fmt: skip


def test_it_imports_nothing_that_edits() -> None:
    waiting, seen = list(ROOM), set(ROOM)
    while waiting:
        for other in own_imports(waiting.pop()) - seen:
            seen.add(other)
            waiting.append(other)
    pure = ("specialists.", "race.interval", "tools.git")  # asks git where the program's folder is
    reached = {module.split(".")[0] for module in seen if not module.startswith(pure)}
    assert not reached & set(EDITING)


def test_it_calls_nothing_that_writes() -> None:
    for module in ROOM:
        for call in (node for node in ast.walk(tree(module)) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            assert name not in WRITING, f"{module}:{call.lineno}"
            if name == "open":
                assert [ast.literal_eval(argument) for argument in call.args] == ["rb"], f"{module}:{call.lineno}"


def test_planning_writes_no_file_and_starts_no_process(tmp_path: Path) -> None:
    """A spied file system: the interpreter reports every file that is opened, moved or removed, and every process."""
    (tmp_path / "train.py").write_text("import triton\n\n@triton.jit\ndef k(x): ...\n")
    code = """
import os, sys
from pathlib import Path
from tilewright.coordinate.analysis import read_analysis
from tilewright.coordinate.facts import kernels_in, kernels_named_in
from tilewright.coordinate.plan import done, failed, lines_of, plan_of
from tilewright.coordinate.priority import item_of, ranked
from tilewright.coordinate.routing import route

events = []

def spy(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        events.append((event, str(arguments[0])))
    elif event.split(".")[0] in ("subprocess", "shutil", "socket") or event in (
        "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate",
        "os.system", "os.exec", "os.fork", "os.posix_spawn",
    ):
        events.append((event, str(arguments)))

sys.addaudithook(spy)
head = "Primary bottleneck: x\\nEvidence: y\\nRecommendations:"
text = head + "\\n1. [High] Write a TileIR kernel\\n2. [Low] kernel fusion"
for item in ranked(map(item_of, read_analysis(text).recommendations)):
    plan = plan_of(item, "one step of train.py", file="train.py")
    lines_of(failed(done(plan, "baseline", "m1"), "backup", "no"))
found = route("optimize the kernel in train.py", kernels_named_in("train.py"))
print(found.specialists, kernels_in(Path("train.py")).file)
print(events)
"""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}
    done_ = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done_.stdout.splitlines() == ["('triton',) train.py", "[]"], done_.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_the_shell_reads_back_the_command_that_repeats_a_run() -> None:
    request = AgentRequest("why isn't train.py fast", "python train.py --n 3", Path("my analysis.txt"), lossy=True)
    options = ["--command", request.command, "--report", "my analysis.txt", "--allow-lossy", "--yes"]
    assert shlex.split(command_line(request)) == ["tilewright", "agent", request.question, *options]
