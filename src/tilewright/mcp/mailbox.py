"""Asks a connected agent for changes: two files in the folder of a job of `optimize`.

    asked.json      written by the job: the request, and its number
    answered.json   written by a server for the tool `propose`: the number of the request, and the answer

An agent that is gone answers nothing. That proposal then has no answer when its time is over, and the job goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import RequestError
from tilewright.mcp.jobs import LOOK_SECONDS, read, write
from tilewright.records import Json

AGENT = "agent"
"""The proposer of a job whose changes come from the tool `propose`."""


class Mailbox:
    """The side of the job. Implements `optimize.proposing.asked.Ask`."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the folder of the job."""
        self._folder, self._number = folder, 0

    def __call__(self, request: Mapping[str, Json], seconds: float) -> str:
        from tilewright.optimize.proposing.asked import NoAnswer  # slow to import, and servers do not need it

        self._number += 1
        write(self._folder / "asked.json", {"number": self._number, "request": request})
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                answered = read(self._folder / "answered.json")
                if answered.get("number") == self._number:
                    return json.dumps(answered["answer"])
                time.sleep(LOOK_SECONDS)
        finally:
            (self._folder / "asked.json").unlink(missing_ok=True)
        raise NoAnswer(f"the agent gave no answer in {seconds:g} s (propose_seconds)")


def asked(folder: Path) -> dict[str, Any] | None:
    """Returns the request that waits for an answer; None if none waits."""
    return _waiting(folder).get("request")


def answer(folder: Path, given: Mapping[str, str]) -> None:
    """Answers the request that waits. Raises RequestError if none waits."""
    if not (number := _waiting(folder).get("number")):
        raise RequestError("no request waits for a proposal; call propose without a patch, which waits for the next")
    write(folder / "answered.json", {"number": number, "answer": {name: text for name, text in given.items() if text}})


def _waiting(folder: Path) -> dict[str, Any]:
    waiting = read(folder / "asked.json")
    return {} if read(folder / "answered.json").get("number") == waiting.get("number") else waiting
