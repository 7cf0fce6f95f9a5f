"""The programs of these tests are real, with torch and an optimizer; what torch imports for them is not the point."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _programs_start_sooner(programs_start_sooner: None) -> None:
    """For the fixtures of modules, too."""
