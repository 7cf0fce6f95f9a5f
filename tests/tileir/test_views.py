"""Views against plain slices of NumPy arrays, on the real memory; traffic against sets of bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.tileir.read.tree import (
    GatherScatterViewType,
    Op,
    PartitionViewType,
    StridedViewType,
    TensorViewType,
    TileType,
    TokenType,
    Type,
    ViewType,
)
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.numbers import STORAGE
from tilewright.tileir.run.registry import NeedsData, Unknown, Unsupported
from tilewright.tileir.run.views import (
    AxisRange,
    TensorView,
    TileAxis,
    Tiles,
    TileView,
    atomic_red_view_tko,
    get_index_space_shape,
    get_tensor_shape,
    load_view_tko,
    make_tensor_view,
    make_tile_view,
    padding,
    store_view_tko,
)
from tilewright.tileir.watch.findings import OUT_OF_BOUNDS

FLOATS = ("f16", "bf16", "f32", "f64", "f8E5M2")
ELEMENTS = (*FLOATS, "f8E4M3FN", "i1", "i8", "i16", "i32", "i64")
PADDINGS = {"zero": 0.0, "neg_zero": -0.0, "nan": math.nan, "pos_inf": math.inf, "neg_inf": -math.inf}


@dataclass
class World:
    """What the operations ask of the interpreter."""

    memory: Memory
    blocks: Any
    dry: bool = False
    poison: int = 0xFF
    grid: tuple[int, int, int] = (1, 1, 1)
    findings: list[tuple[str, str, int | None]] = field(default_factory=list)
    moved: list[tuple[str, int, Any, int]] = field(default_factory=list)
    without_value: int = 0

    @property
    def lanes(self) -> int:
        return len(self.blocks)

    @property
    def clean(self) -> bool:
        """Nothing found, neither here nor by the memory: no access was outside the tensor."""
        return not self.findings and not list(self.memory.findings)

    def sampled(self, addresses: Any, dtype: Any) -> None:
        """Each lane loads its own data."""

    def finding(self, op: Op, kind: str, message: str, lane: Any = None, element: Any = None) -> None:
        self.findings.append((kind, message, lane))

    def loads(self, op: Op, addresses: Any) -> bool:
        """No address depends on a load here."""
        return False

    def undefined(self, op: Op) -> int:
        self.without_value += 1
        return self.poison

    def decided(self, name: str, results: Any) -> None:
        pass

    def traffic(self, op: Op, direction: str, total_bytes: int, starts: Any, run_bytes: int) -> None:
        self.moved.append((direction, total_bytes, starts, run_bytes))

    def full(self, value: Any) -> Any:
        return np.broadcast_to(value, (self.lanes, *value.shape[1:]))

    @property
    def total(self) -> int:
        return sum(total for _, total, _, _ in self.moved)

    @property
    def touched(self) -> set[int]:
        """The distinct bytes."""
        return {
            byte for _, _, starts, run in self.moved for start in starts.tolist() for byte in range(start, start + run)
        }


def operation(name: str, *results: Type, **attributes: Any) -> Op:
    return Op(name, tuple(f"%{i}" for i in range(len(results))), results, {}, {}, attributes)


@dataclass
class Case:
    """A tensor that is a slice of a larger array, and a view of it."""

    array: Any
    """The tensor; a view of ``whole`` with its own order of axes and steps."""
    whole: Any
    element: str

    def place(self, world: World) -> TensorView:
        where = world.memory.allocate("x", self.array, within=self.whole)
        item = self.array.itemsize
        strides = tuple(stride // item for stride in self.array.strides)
        dynamic = [axis % 2 == 0 for axis in range(self.array.ndim)]
        type_ = TensorViewType(
            tuple(None if d else n for d, n in zip(dynamic, self.array.shape, strict=True)),
            self.element,
            tuple(None if d else n for d, n in zip(dynamic, strides, strict=True)),
        )
        given_ = [
            [np.array([n], np.int32) for d, n in zip(dynamic, numbers, strict=True) if d]
            for numbers in (self.array.shape, strides)
        ]
        base = np.array([where.address], np.int64)
        return make_tensor_view(world, operation("make_tensor_view", type_), base, *given_)  # type: ignore[arg-type]


def world_of(lanes: int, **options: Any) -> World:
    return World(Memory(poison=options.get("poison", 0xFF)), np.arange(lanes), **options)


def some_data(shape: Sequence[int], element: str, seed: int) -> Any:
    dtype = np.dtype(STORAGE[element])
    numbers = np.random.default_rng(seed).integers(0, 2 if element == "i1" else 100, shape)
    return numbers.astype(dtype)


@st.composite
def cases(draw: st.DrawFn, elements: Sequence[str] = ELEMENTS, ranks: tuple[int, int] = (1, 4)) -> Case:
    """Tensors with odd extents, transposed, stepped and off the beginning of their array."""
    rank = draw(st.integers(*ranks))
    element = draw(st.sampled_from(elements))
    extents = draw(st.tuples(*[st.integers(1, 9 if rank < 4 else 5)] * rank))
    steps = draw(st.tuples(*[st.sampled_from((1, 1, 2, 3))] * rank))
    before = draw(st.tuples(*[st.integers(0, 2)] * rank))
    sizes = [b + n * s for b, n, s in zip(before, extents, steps, strict=True)]
    whole = some_data(sizes, element, draw(st.integers(0, 9)))
    order = draw(st.permutations(range(rank)))
    tensor = whole[tuple(slice(b, b + n * s, s) for b, n, s in zip(before, extents, steps, strict=True))]
    return Case(tensor.transpose(order), whole, element)


TILES = st.sampled_from((1, 2, 4, 8))


@st.composite
def grid_views(draw: st.DrawFn, case: Case, padding_: str | None = None) -> ViewType:
    rank = case.array.ndim
    tile = draw(st.tuples(*[TILES if rank < 4 else st.sampled_from((1, 2, 4))] * rank))
    dim_map = tuple(draw(st.permutations(range(rank))))
    tensor = TensorViewType(case.array.shape, case.element, (None,) * rank)
    if draw(st.booleans()):
        steps = draw(st.tuples(*[st.integers(1, 6)] * rank))
        return StridedViewType(tile, steps, dim_map, padding_, tensor)
    return PartitionViewType(tile, dim_map, padding_, tensor)


@st.composite
def padded(draw: st.DrawFn, element: str) -> str | None:
    return draw(st.sampled_from((None, "zero", *(PADDINGS if element in FLOATS else ()))))


def indices(draw: st.DrawFn, view: ViewType, case: Case, lanes: int) -> list[Any]:
    """One index for each axis, in and out of bounds; some that all lanes share."""
    found = []
    for _ in range(case.array.ndim):
        count = draw(st.sampled_from((1, lanes)))
        numbers = draw(st.lists(st.integers(-2, 5), min_size=count, max_size=count))
        found.append(np.array(numbers, draw(st.sampled_from((np.int32, np.int64)))))
    return found


def steps_of(view: ViewType) -> Sequence[int]:
    return view.traversal_strides if isinstance(view, StridedViewType) else view.tile


def inside(view: ViewType, array: Any, index: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(element of the tile, element of the tensor), one by one, for all that is inside."""
    assert not isinstance(view, GatherScatterViewType)
    for element in itertools.product(*map(range, view.tile)):
        place = [0] * array.ndim
        for a, axis in enumerate(view.dim_map):
            place[axis] = index[a] * steps_of(view)[a] + element[a]
        if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            yield element, tuple(place)


