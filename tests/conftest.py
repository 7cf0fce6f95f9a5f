"""What every test has: a store of its own, and no deadline. And bytecode, which hundreds of child processes share."""

from __future__ import annotations

import compileall
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Two busy cores make any deadline flaky. In CI the same examples every time.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

SRC = Path(__file__).parents[1] / "src"
WRITES_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False  # pytest compiles the tests themselves once, too


def pytest_configure(config: pytest.Config) -> None:
    """Where bytecode is switched off (as in many containers), each child process would compile the package anew."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(str(SRC), quiet=2)


def pytest_collection_finish() -> None:
    """The files that tests write and change within a second keep no bytecode: Python could not tell it is stale."""
    sys.dont_write_bytecode = WRITES_NO_BYTECODE


@pytest.fixture(autouse=True)
def _store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the store of the person who runs it."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "tilewright-home"))
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned-home"))
