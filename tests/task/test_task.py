"""A task: functions called by name, shapes from dimensions, mistakes said in one line with the choices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tilewright.errors import RequestError, SpaceError, TaskError, UnknownChoice
from tilewright.hardware.architectures import default_board
from tilewright.records import Configuration
from tilewright.space.space import Space
from tilewright.task.task import Launch, Task, call_by_name
from tilewright.task.tensors import ITEM_BYTES, ArraySpec, Output, Tensor, scratch

DIMS = {"M": 6, "N": 4, "D": 8}
CONFIG = Configuration.of({"TILE": 2})
BOARD = default_board("sm_90")


def task_of(**changes: Any) -> Task:
    task = Task(
        name="scale",
        tensors={"x": Tensor(("M", "N"), "bfloat16"), "y": Output(("M", "N"), "float32")},
        reference=lambda x: 2 * x,
        launch=lambda x, y, config: Launch("kernel", (3,), (x, y, config.TILE)),
        flops=lambda M, N: M * N,
        space=Space(constants={"TILE": (1, 2)}, shipped={"TILE": 2}),
        workloads={"small": DIMS, "large": {**DIMS, "M": 600}},
    )
    return replace(task, **changes)


def one_line(caught: pytest.ExceptionInfo[Exception]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Calls by name


def test_a_function_gets_what_its_parameters_name() -> None:
    offered = {"M": 6, "x": "tensor", "config": CONFIG}
    assert call_by_name(lambda config, M: (M, config.TILE), offered, "it") == (6, 2)
    assert call_by_name(lambda: 1, offered, "it") == 1
    assert call_by_name(lambda M, other=5: M + other, offered, "it") == 11
    assert call_by_name(lambda *, M: M, offered, "it") == 6
    assert call_by_name(lambda **all_: sorted(all_), offered, "it") == ["M", "config", "x"]


def test_a_parameter_that_nothing_is_offered_for_is_named_with_the_choices() -> None:
    with pytest.raises(TaskError, match="it asks for 'K'; known: M, N") as caught:
        call_by_name(lambda M, K: M, {"M": 1, "N": 2}, "it")
    one_line(caught)


def test_stray_positional_parameters_do_not_matter() -> None:
    assert call_by_name(lambda M, *rest: (M, rest), {"M": 1}, "it") == (1, ())


def test_a_launch_gets_dimensions_tensors_configuration_and_hardware() -> None:
    seen: dict[str, Any] = {}

    def launch(**offered: Any) -> Launch:
        seen.update(offered)
        return Launch("kernel", (1,), ())

    task = task_of(launch=launch)
    task.launched(CONFIG, DIMS, task.arrays(DIMS), BOARD)
    assert set(seen) == {"M", "N", "D", "x", "y", "config", "hardware"}
    assert seen["hardware"] is BOARD and seen["config"] is CONFIG and seen["x"].shape == (6, 4)


# Launches


@pytest.mark.parametrize(("grid", "expected"), [((2, 3, 4), (2, 3, 4)), ((7,), (7,)), (7, (7,))])
def test_a_grid_is_one_to_three_positive_integers(grid: Any, expected: Any) -> None:
    task = task_of(launch=lambda: Launch("kernel", grid, ()))
    assert task.launched(CONFIG, DIMS, {}, BOARD).grid == expected


@pytest.mark.parametrize("grid", [(), (1, 2, 3, 4), (2.0,), (0,), (-1, 2), ("3",), None])
def test_any_other_grid_is_refused(grid: Any) -> None:
    task = task_of(launch=lambda: Launch("kernel", grid, ()))
    with pytest.raises(TaskError, match=r"launch of task 'scale': grid .* is not 1 to 3 positive integers") as caught:
        task.launched(CONFIG, DIMS, {}, BOARD)
    one_line(caught)


def test_a_grid_that_is_a_function_is_to_be_called() -> None:
    """As Triton's `grid = lambda meta: …`."""
    task = task_of(launch=lambda: Launch("kernel", lambda meta: (1,), ()))
    with pytest.raises(TaskError, match="; fix: pass what the function returns"):
        task.launched(CONFIG, DIMS, {}, BOARD)


@pytest.mark.parametrize("returned", [None, ("kernel", (1,), ()), 3])
def test_a_launch_must_return_a_launch(returned: Any) -> None:
    task = task_of(launch=lambda: returned)
    with pytest.raises(TaskError, match=r"returned \w+; return tilewright.Launch\(kernel, grid, args\)") as caught:
        task.launched(CONFIG, DIMS, {}, BOARD)
    one_line(caught)


# Shapes


