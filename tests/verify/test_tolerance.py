"""The laws of judging an output: errors, allowances, slices (trust.md 2, 3, 4, 13)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tilewright.errors import TaskError
from tilewright.space.space import Space
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.task.tensors import Output, Tensor, integers, normal, uniform
from tilewright.verify import tolerance as verify
from tilewright.verify.tolerance import (
    FACTOR,
    UNIT_ROUNDOFF,
    Allowance,
    Error,
    allowance,
    axes_of,
    degenerate,
    draw,
    error_of,
    pick_slice,
    reference_outputs,
    share,
    sliced_dims,
    try_reference,
)
from tilewright.verify.trusted import yardstick

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_POINT = Space(constants={"TILE": (1,)}, shipped={"TILE": 1})

finite = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    elements=st.just(0.0) | st.floats(1e-9, 1e6) | st.floats(-1e6, -1e-9),
)


def product(**changes: Any) -> Task:
    task = Task(
        name="product",
        tensors={
            "a": Tensor(("M", "K"), "float32"),
            "b": Tensor(("K", "N"), "float32"),
            "c": Output(("M", "N"), "float32"),
        },
        reference=lambda a, b: a @ b,
        launch=lambda a: None,  # type: ignore[arg-type,return-value]
        flops=lambda M, N, K: 2 * M * N * K,
        independent=("M", "N"),
        space=ONE_POINT,
        workloads={"only": {"M": 4, "N": 5, "K": 6}},
    )
    return replace(task, **changes)


# Errors


@given(finite)
def test_equal_arrays_have_no_error(ref: Any) -> None:
    error = error_of(ref.copy(), ref)
    assert error.worst == 0 and error.total == 0
    assert share(error, allowance("int32", None)) == 0


@given(finite, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_infinitely_wrong(ref: Any, value: float, data: st.DataObject) -> None:
    """trust.md 13."""
    index = data.draw(st.integers(0, ref.size - 1))
    out = ref.copy()
    out.flat[index] = value
    error = error_of(out, ref)
    assert error.worst == math.inf and error.total == math.inf
    assert error.index == np.unravel_index(index, ref.shape)
    assert share(error, Allowance(1e9, 1e9, "generous")) == math.inf


def test_nan_does_not_equal_nan() -> None:
    error = error_of(np.array([math.nan, 1.0]), np.array([math.nan, 1.0]))
    assert error.worst == math.inf
    assert share(error, Allowance(1e9, 1e9, "generous")) == math.inf


@given(finite, st.integers(-20, 20))
def test_errors_are_relative_to_the_references_own_scale(ref: Any, exponent: int) -> None:
    """trust.md 3: what is wrong stays as wrong when everything shrinks."""
    if not ref.any():
        return
    out, scale = ref * 1.25 + 1.0, 2.0**exponent
    here, there = error_of(out, ref), error_of(out * scale, ref * scale)
    assert there.worst == pytest.approx(here.worst)
    assert there.total == pytest.approx(here.total)


@given(finite)
def test_zeros_never_pass(ref: Any) -> None:
    if not ref.any():
        return
    assert share(error_of(np.zeros_like(ref), ref), allowance("bfloat16", None)) > 1


@given(finite, st.floats(0.01, 100))
def test_the_share_is_linear_in_the_allowance(ref: Any, factor: float) -> None:
    error = error_of(ref + 1.0, ref)
    one, other = Allowance(0.5, 0.25, "one"), Allowance(0.5 * factor, 0.25 * factor, "other")
    assert share(error, other) == pytest.approx(share(error, one) / factor)


def test_the_worst_element_is_named() -> None:
    ref = np.ones((3, 4))
    out = ref.copy()
    out[2, 1] = 3.0
    error = error_of(out, ref)
    assert (error.index, error.got, error.wanted) == ((2, 1), 3.0, 1.0)
    assert error.worst == 1.0


def test_an_empty_output_has_no_error() -> None:
    assert error_of(np.zeros((0, 3)), np.zeros((0, 3))).worst == 0


def test_anything_but_zero_is_wrong_where_zero_is_wanted() -> None:
    assert share(error_of(np.array([1e-30]), np.array([0.0])), allowance("float32", None)) > 1


# Allowances


@given(st.sampled_from([*UNIT_ROUNDOFF, "int32"]), st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_an_allowance_is_never_under_its_floor(dtype: str, trusted: tuple[float, float] | None) -> None:
    """trust.md 4: FACTOR times the trusted error, and never less than FACTOR roundings."""
    error = None if trusted is None else Error(*trusted, (0,), 0.0, 0.0)
    allowed, floor = allowance(dtype, error), UNIT_ROUNDOFF.get(dtype, 0.0)
    assert allowed.worst >= FACTOR * floor
    assert allowed.total >= FACTOR * floor / 2
    if error is not None:
        assert allowed.worst >= FACTOR * error.worst and allowed.total >= FACTOR * error.total
    assert f"{FACTOR:g} ×" in allowed.why


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_unit_roundoff_is_what_rounding_costs(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.float16 if dtype == "float16" else getattr(ml_dtypes, dtype)
    ref = np.linspace(1, 2, 4097)[:-1]
    relative = np.abs(ref.astype(kind).astype(np.float64) - ref) / ref
    assert UNIT_ROUNDOFF[dtype] / 1.2 <= relative.max() <= UNIT_ROUNDOFF[dtype]


def test_whole_numbers_have_no_allowance() -> None:
    ref = np.array([1000000.0, 3.0])
    assert share(error_of(ref + np.array([0, 1]), ref), allowance("int64", None)) == math.inf


# Slices


@given(
    st.fixed_dictionaries({name: st.integers(1, 3000) for name in "MNK"}), st.integers(1, 1 << 16), st.integers(0, 9)
)
def test_a_slice_is_affordable_and_covers_the_ends(dims: dict[str, int], elements: int, seed: int) -> None:
    task = product()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "REFERENCE_ELEMENTS", elements)
        part = pick_slice(task, dims, np.random.default_rng(seed))
    reduced = sliced_dims(dims, part)
    affordable = max(math.prod(array.shape) for array in task.arrays(reduced).values()) <= elements
    assert affordable or (reduced["M"], reduced["N"]) == (1, 1), "nothing is left to cut"
    assert "K" not in part.indices, "only independent dimensions are cut"
    for name, indices in part.indices.items():
        assert 1 <= len(indices) < dims[name]
        assert list(indices) == sorted(set(indices))
        assert indices[0] >= 0 and indices[-1] < dims[name]
        if len(indices) > 1:
            assert indices[0] == 0 and indices[-1] == dims[name] - 1


def test_a_slice_costs_at_most_the_references_budget() -> None:
    dims = {"M": 8192, "N": 8192, "K": 8192}
    task = product()
    part = pick_slice(task, dims, np.random.default_rng(0))
    assert task.work(sliced_dims(dims, part)) <= verify.REFERENCE_FLOP
    assert "of M" in str(part) and "of N" in str(part)


def test_what_is_affordable_is_compared_whole() -> None:
    part = pick_slice(product(), {"M": 64, "N": 64, "K": 64}, np.random.default_rng(0))
    assert part.indices == {}
    assert str(part) == "every element"


def test_two_draws_slice_at_different_places() -> None:
    rng, dims = np.random.default_rng(0), {"M": 8192, "N": 8192, "K": 8192}
    assert pick_slice(product(), dims, rng).indices != pick_slice(product(), dims, rng).indices


def cut(array: Any, axes: dict[int, tuple[int, ...]]) -> Any:
    for axis, indices in axes.items():
        array = np.take(array, indices, axis)
    return array


@pytest.mark.parametrize(
    ("file", "dims"),
    [
        ("matmul.py", {"M": 70, "N": 50, "K": 30}),
        ("rms_norm.py", {"M": 70, "N": 30}),
        ("rope.py", {"B": 2, "H": 6, "S": 10, "D": 8}),
        ("swiglu.py", None),
        ("fmha.py", None),
    ],
)
def test_the_reference_on_a_slice_is_the_slice_of_the_reference(
    file: str, dims: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `independent` claims of each example."""
    task = load_task(str(EXAMPLES / file))
    dims = dims or smaller(task)
    rng = np.random.default_rng(1)
    inputs = {name: draw(spec.distribution, task.arrays(dims)[name].shape, rng) for name, spec in task.inputs.items()}
    whole = reference_outputs(task, dims, inputs)
    elements = max(math.prod(array.shape) for array in task.arrays(dims).values())
    monkeypatch.setattr(verify, "REFERENCE_ELEMENTS", elements // 5)
    part = pick_slice(task, dims, rng)
    assert part.indices
    some = reference_outputs(
        task,
        sliced_dims(dims, part),
        {name: cut(array, axes_of(task.tensors[name].shape, part)) for name, array in inputs.items()},
    )
    for name, array in whole.items():
        np.testing.assert_allclose(
            some[name], cut(array, axes_of(task.tensors[name].shape, part)), rtol=1e-9, atol=1e-12
        )


def smaller(task: Task) -> dict[str, Any]:
    """The first workload with every dimension at 12 at most (a multiple of the smallest stays one)."""
    dims = next(iter(task.workloads.values()))
    return {
        name: min(value, 12) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in dims.items()
    }


# References


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda a, b: (a @ b).T, r"reference of task 'product' has shape \(5, 4\) for 'c'"),
        (lambda a, b: None, "returned None; return the arrays of the outputs c"),
        (lambda a, b: (a, b), "returned 2 arrays for the outputs c"),
        (lambda a, b: b @ a, "failed: ValueError: matmul"),
        (lambda a, q: a, "asks for 'q'; known: M, N, K, a, b"),
        (lambda a, b: np.zeros((a.shape[0], b.shape[1])), "does not depend on the inputs"),
        (lambda a, b: np.full((a.shape[0], b.shape[1]), a.sum()), "is one constant"),
    ],
)
def test_a_bad_reference_is_said_in_one_line_without_a_device(reference: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        try_reference(product(reference=reference), {"M": 4, "N": 5, "K": 6})
    assert "\n" not in str(caught.value)


def test_a_good_reference_gets_float64_and_says_nothing() -> None:
    seen = []

    def reference(a: Any, b: Any) -> Any:
        seen.append((a.dtype, b.dtype))
        return a @ b

    try_reference(product(reference=reference), {"M": 4, "N": 5, "K": 6})
    assert set(seen) == {(np.dtype(np.float64), np.dtype(np.float64))}


@pytest.mark.parametrize("file", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_examples_references_can_be_checked_against(file: str) -> None:
    if file == "cute_gemm.py":
        pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'")
    task = load_task(str(EXAMPLES / file))
    try_reference(task, smaller(task))


def test_a_reference_is_degenerate_when_its_outputs_do_not_vary() -> None:
    """trust.md 2."""
    a, b = np.arange(4.0), np.arange(4.0) ** 2
    assert degenerate({"y": a}, {"y": b}) is None
    assert "does not depend" in (degenerate({"y": a}, {"y": a}) or "")
    assert "one constant" in (degenerate({"y": np.ones(16)}, {"y": np.zeros(20)}) or "")
    assert degenerate({"y": np.ones(16)}, {"y": np.arange(16.0)}) is None, "equal by chance"
    assert degenerate({"y": np.ones(4)}, {"y": np.zeros(4)}) is None, "few elements, whose value changes"
    for bad in (math.nan, math.inf):
        assert "not finite" in (degenerate({"y": a}, {"y": np.full(4, bad)}) or "")
        assert "not finite" in (degenerate({"y": np.full(4, bad)}, {"y": b}) or "")
    assert degenerate({"y": np.ones(1)}, {"y": np.zeros(1)}) is None


@given(st.integers(0, 99))
def test_drawn_inputs_follow_their_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    few = draw(integers(-2, 3), (500,), rng)
    assert few.min() >= -2 and few.max() <= 2 and (few == np.round(few)).all()
    low = draw(uniform(0.5, 1.5), (500,), rng)
    assert low.min() >= 0.5 and low.max() <= 1.5
    assert abs(draw(normal(3.0, 0.1), (500,), rng).mean() - 3.0) < 0.05


def test_whole_numbers_reach_the_reference_as_whole_numbers() -> None:
    """Not in float64, which does not hold them all, and which cannot index an array."""
    seen: dict[str, Any] = {}

    def gathered(x: Any, at: Any, mask: Any) -> Any:
        seen.update(at=at.dtype, mask=mask.dtype, x=x.dtype)
        return np.where(mask, x[at], 0.0)

    task = replace(
        product(),
        tensors={
            "x": Tensor(("M",), "float32"), "at": Tensor(("M",), "int32", integers(0, "M")),
            "mask": Tensor(("M",), "bool", integers(0, 2)), "y": Output(("M",), "float32"),
        },
        reference=gathered, independent=(), flops=lambda M: M,
    )  # fmt: skip
    inputs = {"x": np.arange(4, dtype=np.float32), "at": np.array([3, 2, 1, 0], np.int32), "mask": np.ones(4, bool)}
    assert reference_outputs(task, {"M": 4}, inputs)["y"].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert seen == {"at": np.int64, "mask": np.bool_, "x": np.float64}
    single = yardstick(task, {"M": 4}, inputs)
    assert not isinstance(single, str) and seen["at"] == np.int64 and seen["x"] == np.float32
    try_reference(task, {"M": 64})
