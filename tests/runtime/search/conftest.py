"""A search of a test takes as long as it takes: what it counts and how many rounds it races depend on no machine."""

from __future__ import annotations

import pytest
from tests.processes import PATIENCE


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from tilewright.runtime.search import racing, screening

    monkeypatch.setattr(racing, "SECONDS", PATIENCE)
    monkeypatch.setattr(screening, "COUNT_SECONDS", dict.fromkeys(screening.COUNT_SECONDS, PATIENCE))
    monkeypatch.setattr(screening, "EXACT_SECONDS", PATIENCE)
