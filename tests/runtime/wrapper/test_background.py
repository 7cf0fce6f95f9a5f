"""Tuning beside the program: shipped at once, on copies, and switched when it is done."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE
from tests.runtime.kit_wrapper import World, background_is_idle

from tilewright.runtime.environment import TuningWarning
from tilewright.runtime.store.winners import Winners
from tilewright.runtime.wrapper.background import copies, in_background

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TUNED", str(tmp_path / "tuned"))
    for name in ("DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_TUNING", "background")


def test_shipped_until_the_winner_is_found() -> None:
    go = threading.Event()

    def fastest(trials: Any) -> int:
        assert go.wait(PATIENCE)
        return 5

    world = World(fastest=fastest)
    op = world.tuned()
    x, y = torch.ones(8, 16), torch.zeros(8, 16)
    op("s", x, y, 2.0)
    op("s", x, y, 2.0)
    assert world.tiles == [2, 2] and op.tuned.chosen(x, y, 2.0).why == "it is being tuned in the background"
    go.set()
    assert background_is_idle(PATIENCE)
    op("s", x, y, 2.0)
    assert world.tiles == [2, 2, 4] and len(world.searches) == 1 and len(Winners().all()) == 1


def test_the_search_gets_copies_of_what_the_call_saw() -> None:
    go = threading.Event()
    world = World(fastest=lambda trials: 5 * go.wait(PATIENCE))
    op = world.tuned()
    x, y = torch.full((8, 16), 3.0), torch.zeros(8, 16)
    op("s", x, y, 2.0)
    x.zero_()  # the program goes on
    go.set()
    assert background_is_idle(PATIENCE)
    (seen,) = world.arguments
    assert seen[0].data_ptr() != x.data_ptr() and bool((seen[0] == 3.0).all())
    assert (seen[0].shape, seen[0].stride()) == (x.shape, x.stride())


def test_a_search_that_fails_leaves_the_shipped_one() -> None:
    world = World(fastest=lambda trials: 1 // 0)
    op = world.tuned()
    x, y = torch.ones(8, 16), torch.zeros(8, 16)
    with pytest.warns(TuningWarning, match=r"tuning scale in the background failed \(ZeroDivisionError"):
        assert op("s", x, y, 2.0) is None and background_is_idle(PATIENCE)
    op("s", x, y, 2.0)
    assert world.tiles == [2, 2]


def test_copies_keep_strides_alignment_and_overlap() -> None:
    """A-41: an operation in place stays in place, on other memory."""
    memory = torch.arange(4096, dtype=torch.float32)
    x = memory[1:129].view(8, 16)
    y = memory[65:193].view(8, 16)
    expanded = memory[3000:3004].expand(5, 4)
    transposed = torch.randn(4, 6).T
    other = torch.randn(3)
    values = [x, y, [expanded, transposed], 7, other, x]
    stream, copied = copies("s", values)
    assert stream == "s" and copied[3] == 7 and copied[5] is copied[0]
    before = [x, y, expanded, transposed, other]
    after = [copied[0], copied[1], *copied[2], copied[4]]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new) and old.stride() == new.stride() and old.dtype == new.dtype
        assert old.data_ptr() % 16 == new.data_ptr() % 16 and old.data_ptr() != new.data_ptr()
    assert after[1].data_ptr() - after[0].data_ptr() == y.data_ptr() - x.data_ptr()
    after[0].zero_()
    assert float(after[1][0, 0]) == 0 and float(y[0, 0]) == 65


def test_jobs_run_one_after_another() -> None:
    done: list[int] = []
    for number in range(20):
        in_background("counting", lambda number=number: done.append(number))
    assert background_is_idle(PATIENCE) and done == list(range(20))


ENDS = """\
import os, threading
from tilewright.runtime.wrapper.background import in_background

if {fork}:
    done = threading.Event()
    in_background("in the parent", done.set)
    done.wait(120)
    if os.fork() == 0:
        done = threading.Event()
        in_background("in the child", done.set)
        os._exit(0 if done.wait(120) else 3)
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
in_background("the first", lambda: print("first", flush=True))
in_background("a search", lambda: threading.Event().wait(0.3))
in_background("the last", lambda: print("last", flush=True))
"""


@pytest.mark.parametrize("fork", [False, True])
def test_the_program_ends_and_may_fork(fork: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(fork=fork)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
