"""`tilewright mcp`: the commands of Tilewright as tools for coding agents."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import terminal
from tilewright.cli.exit_codes import INTERRUPTED, error
from tilewright.cli.shared import AsJson, print_json
from tilewright.errors import MachineError

INSTALL = "pip install 'mcp>=2.3,<3', or Tilewright with the extra mcp"

Port = Annotated[
    int | None,
    typer.Option("--http", metavar="PORT", min=0, max=65535, help="Serve HTTP on 127.0.0.1 instead; 0: a free port."),
]
JobFolder = Annotated[Path | None, typer.Option("--job", hidden=True, help="Do the job in this folder.")]


def mcp(http: Port = None, job: JobFolder = None, as_json: AsJson = False) -> None:
    """Serves Tilewright's commands to coding agents, by the Model Context Protocol.

    Serves one agent by stdin and stdout, as Claude Code, Codex and Gemini CLI start it. With `--http`, serves all
    agents of this user on this machine. With `--json`, prints the tools and serves nothing.

    Example: `tilewright mcp --http 8765`
    """
    if job is not None:
        from tilewright.mcp.work import work

        work(job)
        return
    try:
        from tilewright.mcp import server
    except ImportError as missing:
        found = f"the package mcp does not fit ({missing})" if missing.name != "mcp" else "the package mcp is missing"
        raise MachineError(f"{found}; fix: {INSTALL}") from None
    if as_json:
        print_json(server.described())
    elif http is None:
        if sys.stdin.isatty():
            terminal.note("an agent starts this command and speaks to it by stdin; Ctrl-C ends it")
        try:
            server.serve_stdio()
        except KeyboardInterrupt as signalled:  # a thread still reads stdin, and Python would wait for it
            os._exit(error(str(signalled), getattr(signalled, "code", INTERRUPTED), as_json))
    else:
        server.serve_http(http)
