"""The server as a process: standard input and output, HTTP, and clients that die, are old, or are of another user."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

import anyio
from mcp import Client, StdioServerParameters
from tests.mcp.test_jobs import at_work
from tests.processes import until

from tilewright.cli import main as cli
from tilewright.mcp import peers
from tilewright.mcp.jobs import Jobs
from tilewright.mcp.server import of_this_user

ROOT = Path(__file__).parents[2]
NORM = str(ROOT / "examples" / "rms_norm.py")
COMMAND = [sys.executable, "-m", "tilewright", "mcp"]


@contextmanager
def served(*options: str) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own, which is killed at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *options], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(process: subprocess.Popen[str], method: str, **params: Any) -> dict[str, Any]:
    """What a server answers on its standard output to one request."""
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
    process.stdin.flush()
    while (answer := json.loads(process.stdout.readline())).get("id") != 1:
        pass  # progress
    return answer  # type: ignore[no-any-return]


def initialized(process: subprocess.Popen[str], version: str) -> dict[str, Any]:
    client = {"name": "a host of another version", "version": "0"}
    return asked(process, "initialize", protocolVersion=version, capabilities={}, clientInfo=client)


def test_stdio_serves_both_eras() -> None:
    parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ))

    async def routed(mode: str) -> Any:
        async with Client(parameters, mode=mode) as client:
            result = await client.call_tool("route", {"question": "Write a Triton kernel"})
            return client.protocol_version, result.structured_content

    for mode, version in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
        spoken, route = anyio.run(routed, mode)
        assert spoken == version and route["specialists"] == ["triton"]


def test_hosts_of_other_versions_are_answered_and_the_start_is_quick() -> None:
    began = time.process_time() + sum(os.times()[2:4])
    with served() as process:
        assert initialized(process, "2024-11-05")["result"]["protocolVersion"] == "2024-11-05"
        assert initialized(process, "2099-01-01")["result"]["protocolVersion"] == "2025-11-25"
        assert asked(process, "tools/call", name="route", arguments={"question": "x"})["result"]["isError"] is False
        process.terminate()  # while the host's end of stdin is open
        assert until(lambda: process.poll() is not None) and process.returncode == 143
    assert time.process_time() + sum(os.times()[2:4]) - began < 3


def test_a_client_that_dies_ends_what_it_waited_for_and_no_job(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(3600)\n")
    with served() as process:
        initialized(process, "2025-11-25")
        task = {"task": str(slow), "arch": "sm_90", "workloads": ["odd"]}
        job = asked(process, "tools/call", name="tune", arguments=task)["result"]["structuredContent"]["job"]
        assert process.stdin
        call = {"name": "inspect", "arguments": {"task": str(slow), "arch": ["sm_90"]}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}) + "\n")
        process.stdin.flush()
        jobs = Jobs()
        assert until(lambda: len(jobs.names()) == 2)
        process.stdin.close()  # what a killed client leaves
        assert until(lambda: process.poll() is not None) and process.returncode == 0
    inspecting = next(name for name in jobs.names() if name != job)
    assert jobs.job(inspecting).state == "cancelled"
    assert jobs.job(job).state == "running"
    assert jobs.cancel(job).state == "cancelled"
    assert until(lambda: at_work() == [])


def test_http_serves_both_eras() -> None:
    with served("--http", "0") as process:
        assert process.stderr
        address = process.stderr.readline().split()[2].rstrip(";")

        async def calls(mode: str) -> Any:
            shown: list[str] = []

            async def progress(seconds: float, total: float | None, text: str | None) -> None:
                shown.append(str(text))

            async with Client(address, mode=mode) as client:
                started = (await client.call_tool("profile", {"command": ["python", NORM]})).structured_content
                job = started["job"] if started else ""
                ended = await client.call_tool("job_wait", {"job": job}, progress_callback=progress)
                return client.protocol_version, ended.structured_content, shown

        for mode, version in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
            spoken, ended, shown = anyio.run(calls, mode)
            assert spoken == version and shown[0] == "starting"
            assert ended["state"] == "failed" and "needs a GPU" in ended["error"]
        process.send_signal(signal.SIGINT)
        assert until(lambda: process.poll() is not None)


def test_the_owner_of_a_connection_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as mine:
        ends = mine.getsockname(), listening.getsockname()
        assert peers.is_own(*ends)
        table = peers.SOCKETS.read_text().splitlines()
        fields = next(line.split() for line in table if line.split()[1].endswith(f":{ends[0][1]:04X}"))
        fields[7] = "54321"
        (tmp_path / "tcp").write_text("\n".join([table[0], " ".join(fields)]))
        monkeypatch.setattr(peers, "SOCKETS", tmp_path / "tcp")
        assert not peers.is_own(*ends)
        (tmp_path / "tcp").write_text(table[0])
        assert not peers.is_own(*ends)


def test_a_request_of_another_user_is_refused() -> None:
    sent: list[dict[str, Any]] = []

    async def never(*_: object) -> None:
        raise AssertionError("the request went on")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    unknown = {"type": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}
    anyio.run(of_this_user(never), unknown, never, send)
    assert sent[0]["status"] == 403 and b"only the user who started it" in sent[1]["body"]


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["mcp", "--http", str(port)]) == 3
    assert capsys.readouterr().err.startswith(f"error: port {port} of 127.0.0.1 cannot be used: Address already in use")


@pytest.mark.parametrize(
    ("installed", "said"),
    [("", "the package mcp is missing"), ("FastMCP = None", "the package mcp does not fit (cannot import name")],
)
def test_without_the_package_or_with_its_first_version_the_fix_is_named(
    installed: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("" if installed else "raise ModuleNotFoundError(name='mcp')")
    (tmp_path / "mcp" / "server.py").write_text(installed)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 3 and done.stderr.startswith(f"error: {said}"), done.stderr
    assert "fix: pip install 'mcp>=2.3,<3'" in done.stderr and done.stderr.count("\n") == 1


def test_the_tools_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mcp", "--json"]) == 0
    tools = {tool["name"]: tool for tool in json.loads(capsys.readouterr().out)}
    assert tools["job_wait"]["inputSchema"]["properties"]["seconds"]["maximum"] == 45
