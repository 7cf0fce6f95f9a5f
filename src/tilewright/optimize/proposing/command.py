"""Reaches a proposer that is a command: one process for each proposal, with the request on its standard input.

The process has its own process group, a scratch folder as ``TMPDIR``, and a time limit. At its end, or at the limit,
the whole group is killed, and what has left the group. Settings of Tilewright are taken out of its environment, so
commands of Tilewright that it calls have a ledger of their own. All other variables stay: a model's key may be among
them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tilewright.errors import RequestError, ToolFailed, first_line
from tilewright.optimize.proposing.asked import NoAnswer
from tilewright.optimize.proposing.protocol import shown
from tilewright.records import Json
from tilewright.tools import child

MODEL = "model:"
CHECK_SECONDS = 120.0


def words_of(command: str) -> list[str]:
    """Returns the words of a proposer's command line. Raises RequestError if it cannot be started."""
    if command.startswith(MODEL):
        if not command.removeprefix(MODEL):
            raise RequestError("--propose model: names no model; give model:PROVIDER:NAME, such as model:openai:gpt-5")
        return [sys.executable, "-m", "tilewright.optimize.proposing.model", command.removeprefix(MODEL)]
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RequestError(f"--propose {command}: {error}; quote it as for a shell") from None
    if not words:
        raise RequestError("--propose is empty; give a command, or model:PROVIDER:NAME")
    if shutil.which(words[0]) is None:
        raise RequestError(f"--propose {command}: {child.not_started(words[0])}")
    return words


class ProposerCommand:
    """Starts the command for each proposal. Implements `asked.Ask`."""

    def __init__(self, command: str) -> None:
        """Raises RequestError if the command cannot be started, or if the model cannot be used."""
        self._words = words_of(command)
        if command.startswith(MODEL):
            done = self._run([*self._words, "--check"], "", CHECK_SECONDS)
            if done.returncode:
                raise RequestError(f"--propose {command}: {shown(_last_line(done.stderr), 300)}")

    def __call__(self, request: Mapping[str, Json], seconds: float) -> str:
        done = self._run(self._words, json.dumps(request, ensure_ascii=False), seconds)
        if done.returncode:
            raise NoAnswer(f"the proposer {shown(done.complaint(Path(self._words[0]).name), 300)}")
        return done.stdout

    def _run(self, words: list[str], text: str, seconds: float) -> child.Finished:
        """Runs the command. Raises `NoAnswer` if it does not end in time."""
        cores = os.cpu_count() or 1
        with child.workplace() as folder, child.swept(folder):
            (folder / "request.json").write_text(text)
            kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT_")}
            try:  # all cores may be used, so the limit is that of the wall time
                return child.run(
                    words, seconds * cores, folder, env={**kept, "TILEWRIGHT_HOME": str(folder / "ledger")},
                    patience=1 / cores, stdin=folder / "request.json",
                )  # fmt: skip
            except ToolFailed as error:
                raise NoAnswer(f"the proposer gave no answer in {seconds:g} s (--propose-seconds): {error}") from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [first_line(text, "it said nothing")])[-1]