def test_shapes_are_names_numbers_and_expressions() -> None:
    task = task_of(tensors={"x": Tensor(("M", "D // 2", 3, "2*N + 1"), "int8"), "y": Output((), "float32")})
    arrays = task.arrays(DIMS)
    assert arrays["x"].shape == (6, 4, 3, 9)
    assert arrays["y"].shape == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Q", "tensor 'x': dimension 'Q' is not in the workload; known: M, N, D"),
        ("D // Q", "known: M, N, D"),
        ("D //", "is not a dimension or an expression of them"),
        ("D / 2", "is 4.0; it must be a whole number"),
        ("M - 10", "is -4; it must be a whole number from 0 on"),
        ("M > 2", "is True; it must be a whole number"),
        ("M // 0", "tensor 'x'"),
        ("__import__('os')", "tensor 'x'"),
        ("M + 'a'", "tensor 'x'"),
    ],
)
def test_a_shape_that_does_not_come_out_is_one_line(entry: str, message: str) -> None:
    task = task_of(tensors={"x": Tensor((entry,), "int8"), "y": Output(("M",), "int8")})
    with pytest.raises(TaskError, match=message) as caught:
        task.arrays(DIMS)
    one_line(caught)


def test_a_specification_is_a_row_major_array() -> None:
    spec = ArraySpec("x", (2, 3, 5), "bfloat16")
    assert (spec.ndim, spec.strides, spec.nbytes) == (3, (15, 5, 1), 60)
    assert ArraySpec("s", (), "float64").strides == ()
    assert ArraySpec("s", (), "float64").nbytes == 8
    assert ArraySpec("v", (7,), "int8").strides == (1,)


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_item_bytes_are_those_of_ml_dtypes(dtype: str) -> None:
    import numpy as np

    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert ITEM_BYTES[dtype] == kind.itemsize


# What a task declares


def test_traffic_is_each_tensor_once_unless_declared() -> None:
    assert task_of().traffic(DIMS) == 6 * 4 * (2 + 4)
    assert task_of(bytes_moved=lambda M: 10 * M).traffic(DIMS) == 60
    assert task_of().work(DIMS) == 24
    assert task_of().compute_dtype == "bfloat16"


@pytest.mark.parametrize("given", [-1, math.nan, math.inf])
def test_amounts_that_no_kernel_has_are_refused(given: float) -> None:
    task = task_of(flops=lambda: given, bytes_moved=lambda: given)
    for amount, name in ((task.work, "flops"), (task.traffic, "bytes_moved")):
        with pytest.raises(TaskError, match=f"{name} of task 'scale' is {given:g}; it must be a number from 0 on"):
            amount(DIMS)


@pytest.mark.parametrize("flops", [lambda M: M // 0, lambda M: "many", lambda M: None])
def test_flops_that_do_not_come_out_are_one_line(flops: Any) -> None:
    with pytest.raises(TaskError, match=r"flops of task 'scale' failed: \w+Error: ") as caught:
        task_of(flops=flops).work(DIMS)
    one_line(caught)


def test_inputs_and_outputs_keep_their_order() -> None:
    tensors = {
        "out1": Output(("M",), "int8"),
        "b": Tensor(("M",), "int8"),
        "out0": Output(("M",), "int8", in_place_of="a"),
        "a": Tensor(("M",), "int8"),
    }
    task = task_of(tensors=tensors)
    assert list(task.inputs) == ["b", "a"]
    assert list(task.outputs) == ["out1", "out0"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": {"y": Output(("M",), "int8")}}, "task 'scale' declares no input tensor"),
        ({"name": 5}, "5 is no name for a task; give a text of 1 to 200 bytes"),
        ({"name": "a" * 300}, "is no name for a task"),
        ({"workloads": {" ": {"M": 64}}}, "' ' is no name for a workload"),
        ({"workloads": {5: {"M": 64}}}, "5 is no name for a workload"),
        ({"tensors": {"x": Tensor(("M",), "int8")}}, "declares no output: use tilewright.Output"),
        ({"tensors": {}}, "declares no input"),
        ({"workloads": {}}, "has no workloads: give at least one"),
        (
            {"tensors": {"x": Tensor(("M",), "bf16"), "y": Output(("M",), "int8")}},
            "tensor 'x': unknown dtype 'bf16'; known: bool, int8",
        ),
        (
            {"tensors": {"x": Tensor(("M",), "int8"), "y": Output(("M",), "int8", in_place_of="z")}},
            "output 'y' is in place of 'z', which is no input; inputs: x",
        ),
        (
            {"tensors": {"x": Tensor(("M",), "int8"), "y": Output(("M",), "int8", updates="z")}},
            "output 'y' updates 'z', which is no input; inputs: x",
        ),
        (
            {"tensors": {"x": Tensor(("M",), "int8"), "y": Output(("M",), "int16", updates="x")}},
            "output 'y' updates 'x', which has another shape or dtype",
        ),
        (
            {"tensors": {"x": Tensor(("M", "N"), "int8"), "y": Output(("M",), "int8", in_place_of="x")}},
            "output 'y' is in place of 'x', which has another shape or dtype",
        ),
        (
            {"tensors": {"x": Tensor(("M",), "int8")} | dict.fromkeys("yz", Output(("M",), "int8", in_place_of="x"))},
            "output 'y' is in place of 'x', and so is 'z': the two would share memory",
        ),
        (
            {"tensors": {"x": Tensor(("M",), "int8"), "y": Output(("M",), "int8", "x", "x")}},
            "output 'y' is in place of 'x' and updates 'x': keep in_place_of if",
        ),
    ],
)
def test_a_task_that_cannot_be_used_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        task_of(**changes)
    one_line(caught)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: scratch("x", (4,), "int32"), "scratch needs a name of its own, not 'x'"),
        (lambda: scratch("sums", (4, 0), "int32"), r"the shape \(4, 0\) does not consist of positive integers"),
        (lambda: scratch("sums", (4,), "bf16"), "scratch 'sums': unknown dtype 'bf16'; known: bool, int8"),
    ],
)
def test_scratch_that_cannot_be_made_says_why(given: Any, message: str) -> None:
    task = task_of(launch=lambda x: Launch("kernel", (1,), (x, given())))
    with pytest.raises(TaskError, match=message):
        task.launched(CONFIG, DIMS, task.arrays(DIMS), BOARD)


