"""The MCP server: the tools with their descriptions, errors in one line, and the two transports.

Only this room's `server` and `tools` import the package `mcp`, which takes a second. The SDK serves clients of both
eras of the protocol: those with a handshake (2024-11-05 to 2025-11-25) and those without (from 2026-07-28).
"""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import CallToolResult, InputRequiredResult, TextContent
from pydantic import ValidationError

from tilewright import __version__
from tilewright.errors import MachineError, TilewrightError, choices
from tilewright.mcp import peers
from tilewright.mcp.tools import add_tools

LOOPBACK = "127.0.0.1"
LOG_LINE = "%(levelname)s: %(message)s"
"""The form of messages on stderr. The SDK would draw tables."""
SAID = {"sequence_str": "give a list of texts, not one text", "missing": "is missing"}
"""Kind of a wrong argument → what an error says, where pydantic's text is unclear."""
INSTRUCTIONS = """\
Tilewright makes GPU tile kernels (cuTile, Triton) fast, and proves it: every change is verified against a float64 \
reference and measured, then kept or reverted. Start with `route` if you have a question, with `inspect` or `check` if \
you have a task file, and with `profile` if you have a whole program. `check`, `tune`, `optimize` and `profile` start \
a job at once; call `job_wait` until the job has ended. Report measured times only as measured, and predicted times \
only as predicted. Paths are relative to the folder in which the server was started.\
"""


class Server(MCPServer[Any]):
    """An `MCPServer` whose errors are one line each, and which refuses arguments that a tool does not have."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Calls a tool. Raises ToolError with one line for a wrong call and for every expected failure."""
        known = {tool.name: tool.input_schema.get("properties", {}) for tool in await self.list_tools()}
        if name not in known:
            raise ToolError(f"unknown tool '{name}'; {choices(name, known)}")
        for argument in arguments:
            if argument not in known[name]:
                raise ToolError(f"{name} has no argument '{argument}'; {choices(argument, known[name])}")
        try:
            result = await super().call_tool(name, arguments, context)
        except ToolError as error:
            raise _in_one_line(error, name) from error.__cause__
        if isinstance(result, CallToolResult):  # half as long as the SDK's text, which is indented
            text = json.dumps(result.structured_content, ensure_ascii=False)
            return CallToolResult(content=[TextContent(text=text)], structured_content=result.structured_content)
        return result


def _in_one_line(error: ToolError, tool: str) -> ToolError:
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        wrong = (f"{'.'.join(map(str, each['loc']))}: {SAID.get(each['type'], each['msg'])}" for each in cause.errors())
        return ToolError(f"{tool}: {'; '.join(wrong)}")
    if isinstance(cause, TilewrightError):
        return ToolError(" ".join(str(cause).split()))
    if isinstance(error, UnexpectedToolError):
        return UnexpectedToolError(f"{tool} failed by a mistake in Tilewright; the server's stderr has the traceback")
    return error


def made() -> Server:
    """Makes the server with all its tools."""
    server = Server(
        "tilewright", title="Tilewright", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    add_tools(server)
    return server


def serve_stdio() -> None:
    """Serves one client by stdin and stdout, until the client closes them."""
    logging.basicConfig(format=LOG_LINE)
    anyio.run(made().run_stdio_async)


def serve_http(port: int) -> None:
    """Serves clients of this machine by streamable HTTP, until a signal ends the process.

    Only processes of the same user are answered: a tool runs task files, so it may do all that the user may.

    port: the TCP port; 0 takes a free one. A line on stderr names the address.
    Raises MachineError if the port is taken.
    """
    logging.basicConfig(format=LOG_LINE)
    app = made().streamable_http_app(host=LOOPBACK)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, port))
        except OSError as error:
            why = f"port {port} of {LOOPBACK} cannot be used: {error.strerror}"
            raise MachineError(f"{why}; choose another with --http PORT, or 0 for a free one") from error
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/mcp"
        print(f"listening on {address}; Ctrl-C ends it, jobs go on", file=sys.stderr, flush=True)
        config = uvicorn.Config(of_this_user(app), log_level="warning", timeout_graceful_shutdown=1)
        anyio.run(lambda: uvicorn.Server(config).serve(sockets=[listening]))


Asgi = Callable[[Any, Any, Any], Awaitable[None]]


def of_this_user(app: Asgi) -> Asgi:
    """Returns the application, but requests of other users of this machine are refused."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not peers.is_own(scope["client"], scope["server"]):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"this server answers only the user who started it\n"})
        else:
            await app(scope, receive, send)

    return checked


def described() -> list[dict[str, Any]]:
    """Returns the tools as clients see them: names, descriptions and schemas."""
    tools = anyio.run(made().list_tools)
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
