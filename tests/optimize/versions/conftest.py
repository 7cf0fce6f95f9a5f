"""A user with awkward git settings, and a program of theirs, in a repository or not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.optimize.versions.kit import program

from tilewright.optimize.versions.journal import Journal


@pytest.fixture(autouse=True)
def _a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose git settings are as awkward as a user's may be, and who has no name."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[commit]\ngpgSign = true\n[core]\nautocrlf = true\n[diff]\nnoprefix = true\n[apply]\nwhitespace = fix\n"
        "ignoreWhitespace = change\n[safe]\nbareRepository = explicit\n[log]\nshowSignature = true\n"
        "[color]\nui = always\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(params=["repository", "no repository"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program, in a repository or not."""
    return program(tmp_path / "my program", repository=request.param == "repository")


@pytest.fixture
def opened(root: Path, home: Path) -> Iterator[Callable[..., Journal]]:
    """Opens a journal of ``root``; all are closed in the end."""
    journals: list[Journal] = []

    def open_(run: str = "run-1") -> Journal:
        journals.append(Journal.open(root, run, home))
        return journals[-1]

    yield open_
    for journal in journals:
        journal.close()
