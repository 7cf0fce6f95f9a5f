"""The tensors of a task on a device (here the CPU): guarded, poisoned, drawn afresh (trust.md 1, 9, 10, 20)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="buffers are torch's memory")

from tilewright.space.space import Space  # noqa: E402
from tilewright.task.task import Task  # noqa: E402
from tilewright.task.tensors import ITEM_BYTES, Distribution, Output, Tensor, integers, normal, offsets, uniform  # noqa: E402
from tilewright.verify import arrays  # noqa: E402
from tilewright.verify.images import POISONS  # noqa: E402
from tilewright.verify.judge import Wrong, judge_finite  # noqa: E402
from tilewright.verify.tolerance import Slice, error_of  # noqa: E402
from tilewright.worker.process import buffers as buffers_module  # noqa: E402
from tilewright.worker.process import torch_backend  # noqa: E402
from tilewright.worker.process.buffers import GUARD_BYTES, Buffers, DeviceMemory, InputSets, guarded  # noqa: E402
from tilewright.worker.process.torch_backend import TENSORS, TorchBackend  # noqa: E402

CPU = TorchBackend("cpu")
DIMS = {"M": 6, "N": 5, "D": 4}


def task_of(**tensors: Tensor | Output) -> Task:
    return Task(
        name="t",
        tensors=tensors,
        reference=lambda x: x,
        launch=lambda x: None,  # type: ignore[arg-type,return-value]
        flops=lambda M: M,
        independent=("M", "N"),
        space=Space(constants={"TILE": (1,)}, shipped={"TILE": 1}),
        workloads={"only": DIMS},
    )


def buffers_of(**tensors: Tensor | Output) -> Buffers:
    return Buffers(task_of(**tensors), DIMS, CPU)


def usual() -> Buffers:
    return buffers_of(
        x=Tensor(("M", "N"), "bfloat16"),
        w=Tensor(("N", "D // 2"), "float32", uniform(1, 2)),
        y=Output(("M", "N"), "bfloat16", in_place_of="x"),
    )


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("shape", [(3, 5), (1,), (7, 1, 2), ()])
def test_a_tensor_lies_between_guards(dtype: str, shape: tuple[int, ...]) -> None:
    one = guarded(shape, dtype, CPU)
    assert one.tensor.shape == shape and one.tensor.is_contiguous()
    assert one.middle.numel() == math.prod(shape) * ITEM_BYTES[dtype]
    assert one.raw.numel() == one.middle.numel() + 2 * GUARD_BYTES
    assert one.tensor.data_ptr() - one.raw.data_ptr() == GUARD_BYTES
    assert one.intact()


def test_a_tensor_without_elements_is_guarded_too() -> None:
    one = guarded((0, 4), "float32", CPU)
    assert one.tensor.shape == (0, 4) and one.intact()


@given(st.integers(0, 2 * GUARD_BYTES - 1))
def test_one_byte_in_either_guard_is_seen_and_mended(place: int) -> None:
    """trust.md 9."""
    one = guarded((4, 4), "float32", CPU)
    one.raw[place if place < GUARD_BYTES else place + one.middle.numel()] = 0
    assert not one.intact()
    one.mend()
    assert one.intact()


def test_writing_the_whole_tensor_leaves_the_guards() -> None:
    one = guarded((9, 7), "bfloat16", CPU)
    one.tensor.fill_(3)
    assert one.intact()


def test_poison_fills_the_outputs_alone() -> None:
    found = usual()
    found.draw(1)
    before = found.checksums()
    for byte in POISONS:
        found.poison(byte)
        assert bool((found.all["y"].middle == byte).all())
    assert found.checksums() == before
    assert DeviceMemory(found, before).damaged() is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_the_first_poison_is_nan_in_every_float_format(dtype: str) -> None:
    one = guarded((4,), dtype, CPU)
    one.middle.fill_(POISONS[0])
    assert bool(one.tensor.to(torch.float64).isnan().all())


def test_the_second_poison_is_finite_and_unlike_any_result() -> None:
    for dtype in ("bfloat16", "float32", "float64"):
        one = guarded((4,), dtype, CPU)
        one.middle.fill_(POISONS[1])
        assert 1e20 < float(one.tensor[0].double()) < math.inf


# Inputs


def test_equal_seeds_draw_equal_inputs_and_others_do_not() -> None:
    """trust.md 20: fresh contents at the same addresses, same contents at new ones."""
    one, other = usual(), usual()
    one.draw(5)
    other.draw(5)
    assert one.checksums() == other.checksums()
    other.draw(6)
    assert all(one.checksums()[name] != other.checksums()[name] for name in ("x", "w"))


def test_two_inputs_of_one_shape_differ() -> None:
    found = buffers_of(a=Tensor(("M", "N"), "float32"), b=Tensor(("M", "N"), "float32"), y=Output(("M",), "int8"))
    found.draw(1)
    assert not torch.equal(found.all["a"].tensor, found.all["b"].tensor)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int32", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("how", "low", "high"),
    [(integers(-3, 4), -3, 3), (uniform(1, 2), 1, 2), (normal(0, 1), -6, 6)],
    ids=["integers", "uniform", "normal"],
)
def test_drawn_values_follow_their_distribution(dtype: str, how: Distribution, low: float, high: float) -> None:
    found = Buffers(task_of(x=Tensor((400,), dtype, how), y=Output(("M",), "int8")), DIMS, CPU)
    found.draw(3)
    values = found.all["x"].tensor.double()
    assert low <= float(values.min()) and float(values.max()) <= high
    if how.kind == "integers":
        assert set(values.tolist()) == set(range(low, high + 1))  # type: ignore[arg-type]


# Checksums


@given(st.lists(st.integers(0, 255), min_size=1, max_size=60), st.data())
def test_any_change_of_one_byte_changes_the_checksum(data: list[int], pick: st.DataObject) -> None:
    """trust.md 10."""
    place, change = pick.draw(st.integers(0, len(data) - 1)), pick.draw(st.integers(1, 255))
    changed = list(data)
    changed[place] ^= change
    assert CPU.checksum(bytes_of(data)) != CPU.checksum(bytes_of(changed))
    assert CPU.checksum(bytes_of(data)) == CPU.checksum(bytes_of(data))


@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=40), st.data())
def test_the_same_words_in_another_order_are_another_checksum(words: list[int], pick: st.DataObject) -> None:
    other = pick.draw(st.permutations(words))
    equal = CPU.checksum(words_of(words)) == CPU.checksum(words_of(other))
    assert equal == (list(other) == words)


def test_rows_that_change_places_change_the_checksum() -> None:
    found = usual()
    found.draw(1)
    before = found.checksums()
    x = found.all["x"].tensor
    x.copy_(x.flip(0))
    assert found.checksums()["x"] != before["x"]
    assert found.checksums()["w"] == before["w"]


def test_a_checksum_does_not_depend_on_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.arange(1001, dtype=torch.int64).view(torch.uint8)[:-3]
    whole = CPU.checksum(data)
    monkeypatch.setattr(torch_backend, "CHUNK", 64)
    assert CPU.checksum(data) == whole


def bytes_of(data: list[int]) -> Any:
    return torch.tensor(data, dtype=torch.uint8)


def words_of(words: list[int]) -> Any:
    return torch.tensor(words, dtype=torch.int64).view(torch.uint8)


# Sets of inputs that take turns


def test_two_sets_take_turns_at_the_same_addresses() -> None:
    """trust.md 38: the second set is that of its seed, after any number of turns."""
    found, alone = usual(), usual()
    places = {name: tensor.data_ptr() for name, tensor in found.tensors().items()}
    sets = InputSets(found, (5, 6))
    alone.draw(6)
    second, seen = alone.checksums(), []
    for turn in range(4):
        assert (found.checksums() == second) is (turn % 2 == 0)
        assert bool((found.all["y"].middle == POISONS[0]).all())
        seen.append(tuple(found.checksums().values()))
        found.tensors()["y"].fill_(1)
        sets.swap()
        sets.spoil()
    assert seen[0] == seen[2] != seen[1] == seen[3]
    assert {name: tensor.data_ptr() for name, tensor in found.tensors().items()} == places
    assert sets.record()["alternating_share_of_inputs"] == {"x": 1.0, "w": 1.0}


def test_of_a_large_input_the_first_bytes_take_turns_and_offsets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers_module, "SWAPPED_BYTES", 16)
    found = buffers_of(
        x=Tensor(("M", "N"), "float32"),
        at=Tensor(("N",), "int64", offsets("M * 100")),
        y=Output(("M", "N"), "float32", updates="x"),
    )
    sets = InputSets(found, (5, 6))
    before = {name: tensor.clone() for name, tensor in found.tensors().items()}
    sets.swap()
    sets.spoil()
    now = found.tensors()
    changed = (now["x"] != before["x"]).flatten().tolist()
    assert changed == [True] * 4 + [False] * 26
    assert torch.equal(now["at"], before["at"]) and torch.equal(now["y"], now["x"])
    assert sets.record()["alternating_share_of_inputs"] == {"x": 16 / 120, "at": 0.0}


# Views


def test_in_place_the_output_is_the_input() -> None:
    found = usual()
    assert found.tensors()["y"].data_ptr() != found.tensors()["x"].data_ptr()
    assert found.tensors(in_place=True)["y"].data_ptr() == found.tensors()["x"].data_ptr()
    assert found.tensors(in_place=True)["w"].data_ptr() == found.tensors()["w"].data_ptr()


def test_what_is_updated_holds_what_was_there_before() -> None:
    """A trial does not start from what the trial before it left."""
    found = buffers_of(x=Tensor(("M", "N"), "bfloat16"), y=Output(("M", "N"), "bfloat16", updates="x"))
    for seed, poison in enumerate(POISONS):
        found.draw(seed)
        found.poison(poison)
        x, y = found.tensors()["x"], found.tensors()["y"]
        assert y.data_ptr() != x.data_ptr() and torch.equal(x, y)
        y.mul_(2)


def test_a_table_rises_to_its_dimension() -> None:
    found = buffers_of(x=Tensor(("N",), "int64", offsets("M * 100", most=300)), y=Output(("N",), "int64"))
    tables = []
    for seed in (1, 1, 2):
        found.draw(seed)
        tables.append(found.tensors()["x"].tolist())
    assert tables[0] == tables[1] != tables[2]
    assert all(one[0] == 0 and one[-1] == 600 and one == sorted(one) for one in tables)


def test_a_slice_is_what_numpy_would_take() -> None:
    found = usual()
    found.draw(2)
    part = Slice({"M": (0, 3, 5), "N": (1, 4)})
    inputs = found.input_slices(part)
    x = found.all["x"].tensor.double().numpy()
    np.testing.assert_array_equal(inputs["x"], x[[0, 3, 5]][:, [1, 4]])
    assert inputs["w"].shape == (2, 2), "N is cut in every tensor that has it, D // 2 in none"
    assert inputs["x"].dtype == np.float64


def test_a_slice_of_8_bit_floats_comes_out() -> None:
    found = buffers_of(x=Tensor(("M", "N"), "float8_e4m3fn"), y=Output(("M", "N"), "float8_e5m2"))
    found.draw(2)
    assert found.input_slices(Slice({"M": (0, 2)}))["x"].shape == (2, 5)


# Comparing everything


def whole_difference(out: Any, other: Any) -> tuple[float, bool]:
    """The largest difference by the judge's rule, and whether ``out`` is finite."""
    try:
        judge_finite("y", out, TENSORS)
    except Wrong:
        return error_of(out, other, TENSORS).worst, False
    return error_of(out, other, TENSORS).worst, True


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30))
def test_equal_tensors_do_not_differ(values: list[float]) -> None:
    one = torch.tensor(values, dtype=torch.float32)
    assert whole_difference(one, one.clone()) == (0.0, True)


