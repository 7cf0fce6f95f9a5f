"""What every test has: a store of its own, and no deadline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Two busy cores make any deadline flaky. In CI the same examples every time.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(autouse=True)
def _store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the store of the person who runs it."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "tilewright-home"))
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned-home"))
