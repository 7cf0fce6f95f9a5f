"""What the store keeps of a search's launches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runtime.caller_kernels import scale, space, vectors

from tilewright.runtime.search.cutile_trials import trials
from tilewright.runtime.store.evidence import launches_of
from tilewright.source.source_file import SourceFile


def test_the_file_of_a_kernel_is_read_once_for_all_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    reading = SourceFile.read.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(SourceFile, "read", classmethod(lambda cls, path: (read.append(path), reading(cls, path))[1]))
    x, y = vectors()
    made = trials(space(64, 128, 256), lambda c: 1024 // c["TILE"], scale, lambda c: (x, y, c["TILE"], 0))
    search: Any = SimpleNamespace(best=1, runner_up=2)
    launches: Any = launches_of(made, search)
    assert set(launches) == {"winner", "runner_up", "shipped"}
    assert [path.name for path in read] == ["caller_kernels.py"]
    assert len({launch["text"] for launch in launches.values()}) == 1 and launches["winner"]["text"]
