"""When a program's code is loaded and unloaded. Its launches are in tests/gpu/test_program_launch.py."""

from __future__ import annotations

import gc

import pytest
from tests.launching.recording_driver import RecordingDriver

from tilewright.launching import cuda, driver
from tilewright.launching.driver import ProgramLaunch
from tilewright.worker.messages import Program


def test_code_of_its_own_is_loaded_anew_and_unloaded_with_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """trust.md 42: a place in memory is drawn anew with each capture, and given back."""
    made = RecordingDriver()
    monkeypatch.setattr(cuda, "driver", lambda: made)
    driver._kernel.cache_clear()
    program = Program("", "double", (1,), ())
    shared = [ProgramLaunch(program, {}) for _ in range(3)]
    assert made.loaded == [1]
    own = [ProgramLaunch(program, {}, own_code=True) for _ in range(2)]
    assert [launch._kernel for launch in (*shared, *own)] == [1, 1, 1, 2, 3]
    own.pop(0)
    gc.collect()
    assert made.loaded == [1, 3]
    driver._kernel.cache_clear()
