"""When a program's code is loaded and unloaded. Its launches are in tests/gpu/test_program_launch.py."""

from __future__ import annotations

import gc

import pytest
from tests.launching.recording_driver import RecordingDriver, word

from tilewright.launching import cuda, driver
from tilewright.launching.driver import ProgramLaunch
from tilewright.worker.messages import Pointer, Program


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


def test_each_launch_finds_zeros_in_its_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a launch leaves there reaches the next one: no result can be kept in it."""
    made = RecordingDriver()
    monkeypatch.setattr(cuda, "driver", lambda: made)
    driver._kernel.cache_clear()
    launch = ProgramLaunch(Program("", "sums", (3,), (Pointer("arrived", zeros=96),)), {})
    for stream in (7, 8):
        launch(stream)
    [address] = {address for address, *_ in made.filled}
    assert made.filled == [(address, 0, 96, 7), (address, 0, 96, 8)]
    assert [word(parameters, 0) for *_, parameters in made.launches] == [address, address]
    driver._kernel.cache_clear()
