"""What a `Dispatcher` launches: real compilers for sm_90, and a driver that records launches."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import cuda.tile as ct
import pytest

pytest.importorskip("triton")

from tests.launching.recording_driver import RecordingDriver, word
from tests.runtime.dispatch.kit_dispatch import OnGpu, dispatcher, shipped

import tilewright as tw
from tilewright.errors import CompilerMissing, MachineError, RequestError
from tilewright.languages.cutile import cutile
from tilewright.languages.triton import triton
from tilewright.launching import cuda, driver
from tilewright.runtime.dispatch import dispatcher as module
from tilewright.runtime.environment import TuningWarning
from tilewright.task.loading import load_task

EXAMPLE = Path(__file__).parents[3] / "examples" / "several_languages.py"
X, OUT = 1 << 24, 1 << 28


@pytest.fixture(scope="module")
def task() -> tw.Task:
    return load_task(str(EXAMPLE))


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> RecordingDriver:
    made = RecordingDriver()
    monkeypatch.setattr(cuda, "driver", lambda: made)
    driver._kernel.cache_clear()
    return made


def arrays(at: int = 0, M: int = 1024) -> dict[str, OnGpu]:
    return {"x": OnGpu((M, 3000), address=X + at), "out": OnGpu((M, 3000), address=OUT + at)}


@pytest.mark.parametrize("implementation", ["cutile", "triton_ptx", "triton_tileir"])
def test_each_language_is_compiled_once_and_launched_by_the_driver(
    task: tw.Task, implementation: str, recording: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dict(shipped(task, implementation))
    softmax = dispatcher(task, {"odd": config})
    compiled: list[str] = []
    for language in (cutile.CuTile, triton.Triton):
        assemble = language.assemble
        monkeypatch.setattr(
            language, "assemble",
            lambda self, *given, real=assemble: (compiled.append(self.name), real(self, *given))[1],
        )  # fmt: skip
    assert softmax.chosen(**arrays()).config["implementation"] == implementation
    first = arrays()
    softmax(7, **first)
    recording.calls.clear()
    softmax(None, **arrays())
    assert not recording.calls, "a steady call only launches"
    softmax(7, **arrays(at=1 << 20))
    assert (recording.count, len(compiled) - (implementation == "triton_tileir")) == (1, 1)
    assert [(grid, stream) for _, grid, stream, _ in recording.launches] == [((1024, 1, 1), each) for each in (7, 0, 7)]
    out_first = implementation != "cutile"  # the order of the kernel's parameters
    pointers = [word(parameters, 0) for _, _, _, parameters in recording.launches]
    assert pointers == [(OUT if out_first else X) + at for at in (0, 0, 1 << 20)]
    assert len(softmax._launches) == 2
    kept = weakref.ref(first.pop("x"))
    gc.collect()
    assert kept() is None


def test_a_nearby_call_shares_the_cubin(task: tw.Task, recording: RecordingDriver) -> None:
    """Only its grid differs, and so its program."""
    softmax = dispatcher(task, {"odd": dict(shipped(task, "cutile"))})
    softmax(0, **arrays())
    softmax(0, **arrays(M=2000))
    assert softmax.chosen(**arrays(M=2000)).match == "nearest"
    assert [grid for _, grid, _, _ in recording.launches] == [(1024, 1, 1), (2000, 1, 1)]
    assert (len(softmax._programs), len(softmax._cubins), recording.count) == (2, 1, 1)


def test_threads_share_the_launches_and_memory_is_bounded(
    task: tw.Task, recording: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAUNCHES", 4)
    softmax = dispatcher(task, {"odd": dict(shipped(task, "cutile"))})
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(40):
                softmax(0, **arrays(at=(turn % 7) << 12))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures and len(recording.launches) == 160 and recording.count == 1
    assert len(softmax._launches) == 4 and len(softmax._programs) == 1


def test_a_missing_compiler_leaves_the_other_languages(
    task: tw.Task, recording: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise CompilerMissing("tileiras is not installed; fix: pip install it")

    monkeypatch.setattr(cutile, "find_tileiras", missing)
    softmax = dispatcher(task, {"odd": dict(shipped(task, "cutile"))})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", TuningWarning)
        softmax(0, **arrays())
        softmax(0, **arrays(at=1 << 20))
    (line,) = [str(each.message) for each in warned]
    assert "implementation=cutile" in line and "tileiras is not installed" in line and "\n" not in line
    assert line.endswith("implementation=triton_ptx,route=ptx,num_warps=8 runs") and len(recording.launches) == 2
    monkeypatch.setattr(triton.Triton, "lower", lambda *_: missing())
    with pytest.raises(MachineError, match="no configuration can be launched here: implementation=cutile") as error:
        softmax(0, **arrays(M=512))
    assert "\n" not in str(error.value)


@ct.kernel
def double(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), 2 * ct.load(x, (ct.bid(0),), (TILE,)))


@ct.kernel
def double_listed(xs, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), 2 * ct.load(xs[0], (ct.bid(0),), (TILE,)))


def doubling(launch: Any, **output: Any) -> tw.Task:
    return tw.Task(
        name="double", reference=lambda x: 2 * x, launch=launch, flops=lambda N: N, workloads={"one": {"N": 4096}},
        tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32", **output)},
        space=tw.Space(constants={"TILE": (256,)}, shipped={"TILE": 256}),
    )  # fmt: skip


def launch_listed(x: Any, y: Any, N: int, config: Any) -> tw.Launch:
    return tw.Launch(double_listed, (N // config.TILE,), ([x], y, config.TILE))


def launch_double(x: Any, y: Any, N: int, config: Any) -> tw.Launch:
    return tw.Launch(double, (N // config.TILE,), (x, y, config.TILE))


def test_lists_and_shared_memory_are_refused_in_one_line(recording: RecordingDriver) -> None:
    x, y = OnGpu((4096,), "torch.float32", X), OnGpu((4096,), "torch.float32", OUT)
    with pytest.raises(RequestError, match="takes a list of arrays, whose table in memory each launch would have to"):
        dispatcher(doubling(launch_listed), {"one": {"TILE": 256}})(0, x=x, y=y)
    in_place = dispatcher(doubling(launch_double, in_place_of="x"), {"one": {"TILE": 256}})
    with pytest.raises(RequestError, match="'y' shares memory, which code of cutile was not compiled for"):
        in_place(0, x=x, y=x)
    in_place(0, x=x, y=y)
    assert len(recording.launches) == 1
