"""Which configuration a `Dispatcher` chooses, and which calls it refuses. Launches are in test_launching.py."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import cuda.tile as ct
import pytest
from tests.made_runs import MACHINE, tuned_workload
from tests.runtime.dispatch.kit_dispatch import H200, OnGpu, dispatcher, table

import tilewright as tw
from tilewright.errors import RequestError, UnknownChoice
from tilewright.records import TuningResult
from tilewright.runtime.dispatch.table import table_of
from tilewright.runtime.store import warn_once
from tilewright.runtime.store.config_file import PREDICTED


@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0), 0), 2 * ct.load(x, (ct.bid(0), 0), (1, TILE)))


def launch(x: Any, y: Any, M: int, config: Any) -> tw.Launch:
    return tw.Launch(scale, (M,), (x, y, config.TILE))


def make(**changes: Any) -> tw.Task:
    declared: dict[str, Any] = {
        "name": "scale",
        "tensors": {
            "x": tw.Tensor(("M", "N"), "float32"),
            "half": tw.Tensor(("M", "N // 2"), "float32"),
            "y": tw.Output(("M", "N"), "float32"),
        },
        "reference": lambda x, half: 2 * x,
        "launch": launch,
        "flops": lambda M, N: M * N,
        "space": tw.Space(constants={"TILE": (256, 512)}, shipped={"TILE": 256}, where=[lambda TILE, N: N >= TILE]),
        "workloads": {"small": {"M": 64, "N": 512, "causal": True}},
    }
    return tw.Task(**declared | changes)


TUNED = {"small": {"TILE": 512}}


def arrays(M: int = 64, N: int = 512, **changes: Any) -> dict[str, Any]:
    made = {
        "x": OnGpu((M, N), "torch.float32", 1 << 20),
        "half": OnGpu((M, N // 2), "torch.float32", 1 << 24),
        "y": OnGpu((M, N), "torch.float32", 1 << 28),
        "causal": True,
    }
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_warned", set())


@pytest.mark.parametrize(
    ("given", "tile", "match"),
    [
        (arrays(), 512, "exact"),
        (arrays(M=100), 512, "nearest"),
        (arrays(M=200), 256, "shipped"),  # beyond a factor of two
        (arrays(N=400), 256, "shipped"),  # the space does not allow TILE=512 there
        (arrays(causal=False), 256, "shipped"),
    ],
)
def test_the_row_of_a_call(given: dict[str, Any], tile: int, match: str) -> None:
    chosen = dispatcher(make(), TUNED).chosen(**given)
    assert (chosen.config["TILE"], chosen.match) == (tile, match), chosen.why


def test_the_reason_names_what_differs() -> None:
    made = table(make(), TUNED, label=f"small: {PREDICTED}")
    made["rows"][0]["parts"]["toolkit"] = "cuda-tile 1.0"  # type: ignore[index,call-overload]
    chosen = dispatcher(make(), made).chosen(**arrays())
    assert chosen.match == "nearest" and chosen.why == f"the nearest row, at distance 0; another toolkit; {PREDICTED}"


def test_a_measured_winner_has_its_times_in_the_row() -> None:
    """And the row is found by a call with these shapes, on the GPU model for which the task was tuned."""
    outcome = tuned_workload("square")
    task = make(
        tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
        space=tw.Space(constants={"KERNEL": ("two_pass",), "TILE": (64, 128)}, hints={"occupancy": (None, 4)},
                       shipped={"KERNEL": "two_pass", "TILE": 64, "occupancy": None}),
        workloads={"square": {**outcome.workload.dims}},
    )  # fmt: skip
    made = table_of(task, TuningResult("scale", MACHINE, True, (outcome,), "", {}), H200)
    assert made is not None
    (row,) = made["rows"]
    best, shipped = outcome.best, outcome.candidates[2]
    assert best and best.measured and shipped.measured
    assert (row["us"], row["shipped_us"], row["label"]) == (best.measured.us, shipped.measured.us, "square")
    given = arrays(M=4096, N=4096, half=None, causal=None)
    chosen = dispatcher(task, made).chosen(**given, dtype="bfloat16")  # type: ignore[arg-type]
    assert (chosen.config, chosen.match) == (best.configuration, "exact")
    failed = replace(outcome, best=None)
    assert table_of(task, TuningResult("scale", MACHINE, True, (failed,), "", {}), H200) is None


def test_what_ships_on_the_gpu_is_launched_there() -> None:
    """Also if its values are in no list of the space, and as the winner of a row."""
    space = tw.Space(constants={"TILE": (256, 512)}, shipped={"TILE": 256}, shipped_for={"sm_90": {"TILE": 128}})
    task = make(space=space)
    assert dispatcher(task, TUNED).chosen(**arrays(M=2000)).config["TILE"] == 128
    chosen = dispatcher(task, table(task.on("sm_90"), {"small": {"TILE": 128}})).chosen(**arrays())
    assert (chosen.config["TILE"], chosen.match) == (128, "exact")


@pytest.mark.parametrize(
    "config", [{"TILES": 512}, {"TILE": 1024}, {"TILE": 512.0}, {"TILE": 256.0}, {"TILE": "512"}, {"TILE": 10**400}, {}]
)
def test_a_configuration_that_the_space_does_not_have_is_not_used(config: dict[str, Any]) -> None:
    """256.0 equals the shipped 256, but a kernel with this constant is another one."""
    chosen = dispatcher(make(), {"small": config}).chosen(**arrays())
    assert chosen.match == "shipped" and repr(chosen.config["TILE"]) == "256"


def test_rows_of_another_source_are_not_used(warned: None) -> None:
    made = table(make(), TUNED)
    made["rows"][0]["parts"]["source"] = "0" * 64  # type: ignore[index,call-overload]
    with pytest.warns(warn_once.TunedStoreWarning, match="tuned for another source of scale"):
        assert dispatcher(make(), made).chosen(**arrays()).match == "shipped"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning is issued once
        dispatcher(make(), made).chosen(**arrays())


def test_a_table_of_another_task_is_refused() -> None:
    with pytest.raises(RequestError, match="has the configurations of scale, not of task 'other'"):
        dispatcher(make(name="other"), table(make(), TUNED))


WIDE = OnGpu((64, 512), "torch.float32", strides=(600, 1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"z": 1}, "unknown argument of task 'scale' 'z'; known: x, half, y, causal"),
        ({"y": None}, r"task 'scale' needs 'y': pass an array \(M, N\) of float32"),
        ({"causal": None}, "task 'scale' needs causal=…: the arrays do not show it"),
        ({"causal": [1]}, "'causal' is a list; pass a number"),
        ({"x": [1.0]}, r"'x' is a list; pass an array \(M, N\) of float32 on the GPU"),
        ({"x": OnGpu((64, 512), "torch.float32", device=-1)}, "'x' is on the CPU; pass an array"),
        ({"x": OnGpu((64, 512), "torch.float16")}, "'x' has dtype float16; task 'scale' declares float32"),
        ({"x": OnGpu((64,), "torch.float32")}, r"'x' has shape \(64,\); task 'scale' declares \(M, N\)"),
        ({"x": OnGpu((64, 500), "torch.float32")}, "'N' is 500 in 'x' and 512 in 'y'"),
        ({"half": OnGpu((64, 255), "torch.float32")}, r"declares \(M, N // 2\), which is \(64, 256\) here"),
        ({"half": OnGpu((64, 256), "torch.float32", 1 << 24, device=1)}, "the arrays are on several GPUs"),
        ({"x": WIDE}, r"'x' has strides \(600, 1\), and is not row-major; task 'scale' allows no other layouts; fix"),
        ({"x": OnGpu((64, 512), "torch.float32", 8)}, "'x' starts 8 bytes after a multiple of 16"),
        ({"y": OnGpu((64, 512), "torch.float32", (1 << 20) + 512)}, "'y' shares memory with 'x'; fix: pass separate"),
        ({"x": OnGpu((0, 512), "torch.float32"), "half": OnGpu((0, 256), "torch.float32"),
          "y": OnGpu((0, 512), "torch.float32")}, "task 'scale' does not support M=0, N=512, causal=True"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as error:
        dispatcher(make(), TUNED)(0, **arrays(**changes))
    assert "\n" not in str(error.value)
    assert isinstance(error.value, UnknownChoice) == ("z" in changes)


@pytest.mark.parametrize(
    ("layouts", "shape", "strides", "address", "allowed"),
    [
        ((), (64, 1), (1, 9), 0, True),  # strides of an axis with one element do not matter
        (("sliced",), (64, 512), (600, 1), 0, True),
        (("sliced",), (64, 512), (500, 1), 0, False),  # rows overlap
        (("sliced",), (64, 512), (1, 64), 0, False),
        (("transposed",), (64, 512), (1, 64), 0, True),
        (("transposed",), (64, 512), (600, 1), 0, False),
        (("misaligned",), (64, 512), None, 4, True),
        (("sliced",), (64, 512), None, 4, False),
    ],
)
def test_a_layout_is_used_only_if_the_task_allows_it(
    layouts: tuple[str, ...], shape: tuple[int, ...], strides: tuple[int, ...] | None, address: int, allowed: bool
) -> None:
    task = make(
        layouts=layouts, tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
        launch=launch,
    )  # fmt: skip
    x = OnGpu(shape, "torch.float32", (1 << 20) + address, strides or None)
    if strides is None:
        x.strides = None
    given = {"x": x, "y": OnGpu(shape, "torch.float32", 1 << 28), "causal": True}
    if allowed:
        assert dispatcher(task, TUNED).chosen(**given)
    else:
        with pytest.raises(RequestError, match="fix: pass a contiguous copy"):
            dispatcher(task, TUNED).chosen(**given)


def test_an_output_that_updates_an_input_is_passed_alone() -> None:
    tensors = {"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32", updates="x")}
    call = dispatcher(make(tensors=tensors), TUNED).chosen
    given = arrays(half=None)
    assert call(**{**given, "x": given["y"]}).match == call(y=given["y"], causal=True).match == "exact"
    with pytest.raises(RequestError, match="the kernel reads 'x' from 'y', which it updates; fix: pass only 'y'"):
        call(**given)
