"""One ssh server for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.remote.kit import Loopback


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    made = Loopback(tmp_path_factory.mktemp("ssh"))
    made.start()
    yield made
    made.stop()