@given(st.integers(0, 99), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_element_that_is_not_finite_is_seen(place: int, value: float) -> None:
    """trust.md 13."""
    one = torch.ones(100)
    one[place] = value
    assert whole_difference(one, torch.ones(100))[1] is False
    assert whole_difference(torch.ones(100), one)[0] == math.inf, "nor does anything agree with it"


def test_the_largest_difference_of_all_pieces_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK", 16)
    one, other = torch.ones(100), torch.ones(100)
    one[55], one[99] = 1.5, 1.25
    assert whole_difference(one, other) == (0.25, True)


@pytest.mark.parametrize(("dtype", "value"), [("float32", 1e30), ("float64", 1e100), ("bfloat16", 1e-30)])
def test_the_scale_is_the_others_own(dtype: str, value: float) -> None:
    one = torch.full((10,), value, dtype=getattr(torch, dtype))
    other = one.clone()
    other[3] *= 2
    difference, finite = whole_difference(other, one)
    assert finite and difference == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_what_float32_cannot_hold_is_compared_exactly(dtype: str) -> None:
    one = torch.full((10,), 2**25, dtype=getattr(torch, dtype))
    other = one.clone()
    other[3] += 1
    assert whole_difference(other, one)[0] == pytest.approx(2.0**-26)


def test_tensors_without_elements_do_not_differ() -> None:
    assert whole_difference(torch.zeros(0, 3), torch.zeros(0, 3)) == (0.0, True)
