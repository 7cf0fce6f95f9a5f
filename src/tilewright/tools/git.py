"""Runs git commands. No other module starts git, except `remote.boot`, which runs where Tilewright is not yet.

Git runs in English, without hooks, signatures, prompts, background maintenance and file monitors. Environment variables
that name a repository (GIT_DIR, GIT_INDEX_FILE and others) are removed. The user's name and other settings are used.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.errors import MachineError

SECONDS = 120.0
"""Time limit of one git command. Checking out a large repository on a slow disk takes the longest."""

UNFINISHED = re.compile(rb"failed to read \S*worktrees/\S+/commondir")
"""What git says if another process has begun to make a worktree: the worktree's files exist, and are still empty."""
PAUSES = (0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds before each further try of a command that met such a worktree."""

PASSED_ON = (
    "GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH",
)  # fmt: skip
"""Prefixes of the environment variables that are passed on to git. They describe the user, not a repository."""

QUIET = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",  # reading the user's repository must not refresh its index
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_LITERAL_PATHSPECS": "1",
}
SETTINGS = (
    "core.hooksPath=/dev/null", "commit.gpgSign=false", "core.fsmonitor=false", "gc.auto=0",
    "maintenance.auto=false", "submodule.recurse=false", "core.fsync=committed,reference",
)  # fmt: skip

DEFAULT_AUTHOR = {"NAME": "Tilewright", "EMAIL": "tilewright@localhost"}


class GitError(MachineError):
    """A git command failed. ``stderr``: the text that git wrote to stderr."""

    def __init__(self, command: str, stderr: str):
        self.stderr = stderr
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
        super().__init__(f"git {command}: {errors[0] if errors else 'failed without a message'}")


@dataclass(frozen=True)
class Git:
    """Runs git in a folder.

    variables: environment variables, which may name the repository and the worktree.
    passed: open files that git inherits. If one is a lock, it stays locked until the git command ends, even if this
        process is killed meanwhile.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[int, ...] = ()

    def __call__(self, command: str, *arguments: str, stdin: str | None = None) -> str:
        """Returns the output of git, unchanged. Raises GitError if the command fails, MachineError if git cannot
        run."""
        done = self._done(command, arguments, stdin)
        for pause in PAUSES:
            if not (done.returncode and UNFINISHED.search(done.stderr)):
                break
            time.sleep(pause)
            done = self._done(command, arguments, stdin)
        if done.returncode:
            raise GitError(command, done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="surrogateescape")

    def _done(self, command: str, arguments: Sequence[str], stdin: str | None) -> subprocess.CompletedProcess[bytes]:
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        outer = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON) or name[:4] != "GIT_"}
        try:
            return subprocess.run(
                ["git", *settings, command, *arguments], cwd=self.folder, env=outer | QUIET | dict(self.variables),
                input=(stdin or "").encode(errors="surrogateescape"), capture_output=True, timeout=SECONDS,
                pass_fds=self.passed,
            )  # fmt: skip
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise MachineError(f"git {command}: no such folder: {self.folder}") from error
            raise MachineError("git is not installed; fix: install git, e.g. apt install git") from error
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"git {command} took longer than {SECONDS:g} s in {self.folder}") from error

    def line(self, command: str, *arguments: str, stdin: str | None = None) -> str:
        """Returns the one line that git prints."""
        return self(command, *arguments, stdin=stdin).removesuffix("\n")

    def line_or_none(self, command: str, *arguments: str) -> str | None:
        """Returns the one line that git prints; None if the command fails."""
        try:
            return self.line(command, *arguments)
        except GitError:
            return None

    def worktree(self, folder: Path) -> Git:
        """Returns a `Git` for the worktree ``folder``. It never searches the parent folders for a repository."""
        directory = Git(folder, {"GIT_CEILING_DIRECTORIES": str(folder.parent)}).line("rev-parse", "--absolute-git-dir")
        return Git(folder, {"GIT_DIR": directory, "GIT_WORK_TREE": str(folder)}, self.passed).with_author()

    def with_author(self) -> Git:
        """Returns a `Git` that commits as the user, or as Tilewright if git knows no user."""
        variables = dict(self.variables)
        for role in ("AUTHOR", "COMMITTER"):
            if self.line_or_none("-c", "user.useConfigOnly=true", "var", f"GIT_{role}_IDENT") is None:
                variables |= {f"GIT_{role}_{part}": value for part, value in DEFAULT_AUTHOR.items()}
        return replace(self, variables=variables)


TREE = "tree"
"""The kind of the private repository of a folder."""


def private_name(kind: str, identity: Sequence[str]) -> str:
    """Returns the name of the private repository for files of a user who has none. ``identity``: whose files."""
    digest = hashlib.sha256("\n".join(identity).encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{kind}-{digest}"


def bare_repository(folder: Path) -> Git:
    """Returns a `Git` for the bare repository ``folder``. Makes it, empty, if it does not exist.

    GIT_DIR is set, because the user's safe.bareRepository may forbid git to find the repository.
    """
    _make(folder)
    return _bare(folder)


def _bare(folder: Path) -> Git:
    return Git(folder, {"GIT_DIR": str(folder)})


def _make(folder: Path) -> None:
    """Makes an empty bare repository under a temporary name, then renames it, because another run may make it as
    well."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")  # the folder may be in a checkout
    draft = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    draft.mkdir()
    Git(draft)("init", "--quiet", "--bare", "--template=", ".")
    _bare(draft)("config", "core.autocrlf", "false")
    try:
        draft.rename(folder)
    except OSError:  # another run has made it
        shutil.rmtree(draft)
        if not folder.is_dir():
            raise
