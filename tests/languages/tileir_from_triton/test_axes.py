"""The facts about axes hold for the numbers that NumPy computes; and they widen the accesses of machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.languages.tileir_from_triton.kit import compiled, executed, launch, lowered

from tilewright.languages.tileir_from_triton.axes import Axes, AxisFacts
from tilewright.languages.tileir_from_triton.ttir import Dense, SsaValue, TtirBlock, TtirOp, ValueType
from tilewright.machine_code.cubin import read_all

SHAPE = (8, 16)
RNG = np.random.default_rng(5)


class Program:
    """A random program on i32 tiles, and the numbers that its values have."""

    def __init__(self, divisors: list[int], factors: list[int]) -> None:
        self.parameters = [SsaValue(f"%p{at}", ValueType("i32")) for at in range(len(divisors))]
        self.ops: list[TtirOp] = []
        numbers = [np.int64(factor * divisor) for factor, divisor in zip(factors, divisors, strict=True)]
        self.numbers: dict[SsaValue, Any] = dict(zip(self.parameters, numbers, strict=True))
        self.said = [{"tt.divisibility": divisor} for divisor in divisors]

    def add(self, name: str, kind: ValueType, operands: list[SsaValue], numbers: Any, **attributes: Any) -> SsaValue:
        result = SsaValue(f"%{len(self.ops)}", kind)
        self.ops.append(TtirOp(name, tuple(operands), (result,), attributes))
        self.numbers[result] = numbers
        return result

    def function(self) -> TtirOp:
        blocks = (TtirBlock("^bb0", tuple(self.parameters), [*self.ops, TtirOp("tt.return", (), (), {})]),)
        return TtirOp("tt.func", (), (), {"arg_attrs": self.said}, (blocks,))


BINARY = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.divsi": lambda a, b: a // np.maximum(b, 1), "arith.remsi": lambda a, b: a % np.maximum(b, 1),
    "arith.minsi": np.minimum, "arith.maxsi": np.maximum,
}  # fmt: skip


def leaf(draw: Any, program: Program) -> SsaValue:
    """A tile of the shape: a range along one axis, a parameter, or a constant."""
    whole, axis = ValueType("i32", SHAPE), draw(st.integers(0, 1))
    which = draw(st.sampled_from(["range", "parameter", "constant"]))
    if which == "constant":
        number = draw(st.sampled_from([0, 1, 2, 3, 4, 8, 12, 16, 64]))
        dense = Dense(number, whole)
        return program.add("arith.constant", whole, [], np.full(SHAPE, number), value=dense)
    if which == "parameter":
        value = draw(st.sampled_from(program.parameters))
        return program.add("tt.splat", whole, [value], np.full(SHAPE, program.numbers[value]))
    size, start = SHAPE[axis], draw(st.sampled_from([0, 4, 16]))
    line = np.arange(start, start + size)
    made = program.add("tt.make_range", ValueType("i32", (size,)), [], line, start=start, end=start + size)
    narrow = (size, 1) if axis == 0 else (1, size)
    wide = program.add("tt.expand_dims", ValueType("i32", narrow), [made], line.reshape(narrow), axis=1 - axis)
    return program.add("tt.broadcast", whole, [wide], np.broadcast_to(line.reshape(narrow), SHAPE))


@st.composite
def programs(draw: Any) -> Program:
    divisors, factors = (
        st.lists(each, min_size=2, max_size=2) for each in (st.sampled_from([1, 2, 16]), st.integers(0, 49))
    )
    program = Program(draw(divisors), draw(factors))
    tiles = [leaf(draw, program) for _ in range(4)]
    for _ in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(sorted(BINARY)))
        a, b = draw(st.sampled_from(tiles)), draw(st.sampled_from(tiles))
        left, right = program.numbers[a], program.numbers[b]
        if name in ("arith.divsi", "arith.remsi") and ((right < 1).any() or (left < 0).any()):
            continue
        tiles.append(program.add(name, ValueType("i32", SHAPE), [a, b], BINARY[name](left, right)))
    return program


def holds(facts: AxisFacts, numbers: Any) -> bool:
    """Whether the facts are true, element by element."""
    for axis in range(numbers.ndim):
        lines = np.moveaxis(numbers, axis, -1)
        groups = lines.reshape(*lines.shape[:-1], -1, facts.contiguity[axis])
        equal = lines.reshape(*lines.shape[:-1], -1, min(facts.constancy[axis], lines.shape[-1]))
        grows = (groups - groups[..., :1] == np.arange(groups.shape[-1])).all()
        if not grows or (groups[..., 0] % facts.divisibility[axis]).any() or (equal != equal[..., :1]).any():
            return False
    return facts.value is None or bool((numbers == facts.value).all())


@given(programs())
@settings(max_examples=200)
def test_the_facts_are_true(program: Program) -> None:
    axes = Axes(program.function())
    for op in program.ops:
        assert holds(axes[op.results[0]], program.numbers[op.results[0]]), op.name


@triton.jit
def wrapped(a, b, c, n, stride, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The product of the tutorial's kind, whose columns are taken modulo their number."""
    columns = (tl.program_id(0) * N + tl.arange(0, N)) % n
    rows, inner = tl.arange(0, M), tl.arange(0, K)
    left, right = a + rows[:, None] * stride + inner[None, :], b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((M, N), tl.float32)
    for _ in range(0, stride, K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += K
        right += K * n
    where = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(c + rows[:, None] * n + where[None, :], total.to(tl.float16), mask=where[None, :] < n)


@triton.jit
def gathered(x, y, index, B: tl.constexpr):
    start = tl.multiple_of(tl.load(index + tl.program_id(0)), 16)
    at = tl.max_contiguous(start + tl.arange(0, B), B)
    tl.store(y + tl.program_id(0) * B + tl.arange(0, B), tl.load(x + at))


def product_arguments() -> dict[str, Any]:
    a, b = (RNG.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 128), (128, 96)))
    return {"a": a, "b": b, "c": np.zeros((64, 96), np.float16), "n": 96, "stride": 128, "M": 64, "N": 64, "K": 64}


