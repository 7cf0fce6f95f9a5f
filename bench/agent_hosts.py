"""The MCP server and the plugin, tried with the command-line tools of the hosts that agents run in.

    python bench/agent_hosts.py [--out FILE.json]        `make test-hosts` installs the tools by npm, and runs this

- MCP Inspector in strict mode lists the tools: exit code 0 if every schema is portable.
- Seven scenarios of the MCP conformance suite run against the HTTP server. Its other scenarios call tools, prompts and
  resources of a server that was made for the suite.
- `agentskills validate` reads each skill. Claude Code, Codex and Gemini CLI install the plugin and list its server; two
  of them also validate it and connect to the server (Codex has no command for that).

No step needs a key or a model. Each host gets a home of its own. The exit code is 1 if a step fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from common import made_here, write

ROOT = Path(__file__).parents[1]
PLUGIN = "plugins/tilewright"
SECONDS = 120
SCENARIOS = (
    "server-initialize", "ping", "tools-list", "resources-list", "prompts-list", "server-sse-multiple-streams",
    "dns-rebinding-protection",
)  # fmt: skip
HOSTS = ("node", "mcp-inspector", "conformance", "claude", "codex", "gemini")


@dataclass(frozen=True)
class Step:
    """One command and what its output must contain."""

    command: str
    says: str


@dataclass(frozen=True)
class Tried:
    command: str
    ok: bool
    exit_code: int
    seconds: float
    output: str


def steps(address: str) -> Iterator[Step]:
    yield Step("mcp-inspector --cli --method tools/list --strict tilewright mcp", '"job_wait"')
    for scenario in SCENARIOS:
        yield Step(f"conformance server --url {address} --scenario {scenario}", ", 0 failed, 0 warnings")
    for skill in sorted((ROOT / PLUGIN / "skills").iterdir()):
        yield Step(f"agentskills validate {skill.relative_to(ROOT)}", "Valid skill")
    yield Step("claude plugin validate --strict .", "Validation passed")
    yield Step(f"claude plugin validate --strict --profile directory {PLUGIN}", "Validation passed")
    yield Step("claude plugin marketplace add ./", "Successfully added")
    yield Step("claude plugin install tilewright@tilewright", "Successfully installed")
    yield Step("claude mcp list", "Connected")
    yield Step("codex plugin marketplace add .", "Added marketplace")
    yield Step("codex plugin add tilewright@tilewright", "Added plugin")
    yield Step("codex mcp list", "enabled")
    yield Step(f"gemini extensions validate {PLUGIN}", "successfully validated")
    yield Step(f"gemini extensions install {PLUGIN} --consent", "installed successfully")
    yield Step("gemini mcp list", "Connected")


def tried(step: Step, environment: dict[str, str]) -> Tried:
    """Runs one step. Questions of a host are answered with yes."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            step.command.split(), env=environment, cwd=ROOT, input="y\n" * 9, text=True, timeout=SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = 124, f"did not end within {SECONDS} s"
    except FileNotFoundError:
        code, output = 127, f"{step.command.split()[0]} is not installed"
    ok = code == 0 and step.says in output
    shown = re.sub(r"\x1b\[[0-9;]*m", "", output).replace(str(ROOT), ".").replace(environment["HOME"], "~")
    return Tried(
        step.command, ok, code, round(time.perf_counter() - began, 1), shown if len(shown) < 1500 else shown[:300]
    )


@contextmanager
def surroundings() -> Iterator[tuple[dict[str, str], str]]:
    """Yields an environment with a new home and this checkout's `tilewright`, and the address of a server by HTTP."""
    with tempfile.TemporaryDirectory(prefix="agent-hosts-") as home:
        ours = Path(home) / "bin" / "tilewright"
        ours.parent.mkdir()
        ours.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m tilewright "$@"\n')
        ours.chmod(0o755)
        path = os.pathsep.join([str(ours.parent), os.environ["PATH"], str(Path(sys.executable).parent)])
        environment = {"HOME": home, "PATH": path, "TILEWRIGHT_HOME": f"{home}/tilewright", "LANG": "C.UTF-8"}
        with subprocess.Popen(
            ["tilewright", "mcp", "--http", "0"], env=environment, stderr=subprocess.PIPE, text=True
        ) as server:  # fmt: skip
            try:
                assert server.stderr
                yield environment, server.stderr.readline().split()[2].rstrip(";")
            finally:
                server.kill()


def versions(environment: dict[str, str]) -> dict[str, str]:
    """The version that each tool prints."""
    return {host: tried(Step(f"{host} --version", ""), environment).output.strip().splitlines()[-1] for host in HOSTS}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    results = []
    with surroundings() as (environment, address):
        tools = versions(environment)
        for step in steps(address):
            results.append(tried(step, environment))
            print(f"{'ok ' if results[-1].ok else 'FAILED'} {results[-1].seconds:5.1f} s  {step.command}", flush=True)
            if not results[-1].ok:
                print(results[-1].output, flush=True)
    failed = sum(not each.ok for each in results)
    print(f"{len(results) - failed} of {len(results)} steps passed")
    if out:
        write(str(out), {**made_here(), "tools": tools, "steps": [asdict(each) for each in results]})
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
