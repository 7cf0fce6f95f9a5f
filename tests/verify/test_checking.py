"""Every rule of the check on Python functions in the place of kernels: what must be caught, and what must not.

Kernels that do the same to Tile IR are in tests/exploits/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import TaskError
from tilewright.records import Failed
from tilewright.space.space import Space
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor, integers, normal, uniform
from tilewright.testing.functions import FunctionEngine, FunctionLaunch
from tilewright.tileir.read.tree import Location
from tilewright.tileir.watch.findings import OUT_OF_BOUNDS, Finding
from tilewright.verify import verdict as report
from tilewright.verify.cases import Case, parse
from tilewright.verify.check import check_on
from tilewright.verify.engine import Ran
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Equipment
from tilewright.verify.verdict import Verdict

SPACE = Space(constants={"TILE_M": (16,), "TILE_N": (16,)}, shipped={"TILE_M": 16, "TILE_N": 16})
Function = Callable[[FunctionLaunch], Any]


def elementwise(reference: Callable[..., Any] = lambda x: 3 * x, dtype: str = "float32", **changes: Any) -> Task:
    parts: dict[str, Any] = {
        "name": "scale",
        "tensors": {"x": Tensor(("M", "N"), dtype), "y": Output(("M", "N"), dtype)},
        "reference": reference,
        "launch": lambda x: None,
        "flops": lambda M, N: M * N,
        "independent": ("M", "N"),
        "space": SPACE,
        "workloads": {"large": {"M": 4096, "N": 4096}, "odd": {"M": 1001, "N": 77}},
    }
    return Task(**parts | changes)


def product(dtype: str = "float32", **changes: Any) -> Task:
    return elementwise(
        lambda a, b: a @ b, dtype,
        tensors={"a": Tensor(("M", "K"), dtype), "b": Tensor(("K", "N"), dtype), "y": Output(("M", "N"), dtype)},
        flops=lambda M, N, K: 2 * M * N * K,
        workloads={"odd": {"M": 1001, "N": 77, "K": 300}},
        **changes,
    )  # fmt: skip


def thrice(run: FunctionLaunch) -> None:
    run["y"][...] = run["x"] * run["x"].dtype.type(3)


def multiplied(run: FunctionLaunch) -> None:
    run["y"][...] = (run["a"].astype(np.float32) @ run["b"].astype(np.float32)).astype(run["y"].dtype)


def checked(task: Task, function: Function, **more: Any) -> Verdict:
    tools = {name: more.pop(name) for name in ("trusted", "compiles") if name in more}
    return check_on(task, Equipment(FunctionEngine(task, function), **tools), Scope(**more))


def caught(task: Task, function: Function, words: str, **more: Any) -> Verdict:
    verdict = checked(task, function, **more)
    assert verdict.verdict == "incorrect", verdict.reason
    reasons = [one.reason for one in verdict.results if one.verdict == "incorrect"]
    assert any(words in reason for reason in reasons), reasons
    return verdict


def passes(task: Task, function: Function, **more: Any) -> Verdict:
    verdict = checked(task, function, **more)
    assert verdict.verdict.startswith("correct"), verdict.reason
    return verdict


# What does not fit in memory


@pytest.mark.parametrize("size", [5 << 30, 1 << 44])
def test_a_case_that_needs_too_much_memory_is_unverified_by_name(size: int) -> None:
    """20 GiB and 50 TiB were asked for (trust.md 44)."""
    only = elementwise(
        tensors={"x": Tensor(("N",), "float32"), "y": Output(("N",), "float32")}, independent=(),
        flops=lambda N: N, serves=lambda N: size == N, workloads={"only": {"N": size}},
    )  # fmt: skip
    verdict = checked(only, thrice)
    assert verdict.verdict == "unverified"
    assert re.search(r"^only: needs about \S+ GiB of memory, more than 50% of this machine's", verdict.reason)
    assert all(result.verdict == "unverified" for result in verdict.results)


def test_a_reference_that_runs_out_of_memory_is_unverified() -> None:
    def reference(x: Any) -> Any:
        return 3 * x + np.empty((1 << 50,))[0]

    verdict = checked(elementwise(reference), thrice, case=parse("M=16,N=16", elementwise()))
    assert verdict.verdict == "unverified" and "out of memory" in verdict.reason


# What is right passes


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_right_product_passes_in_every_dtype(dtype: str, seed: int) -> None:
    wide = np.float64 if dtype == "float64" else np.float32

    def right(run: FunctionLaunch) -> None:
        with np.errstate(over="ignore"):
            run["y"][...] = (run["a"].astype(wide) @ run["b"].astype(wide)).astype(run["y"].dtype)

    passes(product(dtype, layouts=("transposed", "sliced", "misaligned")), right, seed=seed)


def test_right_whole_numbers_pass() -> None:
    task = elementwise(
        lambda x: x + 7, "int32",
        tensors={"x": Tensor(("M", "N"), "int32", integers(-9, 100)), "y": Output(("M", "N"), "int32")},
    )  # fmt: skip
    passes(task, lambda run: run["y"].__setitem__(..., run["x"] + 7))


def test_right_booleans_pass() -> None:
    task = elementwise(
        lambda x: x > 0, "float32",
        tensors={"x": Tensor(("M", "N"), "float32"), "y": Output(("M", "N"), "bool")},
    )  # fmt: skip
    passes(task, lambda run: run["y"].__setitem__(..., run["x"] > 0))


def test_special_values_pass_where_they_are_promised_and_kept() -> None:
    verdict = passes(elementwise(special_values=True), thrice)
    assert {"infinities", "nans"} <= {one.case.data for one in verdict.results}


def test_several_outputs() -> None:
    task = elementwise(
        lambda x: (x.sum(axis=1), x.max(axis=1)),
        tensors={"x": Tensor(("M", "N"), "float32"), "s": Output(("M",), "float32"), "m": Output(("M",), "float32")},
        independent=("M",),
    )  # fmt: skip

    def right(run: FunctionLaunch) -> None:
        run["s"][...], run["m"][...] = run["x"].sum(axis=1), run["x"].max(axis=1)

    passes(task, right)
    caught(task, lambda run: (right(run), run["m"].__setitem__(0, 0))[0], "'m'[0] is 0")


def test_flushing_denormals_is_no_mistake() -> None:
    def flushes(run: FunctionLaunch) -> None:
        x = np.where(np.abs(run["x"]) < np.finfo(np.float32).tiny, 0, run["x"])
        run["y"][...] = x * np.float32(3)

    passes(elementwise(), flushes)


# 1, 2, 3: work not done


def test_an_output_that_is_not_written_is_caught() -> None:
    caught(elementwise(), lambda run: None, "depends on memory that nothing wrote")


def test_an_element_that_is_not_written_is_caught() -> None:
    def last_row_left(run: FunctionLaunch) -> None:
        run["y"][:-1] = run["x"][:-1] * np.float32(3)

    caught(elementwise(), last_row_left, "memory that nothing wrote")
    caught(elementwise(deterministic=False), last_row_left, "is nan, should be")


@pytest.mark.parametrize(
    "reference", [lambda x: np.zeros_like(x), lambda x: np.full_like(x, 4.0), lambda x: x * 0 + np.arange(x.shape[1])]
)
def test_a_reference_that_tells_nothing_is_refused(reference: Callable[..., Any]) -> None:
    task = elementwise(reference)
    with pytest.raises(TaskError, match="would prove nothing"):
        checked(task, lambda run: run["y"].__setitem__(..., reference(run["x"])))


def test_zeros_and_the_identity_are_caught() -> None:
    caught(elementwise(lambda x: 1e-6 * x), lambda run: run["y"].__setitem__(..., 0), "should be")
    caught(elementwise(), lambda run: run["y"].__setitem__(..., run["x"]), "should be")


# 4, 5: precision


def test_lowered_precision_is_caught() -> None:
    def halves(run: FunctionLaunch) -> None:
        with np.errstate(over="ignore"):
            run["y"][...] = (run["a"].astype(np.float16) @ run["b"].astype(np.float16)).astype(np.float32)

    caught(product(), halves, "× the allowed error")


def tf32(array: Any) -> Any:
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def test_tf32_passes_only_where_it_is_declared() -> None:
    def kernel(run: FunctionLaunch) -> None:
        run["y"][...] = tf32(run["a"]) @ tf32(run["b"])

    caught(product(), kernel, "× the allowed error")
    passes(product(precision="tf32"), kernel)


def test_small_integers_must_come_out_exact() -> None:
    def a_little_off(run: FunctionLaunch) -> None:
        multiplied(run)
        run["y"][0, 0] = np.nextafter(run["y"][0, 0], np.float32(np.inf))

    verdict = caught(product(), a_little_off, "must be exact (small integers)")
    assert {one.case.data for one in verdict.results if one.verdict == "incorrect"} == {"small integers"}


def test_a_trusted_implementation_sets_what_is_allowed() -> None:
    class Sloppy:
        def outputs(self, dims: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
            return {"y": (inputs["a"] @ inputs["b"]) * np.float32(1.001)}

    def as_sloppy(run: FunctionLaunch) -> None:
        run["y"][...] = (run["a"] @ run["b"]) * np.float32(1.001)

    caught(product(), as_sloppy, "× the allowed error")
    verdict = checked(product(), as_sloppy, trusted=Sloppy())
    wrong = {one.case.data for one in verdict.results if one.verdict == "incorrect"}
    assert wrong <= {"small integers"}
    assert verdict.yardstick == "the trusted implementation"


def test_a_trusted_implementation_that_is_wrong_is_refused() -> None:
    class Wrong:
        def outputs(self, dims: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
            return {"y": inputs["x"] * 2}

    with pytest.raises(TaskError, match="one of the two is wrong"):
        checked(elementwise(), thrice, trusted=Wrong())


def test_without_torch_the_reference_in_float32_serves_and_that_is_said() -> None:
    class Missing:
        def outputs(self, dims: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
            return "torch is not installed"

    verdict = passes(elementwise(), thrice, trusted=Missing())
    assert verdict.yardstick == "the reference in float32 (torch is not installed)"


# 6, 7, 8: shapes, data, layouts


def test_a_kernel_for_the_benchmarked_shape_only_is_caught() -> None:
    def whole_tiles(run: FunctionLaunch) -> None:
        m, n = (extent // 16 * 16 for extent in run["x"].shape)
        run["y"][...] = 0
        run["y"][:m, :n] = run["x"][:m, :n] * np.float32(3)

    workloads = {"large": {"M": 4096, "N": 4096}}
    caught(elementwise(workloads=workloads), whole_tiles, "should be")
    passes(elementwise(workloads=workloads, serves=lambda M, N: M % 16 == N % 16 == 0), whole_tiles)


@pytest.mark.parametrize(
    ("kernel", "reference", "data"),
    [
        (lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True), "softmax", "large"),
        (lambda x: np.sqrt(np.abs((x * x).mean(1) - x.mean(1) ** 2))[:, None] + 0 * x, "deviation", "constant rows"),
        (lambda x: np.maximum(x, 0) * 3 - 3 * np.maximum(np.clip(-x, 0, 4), 0), "scale", "mixed signs"),
    ],
)  # fmt: skip
def test_kernels_for_friendly_data_only_are_caught(kernel: Any, reference: str, data: str) -> None:
    def softmax(x: Any) -> Any:
        part = np.exp(x - x.max(axis=1, keepdims=True))
        return part / part.sum(axis=1, keepdims=True)

    references = {
        "softmax": softmax,
        "deviation": lambda x: x.std(axis=1, keepdims=True) + 0 * x,
        "scale": lambda x: 3 * x,
    }
    task = elementwise(references[reference], independent=("M",), serves=lambda N: N > 1)

    def run(run: FunctionLaunch) -> None:
        with np.errstate(all="ignore"):
            run["y"][...] = kernel(run["x"])

    verdict = checked(task, run)
    assert verdict.verdict == "incorrect"
    assert data in {one.case.data for one in verdict.results if one.verdict == "incorrect"}


def test_a_layout_that_is_allowed_is_tried_and_one_that_is_not_is_not() -> None:
    def as_if_row_major(run: FunctionLaunch) -> None:
        image = run.images["x"]
        flat = image.raw[image.offset :].view(np.float32)[: image.array.size].reshape(image.shape)
        run["y"][...] = flat * np.float32(3)

    passes(elementwise(), as_if_row_major)
    caught(elementwise(layouts=("transposed",)), as_if_row_major, "")
    caught(elementwise(layouts=("sliced",)), as_if_row_major, "")


# 9, 10: memory of others


def test_writing_beyond_an_output_is_caught() -> None:
    def beyond(run: FunctionLaunch) -> None:
        thrice(run)
        image = run.images["y"]
        image.raw[image.offset + image.array.nbytes + 8] = 1

    caught(elementwise(), beyond, "wrote outside 'y'")


def test_writing_between_the_rows_of_a_view_is_caught() -> None:
    def whole_rows(run: FunctionLaunch) -> None:
        thrice(run)
        image = run.images["y"]
        image.raw[image.offset : image.offset + image.strides[0] * 4] = 0
        thrice(run)

    caught(elementwise(layouts=("sliced",)), whole_rows, "wrote outside 'y'")


def test_reading_beyond_an_input_shows() -> None:
    def beyond(run: FunctionLaunch) -> None:
        thrice(run)
        image = run.images["x"]
        after = image.raw[image.offset + image.array.nbytes :][:4].view(np.float32)[0]
        run["y"][-1, -1] += after * np.float32(1e-30)

    caught(elementwise(), beyond, "memory that nothing wrote")


def test_a_changed_input_is_caught() -> None:
    def spoils(run: FunctionLaunch) -> None:
        thrice(run)
        run["x"][0, 0] = 0

    caught(elementwise(), spoils, "changed its input 'x'")


def in_place(**changes: Any) -> Task:
    tensors = {"x": Tensor(("M", "N"), "float32"), "y": Output(("M", "N"), "float32", in_place_of="x")}
    return elementwise(lambda x: 3 * x[:, ::-1], tensors=tensors, independent=("M",), **changes)


def test_in_place_is_tried_where_it_is_declared() -> None:
    def buffered(run: FunctionLaunch) -> None:
        run["y"][...] = run["x"][:, ::-1].copy() * np.float32(3)

    def column_by_column(run: FunctionLaunch) -> None:
        for column in range(run["x"].shape[1]):
            run["y"][:, column] = run["x"][:, -1 - column] * np.float32(3)

    verdict = passes(in_place(), buffered)
    assert "in place" in {one.case.run for one in verdict.results}
    verdict = caught(in_place(), column_by_column, "should be")
    assert {one.case.run for one in verdict.results if one.verdict == "incorrect"} == {"in place"}


def updates() -> Task:
    tensors = {"x": Tensor(("M", "N"), "float32"), "y": Output(("M", "N"), "float32", updates="x")}
    return elementwise(lambda x: 3 * x, tensors=tensors)


def test_what_is_updated_starts_from_its_input() -> None:
    """trust.md 1: each run from the same data, whatever the run before left."""

    def in_its_place(run: FunctionLaunch) -> None:
        run["y"][...] = run["y"] * np.float32(3)

    def of_something_else(run: FunctionLaunch) -> None:
        run["y"][...] = run["y"] * np.float32(3) + run["x"] * np.float32(1e-3)

    verdict = passes(updates(), in_its_place)
    assert "relaunched" not in {one.case.run for one in verdict.results}, "each launch goes on from the last"
    caught(updates(), of_something_else, "should be")


# 11, 12: the same answer each time


def test_dependence_on_the_order_of_blocks_is_caught_unless_declared() -> None:
    def ordered(run: FunctionLaunch) -> None:
        order = np.random.default_rng(run.seed).permutation(run["x"].shape[1])
        run["y"][...] = run["x"][:, order].cumsum(axis=1, dtype=np.float32)[:, -1:]

    task = elementwise(lambda x: x.sum(axis=1, keepdims=True) + 0 * x, independent=("M",))
    caught(task, ordered, "depends on the order of the blocks")
    verdict = passes(replace(task, deterministic=False), ordered)
    assert any("bit-equal" in one for one in verdict.unverified)


def test_drift_after_launches_is_caught() -> None:
    def drifts(run: FunctionLaunch) -> None:
        run["y"][...] = run["x"] * np.float32(3 + run.number)

    verdict = caught(elementwise(), drifts, "between one launch and 3 launches")
    assert {one.case.run for one in verdict.results if one.verdict == "incorrect"} == {"relaunched"}


def test_an_output_that_the_kernel_adds_to_is_caught() -> None:
    def adds(run: FunctionLaunch) -> None:
        run["y"][...] = np.nan_to_num(run["y"], nan=0, posinf=0) * (np.abs(run["y"]) < 1e6) + run["x"] * np.float32(3)

    caught(elementwise(), adds, "between one launch and 3 launches")


# 13: what was not compared


def test_nan_where_the_reference_has_a_number_is_caught() -> None:
    def nan(run: FunctionLaunch) -> None:
        thrice(run)
        run["y"][0, 0] = np.nan

    caught(elementwise(), nan, "is nan, should be")
    caught(elementwise(special_values=True), nan, "is nan, should be")


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_special_value_that_is_lost_is_caught(lost: float) -> None:
    def loses(run: FunctionLaunch) -> None:
        x = np.where(np.isnan(run["x"]) if np.isnan(lost) else np.isinf(run["x"]), np.float32(0), run["x"])
        run["y"][...] = x * np.float32(3)

    passes(elementwise(), loses)
    caught(elementwise(special_values=True), loses, "should be")


def test_a_magnitude_that_the_output_cannot_hold_is_not_applicable() -> None:
    def cubed(run: FunctionLaunch) -> None:
        with np.errstate(over="ignore"):
            run["y"][...] = (run["x"].astype(np.float32) ** 3).astype(np.float16)

    verdict = passes(elementwise(lambda x: x**3, "float16"), cubed)
    named = [one for one in verdict.unverified if "large" in one]
    assert named and "not applicable: the reference's 'y' overflows float16" in named[0]


def test_what_is_not_run_in_time_is_named() -> None:
    verdict = checked(elementwise(), thrice, seconds=0.0)
    assert verdict.verdict == "unverified"
    assert len(verdict.results) == 1 and len(verdict.unverified) > 10
    assert all("not run within 0 s" in one for one in verdict.unverified)


def test_after_many_failures_the_rest_is_not_run() -> None:
    verdict = checked(elementwise(), lambda run: None)
    assert sum(one.verdict == "incorrect" for one in verdict.results) == 8
    assert any("8 cases are incorrect already" in one for one in verdict.unverified)


def test_what_the_engine_refuses_is_unverified() -> None:
    verdict = checked(elementwise(), lambda run: Ran(refused="the interpreter does not run this: mmaf_scaled"))
    assert verdict.verdict == "unverified" and "mmaf_scaled" in verdict.reason


# 14, 15: launches


def fails(run: FunctionLaunch) -> None:
    raise ValueError("an illegal memory access was encountered")


def test_a_failed_launch_is_incorrect() -> None:
    caught(elementwise(), fails, "an illegal memory access")


def test_a_shape_that_does_not_compile_is_unverified_by_name() -> None:
    def needs_pairs(run: FunctionLaunch) -> Any:
        if run.dims["N"] % 2:  # type: ignore[operator]
            return Ran(failed=Failed("front end", "shape 7 is not a power of two"))
        return thrice(run)

    even = {"even": {"M": 1001, "N": 78}}
    verdict = passes(elementwise(workloads=even), needs_pairs)
    assert any("N=1 · declared: does not compile: shape 7" in one for one in verdict.unverified)


def test_a_shape_for_which_the_launch_fails_is_no_compiler_error() -> None:
    def pairs(run: FunctionLaunch) -> Any:
        if run.dims["N"] % 2:  # type: ignore[operator]
            return Ran(failed=Failed("launch", "task.py:31: ValueError: too narrow"))
        return thrice(run)

    verdict = passes(elementwise(workloads={"even": {"M": 1001, "N": 78}}), pairs)
    assert any("N=1 · declared: its launch fails: task.py:31" in one for one in verdict.unverified)


def test_a_kernel_that_does_not_compile_for_its_own_workload_is_incorrect() -> None:
    failed = Failed("compile", "tileiras returned 1")
    caught(elementwise(), lambda run: Ran(failed=failed), "compile failed: tileiras returned 1")
    caught(elementwise(), lambda run: Ran(failed=failed), "compile failed", compiles=lambda c, d, a: failed)


def test_a_reduced_shape_that_does_not_compile_is_no_mistake_of_the_kernel() -> None:
    failed = Failed("compile", "tileiras returned 1")

    def compiles(config: Any, dims: Any, arrays: Any) -> Failed | None:
        return None if dims["M"] in (4096, 1001) else failed

    verdict = checked(elementwise(), lambda run: Ran(failed=failed), compiles=compiles)
    assert verdict.verdict == "unverified" and "does not compile" in verdict.reason


def test_a_crash_is_told_from_a_compiler_error() -> None:
    caught(
        elementwise(), lambda run: Ran(failed=Failed("launch", "the worker died")), "the worker died",
        compiles=lambda config, dims, arrays: None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ran", "words"),
    [
        (Ran(kernels=("kernel", "gemm"), declared="kernel"), "the kernel 'gemm' ran"),
        (Ran(kernels=("kernel_2",), declared="kernel"), "the kernel 'kernel_2' ran"),
        (Ran(kernels=("my_kernel",), declared="kernel"), "the kernel 'my_kernel' ran"),
        (Ran(kernels=("kernel",), declared=""), "the kernel 'kernel' ran"),
        (Ran(kernels=("kernel", "kernel"), declared="kernel"), "the kernel ran 2 times in 1 launches"),
        (Ran(kernels=("kernel",), declared="kernel", uploads=1), "copied data from the host"),
        (Ran(kernels=(), declared="kernel"), "no kernel ran"),
        (Ran(kernels=("kernel",), declared="kernel", touched_early=("y",)), "the launch function wrote to 'y'"),
    ],
)
def test_only_the_declared_kernel_may_compute(ran: Ran, words: str) -> None:
    """trust.md 15, 40."""
    caught(elementwise(), lambda run: (thrice(run), ran)[1], words)


def test_where_kernels_cannot_be_counted_that_is_said() -> None:
    verdict = passes(elementwise(), lambda run: (thrice(run), Ran())[1])
    assert any("which kernels ran" in one for one in verdict.unverified)


def test_a_finding_is_a_mistake_and_is_listed_once() -> None:
    finding = Finding(OUT_OF_BOUNDS, "reads 4 elements beyond", Location("k.py", 7), (1, 0, 0), "x", (3, 4))
    ran = Ran(findings=(finding,), kernels=("kernel",), declared="kernel")
    verdict = caught(elementwise(), lambda run: (thrice(run), ran)[1], "reads 4 elements beyond")
    assert verdict.findings == (finding,)


# 20, 21: results that are kept


def test_results_kept_by_pointer_or_by_contents_are_caught() -> None:
    by_shape: dict[Any, Any] = {}
    by_corner: dict[Any, Any] = {}

    def keeps(kept: dict[Any, Any], key: Callable[[FunctionLaunch], Any]) -> Function:
        def run(run: FunctionLaunch) -> None:
            if key(run) not in kept:
                thrice(run)
                kept[key(run)] = run["y"].copy()
            run["y"][...] = kept[key(run)]

        return run

    one = {"only": {"M": 40, "N": 40}}
    case = parse("M=40,N=40;run=caches", elementwise(workloads=one))
    task = elementwise(workloads=one)
    assert checked(task, keeps(by_shape, lambda run: run["x"].shape), case=case).verdict == "incorrect"
    assert checked(task, keeps(by_corner, lambda run: float(run["x"][0, 0])), case=case).verdict == "incorrect"
    assert checked(task, thrice, case=case).verdict.startswith("correct")


def test_results_kept_are_caught_where_only_slices_are_compared() -> None:
    """The one element that is changed lies in a slice."""
    kept: dict[Any, Any] = {}

    def by_corner(run: FunctionLaunch) -> None:
        if (key := float(run["x"][0, 0])) not in kept:
            thrice(run)
            kept[key] = run["y"].copy()
        run["y"][...] = kept[key]

    task = elementwise(workloads={"only": {"M": 1024, "N": 1024}})
    case = parse("M=1024,N=1024;run=caches", task)
    (result,) = checked(task, thrice, case=case).results
    assert result.verdict == "correct", result.reason
    assert checked(task, by_corner, case=case).verdict == "incorrect"


# Reports


def test_a_failing_case_is_made_small_and_can_be_run_alone() -> None:
    def from_the_tenth_column(run: FunctionLaunch) -> None:
        thrice(run)
        run["y"][:, 9:] *= np.float32(1.5)

    task = elementwise(serves=lambda N: N > 2)
    verdict = caught(task, from_the_tenth_column, "should be")
    assert verdict.smallest is not None
    small = verdict.smallest.case.sizes
    assert (small["M"], verdict.smallest.case.data) == (1, "declared")
    assert 10 <= int(small["N"]) < 20  # type: ignore[arg-type]
    command = report.command(verdict, "ops.py", ["--engine", "interpreter"])
    assert command == f"tilewright check ops.py --case '{verdict.smallest.case}' --engine interpreter"
    again = checked(task, from_the_tenth_column, case=parse(str(verdict.smallest.case), task))
    assert again.verdict == "incorrect" and again.results[0].reason == verdict.smallest.reason


def test_a_case_that_was_asked_for_says_that_it_was_the_only_one() -> None:
    """`correct, 1 case` read as if it were said of the kernel."""
    verdict = checked(elementwise(), thrice, case=parse("M=16,N=16", elementwise()))
    assert (verdict.verdict, verdict.reason) == ("correct", "1 case, the requested one")


def test_equal_seeds_give_equal_verdicts() -> None:
    first, second, other = (checked(elementwise(), thrice, seed=seed) for seed in (3, 3, 4))
    assert [str(one.case) for one in first.results] == [str(one.case) for one in second.results]
    assert [one.error for one in first.results] == [one.error for one in second.results]
    assert [str(one.case) for one in first.results] != [str(one.case) for one in other.results]


def test_every_workload_is_covered() -> None:
    verdict = checked(elementwise(), thrice, quick=True)
    assert {one.case.why for one in verdict.results} == {"large", "odd"}
    verdict = checked(elementwise(), thrice, quick=True, workloads=elementwise().selected(["odd"]))
    assert {one.case.why for one in verdict.results} == {"odd"}


def test_the_json_has_what_scripts_rely_on() -> None:
    def wrong(run: FunctionLaunch) -> None:
        thrice(run)
        run["y"][0, 0] += 1

    verdict = caught(elementwise(), wrong, "should be")
    found = report.to_json(verdict, "ops.py")
    assert set(found) >= {
        "verdict", "reason", "engine", "task", "seed", "configurations", "cases", "unverified", "findings", "reproduce",
    }  # fmt: skip
    case = found["cases"][0]
    assert set(case) >= {"case", "dims", "data", "layout", "verdict", "reason", "error"}
    assert set(case["error"]) >= {"worst", "allowed", "index", "got", "wanted", "trusted"}
    assert found["reproduce"].startswith("tilewright check ops.py --case ")


def test_a_gpu_also_runs_the_workloads_as_they_are() -> None:
    task = elementwise(workloads={"odd": {"M": 3001, "N": 770}})
    verdict = check_on(task, Equipment(FunctionEngine(task, thrice, "gpu")))
    assert verdict.verdict.startswith("correct")
    assert (("M", 3001), ("N", 770)) in {one.case.dims for one in verdict.results}

    def wrong_far_out(run: FunctionLaunch) -> None:
        thrice(run)
        if run["y"].shape[0] > 2000:
            run["y"][2000, 5] = np.nan

    verdict = check_on(task, Equipment(FunctionEngine(task, wrong_far_out, "gpu")))
    assert verdict.verdict == "incorrect" and "not finite" in verdict.reason


def test_a_case_that_names_a_domain_keeps_to_it() -> None:
    seen: list[Any] = []

    def root(run: FunctionLaunch) -> None:
        seen.append(run["x"].min())
        run["y"][...] = np.sqrt(run["x"])

    tensors = {"x": Tensor(("M", "N"), "float32", uniform(0.5, 2)), "y": Output(("M", "N"), "float32")}
    passes(elementwise(lambda x: np.sqrt(x), tensors=tensors), root)
    assert min(seen) >= 0.5
    assert normal() == Tensor(("M",), "float32").distribution
    assert Case(()).seed == 0
