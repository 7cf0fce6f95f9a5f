"""Everything in this folder needs a GPU and torch; it is collected, and skipped elsewhere."""

from __future__ import annotations

import pytest

from tilewright.hardware.gpu import detect


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.gpu)
            if detect() is None:
                item.add_marker(pytest.mark.skip(reason="no GPU"))