def at(index: Sequence[Any], lane: int) -> list[int]:
    return [int(one[lane if len(one) > 1 else 0]) for one in index]


def filled(shape: Sequence[int], element: str, kind: str | None, poison: int) -> Any:
    dtype = np.dtype(STORAGE[element])
    if kind is not None:
        return np.full(shape, PADDINGS[kind]).astype(dtype)
    raw = np.full((*shape, dtype.itemsize), poison, np.uint8)
    return raw.any(-1) if element == "i1" else raw.view(dtype)[..., 0]


def same(one: Any, other: Any) -> bool:
    one = np.ascontiguousarray(one)
    return one.dtype == other.dtype and one.tobytes() == np.ascontiguousarray(other).tobytes()


def as_view(view: ViewType, tensor: TensorView) -> TileView:
    return make_tile_view(operation("make_partition_view", view), tensor)


def load(world: World, view: TileView, index: Sequence[Any], **attributes: Any) -> Any:
    tile = TileType(view.type.tile, view.type.tensor.element)
    op = operation("load_view_tko", tile, TokenType(), **attributes)
    value, token = load_view_tko(world, op, view, tuple(index))  # type: ignore[arg-type]
    assert token is None
    return value


# Loads ------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_load_is_a_padded_slice(data: st.DataObject) -> None:
    case = data.draw(cases())
    kind = data.draw(padded(case.element))
    view = data.draw(grid_views(case, kind))
    lanes = data.draw(st.integers(1, 4))
    poison = data.draw(st.sampled_from((0xFF, 0x6B)))
    index = indices(data.draw, view, case, lanes)
    world = world_of(lanes, poison=poison)
    value = load(world, as_view(view, case.place(world)), index)
    assert value.shape[0] == max(map(len, index))
    for lane in range(lanes):
        expected = filled(view.tile, case.element, kind, poison)
        for element, place in inside(view, case.array, at(index, lane)):
            expected[element] = case.array[place]
        assert same(value[lane if len(value) > 1 else 0], expected)
    assert world.clean


def test_a_gather_of_nothing_inside_moves_no_bytes() -> None:
    axis = TileAxis(of=0, length=2, step=1, sparse=True)
    none, outside = np.zeros(1, np.int64), np.full((3, 2), -1)
    sparse = AxisRange(axis, outside, none + 1, none, none, outside >= 0)
    each = np.zeros(3, np.int64)  # a number for each of the three blocks
    dense = AxisRange(TileAxis(of=1, length=4, step=1), each, none + 4, each, each + 4, None)
    assert list(Tiles(none, (sparse, dense), 4).runs()) == []


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_gather_selects_along_one_axis(data: st.DataObject) -> None:
    case = data.draw(cases(ranks=(1, 3)))
    kind = data.draw(padded(case.element))
    tile = data.draw(st.tuples(*[TILES] * case.array.ndim))
    sparse = data.draw(st.integers(0, case.array.ndim - 1))
    view = GatherScatterViewType(tile, sparse, kind, TensorViewType((), case.element, ()))
    lanes = data.draw(st.integers(1, 3))
    index = indices(data.draw, view, case, lanes)
    index[sparse] = np.array(
        data.draw(st.lists(st.lists(st.integers(-3, 11), min_size=tile[sparse], max_size=tile[sparse]),
                           min_size=lanes, max_size=lanes)), np.int32)  # fmt: skip
    world = world_of(lanes)
    value = load(world, as_view(view, case.place(world)), index)
    for lane in range(lanes):
        expected = filled(tile, case.element, kind, 0xFF)
        for element in itertools.product(*map(range, tile)):
            place = tuple(
                int(index[a][lane][e]) if a == sparse else at([index[a]], lane)[0] + e for a, e in enumerate(element)
            )
            if all(0 <= p < n for p, n in zip(place, case.array.shape, strict=True)):
                expected[element] = case.array[place]
        assert same(value[lane], expected)
    assert world.clean


def test_lanes_have_their_own_tensors() -> None:
    """Base, extents and strides may differ from lane to lane, as with a list of arrays."""
    whole = np.arange(60, dtype=np.int32)
    world = world_of(2)
    address = world.memory.allocate("x", whole).address
    type_ = TensorViewType((None, None), "i32", (None, 1))
    tensor = make_tensor_view(
        world,  # type: ignore[arg-type]
        operation("make_tensor_view", type_),
        np.array([address, address + 4 * 30]),
        [np.array([3, 5]), np.array([10, 6])],
        [np.array([10, 6])],
    )
    view = as_view(PartitionViewType((4, 8), (0, 1), "zero", type_), tensor)
    zero = np.zeros(1, np.int32)
    value = load(world, view, (zero, zero))
    first, second = np.zeros((2, 4, 8), np.int32)
    first[:3] = whole[:30].reshape(3, 10)[:, :8]
    second[:, :6] = whole[30:].reshape(5, 6)[:4]
    assert same(value, np.stack([first, second]))
    assert world.total == 4 * (3 * 8 + 4 * 6)
    one = view.take(np.array([1]))
    assert same(load(world_with(world, 1), one, (zero, zero)), second[None])
    assert one.tensor.strides[1] is tensor.strides[1]


def test_lanes_may_differ_in_extents_alone() -> None:
    whole = np.arange(8, dtype=np.int32)
    world = world_of(3)
    address = np.array([world.memory.allocate("x", whole).address])
    op = operation("make_tensor_view", TensorViewType((None,), "i32", (1,)))
    tensor = make_tensor_view(world, op, address, [np.array([8, 3, -1], np.int32)])  # type: ignore[arg-type]
    view = as_view(PartitionViewType((4,), (0,), "zero", tensor.type), tensor)
    value = load(world, view, (np.zeros(1, np.int32),), inbounds=(True,))
    assert value.tolist() == [[0, 1, 2, 3], [0, 1, 2, 0], [0, 0, 0, 0]]
    assert world.total == 4 * (4 + 3) and len(world.touched) == 16
    assert [lane for _, _, lane in world.findings] == [1]


def world_with(world: World, lanes: int, **options: Any) -> World:
    return World(world.memory, np.arange(lanes), **options)


@pytest.mark.parametrize("index", [2**62, -(2**62), 2**63 - 1, -(2**63), 2**58, 2**31])
def test_an_index_that_overflows_is_outside(index: int) -> None:
    case = Case(*[np.arange(64, dtype=np.int32)] * 2, "i32")
    world = world_of(1)
    type_ = TensorViewType((64,), "i32", (1,))
    view = as_view(PartitionViewType((64,), (0,), "zero", type_), case.place(world))
    assert not load(world, view, [np.array([index])]).any()
    assert not world.moved and world.clean


def test_a_padding_that_the_type_lacks_is_refused_only_outside() -> None:
    """Zero of f8E8M0FNU: a load of whole tiles runs."""
    case = Case(*[np.ones(16, ml_dtypes.float8_e8m0fnu)] * 2, "f8E8M0FNU")
    world = world_of(1)
    type_ = TensorViewType((16,), "f8E8M0FNU", (1,))
    view = as_view(PartitionViewType((8,), (0,), "zero", type_), case.place(world))
    assert (load(world, view, [np.array([1])]).astype(np.float64) == 1).all()
    with pytest.raises(Unsupported, match="padding zero of f8E8M0FNU"):
        load(world, view, [np.array([2])])


def test_an_axis_declared_in_bounds_that_is_not() -> None:
    case = Case(*[np.arange(35, dtype=np.float32).reshape(7, 5)] * 2, "f32")
    world = world_of(3)
    view = as_view(PartitionViewType((4, 2), (1, 0), None, TensorViewType((7, 5), "f32", (5, 1))), case.place(world))
    index = (np.array([0, 1, 0], np.int32), np.array([0, 0, 3], np.int32))
    load(world, view, index)
    load(world, view, index, inbounds=(False, False))
    assert not world.findings
    value = load(world, view, index, inbounds=(True, True))
    assert [(kind, lane) for kind, _, lane in world.findings] == [(OUT_OF_BOUNDS, 1), (OUT_OF_BOUNDS, 2)]
    assert "axis 1" in world.findings[0][1] and "element 5 of 5" in world.findings[0][1]
    assert "axis 0" in world.findings[1][1] and "element 7 of 7" in world.findings[1][1]
    assert np.isnan(value[1, 1:]).all() and np.isnan(value[2, :, 1]).all()
    assert not np.isnan(value[0]).any()


# Padding ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("kind", PADDINGS)
def test_paddings_of_floats(element: str, kind: str) -> None:
    value = float(padding(kind, element, 0xFF))
    expected = PADDINGS[kind]
    assert value == expected or (math.isnan(value) and math.isnan(expected))
    assert math.isnan(expected) or math.copysign(1, value) == math.copysign(1, expected)


@pytest.mark.parametrize(("kind", "element"), [("nan", "i32"), ("pos_inf", "f8E4M3FN"), ("neg_zero", "i8")])
def test_a_padding_that_the_type_lacks_is_unsupported(kind: str, element: str) -> None:
    with pytest.raises(Unsupported, match=kind):
        padding(kind, element, 0xFF)


def test_undefined_bytes() -> None:
    assert padding(None, "i32", 0x6B) == 0x6B6B6B6B
    assert padding(None, "i8", 0xFF) == -1
    assert padding(None, "i1", 0xFF).dtype == np.bool_
    assert padding(None, "bf16", 0xFF).dtype == ml_dtypes.bfloat16
    assert np.isnan(float(padding(None, "f64", 0xFF)))


# Stores -----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_store_leaves_out_what_is_outside(data: st.DataObject) -> None:
    case = data.draw(cases())
    view = data.draw(grid_views(case))
    lanes = data.draw(st.integers(1, 3)) if isinstance(view, PartitionViewType) else 1
    numbers = st.tuples(*[st.integers(-1, 4)] * case.array.ndim)
    chosen = data.draw(st.lists(numbers, min_size=lanes, max_size=lanes, unique=True))
    index = [np.array(column, np.int32) for column in zip(*chosen, strict=True)]
    tile = some_data((lanes, *view.tile), case.element, 77)
    world = world_of(lanes)
    target = as_view(view, case.place(world))
    before = case.whole.copy()
    expected = case.array.copy()
    for lane in range(lanes):
        for element, place in inside(view, case.array, at(index, lane)):
            expected[place] = tile[lane][element]
    op = operation("store_view_tko", TokenType())
    store_view_tko(world, op, tile, target, tuple(index))  # type: ignore[arg-type]
    assert same(case.array, expected)
    case.array[...] = 0
    changed = case.whole != 0
    before[~changed] = 0
    assert same(case.whole[changed], before[changed]), "wrote outside the tensor"
    assert world.clean


def test_a_scatter_leaves_out_what_is_outside() -> None:
    whole = np.zeros((5, 4), np.float32)
    world = world_of(1)
    tensor = Case(whole, whole, "f32").place(world)
    view = as_view(GatherScatterViewType((4, 2), 0, None, tensor.type), tensor)
    tile = np.arange(1, 9, dtype=np.float32).reshape(1, 4, 2)
    rows, column = np.array([[4, -1, 0, 5]], np.int32), np.array([3], np.int32)
    store_view_tko(world, operation("store_view_tko", TokenType()), tile, view, (rows, column))  # type: ignore[arg-type]
    expected = np.zeros((5, 4), np.float32)
    expected[4, 3], expected[0, 3] = 1, 5
    assert same(whole, expected)
    assert world.total == 8 and len(world.touched) == 8


def test_lanes_that_share_the_index_all_store() -> None:
    whole = np.zeros(4, np.int32)
    world = world_of(3)
    tensor = Case(whole, whole, "i32").place(world)
    view = as_view(PartitionViewType((4,), (0,), None, tensor.type), tensor)
    tile = np.full((1, 4), 7, np.int32)
    store_view_tko(world, operation("store_view_tko", TokenType()), tile, view, (np.zeros(1, np.int32),))  # type: ignore[arg-type]
    assert same(whole, np.full(4, 7, np.int32))
    assert world.total == 3 * 16 and len(world.touched) == 16


def test_atomic_additions_of_lanes_add_up() -> None:
    whole = np.arange(6, dtype=np.int32)
    world = world_of(3)
    tensor = Case(whole, whole, "i32").place(world)
    view = as_view(PartitionViewType((4,), (0,), None, tensor.type), tensor)
    tile = np.full((3, 4), [[1], [10], [100]], np.int32)
    attributes = {"mode": "add", "memory_ordering_semantics": "relaxed", "memory_scope": "device"}
    op = operation("atomic_red_view_tko", TokenType(), **attributes)
    atomic_red_view_tko(world, op, view, (np.array([1], np.int32),), tile)  # type: ignore[arg-type]
    assert whole.tolist() == [0, 1, 2, 3, 4 + 111, 5 + 111]
    assert [direction for direction, *_ in world.moved] == ["atomic"] and world.total == 3 * 8


def test_order_and_scope_reach_the_memory() -> None:
    class Asked(Memory):
        def load(self, access: Any, addresses: Any, mask: Any, dtype: Any, fill: Any) -> Any:
            asked.append((access.op.name, access.order, access.scope, access.blocks.tolist(), mask))
            return super().load(access, addresses, mask, dtype, fill)

    asked: list[Any] = []
    world = World(Asked(), np.arange(3))
    whole = np.zeros(8, np.float32)
    view = as_view(PartitionViewType((8,), (0,), None, TensorViewType((8,), "f32", (1,))),
                   Case(whole, whole, "f32").place(world))  # fmt: skip
    load(world, view, (np.zeros(1, np.int32),), memory_ordering_semantics="acquire", memory_scope="device")
    assert asked == [("load_view_tko", "acquire", "device", [0, 1, 2], None)]


# Measures ---------------------------------------------------------------------------------------------


def test_shapes() -> None:
    whole = np.zeros((7, 16), np.float32)
    world = world_of(1)
    tensor = Case(whole, whole, "f32").place(world)
    i32 = TileType((), "i32")
    shape = get_tensor_shape(operation("get_tensor_shape", i32, i32), tensor)
    assert [one.tolist() for one in shape] == [[7], [16]] and shape[0].dtype == np.int32
    view = as_view(PartitionViewType((8, 4), (1, 0), None, tensor.type), tensor)
    tiles = get_index_space_shape(operation("get_index_space_shape", i32, i32), view)
    assert [one.tolist() for one in tiles] == [[2], [2]]
    view = as_view(StridedViewType((8, 4), (3, 1), (1, 0), None, tensor.type), tensor)
    tiles = get_index_space_shape(operation("get_index_space_shape", i32, i32), view)
    assert [one.tolist() for one in tiles] == [[6], [7]]
    with pytest.raises(Unsupported, match="does not fit"):
        get_tensor_shape(operation("get_tensor_shape", *[TileType((), "i8")] * 2), as_large(tensor))


def as_large(tensor: TensorView) -> TensorView:
    return TensorView(tensor.type, tensor.base, (np.array([128]), np.array([1])), tensor.strides)


@pytest.mark.parametrize("element", ["i4", "f4E2M1FN", "tf32"])
def test_elements_without_an_address_are_unsupported(element: str) -> None:
    type_ = TensorViewType((4,), element, (1,))
    with pytest.raises(Unsupported, match=element):
        make_tensor_view(world_of(1), operation("make_tensor_view", type_), np.zeros(1, np.int64))  # type: ignore[arg-type]


# Dry runs and traffic ---------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_traffic_is_what_is_inside(data: st.DataObject) -> None:
    case = data.draw(cases())
    view = data.draw(grid_views(case))
    lanes = data.draw(st.integers(1, 5))
    index = indices(data.draw, view, case, lanes)
    world = world_of(lanes)
    tensor = case.place(world)
    load(world, as_view(view, tensor), index)
    origin = int(tensor.base[0])
    places = [
        origin + sum(p * s for p, s in zip(place, case.array.strides, strict=True))
        for lane in range(lanes)
        for _, place in inside(view, case.array, at(index, lane))
    ]
    item = case.array.itemsize
    assert world.total == len(places) * item
    assert world.touched == {place + byte for place in places for byte in range(item)}
    dry = world_with(world, lanes, dry=True)
    value = load(dry, as_view(view, tensor), index)
    assert isinstance(value, Unknown) and value.shape == (1, *view.tile) and value.dtype == case.array.dtype
    assert (dry.total, dry.touched) == (world.total, world.touched)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_traffic_of_a_gather(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(-2, 8), min_size=4, max_size=4), min_size=1, max_size=3))
    column = data.draw(st.integers(-3, 6))
    sparse = data.draw(st.integers(0, 1))
    whole = np.zeros((6, 5), np.int16)
    array = whole if sparse == 0 else whole.T
    world = world_of(3 if len(rows) == 1 else len(rows))
    tensor = Case(array, whole, "i16").place(world)
    tile = (4, 2) if sparse == 0 else (2, 4)
    view = as_view(GatherScatterViewType(tile, sparse, None, tensor.type), tensor)
    dense = np.array([column], np.int32)
    index = (np.array(rows, np.int32), dense) if sparse == 0 else (dense, np.array(rows, np.int32))
    load(world, view, index)
    address = int(tensor.base[0])
    places = [
        address + 2 * (row * 5 + c)
        for lane in rows
        for row in lane
        for c in (column, column + 1)
        if 0 <= row < 6 and 0 <= c < 5
    ]
    assert world.total == 2 * len(places) * (3 if len(rows) == 1 else 1)
    assert world.touched == {place + byte for place in places for byte in (0, 1)}


def test_rows_that_continue_one_another_are_one_run() -> None:
    whole = np.zeros((64, 32), np.float32)
    world = world_of(2)
    tensor = Case(whole, whole, "f32").place(world)
    view = as_view(PartitionViewType((16, 32), (0, 1), None, tensor.type), tensor)
    load(world, view, (np.array([1, 1], np.int32), np.zeros(1, np.int32)))
    [(_, total, starts, run)] = world.moved
    assert (total, len(starts), run) == (2 * 16 * 32 * 4, 1, 16 * 32 * 4)


def test_a_dry_run_needs_its_indices() -> None:
    whole = np.zeros(8, np.float32)
    world = world_of(1, dry=True)
    tensor = Case(whole, whole, "f32").place(world)
    view = as_view(PartitionViewType((8,), (0,), None, tensor.type), tensor)
    with pytest.raises(NeedsData, match="load_view_tko"):
        load(world, view, (Unknown((1,), np.int32),))
    type_ = TensorViewType((None,), "f32", (1,))
    with pytest.raises(NeedsData, match="make_tensor_view"):
        make_tensor_view(
            world,  # type: ignore[arg-type]
            operation("make_tensor_view", type_),
            np.zeros(1, np.int64),
            [Unknown((1,), np.int32)],  # type: ignore[list-item]
        )


def test_a_dry_store_touches_nothing() -> None:
    whole = np.zeros(8, np.float32)
    world = world_of(1, dry=True)
    tensor = Case(whole, whole, "f32").place(world)
    view = as_view(PartitionViewType((8,), (0,), None, tensor.type), tensor)
    op = operation("store_view_tko", TokenType())
    store_view_tko(world, op, Unknown((1, 8), np.float32), view, (np.zeros(1, np.int32),))  # type: ignore[arg-type]
    assert world.total == 32 and not whole.any()
