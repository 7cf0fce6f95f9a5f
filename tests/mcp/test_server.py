"""The MCP server in memory: the tools as a client of either era sees them, errors in one line, and what calls cost."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("mcp")

import anyio
from mcp import Client
from mcp.types import CallToolResult
from tests.made_runs import tuned
from tests.mcp.test_jobs import at_work
from tests.optimize.kit import SCALE, repository
from tests.optimize.proposing.patches import diff
from tests.processes import PATIENCE, until

from tilewright.errors import RequestError
from tilewright.ledger.tunings import TuneLedger
from tilewright.mcp import answers, mailbox
from tilewright.mcp.jobs import Jobs
from tilewright.mcp.server import made
from tilewright.optimize.proposing.asked import NoAnswer

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
ROOT = Path(__file__).parents[2]


def within(work: Callable[[Client], Awaitable[Any]], mode: str = "auto") -> Any:
    """What ``work`` returns, with a client of a new server."""

    async def connected() -> Any:
        async with Client(made(), mode=mode) as client:
            return await work(client)

    return anyio.run(connected)


def called(tool: str, **arguments: Any) -> CallToolResult:
    return within(lambda client: client.call_tool(tool, arguments))  # type: ignore[no-any-return]


def refused(tool: str, **arguments: Any) -> str:
    """The one line with which a call is refused."""
    result = called(tool, **arguments)
    assert result.is_error
    (content,) = result.content
    assert content.type == "text" and "\n" not in content.text
    return content.text


@pytest.mark.parametrize("mode", ERAS)
def test_tools_explain_themselves(mode: str) -> None:
    async def listed(client: Client) -> Any:
        assert client.protocol_version == ERAS[mode]
        assert "job_wait" in str(client.instructions)
        return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in within(listed, mode)}
    assert set(tools) == {
        "doctor", "inspect", "check", "tune", "optimize", "profile", "route", "plan", "report", "casebook",
        "propose", "job_start", "job_wait", "job_cancel",
    }  # fmt: skip
    for tool in tools.values():
        assert tool.description and "  " not in tool.description
        assert tool.output_schema and tool.output_schema["type"] == "object" and tool.output_schema["properties"]
        assert tool.annotations and tool.annotations.destructive_hint is not True
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), (tool.name, name)
    assert tools["tune"].input_schema["required"] == ["task"]


def test_answers_are_typed_and_those_of_the_functions() -> None:
    question = "Write a Triton kernel for fused SiLU-mul, then run it on Tile IR"
    result = called("route", question=question)
    assert result.structured_content == json.loads(result.content[0].text)  # type: ignore[union-attr]
    assert result.structured_content["specialists"] == ["triton", "tileir"]
    assert result.structured_content["why"] == answers.route(question).why
    matches = called("casebook", question="attention by hand is slow", top=2).structured_content["matches"]  # type: ignore[index]
    assert len(matches) == 2 and "Apply via" in matches[0]["sections"]


def test_a_plan_has_its_items_and_its_command(tmp_path: Path) -> None:
    script = ROOT / "examples" / "attention_by_hand" / "train.py"
    plan = called("plan", question=f"speed up {script}").structured_content
    assert plan and plan["mode"] == "autopilot" and plan["run"].startswith("tilewright agent ")
    assert any("attention" in item["text"] for item in plan["items"])
    asked = called("plan", question="Write a TileIR kernel for fused SiLU-mul").structured_content
    assert asked and (asked["mode"], asked["specialists"]) == ("new kernel", ["triton", "tileir"])


def test_a_report_is_the_markdown_of_the_run() -> None:
    with TuneLedger() as ledger:
        name = tuned(ledger)
    report = called("report").structured_content
    assert report and report["run"] == name and report["patch"] is None
    assert report["markdown"].startswith("# ")


def test_every_command_with_a_job_is_reached_with_its_defaults(tmp_path: Path) -> None:
    """A small kernel is inspected, checked, tuned, and optimized without a change."""
    task = str(repository(tmp_path / "user"))
    asked: dict[str, dict[str, Any]] = {
        "inspect": {}, "check": {"quick": True}, "optimize": {"iterations": 0},
        "tune": {"top": 1, "candidates": 2, "into": str(tmp_path / "tables")},
    }  # fmt: skip

    async def through(client: Client) -> dict[str, Any]:
        started = {
            tool: (await client.call_tool(tool, {"task": task, **options})).structured_content["job"]  # type: ignore[index]
            for tool, options in asked.items()
        }
        ended = {}
        for tool, job in started.items():
            while (state := (await client.call_tool("job_wait", {"job": job})).structured_content)[
                "state"
            ] == "running":  # type: ignore[index]
                pass
            ended[tool] = state
        return ended

    ended = within(through)
    assert {job["state"] for job in ended.values()} == {"done"}, ended
    assert ended["inspect"]["result"]["rows"][0]["registers"] > 0
    assert ended["check"]["result"]["verdict"].startswith("correct")
    assert ended["tune"]["result"]["note"] == ended["optimize"]["result"]["note"] == "predicted, not measured"
    assert ended["tune"]["result"]["workloads"][0]["best"]["predicted_us"] > 0
    (table,) = json.loads(Path(ended["tune"]["result"]["config_file"]).read_text())["rows"]
    assert table["config"] == ended["tune"]["result"]["workloads"][0]["best"]["config"]
    assert [each["optimization"] for each in ended["optimize"]["result"]["iterations"]] == ["baseline"]


@pytest.mark.long
def test_an_agent_proposes_and_gets_the_verdict_with_the_next_request(tmp_path: Path) -> None:
    """The answer of one call is judged before the next; what it says of the reference is tampering."""
    file = repository(tmp_path / "user")
    cheat, noted = SCALE.replace("lambda x: 2 * x", "lambda x: x"), SCALE.replace("* 2)", "* 2)  # twice")
    options = {"propose": "agent", "propose_only": True, "arch": "sm_90", "seed": 1}

    async def through(client: Client) -> list[dict[str, Any]]:
        async def said(tool: str, **arguments: Any) -> dict[str, Any]:
            reply = await client.call_tool(tool, arguments)
            assert not reply.is_error, reply.content
            return dict(reply.structured_content or {})

        async def asked(**answer: str) -> dict[str, Any]:
            reply = await said("propose", job=job, **answer)
            while reply["state"] == "running" and not reply["request"]:
                reply = await said("propose", job=job)
            return reply

        job = (await said("optimize", task=str(file), **options))["job"]
        replies = [await asked(), await asked(title="no reference", patch=diff(SCALE, cheat, "ops.py"))]
        replies += [await asked(title="a note", patch=diff(SCALE, noted, "ops.py")), await asked(done="no more")]
        return [*replies, await said("job_wait", job=job)]

    first, second, third, last, job = within(through)
    assert first["request"]["files"] == {"ops.py": SCALE} and first["next"] == "propose with a patch, or with done"
    assert second["request"]["last_failure"] == "changes reference= of the task"
    assert third["request"]["last_failure"] == "same machine code and grid as the incumbent's"
    assert (last["request"], last["next"]) == (None, "job_wait has the result") and job["state"] == "done"
    assert [(row["status"], row["optimization"]) for row in job["result"]["iterations"]] == [
        ("keep", "baseline"), ("revert", "proposed: no reference"), ("revert", "proposed: a note"),
    ]  # fmt: skip
    assert file.read_text() == SCALE and job["result"]["patch"] == ""


def test_an_agent_that_died_is_a_proposal_without_an_answer(tmp_path: Path) -> None:
    ask = mailbox.Mailbox(tmp_path)
    with pytest.raises(NoAnswer, match=r"the agent gave no answer in 0\.2 s \(propose_seconds\)"):
        ask({"version": 1}, 0.2)
    assert mailbox.asked(tmp_path) is None
    with pytest.raises(RequestError, match="no request waits for a proposal; call propose without a patch"):
        mailbox.answer(tmp_path, {"patch": "late"})


@pytest.mark.parametrize("mode", ERAS)
def test_a_call_that_is_cancelled_ends_its_job(mode: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "slow.py").write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(3600)\n")

    async def through(client: Client) -> bool:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "inspect", {"task": str(tmp_path / "slow.py")})
            with anyio.fail_after(PATIENCE):
                while not begun.exists():
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        return group.cancel_scope.cancelled_caught

    assert within(through, mode)
    assert until(lambda: at_work() == []) and Jobs().job().state == "cancelled"


def test_wrong_calls_are_one_line_with_the_choices(tmp_path: Path) -> None:
    assert "no argument 'workload'; did you mean 'workloads'? " in refused("tune", task="a.py", workload=["a"])
    assert "unknown tool 'tun'" in refused("tun") and "did you mean 'tune'?" in refused("tun")
    assert refused("tune", task="a.py", top="many").startswith("tune: top: Input should be a valid integer")
    assert refused("tune", task="a.py", workloads="odd") == "tune: workloads: give a list of texts, not one text"
    assert refused("tune") == "tune: task: is missing"
    assert refused("check", task=str(tmp_path / "no.py")).startswith(f"no such file: {tmp_path / 'no.py'}")
    assert "give traces, or a command" in refused("profile")
    assert "[5, 2] is not" in refused("profile", command=["python", "a.py"], steps=[5, 2])
    assert "unknown architecture 'sm_1'" in refused("route", question="make it fast", arch="sm_1")
    assert "no performance question" in refused("plan", question="Write a haiku")
    assert "no runs in" in refused("report") and "is a file; give" in refused("report", run="ops.py")
    assert "no job was started in" in refused("job_wait")


def test_a_mistake_of_ours_shows_no_traceback_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "route", lambda *_: 1 / 0)
    assert (
        refused("route", question="x")
        == "route failed by a mistake in Tilewright; the server's stderr has the traceback"
    )


@pytest.mark.parametrize("tool", ["route", "casebook"])
def test_a_call_costs_at_most_50_ms_over_its_function(tool: str) -> None:
    """In processor time, which does not depend on what else this machine does."""
    question, function = "my softmax kernel in Triton is slow", getattr(answers, tool)

    async def through(client: Client) -> list[float]:
        seconds = []
        for _ in range(6):
            began = time.process_time()
            assert not (await client.call_tool(tool, {"question": question})).is_error
            seconds.append(time.process_time() - began)
        return seconds

    def alone() -> float:
        began = time.process_time()
        function(question)
        return time.process_time() - began

    alone()
    assert median(within(through)[1:]) - median(alone() for _ in range(5)) < 0.05