def test_columns_modulo_their_number_are_copied_16_bytes_at_a_time() -> None:
    arguments = product_arguments()
    launch(wrapped, (2,), arguments)
    np.testing.assert_array_equal(arguments["c"], arguments["a"] @ arguments["b"])
    code = read_all([compiled(lowered(wrapped, arguments), "sm_90").cubin])[0]
    loads = {kind: count for kind, count in code.copies.items() if kind.startswith("LDG")}
    assert set(loads) == {"LDGSTS.128"}


def test_hints_of_the_source_widen_accesses() -> None:
    x, index = RNG.standard_normal(1024).astype(np.float16), np.array([512, 16, 0], np.int32)
    arguments = {"x": x, "y": np.zeros(3 * 256, np.float16), "index": index, "B": 256}
    launch(gathered, (3,), arguments)
    np.testing.assert_array_equal(arguments["y"].reshape(3, 256), [x[at : at + 256] for at in index])
    copies = read_all([compiled(lowered(gathered, arguments), "sm_90").cubin])[0].copies
    assert "LDG.16" not in copies and "STG.16" not in copies


@triton.jit
def batched(x, y, stride, m, n, A: tl.constexpr, B: tl.constexpr):
    """The tensors of a batch, of which nothing says that they are aligned."""
    first = x + tl.program_id(0).to(tl.int64) * stride
    source = tl.make_tensor_descriptor(first, [m, n], [n, 1], [A, B])
    into = tl.make_tensor_descriptor(y, [m, n], [n, 1], [A, B])
    into.store([0, 0], source.load([0, 0]))


def test_a_descriptor_is_aligned_as_triton_demands() -> None:
    x, y = RNG.standard_normal(3 * 64 * 64).astype(np.float16), np.zeros((64, 64), np.float16)
    arguments = {"x": x, "y": y, "stride": 64 * 64 - 8, "m": 64, "n": 64, "A": 64, "B": 64}
    launch(batched, (1,), arguments)
    np.testing.assert_array_equal(y.reshape(-1), x[: 64 * 64])
    copies = read_all([compiled(lowered(batched, arguments), "sm_90").cubin])[0].copies
    assert "LDG.128" in copies and "LDG.16" not in copies
    found = executed(batched, (2,), {**arguments, "stride": 64 * 64 - 9}).findings
    assert any(one.kind == "misaligned" for one in found)


def test_a_hint_that_is_false_is_found() -> None:
    x = RNG.standard_normal(1024).astype(np.float16)
    arguments = {"x": x, "y": np.zeros(256, np.float16), "index": np.array([5], np.int32), "B": 256}
    try:
        launch(gathered, (1,), arguments)
    except AssertionError as error:
        assert "div_by<16" in str(error) and "address" in str(error)
    else:
        raise AssertionError("nothing was found")
