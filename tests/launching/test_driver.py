"""When a program's code is loaded and unloaded. Its launches are in tests/gpu/test_program_launch.py."""

from __future__ import annotations

import gc

import pytest

from tilewright.launching import cuda, driver
from tilewright.launching.driver import ProgramLaunch
from tilewright.worker.messages import Program


class Driver:
    """Numbers the libraries that it loads, and the kernels like them."""

    CUfunction = int

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.count = 0

    def cuLibraryLoadData(self, *arguments: object) -> tuple[int, int]:
        self.count += 1
        self.loaded.append(self.count)
        return 0, self.count

    def cuLibraryGetKernel(self, library: int, symbol: bytes) -> tuple[int, int]:
        return 0, library

    def cuLibraryUnload(self, library: int) -> tuple[int]:
        self.loaded.remove(library)
        return (0,)


def test_code_of_its_own_is_loaded_anew_and_unloaded_with_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """trust.md 42: a place in memory is drawn anew with each capture, and given back."""
    made = Driver()
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
