"""Waiting for launches, and the race's arguments; the clock itself is tested on a GPU (tests/gpu)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runtime.caller_kernels import CpuMachine, doubles, found, space, torch, vectors

from tilewright.errors import NoGpu
from tilewright.languages.cutile import private as cutile_private
from tilewright.race.protocol import CandidateCrashed
from tilewright.runtime.search import racing
from tilewright.runtime.search.device import CudaDevice, wait_for
from tilewright.runtime.search.scratch import DeviceLost
from tilewright.runtime.search.trials import Trial


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutile_private, "cache_directory", lambda: None)


def test_a_launch_that_never_ends_gets_a_name() -> None:
    """The search cannot stop it, but says which it is and what to do."""
    with pytest.raises(DeviceLost, match="TILE=64 has not ended within 0.01 s.*leave the configuration out"):
        wait_for(lambda: False, "TILE=64", seconds=0.01)


def test_waiting_ends_with_the_work() -> None:
    answers = iter([False, False, True])
    wait_for(lambda: next(answers), "TILE=64")
    assert next(answers, "asked three times") == "asked three times"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_answer_is_one_line() -> None:
    with pytest.raises(NoGpu, match="no CUDA device"):
        CudaDevice(None)


def test_clones_are_held_once_for_the_whole_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-08: many configurations times a large output would not fit into memory."""
    x, y = vectors()
    shots: list[Any] = []
    real = racing._shot
    monkeypatch.setattr(racing, "_shot", lambda *given: shots.append(real(*given)) or shots[-1])
    found(space(64, 128, 256), CpuMachine(doubles), lambda c: (x, y.clone(), c["TILE"], 0))
    assert len({shot.args[1].data_ptr() for shot in shots}) == 1 and len(shots) == 3


def test_arrays_with_contents_of_their_own_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that the caller prepares for each configuration is what that configuration is timed with."""
    x, y = vectors()
    buffers = {tile: y + tile for tile in (64, 128)}
    shots: list[Any] = []
    real = racing._shot
    monkeypatch.setattr(racing, "_shot", lambda *given: shots.append(real(*given)) or shots[-1])
    found(space(64, 128), CpuMachine(doubles), lambda c: (x, buffers[c["TILE"]], c["TILE"], 0))
    assert [shot.args[1] is buffers[shot.args[2]] for shot in shots] == [True, True]
    assert all(bool((buffer == 7.0 + tile).all()) for tile, buffer in buffers.items())


def test_one_that_crashes_in_the_race_fails_alone() -> None:
    x, y = vectors()
    machine = CpuMachine(doubles, {"TILE=128": 5.0})
    launches = []

    def does(trial: Trial, args: tuple[Any, ...]) -> None:
        if machine.raced and trial.config["TILE"] == 128:
            launches.append(1)
            raise CandidateCrashed(machine.raced.index(trial.label), "out of resources")
        doubles(trial, args)

    machine.does = does
    result = found(space(64, 128, 256), machine, lambda c: (x, y, c["TILE"], 0))
    assert result.best == 0 and result.outcomes[1].status == "failed"
    assert "out of resources" in result.outcomes[1].reason and launches


def test_long_kernels_get_the_rounds_that_a_decision_needs() -> None:
    """X-23: a race that ends before a round is complete would decide nothing."""
    x, y = vectors()
    machine = CpuMachine(doubles, {"TILE=64": 9e5, "TILE=128": 4e5})
    result = found(space(64, 128), machine, lambda c: (x, y, c["TILE"], 0))
    assert result.best == 1 and all(one.samples >= 6 for one in result.outcomes)
