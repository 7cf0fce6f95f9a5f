"""An interrupted run is continued only where all code that its results depend on is the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.compile.identity import code_of
from tilewright.hardware.machine import machine_of, target_of
from tilewright.optimize.options import OptimizeRequest, Options
from tilewright.progress import silent
from tilewright.race.rules import Policy
from tilewright.task.loading import load_task
from tilewright.tune.run import TuneRequest

TARGET = target_of("sm_90", None)

TASK = """\
import cuda.tile as ct
import tilewright as tw
import their_helpers as helpers
from their_helpers import halves

@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0),), (TILE,))
    ct.store(y, (ct.bid(0),), helpers.scaled(t))

@ct.kernel
def other(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 3)

def launch(x, y, N, config):
    from their_helpers import NAME
    return tw.Launch({"scale": scale, "other": other}[NAME], (helpers.blocks(N, config.TILE),), (x, y, config.TILE))

task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: halves(4 * x),
    launch=launch,
    flops=lambda N: N,
    space=tw.Space(constants={"TILE": helpers.TILES}, shipped={"TILE": 256}, where=[helpers.allowed]),
    workloads={"small": helpers.SMALL},
)
"""
HELPERS = """\
import numpy as np
FACTOR = 2
TILES = (128, 256)
SMALL = {"N": 4096}
NAME = "scale"
def doubled(t):
    return t * FACTOR
def scaled(t):
    return doubled(t)
def halves(x):
    return np.divide(x, 2)
def blocks(N, tile):
    return -(-N // tile)
def allowed(TILE):
    return TILE <= 1024
"""
CHANGES = {
    "a helper's helper": ("return t * FACTOR", "return t + t"),
    "a constant of a helper": ("FACTOR = 2", "FACTOR = 4"),
    "the reference's helper": ("np.divide(x, 2)", "np.divide(x, 4)"),
    "the launch's helper": ("-(-N // tile)", "N // tile + 1"),
    "another kernel, by an import in a function": ('NAME = "scale"', 'NAME = "other"'),
    "the space": ("TILES = (128, 256)", "TILES = (64, 256)"),
    "a predicate": ("TILE <= 1024", "TILE <= 256"),
    "the workload": ('{"N": 4096}', '{"N": 8192}'),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "ops.py").write_text(TASK)
    (tmp_path / "their_helpers.py").write_text(HELPERS)
    yield tmp_path
    sys.modules.pop("their_helpers", None)


def keys(folder: Path) -> list[str]:
    """The keys of `tune` and `optimize`, as a new process has them."""
    sys.modules.pop("their_helpers", None)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        task = load_task(str(folder / "ops.py"))
        machine, workloads = machine_of(TARGET), task.selected(None)
        tuning = TuneRequest(task, TARGET, Policy(), workloads, 10, None, None, None, ("cutile",))
        loop = OptimizeRequest(task, TARGET, workloads, Options(), Policy(), None, None, silent)
        return [tuning.key(machine), loop.key(machine.versions), code_of(task, workloads, TARGET.board)]
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_another_module_is_another_run(folder: Path, change: str) -> None:
    before, after = CHANGES[change]
    assert HELPERS.count(before) == 1
    first = keys(folder)
    (folder / "their_helpers.py").write_text(HELPERS.replace(before, after) + "# a new size\n")
    assert not {*first} & {*keys(folder)}


def test_what_changes_no_code_is_the_same_run(folder: Path) -> None:
    first = keys(folder)
    assert keys(folder) == first
    (folder / "their_helpers.py").write_text(HELPERS + "# a comment\ndef unused(): pass\n")
    assert keys(folder) == first


def test_another_version_of_the_toolkit_is_another_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = keys(folder)
    installed = folder / "site" / "cuda_tile-99.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: cuda-tile\nVersion: 99.0\n")
    monkeypatch.syspath_prepend(str(installed.parent))
    tuning, loop, code = keys(folder)
    assert tuning != first[0] and loop != first[1] and code == first[2]
