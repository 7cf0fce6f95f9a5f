"""The one place where git is started.

Git runs with neutral settings: without the variables that a hook or a shell may have left (GIT_DIR, GIT_INDEX_FILE, …),
without hooks, signatures, prompts, background maintenance and file monitors, in English. The user stays the author,
and the user's other settings stay.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import MachineError

SECONDS = 120.0
"""For one command; checking out a large repository on a slow disk takes the longest."""

KEPT = (
    "GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH",
)  # fmt: skip
"""What of git's environment says who and where the user is, and not which repository is meant."""

QUIET = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",  # looking at the user's repository does not refresh its index
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_LITERAL_PATHSPECS": "1",
}
SETTINGS = (
    "core.hooksPath=/dev/null", "commit.gpgSign=false", "core.fsmonitor=false", "gc.auto=0",
    "maintenance.auto=false", "submodule.recurse=false",
)  # fmt: skip

NOBODY = {"NAME": "Tilewright", "EMAIL": "tilewright@localhost"}


class GitError(MachineError):
    """Git refused. ``said``: its own words, all of them."""

    def __init__(self, command: str, said: str):
        self.said = said
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
        super().__init__(f"git {command}: {told[0] if told else 'failed without a word'}")


@dataclass(frozen=True)
class Git:
    """Git in a folder; ``variables`` may pin the repository and the worktree."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, command: str, *arguments: str, stdin: str | None = None) -> str:
        """What git prints, byte for byte. Raises GitError, or MachineError where git cannot run."""
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        outer = {name: value for name, value in os.environ.items() if name.startswith(KEPT) or name[:4] != "GIT_"}
        try:
            done = subprocess.run(
                ["git", *settings, command, *arguments],
                cwd=self.folder,
                env=outer | QUIET | dict(self.variables),
                input=(stdin or "").encode(errors="surrogateescape"),
                capture_output=True,
                timeout=SECONDS,
            )
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise MachineError(f"git {command}: no such folder: {self.folder}") from error
            raise MachineError("git is not installed; fix: install git, e.g. apt install git") from error
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"git {command} took longer than {SECONDS:g} s in {self.folder}") from error
        if done.returncode:
            raise GitError(command, done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="surrogateescape")

    def line(self, command: str, *arguments: str, stdin: str | None = None) -> str:
        """The one line that git prints."""
        return self(command, *arguments, stdin=stdin).removesuffix("\n")

    def tells(self, command: str, *arguments: str) -> str | None:
        """The one line that git prints, or None where it refuses: for questions whose answer may be no."""
        try:
            return self.line(command, *arguments)
        except GitError:
            return None

    def pinned(self, folder: Path) -> Git:
        """Git for the worktree ``folder`` and no other: it never looks for a repository further up."""
        directory = Git(folder, {"GIT_CEILING_DIRECTORIES": str(folder.parent)}).line("rev-parse", "--absolute-git-dir")
        return Git(folder, {"GIT_DIR": directory, "GIT_WORK_TREE": str(folder)})

    def with_author(self) -> Git:
        """Commits as the user, or as Tilewright where git knows no user."""
        variables = dict(self.variables)
        for role in ("AUTHOR", "COMMITTER"):
            try:
                self("-c", "user.useConfigOnly=true", "var", f"GIT_{role}_IDENT")
            except GitError:
                for part, value in NOBODY.items():
                    variables[f"GIT_{role}_{part}"] = value
        return Git(self.folder, variables)
