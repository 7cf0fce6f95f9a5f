"""Lines of JSON between the parent and the worker process, over a pipe that no kernel's print reaches."""

from __future__ import annotations

import json
import os
from typing import IO, Any

Message = dict[str, Any]


def send(pipe: IO[str], message: Message) -> None:
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()


def receive(pipe: IO[str]) -> Message | None:
    """The next message, or None when the other side is gone, perhaps in the middle of one.

    Raises ValueError for a line that is no message.
    """
    line = pipe.readline()
    if not line.endswith("\n"):
        return None
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"not a message: {line[:80]}")
    return message


def private_stdout() -> IO[str]:
    """This process's stdout as a channel of its own; whatever prints goes to stderr from now on."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel
