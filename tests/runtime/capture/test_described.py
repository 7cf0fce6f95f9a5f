"""A launch as data: everything that decides about it, there and back as JSON (A-15, X-21)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cuda.tile as ct
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime import captured_kernels as kernels

from tilewright.runtime.capture.described import Argument, DescribedLaunch, described, packed, unpacked
from tilewright.source.digest import source_of
from tilewright.task.tensors import ITEM_BYTES, ArraySpec

torch = pytest.importorskip("torch")

names = st.text("abcxyz_", min_size=1, max_size=5)
values = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8)
arrays = st.builds(
    ArraySpec, names, st.tuples(st.integers(0, 99), st.integers(1, 99)), st.sampled_from(sorted(ITEM_BYTES)),
    st.none() | st.tuples(st.integers(0, 999), st.integers(0, 9)), st.integers(0, 255),
)  # fmt: skip
plain = st.builds(Argument, names, st.sampled_from(["scalar", "constant"]), values) | st.builds(
    Argument, names, st.just("array"), array=arrays, storage=st.integers(0, 9), offset=st.integers(0, 999),
    contents=st.none() | st.text("ABC=", max_size=9),
)  # fmt: skip
lists = st.builds(Argument, names, st.sampled_from(["list", "tuple"]), items=st.lists(plain, max_size=3).map(tuple))
launches = st.builds(
    DescribedLaunch, names, names, names, names, names,
    st.lists(st.integers(1, 999), min_size=1, max_size=3).map(tuple),
    st.lists(plain | lists, max_size=4).map(tuple),
    st.dictionaries(names, st.none() | st.integers(0, 32), max_size=3), st.text(max_size=20),
)  # fmt: skip


@given(launches)
def test_json_and_back(launch: DescribedLaunch) -> None:
    text = json.dumps(launch.to_json(), allow_nan=False)
    again = DescribedLaunch.from_json(json.loads(text))
    assert repr(again) == repr(launch)  # a NaN is not equal to itself


def launch(*args: Any, kernel: Any = kernels.scale, grid: tuple[int, ...] = (8,)) -> DescribedLaunch:
    return described(kernel, grid, args)


def test_what_is_launched() -> None:
    one = launch(torch.zeros(1000), torch.zeros(1000), 128, 0.5)
    assert (one.kernel, one.qualname, one.module) == ("scale", "scale", kernels.__name__)
    assert one.file == str(Path(kernels.__file__).resolve())
    assert one.source == source_of(kernels.scale)
    assert [(a.name, a.kind, a.value) for a in one.arguments[2:]] == [
        ("TILE", "constant", 128),
        ("factor", "scalar", 0.5),
    ]
    assert one.constants == {"TILE": 128}
    assert (one.grid, one.problem) == ((8,), "")


def test_hints_of_the_decorator_and_of_replace_hints() -> None:
    one = launch(torch.zeros(8), torch.zeros(8), 8, 1.0, kernel=kernels.scale.replace_hints(occupancy=4))
    assert one.hints["occupancy"] == 4 and one.hints["num_ctas"] is None


def test_strides_dtype_and_alignment() -> None:
    wide = torch.zeros(64, 32, dtype=torch.bfloat16)
    one = launch(wide.t(), wide[:, 1:], 8, 1.0)
    first, second = (argument.array for argument in one.arrays())
    assert first is not None and second is not None
    assert (first.shape, first.strides, first.dtype) == ((32, 64), (1, 32), "bfloat16")
    assert (second.shape, second.strides) == ((64, 31), (32, 1))
    assert second.address_offset == wide.data_ptr() % 256 + 2


def test_who_shares_memory_and_how_far_apart() -> None:
    """A-41: in place is a fact of the launch, not of the kernel."""
    base = torch.zeros(100)
    one = launch(base[10:20], base[15:30], 8, 1.0)
    assert [(a.storage, a.offset) for a in one.arrays()] == [(0, 0), (0, 20)]
    apart = launch(base[:10], base[10:], 8, 1.0)
    assert [a.storage for a in apart.arrays()] == [0, 1]


def test_a_list_of_arrays_and_a_tuple() -> None:
    one = launch([torch.zeros(4), torch.zeros(5)], (torch.zeros(2), 3), 8, 1.0)
    assert [argument.kind for argument in one.arguments[:2]] == ["list", "tuple"]
    assert [a.name for a in one.arrays()] == ["x[0]", "x[1]", "y[0]"]
    assert one.arguments[1].items[1].value == 3


def test_small_tables_are_kept_with_their_contents() -> None:
    table = torch.tensor([[0, 5], [3, 9]], dtype=torch.int32)
    big = torch.zeros(1 << 15, dtype=torch.int32)
    one = launch(table, big, 8, 1.0)
    first, second = one.arrays()
    assert first.contents is not None and first.array is not None
    assert unpacked(first.contents, first.array).tolist() == [[0, 5], [3, 9]]
    assert second.contents is None


@given(st.lists(st.integers(-5, 5), max_size=9))
def test_packing_loses_nothing(numbers: list[int]) -> None:
    elements = np.array(numbers, np.int64)
    spec = ArraySpec("t", elements.shape, "int64")
    assert np.array_equal(unpacked(packed(elements), spec), elements)


@pytest.mark.parametrize(
    ("kernel", "args", "why"),
    [
        (kernels.nested(), (torch.zeros(8), 8), "inside nested"),
        (kernels.scale, (torch.zeros(8), object(), 8, 1.0), "argument 'y' is object"),
        (kernels.scale, (torch.zeros(8), torch.zeros(8, dtype=torch.complex64), 8, 1.0), "array 'y' has a dtype"),
    ],
)
def test_what_cannot_be_made_again_says_why(kernel: Any, args: tuple[Any, ...], why: str) -> None:
    one = launch(*args, kernel=kernel)
    assert why in one.problem


def test_a_lambda_is_described_as_far_as_possible() -> None:
    kernel = ct.kernel(lambda x, TILE: ct.store(x, (0,), ct.full((8,), 1.0, ct.float32)))
    assert "lambda" in launch(torch.zeros(8), 8, kernel=kernel).problem


def test_anything_with_a_cuda_array_interface() -> None:
    class Array:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"shape": (4, 8), "typestr": "<f4", "strides": (32, 4), "data": (4096 + 16, False)}

    one = launch(Array(), Array(), 8, 1.0)
    array = one.arrays()[0].array
    assert array is not None
    assert (array.shape, array.dtype, array.strides, array.address_offset) == ((4, 8), "float32", (8, 1), 16)
    assert one.arrays()[1].storage == 0
