"""Recording what is launched. The real `ct.launch` needs a driver; a stand-in for it is put in its place first."""

from __future__ import annotations

import io
import json
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest
from rich.console import Console
from tests.processes import PATIENCE, until
from tests.runtime import captured_kernels as kernels

from tilewright.cli import capture_table as capture_tables
from tilewright.errors import RequestError
from tilewright.runtime.capture import capture
from tilewright.runtime.capture import record as capture_record
from tilewright.runtime.capture import recorder as recorder_module
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.kinds import EXACT, Sampled, _Events, next_sample
from tilewright.runtime.capture.of_cutile import SIGNATURE, CapturedCuTile
from tilewright.runtime.capture.record import Capture, ProcessRecord, Recorded, Times
from tilewright.runtime.capture.recorder import KINDS, OBJECTS, Recorder

torch = pytest.importorskip("torch")


class CuTileRecorder(Recorder):
    """With its hook in place of a launch function."""

    def __init__(self, original: Any, folder: Path, **options: Any) -> None:
        super().__init__(folder / "c.json", **options)
        self.launch = CapturedCuTile().hook(original, self)


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
        (torch.zeros(64), torch.zeros(64), 8.0, 1.0),
        (torch.zeros(64), torch.zeros(64), 8, 1),
    ],
)
def test_what_tells_kinds_of_launches_apart(tmp_path: Path, launched: list[Any], args: tuple[Any, ...]) -> None:
    """Shape, dtype, strides, alignment, constants, kinds of arguments (A-15)."""
    recorder = CuTileRecorder(ct.launch, tmp_path)
    usual = (torch.zeros(64), torch.zeros(64), 8, 1.0)
    for given in (usual, args, usual, args):
        recorder.launch(0, (8,), kernels.scale, given)
    assert [one.count for one in recorder.recorded().launches] == [2, 2]
    assert len(launched) == 4


def test_a_kernel_made_for_each_launch_is_one_kind_and_is_not_kept(tmp_path: Path, launched: list[Any]) -> None:
    """A-47: `replace_hints` on the hot path makes a new object each time."""
    recorder = CuTileRecorder(ct.launch, tmp_path)
    x = torch.zeros(64)
    for _ in range(3 * OBJECTS):
        recorder.launch(0, (8,), kernels.scale.replace_hints(occupancy=2), (x, x, 8, 1.0))
    (one,) = recorder.recorded().launches
    assert one.count == 3 * OBJECTS and one.launch.hints["occupancy"] == 2
    assert len(recorder._objects) == len(recorder.skips) == OBJECTS


@pytest.mark.long
def test_endless_kinds_are_counted_together(tmp_path: Path, launched: list[Any]) -> None:
    recorder = CuTileRecorder(ct.launch, tmp_path)
    x = torch.zeros(64)
    for number in range(KINDS + 50):
        recorder.launch(0, (8,), kernels.scale, (x, x, number, 1.0))
    found = recorder.recorded().launches
    assert (len(found), sum(one.count for one in found)) == (KINDS, KINDS + 50)
    assert sum(one.others for one in found) == 50


def test_threads_lose_no_count(tmp_path: Path, launched: list[Any]) -> None:
    recorder = CuTileRecorder(lambda *given: None, tmp_path)
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


# After the first launches of a kernel, when few are looked at ------------------------------------------

USUAL = (torch.zeros(64), torch.zeros(64), 8, 1.0)
LARGER = (torch.zeros(128), torch.zeros(128), 8, 1.0)


def recorder_of(tmp_path: Path, launch: Any = lambda *given, **more: None, **options: Any) -> CuTileRecorder:
    return CuTileRecorder(launch, tmp_path, random=random.Random(1), **options)


