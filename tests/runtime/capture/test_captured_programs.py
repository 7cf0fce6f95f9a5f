"""Recording whole programs: how they end, with the workers that they start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import until

from tilewright.runtime.capture import record as capture_record

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]

PROGRAM = """
import glob, json, os, sys, time
import cuda.tile as ct
from tests.runtime.captured_kernels import scale

how = sys.argv[1]
if how == "end":
    from torch import zeros
else:  # in a third of the time
    from numpy import zeros

def launch():
    try:
        ct.launch(0, (8,), scale, (zeros(64), zeros(64), 8, 1.0))
    except OSError:
        pass  # no driver here

for _ in range(4000 if how == "long" else 3):
    launch()
if how == "long":
    how = "fork"
if how == "fork":
    if os.fork() == 0:
        launch()
        sys.exit(0)
    os.wait()
elif how == "crash":
    raise ValueError("theirs")
elif how == "wait":
    written = lambda: [json.load(open(one))["launches"][0]["count"] for one in glob.glob("*.part")]
    while written() != [3]:
        time.sleep(0.01)
    print("ready", flush=True)
    sum(range(10**15))  # does not come back from C
"""

WORKER = """
import multiprocessing, sys, time

def load():
    global zeros, ct, scale
    if sys.argv[1] == "late":
        from torch import zeros
    else:
        from numpy import zeros
    import cuda.tile as ct
    from tests.runtime.captured_kernels import scale

if sys.argv[1] != "late":
    load()

how = sys.argv[1]

def work():
    if how == "late":
        load()
    for pause in (0.1, 0, 0):
        try:
            ct.launch(0, (8,), scale, (zeros(64), zeros(64), 8, 1.0))
        except OSError:
            pass  # no driver here
        time.sleep(pause)

if __name__ == "__main__":
    worker = multiprocessing.get_context("fork" if how == "late" else how).Process(target=work)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


def started(folder: Path, how: str, program: str = PROGRAM) -> subprocess.Popen[str]:
    """A program under the start-up file, as `tilewright capture` starts it."""
    from tilewright.runtime.started import STARTUP

    (folder / "program.py").write_text(program)
    path = os.pathsep.join((str(STARTUP), str(ROOT / "src"), str(ROOT), os.environ["PYTHONPATH"]))
    environment = {**os.environ, "PYTHONPATH": path, "TILEWRIGHT_CAPTURE": str(folder / "c.json")}
    environment.pop("TILEWRIGHT_PATCH", None)
    command = [sys.executable, str(folder / "program.py"), how]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def computed(process: int) -> float:
    """The seconds of processor time of a process."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(torch.cuda.is_available(), reason="these programs end at the first launch without a driver")
@pytest.mark.parametrize(
    ("how", "code", "counts", "finished"),
    [
        ("end", 0, [3], [True]),
        ("fork", 0, [1, 3], [True, True]),
        ("long", 0, [1, 4000], [True, True]),
        ("crash", 1, [3], [True]),
    ],
)
def test_a_program_leaves_its_record(
    tmp_path: Path, how: str, code: int, counts: list[int], finished: list[bool]
) -> None:
    process = started(tmp_path, how)
    _, said = process.communicate()
    assert process.returncode == code, said
    assert ("theirs" in said) == (how == "crash")
    merged = capture_record.merged(tmp_path / "c.json")
    assert sorted(part.launches[0].count for part in merged.parts) == counts
    assert [part.finished for part in merged.parts] == finished
    assert merged.launches()[0].count == sum(counts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="as above")
@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn", "late"])
def test_a_worker_leaves_its_record(tmp_path: Path, how: str) -> None:
    """`multiprocessing` ends forked processes in a way that skips `atexit`."""
    process = started(tmp_path, how, WORKER)
    _, said = process.communicate()
    assert (process.returncode, said) == (0, "")
    parts = [part for part in capture_record.merged(tmp_path / "c.json").parts if part.launches]
    assert [(part.launches[0].count, part.finished) for part in parts] == [(3, True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="as above")
def test_a_program_that_is_told_to_end_ends_as_without_capture(tmp_path: Path) -> None:
    """At once, also where Python would not come to answer; what was written last is there."""
    process = started(tmp_path, "wait")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        ready = computed(process.pid)
        assert until(lambda: computed(process.pid) > ready + 0.1), "it is in C"
        process.send_signal(signal.SIGTERM)
        process.communicate()
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM
    (part,) = capture_record.merged(tmp_path / "c.json").parts
    assert (part.launches[0].count, part.finished) == (3, False)
