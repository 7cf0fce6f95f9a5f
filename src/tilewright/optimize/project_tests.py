"""Runs the project's own tests on a version before it is kept: `optimize --test "pytest tests/ops -k softmax"`.

The command starts in the user's folder, with the user's tests. Its imports load the version's text in place of each
edited file (`runtime.replaced`), so nothing of the user's is written. Exit code 0 means that the tests pass. If an
edited file changes meanwhile, the tests say nothing about the version: they may have written it, and tested that.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.candidate.guard import content_of
from tilewright.errors import CompilerMissing, RequestError
from tilewright.runtime.replaced import VARIABLE
from tilewright.runtime.started import python_path
from tilewright.tools import child

Texts = Mapping[Path, str]
CORES = 64
"""The tests may use this many times their wall time as processor time."""


@dataclass(frozen=True)
class ProjectTests:
    """The tests of the user's project. ``seconds``: limit of one run, in seconds of wall time."""

    command: str
    seconds: float

    def __post_init__(self) -> None:
        if not self.words:
            raise RequestError("--test is empty; give a command, such as --test 'pytest tests/ops -k softmax'")
        if shutil.which(self.words[0]) is None:
            raise RequestError(f"--test: {child.not_started(self.words[0])}")

    @property
    def words(self) -> list[str]:
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise RequestError(f"--test: {error}: {self.command}") from None

    def failure(self, texts: Texts) -> str | None:
        """Runs the tests on a version. Returns the reason if they fail, otherwise None.

        Raises RequestError if the command cannot be started, or if an edited file of the user's changed while it ran.
        Raises ToolFailed if it does not end in time.
        """
        before = {path: content_of(path) for path in texts}
        with child.workplace() as folder:
            files = {}
            for number, (path, text) in enumerate(texts.items()):
                copy = folder / str(number) / path.name
                copy.parent.mkdir()
                copy.write_bytes(text.encode())
                files[os.path.realpath(path)] = str(copy)
            ours = {"PYTHONPATH": python_path(os.environ), VARIABLE: json.dumps(files)}
            try:
                env = {**os.environ, **ours}
                done = child.run(self.words, self.seconds * CORES, folder, env=env, patience=1 / CORES)
            except CompilerMissing as error:
                raise RequestError(f"--test: {error}") from None
        if changed := next((path for path, content in before.items() if content_of(path) != content), None):
            raise RequestError(
                f"--test: {changed} changed while the tests ran, so they say nothing about the version; the file is "
                "left as it is; fix: tests that do not write it, and no edits of it while they run"
            )
        if done.returncode == 0:
            return None
        lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR", "E "))] or lines[-1:]
        return f"the project's tests fail (exit code {done.returncode}): {'; '.join(failed[:2])[:300] or 'no output'}"

    def check_untouched(self, texts: Texts) -> None:
        """Raises RequestError if the tests fail on the untouched code: then they say nothing about a change."""
        if (failure := self.failure(texts)) is not None:
            raise RequestError(f"--test on the untouched code: {failure}; fix the tests: {self.command}")
