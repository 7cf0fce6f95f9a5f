"""The worker's torch: the part for tensors without data is put off, and is there when something needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

LOADED = """
import sys
from tilewright.worker.process import preload

preload.begin_torch()
import torch

later = lambda: "torch._prims" in sys.modules  # only the part that is put off imports it
assert not later()
"""
ANSWERS = {
    "tensors with data do not need it": """
x = torch.ones(4, 4)
assert torch.nn.functional.layer_norm(x, (4,)).isfinite().all() and not later()
""",
    "a call that fails without it is called again": """
made = torch.empty(4, 4, device="meta")
assert preload.with_all_of_torch(lambda: torch.fft.fft(made)).shape == (4, 4) and later()
""",
    "a call that fails with it, too, is called twice and no more": """
calls = []

def fail():
    calls.append(1)
    raise ValueError

for expected in (2, 3):
    try:
        preload.with_all_of_torch(fail)
    except ValueError:
        assert len(calls) == expected and later()
""",
    "torch.compile has it": """
compiled = torch.compile(lambda x: torch.nn.functional.gelu(x) + 1, backend="aot_eager", fullgraph=True)
assert compiled(torch.ones(2)).shape == (2,) and later()
""",
    "its names are there at first use": """
from torch import _meta_registrations
import torch._meta_registrations as again

assert not hasattr(again, "__wrapped__") and not later()
assert again is _meta_registrations and callable(again.meta_index_Tensor) and later()
assert again.__spec__.loader.get_source(again.__name__) and not hasattr(again, "nothing of this name")
""",
}


@pytest.mark.long
@pytest.mark.parametrize("what", ANSWERS)
def test_what_is_put_off_is_there_when_it_is_needed(what: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED + ANSWERS[what]], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_other_threads_go_on_while_torchs_libraries_are_loaded() -> None:
    """An import would stop all of them meanwhile."""
    code = """
import ctypes, sys, threading, time
from pathlib import Path
from tilewright.worker.process import preload

for name in preload.WITH_LIBRARIES:
    __import__(name)
over, longest, last = [], 0.0, time.perf_counter()

def load():
    preload._load_libraries()
    over.append(time.perf_counter())

began = time.perf_counter()
threading.Thread(target=load).start()
while not over:
    time.sleep(0)
    now = time.perf_counter()
    longest, last = max(longest, now - last), now
assert "torch" not in sys.modules and "libtorch_python" in Path("/proc/self/maps").read_text()
assert longest < 0.5 * (over[0] - began), (longest, over[0] - began)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