def test_kinds_are_estimated_and_add_up(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    for number in range(30_001):
        recorder.launch(0, (8,), kernels.scale, LARGER if number % 4 == 0 else USUAL)
    usual, larger = sorted(recorder.recorded().launches, key=lambda one: -one.count)
    assert usual.count + larger.count == 30_001
    assert 0.65 < usual.count / 30_001 < 0.85, "0.75 ± 5 standard errors of some 300 looks"
    looked = usual.count + larger.count - usual.estimated - larger.estimated
    assert EXACT + 150 < looked < EXACT + 600


def test_the_first_launches_are_exact(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    for number in range(EXACT):
        recorder.launch(0, (8,), kernels.scale, USUAL if number % 3 else LARGER)
        recorder.launch(0, (8,), kernels.scale.replace_hints(occupancy=2), USUAL)
    found = recorder.recorded().launches
    assert sorted(one.count for one in found) == [334, 666, EXACT]
    assert not any(one.estimated for one in found)


@pytest.mark.parametrize("said", [True, "1"])
def test_exact_looks_at_every_launch(
    tmp_path: Path, launched: list[Any], monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_EXACT", "0" if said is True else said)
    capture.install(tmp_path / "c.json", exact=True if said is True else None)
    for number in range(5000):
        ct.launch(0, (8,), kernels.scale, LARGER if number % 512 == 511 else USUAL)
    capture.uninstall()
    found = capture_record.merged(tmp_path / "c.json").launches()
    assert [(one.count, one.estimated) for one in found] == [(4991, 0), (9, 0)]


def test_a_new_kind_is_noticed_sooner_or_later(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    for args in (USUAL, LARGER):
        for _ in range(3000):
            recorder.launch(0, (8,), kernels.scale, args)
    usual, larger = recorder.recorded().launches
    assert usual.count + larger.count == 6000
    assert abs(larger.count - 3000) < 500


def test_a_kernel_made_for_each_launch_is_looked_at_as_rarely(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    for _ in range(4000):
        recorder.launch(0, (8,), kernels.scale.replace_hints(occupancy=2), USUAL)
    (one,) = recorder.recorded().launches
    assert one.count == 4000
    assert EXACT + 50 < one.count - one.estimated < EXACT + 250


def test_failures_are_exact_though_few_launches_are_looked_at(tmp_path: Path) -> None:
    """A launch that failed stands for no other: kinds that always fail are exact, and so is what is left."""
    rare = (torch.zeros(256), torch.zeros(256), 8, 1.0)

    def fails_for_some(stream: Any, grid: Any, kernel: Any, args: Any) -> None:
        if args is not USUAL:
            raise ValueError(f"launch {stream}")

    recorder, failed = recorder_of(tmp_path, fails_for_some), 0
    for number in range(20_000):
        args = rare if number == 15_000 else LARGER if number % 10 == 0 else USUAL
        try:
            recorder.launch(number, (8,), kernels.scale, args)
        except ValueError:
            failed += 1
    usual, larger, once = sorted(recorder.recorded().launches, key=lambda one: -one.count)
    assert (usual.count, larger.count, once.count) == (18_000, 1999, 1)
    assert (usual.failed, larger.failed, once.failed) == (0, 1999, 1) and failed == 2000
    assert (larger.error, once.error) == ("ValueError: launch 0", "ValueError: launch 15000")
    assert (larger.estimated, once.estimated) == (0, 0) and usual.estimated > 15_000


def test_launches_into_a_graph_are_estimated_too(tmp_path: Path) -> None:
    recorder, now = recorder_of(tmp_path), [0]
    recorder._in_graph = lambda: now[0] % 4 == 0
    for number in range(20_000):
        now[0] = number
        recorder.launch(0, (8,), kernels.scale, USUAL)
    (one,) = recorder.recorded().launches
    assert (one.count, one.launched) == (20_000, 20_000 - one.in_graph)
    assert abs(one.in_graph - 5000) < 2500


def test_a_forked_process_starts_anew(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    for _ in range(EXACT + 700):
        recorder.launch(0, (8,), kernels.scale, USUAL)
    recorder.forget()
    assert recorder.recorded().launches == ()
    for number in range(30):
        recorder.launch(0, (8,), kernels.scale, LARGER if number < 10 else USUAL)
    assert [(one.count, one.estimated) for one in recorder.recorded().launches] == [(10, 0), (20, 0)]


def test_the_random_numbers_of_the_program_are_its_own(tmp_path: Path, launched: list[Any]) -> None:
    random.seed(7)
    before = random.getstate()
    with capture.capturing(tmp_path / "c.json"):
        for _ in range(EXACT + 500):
            ct.launch(0, (8,), kernels.scale, USUAL)
    assert random.getstate() == before


def test_more_threads_than_one_lose_no_count_later(tmp_path: Path) -> None:
    recorder, switch = recorder_of(tmp_path, exact=50), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for number in range(6000):
            recorder.launch(0, (8,), kernels.scale, USUAL if number % 2 else LARGER)

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert sum(one.count for one in recorder.recorded().launches) == 24_000


class Builtin:
    """A launch that says of itself what cuda-tile's does."""

    def __init__(self) -> None:
        self.__name__ = self.__qualname__ = "launch"
        self.__text_signature__ = SIGNATURE
        self.calls: list[Any] = []

    def __call__(self, *given: Any, **more: Any) -> None:
        self.calls.append((given, more))


@pytest.mark.parametrize("exact", [0, 10**9])
@pytest.mark.parametrize("known", [True, False])
def test_the_stand_in_passes_on_what_it_is_given(tmp_path: Path, exact: int, known: bool) -> None:
    """Whether looked at or not, whether its signature is the one of cuda-tile 1.7 or another."""
    original = Builtin()
    if not known:
        original.__text_signature__ = SIGNATURE.replace("=False", "=False, shared_memory=0")
    launch = recorder_of(tmp_path, original, exact=exact).launch
    words: list[dict[str, Any]] = [{"programmatic_dependent_launch": True}, {}]
    for more in words if known else [*words, {"shared_memory": 5}]:
        original.calls.clear()
        for _ in range(500):
            launch(0, (8,), kernels.scale, USUAL, **more)
        assert len(original.calls) == 500
        for given, passed in original.calls:
            assert given == (0, (8,), kernels.scale, USUAL)
            assert {"programmatic_dependent_launch": False, **passed} == {
                "programmatic_dependent_launch": False, **more,
            }  # fmt: skip
    with pytest.raises(TypeError, match=r"^launch\(\) missing 2 required positional arguments"):
        launch(0, (8,))
    with pytest.raises(TypeError, match=r"^launch\(\) "):
        launch(stream=0, grid=(8,), kernel=kernels.scale, kernel_args=USUAL)


def test_the_launch_of_this_cuda_tile_is_known() -> None:
    """Another is passed on too, but by a slower way: look what is new in it, then change SIGNATURE."""
    assert ct.launch.__text_signature__ == SIGNATURE


def test_an_error_of_a_launch_passes_and_is_recorded(tmp_path: Path) -> None:
    def fails(*given: Any) -> None:
        raise OSError("no driver\nmore")

    recorder = CuTileRecorder(fails, tmp_path)
    for _ in range(12):
        with pytest.raises(OSError, match="no driver"):
            recorder.launch(0, (8,), kernels.scale, (torch.zeros(64), torch.zeros(64), 8, 1.0))
    (one,) = recorder.recorded().launches
    assert (one.count, one.failed, one.error, one.launched) == (12, 12, "OSError: no driver", 0)


def test_what_cannot_be_described_is_launched_all_the_same(
    tmp_path: Path, launched: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = CuTileRecorder(ct.launch, tmp_path)
    for _ in range(3):
        recorder.launch(0, (1,), "no kernel", ())
    assert len(launched) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_launches_into_a_graph_are_counted_apart(tmp_path: Path, launched: list[Any]) -> None:
    recorder = CuTileRecorder(ct.launch, tmp_path)
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


class Events:
    """Of a GPU that came to them, or never does, or has broken down."""

    def __init__(self, error: str = "", ms: float | None = None) -> None:
        self.error, self.ms = error, ms

    def query(self) -> bool:
        if self.error:
            raise RuntimeError(self.error)
        return self.ms is not None

    def elapsed_time(self, end: Any) -> float | None:
        return self.ms


def test_the_wait_for_the_compiler_is_no_time_of_a_kernel() -> None:
    """On an idle GPU; what came later counts, if anything did. Behind other work the first is as good as any."""
    sampled = Sampled()
    for ms, first, busy, idle in (
        (500.0, True, Times(), Times(1, 500_000.0)),
        (0.25, False, Times(), Times(1, 250.0)),
        (0.75, False, Times(), Times(2, 1000.0)),
    ):
        sampled.waiting.append(_Events(Events(ms=ms), Events(ms=ms), 0, first))
        sampled.read_all(0.0)
        assert (sampled.busy, sampled.idle) == (busy, idle)
    sampled.waiting.append(_Events(Events(ms=2.0), Events(ms=2.0), 0, True, busy=True))
    sampled.read_all(0.0)
    assert (sampled.busy, sampled.idle) == (Times(1, 2000.0), Times(2, 1000.0))


@pytest.mark.parametrize("error", ["", "CUDA error: an illegal memory access was encountered"])
def test_the_end_does_not_depend_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    monkeypatch.setattr(recorder_module, "SECONDS_FOR_SAMPLES", 0.05)
    recorder = recorder_of(tmp_path)
    recorder.launch(0, (8,), kernels.scale, USUAL)
    (kind,) = next(iter(recorder._kernels.values())).kinds.values()
    kind.sampled.waiting.append(_Events(Events(error), Events(error), 0, True))
    recorder.launch(0, (8,), kernels.scale, USUAL)
    recorder.write(finished=True)
    assert written(tmp_path / "c.json") == [(2, True)]


def test_the_gpu_failing_is_no_failure_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Sampled, stream: Any, first: bool) -> None:
        raise RuntimeError("CUDA error: invalid resource handle")

    monkeypatch.setattr(Sampled, "_events", fails)
    recorder = recorder_of(tmp_path)
    recorder.launch(0, (8,), kernels.scale, USUAL)
    assert [(one.count, one.failed) for one in recorder.recorded().launches] == [(1, 0)]


def test_a_signal_may_launch_while_a_sample_is_taken() -> None:
    """Its handler runs in the thread that has the lock."""
    sampled, made = Sampled(), threading.Event()

    def interrupted() -> None:
        with sampled.lock:
            sampled.call(made.set, 0, 2)

    threading.Thread(target=interrupted, daemon=True).start()
    assert made.wait(PATIENCE)
    assert until(lambda: sampled.host.samples == 1)


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
    with pytest.raises(RequestError, match="no file to write to"):
        capture.install()
    with pytest.raises(RequestError, match="cannot write into"):
        capture.install(tmp_path / "gone" / "c.json")
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_DATA", "much")
    with pytest.raises(RequestError, match="not a number of mebibytes"):
        capture.install(tmp_path / "c.json")
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_DATA", "1")
    monkeypatch.setenv("TILEWRIGHT_CAPTURE_EXACT", "much")
    with pytest.raises(RequestError, match="neither 1 nor 0"):
        capture.install(tmp_path / "c.json")


# Data -------------------------------------------------------------------------------------------------


def test_data_is_kept_up_to_a_limit(tmp_path: Path, launched: list[Any]) -> None:
    from tilewright.runtime.capture.rebuilding import rebuilt

    x = torch.arange(64, dtype=torch.bfloat16)
    with capture.capturing(tmp_path / "c.json", data_bytes=1000):
        for factor in (1.0, 2.0):
            ct.launch(0, (8,), kernels.scale, (x, torch.zeros(64), 8, factor))
        ct.launch(0, (16,), kernels.scale, (torch.zeros(4096), torch.zeros(4096), 16, 1.0))
    small, large = sorted(capture_record.read(tmp_path / "c.json").launches(), key=lambda one: -one.count)
    assert set(small.data) == {"x", "y"} and large.data == {}
    _, _, args = rebuilt(small.launch, device="cpu", data=small.data)
    assert torch.equal(args[0], x)


def test_data_goes_when_another_record_takes_its_place(tmp_path: Path, launched: list[Any]) -> None:
    """Not before; and files of processes with the same id are told apart, as in a container each is."""
    folder = tmp_path / "c.json.data"
    with capture.capturing(tmp_path / "c.json", data_bytes=1 << 20):
        launch_scale()
    first = {file: file.read_bytes() for file in folder.iterdir()}
    with capture.capturing(tmp_path / "c.json", data_bytes=1 << 20):
        pass
    assert set(folder.iterdir()) == set(first), "still of the record, as this one launched nothing"
    with capture.capturing(tmp_path / "c.json", data_bytes=1 << 20):
        launch_scale(128)
        assert {file: file.read_bytes() for file in folder.iterdir()}.items() > first.items()
    (one,) = capture_record.read(tmp_path / "c.json").launches()
    assert sorted(map(str, folder.iterdir())) == sorted(one.data.values())
    with capture.capturing(tmp_path / "c.json"):
        launch_scale()
    assert not folder.exists()


# Records ----------------------------------------------------------------------------------------------


def recorded(name: str, count: int, busy: Times = Times(), idle: Times = Times()) -> Recorded:  # noqa: B008
    return Recorded(DescribedLaunch(name, "m", name, "f", "", (1,), ()), count, busy=busy, idle=idle)


def test_processes_are_added_and_sorted_by_time(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    first = (replace(recorded("a", 10, Times(2, 4.0)), estimated=3), recorded("b", 1, Times(1, 100.0)))
    second = (replace(recorded("a", 90, Times(2, 8.0)), estimated=4),)
    for pid, launches in ((1, first), (2, second)):
        part = ProcessRecord(pid, ("p",), "/", "", 1.0, True, launches)
        capture_record.write(capture_record.part_file(file, f"{pid}-a"), part)
    merged = capture_record.merged(file)
    assert not capture_record.parts_of(file)
    assert capture_record.read(file) == merged
    assert [one.estimated for one in merged.launches()] == [7, 0]
    assert [(one.launch.kernel, one.count, one.total_us) for one in merged.launches()] == [
        ("a", 100, 300.0),
        ("b", 1, 100.0),
    ]


def test_times_of_a_busy_gpu_are_believed_first() -> None:
    one = recorded("a", 10, busy=Times(3, 30.0), idle=Times(9, 180.0))
    assert (one.gpu.mean_us, one.at_most) == (10.0, False)
    one = recorded("a", 10, busy=Times(2, 20.0), idle=Times(9, 180.0))
    assert (one.gpu.mean_us, one.at_most) == (20.0, True)


@pytest.mark.parametrize("name", ["run[1].json", "*.json", "c.json"])
def test_parts_are_found_by_the_name_of_the_record_as_it_is(tmp_path: Path, name: str) -> None:
    for file in (tmp_path / name, tmp_path / "other.json"):
        part = ProcessRecord(1, ("p",), "/", "", 1.0, True, (recorded("a", 1),))
        capture_record.write(capture_record.part_file(file, "1-a"), part)
    (tmp_path / f"{name}.1-a.part.writing.1").write_text("{")  # what a process that is killed leaves
    assert capture_record.merged(tmp_path / name).launches()[0].count == 1
    assert {file.name for file in tmp_path.iterdir()} == {name, "other.json.1-a.part"}


def test_a_program_that_launched_nothing_does_not_cost_a_record(tmp_path: Path) -> None:
    file, none = tmp_path / "c.json", ProcessRecord(1, ("p",), "/", "", 1.0, True, ())
    capture_record.write(capture_record.part_file(file, "1-a"), replace(none, launches=(recorded("a", 1),)))
    first = capture_record.merged(file)
    capture_record.write(capture_record.part_file(file, "2-a"), none)
    assert capture_record.merged(file).launches() == ()
    assert capture_record.read(file) == first and not capture_record.parts_of(file)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"parts": 1}', "[" * 100_000])
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(RequestError, match=r"is not a record of tilewright capture"):
        capture_record.read(tmp_path / "c.json")


def test_a_record_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"version": 99, "parts": []}')
    with pytest.raises(RequestError, match=r"another version of Tilewright \(version 99, .*must be captured again"):
        capture_record.read(tmp_path / "c.json")


def test_a_record_of_before_there_were_estimates(tmp_path: Path) -> None:
    part = ProcessRecord(1, ("p",), "/", "", 1.0, True, (recorded("a", 10),))
    capture_record.write(capture_record.part_file(tmp_path / "c.json", "1-a"), part)
    written = capture_record.merged(tmp_path / "c.json")
    old = json.loads((tmp_path / "c.json").read_text())
    del old["parts"][0]["launches"][0]["estimated"]
    (tmp_path / "c.json").write_text(json.dumps(old))
    assert capture_record.read(tmp_path / "c.json") == written


def test_estimates_are_marked_in_the_table() -> None:
    one, other = replace(recorded("a", 5000), estimated=3900), recorded("b", 7)
    record = Capture(1, (ProcessRecord(1, ("p",), "/", "", 0.0, True, (one, other)),))
    lines = shown(record)
    assert any("≈ 5000" in line and " a " in line for line in lines)
    assert any(" 7 " in line and "≈" not in line for line in lines)
    assert any("1107 of the 5007" in line and "--exact" in line for line in lines)
    only = Capture(1, (ProcessRecord(1, ("p",), "/", "", 0.0, True, (other,)),))
    assert not any("≈" in line for line in shown(only))


def test_the_table_fits_80_columns_and_loses_nothing() -> None:
    kinds = tuple(recorded(f"a_kernel_with_a_long_name_{n}", 5000 + n) for n in range(3))
    lines = shown(Capture(1, (ProcessRecord(1, ("python", "serve.py"), "/", "", 0.0, True, kinds),)), width=80)
    assert max(map(len, lines)) <= 80
    for n in range(3):
        assert any(f"a_kernel_with_a_long_name_{n}" in line and str(5000 + n) in line for line in lines)


def shown(record: Capture, width: int = 200) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(capture_tables.captured(record))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_program_is_named_without_its_workers() -> None:
    worker = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()")
    parts = [ProcessRecord(1, words, "/", "", 0.0, True, ()) for words in (("python", "a.py"), worker, worker)]
    assert capture_record.programs(parts) == "python a.py"
    assert "spawn_main" in capture_record.programs(parts[1:])


def test_rows_are_counted_from_one() -> None:
    record = Capture(1, (ProcessRecord(1, (), "", "", 0.0, True, (recorded("a", 1),)),))
    assert capture_record.chosen(record, 1).launch.kernel == "a"
    for number in (0, 2):
        with pytest.raises(RequestError, match=f"no launch {number}; the record has 1 to 1"):
            capture_record.chosen(record, number)
    with pytest.raises(RequestError, match="no launch 1; no launch of a cuTile or Triton kernel was recorded"):
        capture_record.chosen(Capture(1, ()), 1)


# Writing -------------------------------------------------------------------------------------------


def test_a_long_program_writes_on_its_way(tmp_path: Path, launched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """So that also one that is killed leaves most of it."""
    monkeypatch.setattr(capture, "SECONDS_BETWEEN_WRITES", (0.01, 0.02))
    capture.install(tmp_path / "c.json")
    for count in (1, 2):  # not only once
        launch_scale()
        assert until(lambda count=count: written(tmp_path / "c.json") == [(count, False)])
    capture.uninstall()
    assert written(tmp_path / "c.json") == [(2, True)]


def written(file: Path) -> list[tuple[int, bool]]:
    parts = [json.loads(part.read_text()) for part in capture_record.parts_of(file)]
    return [(part["launches"][0]["count"], part["finished"]) for part in parts]


def test_it_is_written_ever_more_rarely() -> None:
    assert capture.pause(0.0, 0.001) == 0.25
    assert capture.pause(8.0, 0.001) == 2.0
    assert capture.pause(3600.0, 0.001) == capture.pause(0.0, 1.0) == 5.0
    assert capture.pause(0.0, 0.01) == 1.0, "at most 1 % of the time goes into it, where it takes longer"


def test_the_last_word_is_not_written_over(tmp_path: Path) -> None:
    """By a thread that was about to write when the program ended."""
    recorder = recorder_of(tmp_path)
    recorder.launch(0, (8,), kernels.scale, USUAL)
    recorder.write(finished=True)
    recorder.write()
    (part,) = capture_record.merged(tmp_path / "c.json").parts
    assert part.finished
