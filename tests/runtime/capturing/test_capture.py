"""Recording what is launched. The real `ct.launch` needs a driver; a stand-in for it is put in its place first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
from tests.runtime import captured_kernels as kernels

from tilewright.errors import RequestError
from tilewright.runtime.capturing import capture
from tilewright.runtime.capturing import record as capture_record
from tilewright.runtime.capturing.described import DescribedLaunch
from tilewright.runtime.capturing.record import Capture, Part, Recorded, Times
from tilewright.runtime.capturing.recorder import KINDS, OBJECTS, Recorder
from tilewright.runtime.capturing.timing import next_sample

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What reaches the launch beneath ours."""
    calls: list[Any] = []
    monkeypatch.setattr(ct, "launch", lambda *given, **more: calls.append((given, more)))
    yield calls
    capture.uninstall()


def launch_scale(size: int = 64, tile: int = 8, factor: float = 1.0, kernel: Any = kernels.scale) -> None:
    x = torch.zeros(size)
    ct.launch(0, (size // tile,), kernel, (x, torch.zeros(size), tile, factor))


def test_every_launch_is_made_and_counted(tmp_path: Path, launched: list[Any]) -> None:
    with capture.capturing(tmp_path / "c.json"):
        for number in range(30):
            launch_scale(factor=float(number))
        launch_scale(tile=16)
        ct.launch(0, (8,), kernels.scale, (torch.zeros(64), torch.zeros(64), 8, 1.0),
                  programmatic_dependent_launch=True)  # fmt: skip
    assert len(launched) == 32 and launched[-1][1] == {"programmatic_dependent_launch": True}
    first, second = capture_record.read(tmp_path / "c.json").launches()
    assert (first.count, second.count) == (31, 1)
    assert first.launch.constants == {"TILE": 8}


@pytest.mark.parametrize(
    "args",
    [
        (torch.zeros(63), torch.zeros(64), 8, 1.0),
        (torch.zeros(64, dtype=torch.float16), torch.zeros(64), 8, 1.0),
        (torch.zeros(128)[::2], torch.zeros(64), 8, 1.0),
        (torch.zeros(65)[1:], torch.zeros(64), 8, 1.0),
        (torch.zeros(64), torch.zeros(64), 4, 1.0),
        (torch.zeros(64), torch.zeros(64), 8, None),
        (torch.zeros(64), [torch.zeros(64)], 8, 1.0),
    ],
)
def test_what_tells_kinds_of_launches_apart(
    tmp_path: Path, launched: list[Any], args: tuple[Any, ...]
) -> None:
    """Shape, dtype, strides, alignment, constants, kinds of arguments (A-15)."""
    recorder = Recorder(ct.launch, tmp_path / "c.json")
    usual = (torch.zeros(64), torch.zeros(64), 8, 1.0)
    for given in (usual, args, usual, args):
        recorder.launch(0, (8,), kernels.scale, given)
    assert [one.count for one in recorder.recorded().launches] == [2, 2]
    assert len(launched) == 4


def test_a_kernel_made_for_each_launch_is_one_kind_and_is_not_kept(
    tmp_path: Path, launched: list[Any]
) -> None:
    """A-47: `replace_hints` on the hot path makes a new object each time."""
    recorder = Recorder(ct.launch, tmp_path / "c.json")
    x = torch.zeros(64)
    for _ in range(3 * OBJECTS):
        recorder.launch(0, (8,), kernels.scale.replace_hints(occupancy=2), (x, x, 8, 1.0))
    (one,) = recorder.recorded().launches
    assert one.count == 3 * OBJECTS and one.launch.hints["occupancy"] == 2
    assert len(recorder._readers) == OBJECTS


def test_endless_kinds_are_counted_together(tmp_path: Path, launched: list[Any]) -> None:
    recorder = Recorder(ct.launch, tmp_path / "c.json")
    x = torch.zeros(64)
    for number in range(KINDS + 50):
        recorder.launch(0, (8,), kernels.scale, (x, x, number, 1.0))
    found = recorder.recorded().launches
    assert (len(found), sum(one.count for one in found)) == (KINDS, KINDS + 50)
    assert sum(one.others for one in found) == 50


def test_threads_lose_no_count(tmp_path: Path, launched: list[Any]) -> None:
    recorder = Recorder(lambda *given: None, tmp_path / "c.json")
    x = torch.zeros(64)

    def work() -> None:
        for _ in range(2000):
            recorder.launch(0, (8,), kernels.scale, (x, x, 8, 1.0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = recorder.recorded().launches
    assert one.count == 8000


def test_an_error_of_a_launch_passes_and_is_recorded(tmp_path: Path) -> None:
    def fails(*given: Any) -> None:
        raise OSError("no driver\nmore")

    recorder = Recorder(fails, tmp_path / "c.json")
    for _ in range(12):
        with pytest.raises(OSError, match="no driver"):
            recorder.launch(0, (8,), kernels.scale, (torch.zeros(64), torch.zeros(64), 8, 1.0))
    (one,) = recorder.recorded().launches
    assert (one.count, one.failed, one.error, one.launched) == (12, 12, "OSError: no driver", 0)


def test_what_cannot_be_described_is_launched_all_the_same(
    tmp_path: Path, launched: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(ct.launch, tmp_path / "c.json")
    for _ in range(3):
        recorder.launch(0, (1,), "no kernel", ())
    assert len(launched) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_launches_into_a_graph_are_counted_apart(tmp_path: Path, launched: list[Any]) -> None:
    recorder = Recorder(ct.launch, tmp_path / "c.json")
    x = torch.zeros(64)
    for capturing in (False, True, True):
        recorder._in_graph = lambda now=capturing: now  # type: ignore[misc]
        recorder.launch(0, (8,), kernels.scale, (x, x, 8, 1.0))
    (one,) = recorder.recorded().launches
    assert (one.count, one.in_graph, one.launched) == (3, 2, 1)


def test_few_launches_are_timed_and_ever_fewer() -> None:
    numbers, number = [], 1
    while number < 100_000:
        numbers.append(number)
        number = next_sample(number)
    assert numbers[:4] == [1, 2, 3, 4]
    assert len(numbers) < 120
    assert all(next_sample(one) - one >= one // 8 for one in numbers)


# Where it is put, and taken away ----------------------------------------------------------------------


def test_every_name_of_the_launch_is_replaced_and_put_back(tmp_path: Path, launched: list[Any]) -> None:
    """`from cuda.tile import launch` before and after; modules that define another launch are left alone."""
    module = type(sys)("imported_by_name")
    module.launch, module.other = ct.launch, print  # type: ignore[attr-defined]
    sys.modules["imported_by_name"] = module
    try:
        before = ct.launch
        with capture.capturing(tmp_path / "c.json"):
            from cuda.tile import launch

            assert launch is ct.launch is module.launch is not before  # type: ignore[attr-defined]
            assert module.other is print  # type: ignore[attr-defined]
        assert ct.launch is module.launch is before  # type: ignore[attr-defined]
    finally:
        del sys.modules["imported_by_name"]


def test_installing_twice_records_once(tmp_path: Path, launched: list[Any]) -> None:
    capture.install(tmp_path / "c.json")
    capture.install(tmp_path / "c.json")
    launch_scale()
    capture.uninstall()
    capture.uninstall()
    assert capture_record.merged(tmp_path / "c.json").launches()[0].count == 1
    assert len(launched) == 1


def test_without_a_path_or_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TILEWRIGHT_CAPTURE", raising=False)
    with pytest.raises(RequestError, match="say where to"):
        capture.install()
    with pytest.raises(RequestError, match="cannot write into"):
        capture.install(tmp_path / "gone" / "c.json")
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_DATA", "much")
    with pytest.raises(RequestError, match="not a number of mebibytes"):
        capture.install(tmp_path / "c.json")


# Data -------------------------------------------------------------------------------------------------


def test_data_is_kept_up_to_a_limit(tmp_path: Path, launched: list[Any]) -> None:
    from tilewright.runtime.capturing.rebuilding import rebuilt

    x = torch.arange(64, dtype=torch.bfloat16)
    with capture.capturing(tmp_path / "c.json", data_bytes=1000):
        for factor in (1.0, 2.0):
            ct.launch(0, (8,), kernels.scale, (x, torch.zeros(64), 8, factor))
        ct.launch(0, (16,), kernels.scale, (torch.zeros(4096), torch.zeros(4096), 16, 1.0))
    small, large = sorted(capture_record.read(tmp_path / "c.json").launches(), key=lambda one: -one.count)
    assert set(small.data) == {"x", "y"} and large.data == {}
    _, _, args = rebuilt(small.launch, device="cpu", data=small.data)
    assert torch.equal(args[0], x)


# Records ----------------------------------------------------------------------------------------------


def recorded(name: str, count: int, busy: Times = Times(), idle: Times = Times()) -> Recorded:  # noqa: B008
    return Recorded(DescribedLaunch(name, "m", name, "f", "", (1,), ()), count, busy=busy, idle=idle)


def test_processes_are_added_and_sorted_by_time(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    first = (recorded("a", 10, Times(2, 4.0)), recorded("b", 1, Times(1, 100.0)))
    second = (recorded("a", 90, Times(2, 8.0)),)
    for pid, launches in ((1, first), (2, second)):
        part = Part(pid, ("p",), "/", "", 1.0, True, launches)
        capture_record.write(capture_record.part_file(file, pid), part)
    merged = capture_record.merged(file)
    assert not capture_record.parts_of(file)
    assert capture_record.read(file) == merged
    assert [(one.launch.kernel, one.count, one.total_us) for one in merged.launches()] == [
        ("a", 100, 300.0),
        ("b", 1, 100.0),
    ]


def test_times_of_a_busy_gpu_are_believed_first() -> None:
    one = recorded("a", 10, busy=Times(3, 30.0), idle=Times(9, 180.0))
    assert (one.gpu.mean_us, one.at_most) == (10.0, False)
    one = recorded("a", 10, busy=Times(2, 20.0), idle=Times(9, 180.0))
    assert (one.gpu.mean_us, one.at_most) == (20.0, True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99, "parts": []}', '{"version": 1}'])
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(RequestError, match=r"is no record of tilewright capture"):
        capture_record.read(tmp_path / "c.json")


def test_rows_are_counted_from_one() -> None:
    record = Capture(1, (Part(1, (), "", "", 0.0, True, (recorded("a", 1),)),))
    assert capture_record.chosen(record, 1).launch.kernel == "a"
    for number in (0, 2):
        with pytest.raises(RequestError, match=f"no launch {number}; the record has 1 to 1"):
            capture_record.chosen(record, number)


# Programs ---------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
import torch
import cuda.tile as ct
from tests.runtime.captured_kernels import scale

def launch():
    try:
        ct.launch(0, (8,), scale, (torch.zeros(64), torch.zeros(64), 8, 1.0))
    except OSError:
        pass  # no driver here

for _ in range(3):
    launch()
how = sys.argv[1]
if how == "fork":
    if os.fork() == 0:
        launch()
        sys.exit(0)
    os.wait()
elif how == "crash":
    raise ValueError("theirs")
elif how == "wait":
    print("ready", flush=True)
    time.sleep(60)
"""


def started(folder: Path, how: str) -> subprocess.Popen[str]:
    """A program under the start-up file, as `tilewright capture` starts it."""
    from tilewright.cli_run import STARTUP

    (folder / "program.py").write_text(PROGRAM)
    path = os.pathsep.join((str(STARTUP), str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "TILEWRIGHT_CAPTURE": str(folder / "c.json")}
    environment.pop("TILEWRIGHT_PATCH", None)
    command = [sys.executable, str(folder / "program.py"), how]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="these programs end at the first launch without a driver"
)
@pytest.mark.parametrize(
    ("how", "code", "counts", "finished"),
    [("end", 0, [3], [True]), ("fork", 0, [1, 3], [True, True]), ("crash", 1, [3], [True])],
)
def test_a_program_leaves_its_record(
    tmp_path: Path, how: str, code: int, counts: list[int], finished: list[bool]
) -> None:
    process = started(tmp_path, how)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert ("theirs" in said) == (how == "crash")
    merged = capture_record.merged(tmp_path / "c.json")
    assert sorted(part.launches[0].count for part in merged.parts) == counts
    assert [part.finished for part in merged.parts] == finished
    assert merged.launches()[0].count == sum(counts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="as above")
def test_a_program_that_is_told_to_end_leaves_its_record(tmp_path: Path) -> None:
    process = started(tmp_path, "wait")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert capture_record.merged(tmp_path / "c.json").launches()[0].count == 3


def test_a_long_program_writes_on_its_way(
    tmp_path: Path, launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that also one that is killed leaves most of it."""
    monkeypatch.setattr(capture, "SECONDS_BETWEEN_WRITES", 0.02)
    capture.install(tmp_path / "c.json")
    launch_scale()
    file = capture_record.part_file(tmp_path / "c.json", os.getpid())
    ends = time.monotonic() + 20
    while not file.exists() and time.monotonic() < ends:
        time.sleep(0.02)
    assert json.loads(file.read_text())["finished"] is False
    capture.uninstall()
    assert json.loads(file.read_text())["finished"] is True