@pytest.mark.parametrize("space", [None, {}, {"TILE": 2}, [1], (n for n in range(2))], ids=lambda s: type(s).__name__)
def test_what_is_no_space_is_refused(space: Any) -> None:
    with pytest.raises(SpaceError, match=r"space is .*; pass tilewright\.Space\(") as caught:
        task_of(space=space)
    one_line(caught)


def test_an_error_names_its_workload() -> None:
    dims = {name: size for name, size in DIMS.items() if name != "M"}
    task = task_of(workloads={"small": DIMS, "odd": dims}, flops=lambda M: M / 0)
    with pytest.raises(TaskError, match=r"^workload 'odd': tensor 'x': dimension 'M' is not in the workload"):
        task.arrays(dims)
    with pytest.raises(TaskError, match=r"^workload 'odd': flops of task 'scale' asks for 'M'"):
        task.work(dims)
    with pytest.raises(TaskError, match=r"^workload 'small': flops of task 'scale' failed: ZeroDivisionError"):
        task.work(DIMS)
    assert [one.name for one in task.selected("odd")] == ["odd"]


def test_workloads_are_found_by_name() -> None:
    task = task_of()
    assert task.workload("large").dims["M"] == 600
    assert [one.name for one in task.selected(None)] == ["small", "large"]
    assert [one.name for one in task.selected(["large"])] == ["large"]
    with pytest.raises(UnknownChoice, match="unknown workload 'huge'; known: small, large"):
        task.selected(["small", "huge"])


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: Task(workload={}), "Task has no option 'workload'; did you mean 'workloads'"),  # type: ignore[call-arg]
        (lambda: Tensor(("N",), dtyp="float32"), "Tensor has no option 'dtyp'; did you mean 'dtype'"),  # type: ignore[call-arg]
        (lambda: Output(("N",), "int8", update="x"), "Output has no option 'update'; did you mean 'updates'"),  # type: ignore[call-arg]
        (lambda: Launch(kernel=None, gird=(1,), args=()), "Launch has no option 'gird'; did you mean 'grid'"),  # type: ignore[call-arg]
        (lambda: Space(constant={}, shipped={}), "Space has no option 'constant'; did you mean 'constants'"),  # type: ignore[call-arg]
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest(declare: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        declare()


@pytest.mark.parametrize("kind", [Tensor, Output])
def test_a_text_is_no_shape(kind: Any) -> None:
    with pytest.raises(TaskError, match=r"the shape 'N' is a string; .* \(\"N\",\)"):
        kind("N", "float32")


def test_independent_names_dimensions() -> None:
    with pytest.raises(RequestError, match="unknown independent dimension 'M_'; did you mean 'M'"):
        task_of(independent=("M_",))
    with pytest.raises(TaskError, match=r"independent='M' is a string; write independent=\('M',\)"):
        task_of(independent="M")
