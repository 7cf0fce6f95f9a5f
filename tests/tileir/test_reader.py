"""The reader against everything that the encoders can write and the disassembler prints (issue 3)."""

from __future__ import annotations

import inspect
import io
import math
import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda.tile import compilation
from cuda.tile._bytecode import attribute, encodings
from hypothesis import given, settings
from hypothesis import strategies as st
from tileir.build import DEFAULTS, PER_OPERATION, VERSIONS, Builder, Value, text_name, tile
from tileir.cases import CASES, ELSEWHERE, REFUSED, Case

from tilewright.compile.compile import Unit, launch_of
from tilewright.errors import CompilerMissing
from tilewright.hardware.architectures import default_board
from tilewright.languages.cutile import cutile
from tilewright.languages.cutile.toolchain import Tool
from tilewright.task.loading import load_task
from tilewright.tileir.read import reader as disassembling
from tilewright.tileir.read.literals import bits_of, value_of
from tilewright.tileir.read.reader import OPERATIONS, ReadError, disassemble, read, read_bytecode
from tilewright.tileir.read.tree import (
    Constant,
    Location,
    Op,
    PartitionViewType,
    PointerType,
    TensorViewType,
    TileModule,
    TileType,
    TokenType,
    Type,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("matmul", "rms_norm", "fmha", "rope", "swiglu")
ENCODERS = {name.removeprefix("encode_").removesuffix("Op") for name in encodings.__all__ if name.startswith("encode_")}
HERE = Location("/tests/kernel.py", 7, 3)


# Every operation --------------------------------------------------------------------------------------


def test_every_operation_of_the_encoders_is_read_or_refused_by_name() -> None:
    cased = {case.operation for case in CASES}
    assert cased | ELSEWHERE | set(REFUSED) == ENCODERS
    assert not cased & (ELSEWHERE | set(REFUSED))
    inside = ENCODERS - set(REFUSED) - {"Entry", "Global", "Module"}
    assert {text_name(name) for name in inside} == OPERATIONS


def of(type_: str | Type) -> Type:
    return (TokenType() if type_ == "token" else tile(type_)) if isinstance(type_, str) else type_


def built(builder: Builder, type_: str | Type) -> Value:
    """A value of any type, views included."""
    match of(type_):
        case TensorViewType(shape, element, strides) as tensor:
            operands = {"dynamicShape": shape, "dynamicStrides": strides}
            dynamic = {
                name: [builder.some("i64") for size in sizes if size is None] for name, sizes in operands.items()
            }
            return builder.op("MakeTensorView", tensor, base=builder.some(f"ptr<{element}>"), **dynamic)
        case TileType() | TokenType() as plain:
            return builder.some(plain)
        case view:
            kind = type(view).__name__.removesuffix("Type")
            return builder.op(f"Make{kind}", view, tensor_view=built(builder, view.tensor))


def expected(case: Case) -> dict[str, Any]:
    """What a case says and, for the rest of the encoder's attributes, what they are by default."""
    attributes: dict[str, Any] = {}
    parameters = inspect.signature(getattr(encodings, f"encode_{case.operation}Op")).parameters.values()
    for one in parameters:
        if any(word in str(one.annotation) for word in ("Value", "TypeId", "CodeBuilder")):
            continue
        default = PER_OPERATION.get((case.operation, one.name), DEFAULTS.get(one.name, False))
        default = {"optimization_hints": {}, "inbounds": ()}.get(one.name, default)
        attributes[one.name] = case.attributes.get(one.name, default)
    return attributes


def write(cases: Sequence[Case], version: str) -> bytes:
    with Builder(version) as builder, builder.entry("k"):
        for case in cases:
            operands: dict[str, Any] = {
                name: [built(builder, one) for one in types] if isinstance(types, list) else built(builder, types)
                for name, types in case.operands.items()
            }
            with builder.at(HERE):
                builder.op(case.operation, *case.results, **operands, **case.attributes)
    return builder.code


def marked(module: TileModule) -> list[Op]:
    """The operations that stand at `HERE`."""
    return [op for op in module.entry().walk() if op.location == HERE]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operation_is_read_as_it_was_written(case: Case) -> None:
    op = marked(read_bytecode(write([case], "13.4")))[0]
    assert op.name == text_name(case.operation)
    assert op.result_types == tuple(map(of, case.results))
    assert len(op.results) == len(case.results)
    parameters = inspect.signature(getattr(encodings, f"encode_{case.operation}Op")).parameters.values()
    names = [one.name for one in parameters if "Value" in str(one.annotation) and "TypeId" not in str(one.annotation)]
    assert set(op.operands) == set(names)
    for name in names:
        types = case.operands.get(name, ())
        wanted = types if isinstance(types, (list, tuple)) else [types]
        assert op.operand_types[name] == tuple(map(of, wanted)), name
        assert len(op.operands[name]) == len(wanted)
    assert dict(op.attributes) == expected(case)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_the_bytecode_is_read(version: str) -> None:
    cases = [case for case in CASES if case.since <= version]
    ops = marked(read_bytecode(write(cases, version)))
    assert len(ops) > 150
    for op, case in zip(ops, cases, strict=True):
        assert (op.name, op.result_types) == (text_name(case.operation), tuple(map(of, case.results)))
        assert dict(op.attributes) == expected(case)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_no_release_holds_is_refused_by_name(name: str) -> None:
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    with pytest.raises(ReadError, match=f"line 2: unknown operation '{text}': {text} %x"):
        read(f"entry @k() {{\n  {text} %x : tile<i32>\n}}")


def test_a_print_of_13_1_has_a_token_too() -> None:
    with Builder("13.1") as builder, builder.entry("k", "f32") as (x,):
        builder.op("PrintTko", args=[x], str="%f")
    op = read_bytecode(builder.code).entry().body[0]
    assert op.name == "print_tko" and op.result_types == (TokenType(),)


# Constants and globals --------------------------------------------------------------------------------

FLOATING = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu, "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


def constant(type_: str, value: Any) -> Constant:
    with Builder() as builder, builder.entry("k"):
        builder.constant(type_, value)
    found = read_bytecode(builder.code).entry().body[0].attributes["value"]
    assert isinstance(found, Constant)
    return found


@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
def test_whole_numbers(element: str) -> None:
    last = (1 << (int(element[1:]) - 1)) - 1
    some = (-last - 1, -1, 0, last)
    assert constant(f"2x2x{element}", some) == Constant(element, some)
    assert constant(f"8x16x{element}", some * 32) == Constant(element, some * 32)
    assert constant(element, -5) == constant(f"64x{element}", -5) == Constant(element, (-5,))


@pytest.mark.parametrize("count", [2, 8, 64, 128, 256])
def test_booleans(count: int) -> None:
    some = (*random.Random(count).choices((True, False), k=count - 2), True, False)
    assert constant(f"{count}xi1", some) == Constant("i1", some)
    assert constant(f"{count}xi1", True) == Constant("i1", (True,))


@pytest.mark.parametrize("element", FLOATING)
def test_floating_point_numbers_are_exactly_those_of_their_type(element: str) -> None:
    kind = FLOATING[element]
    bits = np.dtype(f"u{np.dtype(kind).itemsize}")
    codes = [0x01, 0x02, 0x03, 0x05, 0x07, 0x3C, 0x66, 0x7D] if bits.itemsize == 1 else None
    if element == "f4E2M1FN":
        codes = list(range(16))
    rng = np.random.default_rng(7)
    drawn = rng.integers(0, np.iinfo(bits).max, 64, dtype=bits) if codes is None else np.array(codes, bits)
    numbers = [float(one) for one in drawn.view(kind) if math.isfinite(float(one))]
    numbers = numbers[: 1 << (len(numbers).bit_length() - 1)]
    found = constant(f"{len(numbers)}x{element}", numbers)
    read_back = np.array(found.values, bits).view(kind) if found.is_bits else np.array(found.values).astype(kind)
    assert found.is_bits or all(float(kind(one)) == one for one in found.values)
    assert np.array_equal(read_back.view(bits), np.array(numbers).astype(kind).view(bits))


@pytest.mark.parametrize("element", FLOATING)
@given(data=st.data())
@settings(max_examples=30)
def test_bits_and_numbers_belong_together(element: str, data: st.DataObject) -> None:
    kind = FLOATING[element]
    unsigned = np.dtype(f"u{np.dtype(kind).itemsize}")
    code = data.draw(st.integers(0, 15 if element == "f4E2M1FN" else int(np.iinfo(unsigned).max)))
    number = float(np.array([code], unsigned).view(kind)[0])
    if math.isfinite(number):
        assert value_of(code, element) == number
        if number:
            assert bits_of(Fraction(number), element) == code


def test_bits_are_kept_also_beside_decimals() -> None:
    nan = float("nan")
    assert constant("4xf32", float("-inf")) == Constant("f32", (0xFF800000,), is_bits=True)
    assert constant("4xbf16", [1.5, nan, -0.0, 2.0]) == Constant("bf16", (0x3FC0, 0x7FC0, 0x8000, 0x4000), True)
    assert constant("2xtf32", [1.0, nan]) == Constant("tf32", (0x1FC00, 0x3FE00), True)
    assert constant("f8E5M2", float("inf")) == Constant("f8E5M2", (0x7C,), True)
    assert constant("fnv8E5M3FNU", 1.0) == Constant("fnv8E5M3FNU", (1.0,))


def test_long_lists_of_floating_point_numbers_are_bits() -> None:
    assert constant("128xbf16", [1.0, 2.0] * 64) == Constant("bf16", (0x3F80, 0x4000) * 64, is_bits=True)
    assert constant("128xtf32", [1.0, 2.0] * 64) == Constant("tf32", (0x1FC00, 0x20000) * 64, is_bits=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_globals(version: str) -> None:
    with Builder(version) as builder:
        builder.global_("table", "4xf32", [1.0, 2.0, 3.0, 4.0])
        builder.global_("lock", "1xi32", 0, alignment=64)
        with builder.entry("k"):
            builder.op("GetGlobal", "ptr<i32>", name="lock")
    module = read_bytecode(builder.code)
    table, lock = module.globals
    assert (table.name, table.type, table.alignment) == ("table", tile("4xf32"), 0)
    assert table.value == Constant("f32", (1.0, 2.0, 3.0, 4.0))
    assert (lock.name, lock.alignment, lock.value) == ("lock", 64, Constant("i32", (0,)))
    op = module.entry().body[0]
    assert op.attributes == {"name": "lock"} and op.result_types == (TileType((), PointerType("i32")),)


def test_private_and_constant_globals() -> None:
    with Builder() as builder:
        private = encodings.SymbolVisibility.Private
        section = builder.writer.global_section
        section.define_global("h", builder.type("2xi32"), bytes(8), 16, True, private)
        with builder.entry("k"):
            pass
    assert read_bytecode(builder.code).globals[0].alignment == 16


# Entries, regions, places -----------------------------------------------------------------------------


def test_entries_with_their_hints_and_names() -> None:
    hints = {"sm_100": attribute.EntryHints(2, 3, 8), "default": attribute.EntryHints(1)}
    with Builder("13.3", entries=2) as builder:
        with builder.entry('odd.na-me$é "x"', "ptr<f32>", "i32", hints=hints):
            pass
        with builder.entry("second", location=None):
            pass
    module = read_bytecode(builder.code)
    first, second = module.entries
    assert first.name == 'odd.na-me$é "x"'
    assert first.parameters == (("%arg0", TileType((), PointerType("f32"))), ("%arg1", tile("i32")))
    assert first.hints == {
        "default": {"num_cta_in_cga": 1},
        "sm_100": {"num_cta_in_cga": 2, "num_worker_warps_per_cta": 8, "occupancy": 3},
    }
    assert first.location == Location("/tests/kernel.py", 1)
    assert second.location is None and not second.hints
    assert [op.name for op in second.body] == ["return"]


def test_codes_that_differ_only_in_hints_share_their_operations() -> None:
    modules = []
    for occupancy, constant in ((2, 1), (4, 1), (2, 5)):
        hints = {"sm_90": attribute.EntryHints(1, occupancy)}
        with Builder("13.4") as builder, builder.entry("k", hints=hints):
            builder.constant("i32", constant)
        modules.append(read_bytecode(builder.code))
    one, other, third = (module.entry() for module in modules)
    assert [entry.hints["sm_90"]["occupancy"] for entry in (one, other, third)] == [2, 4, 2]
    assert one.body is other.body and one.body is not third.body
    assert len(one.body) > 1, "the constants are in the code"


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("carried", [0, 1, 2])
def test_for(unsigned: bool, carried: int) -> None:
    types = ["4xf32", "i32"][:carried]
    with Builder() as builder, builder.entry("k", "i32", "i32") as (n, step):
        starts = [builder.some(one) for one in types]
        with (
            builder.nested(
                "For", *types, lowerBound=n, upperBound=n, step=step, initValues=starts, unsignedCmp=unsigned
            ) as loop,
            loop.block("i32", *types) as (_, *values),
        ):
            builder.op("Continue", operands=values)
        for value, of_type in zip(loop.results, types, strict=True):
            builder.op("NegF" if "f" in of_type else "AbsI", of_type, source=value)
    body = read_bytecode(builder.code).entry().body
    op = next(op for op in body if op.name == "for")
    assert op.attributes == {"unsignedCmp": unsigned}
    assert (op.operands["lowerBound"], op.operands["step"]) == (("%arg0",), ("%arg1",))
    assert len(op.operands["initValues"]) == len(op.results) == carried
    assert op.result_types == tuple(map(tile, types))
    (region,) = op.regions
    assert [type_ for _, type_ in region.arguments] == list(map(tile, ["i32", *types]))
    (end,) = region.body
    assert end.name == "continue" and end.operands["operands"] == tuple(name for name, _ in region.arguments[1:])
    used = [body[-1 - carried + place].operands["source"] for place in range(carried)]
    assert used == [(name,) for name in op.results]


@pytest.mark.parametrize("carried", [0, 1, 2])
@pytest.mark.parametrize("given_", [0, 1, 3])
def test_loop(carried: int, given_: int) -> None:
    types, results = ["4xf32", "i32"][:carried], ["4xf32", "i32", "i64"][:given_]
    with Builder() as builder, builder.entry("k", "i1") as (flag,):
        starts = [builder.some(one) for one in types]
        ends = [builder.some(one) for one in results]
        with builder.nested("Loop", *results, initValues=starts) as loop, loop.block(*types) as values:
            with builder.nested("If", condition=flag) as branch:
                with branch.block():
                    builder.op("Break", operands=ends)
                with branch.block():
                    builder.op("Yield")
            builder.op("Continue", operands=values)
    op = next(op for op in read_bytecode(builder.code).entry().walk() if op.name == "loop")
    assert op.result_types == tuple(map(tile, results))
    assert op.operand_types["initValues"] == tuple(map(tile, types))
    inner, end = op.regions[0].body
    assert inner.regions[0].body[0].operand_types["operands"] == tuple(map(tile, results))
    assert [region.body[-1].name for region in inner.regions] == ["break", "yield"]
    assert end.operands["operands"] == tuple(name for name, _ in op.regions[0].arguments)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_if(count: int) -> None:
    types = ["4xf32", "i32"][:count]
    with Builder() as builder, builder.entry("k", "i1") as (flag,):
        values = [builder.some(one) for one in types]
        with builder.nested("If", *types, condition=flag) as branch:
            for _ in range(2):
                with branch.block():
                    builder.op("Yield", operands=values)
    op = next(op for op in read_bytecode(builder.code).entry().walk() if op.name == "if")
    assert op.operands == {"condition": ("%arg0",)}
    assert op.result_types == tuple(map(tile, types)) and len(op.regions) == 2
    for region in op.regions:
        (end,) = region.body
        assert end.name == "yield" and end.operand_types["operands"] == op.result_types


def test_if_with_one_region() -> None:
    text = "entry @k(%c: tile<i1>) {\n if %c {\n return\n }\n return\n}"
    first, last = read(text).entry().body
    assert [len(first.regions), first.regions[0].body[0].name, last.name] == [1, "return", "return"]


def test_reduce_and_scan() -> None:
    minus, low, start = Constant("f32", (-math.inf,)), Constant("i32", (-1,)), Constant("f64", (0.1,))
    with Builder() as builder, builder.entry("k"):
        x, y, z = (builder.some(f"4x8x{element}") for element in ("f32", "i32", "f64"))
        with (
            builder.nested("Reduce", "8xf32", "8xi32", operands=[x, y], dim=0, identities=[minus, low]) as one,
            one.block("f32", "f32", "i32", "i32") as (a, _, c, _),
        ):
            builder.op("Yield", operands=[a, c])
        with (
            builder.nested("Scan", "4x8xf64", operands=[z], dim=1, reverse=True, identities=[start]) as one,
            one.block("f64", "f64") as (a, b),
        ):
            builder.op("Yield", operands=[builder.op("AddF", "f64", lhs=a, rhs=b)])
    reduce, scan = (op for op in read_bytecode(builder.code).entry().walk() if op.name in ("reduce", "scan"))
    bits = Constant("f32", (0xFF800000,), is_bits=True)
    assert reduce.attributes == {"dim": 0, "identities": (bits, low)}
    assert scan.attributes == {"dim": 1, "reverse": True, "identities": (start,)}
    assert [type_ for _, type_ in reduce.regions[0].arguments] == list(map(tile, ["f32", "f32", "i32", "i32"]))
    first, second = reduce.regions[0].arguments[0][0], reduce.regions[0].arguments[2][0]
    assert reduce.regions[0].body[-1].operands["operands"] == (first, second)
    assert reduce.result_types == (tile("8xf32"), tile("8xi32"))


IDENTITIES = (
    ("i1", True), ("i8", -1), ("i16", 3), ("i64", -5), ("f16", 1.5), ("bf16", 1.5), ("tf32", 1.0),
    ("f64", 0.25), ("f8E4M3FN", 2.0),
)  # fmt: skip


@pytest.mark.parametrize(("element", "value"), IDENTITIES)
def test_identities(element: str, value: float) -> None:
    wanted = Constant(element, (value,))
    with Builder() as builder, builder.entry("k"):
        x = builder.some(f"4x{element}")
        with (
            builder.nested("Reduce", element, operands=[x], dim=0, identities=[wanted]) as one,
            one.block(element, element) as (a, _),
        ):
            builder.op("Yield", operands=[a])
    (op,) = (op for op in read_bytecode(builder.code).entry().walk() if op.name == "reduce")
    assert op.attributes["identities"] == (wanted,)


def test_a_name_stands_for_one_value_in_an_entry() -> None:
    """The text gives two regions side by side the same names."""
    with Builder() as builder, builder.entry("k"):
        x = builder.some("4x8xf32")
        for _ in range(2):
            with (
                builder.nested("Scan", "4x8xf32", operands=[x], dim=1, identities=[builder.identity("f32", 0)]) as one,
                one.block("f32", "f32") as (a, b),
            ):
                builder.op("Yield", operands=[builder.op("AddF", "f32", lhs=a, rhs=b)])
    code = builder.code
    assert disassemble(code).count("(%arg0: ") == 2
    ops = list(read_bytecode(code).entry().walk())
    defined = [name for op in ops for name in (*op.results, *(a for r in op.regions for a, _ in r.arguments))]
    assert len(defined) == len(set(defined))
    first, second = (op for op in ops if op.name == "scan")
    for scan in (first, second):
        add, end = scan.regions[0].body
        assert (add.operands["lhs"][0], add.operands["rhs"][0]) == tuple(name for name, _ in scan.regions[0].arguments)
        assert end.operands["operands"] == add.results


def test_places_and_their_callers() -> None:
    place = Location("/a/b c.py", 3, 4, Location("/a/e.py", 5, 6, Location("/tests/kernel.py", 7)))
    with Builder() as builder, builder.entry("k", "f32") as (x,):
        with builder.at(place):
            builder.op("NegF", "f32", source=x)
        builder.op("AbsF", "f32", source=x)
    text = disassemble(builder.code)
    entry = read(text).entry()
    assert entry.body[0].location == place and place.outermost.line == 7
    assert entry.body[1].location is None
    assert [op.text_line for op in entry.body] == [2, 3, 4]
    bare = re.sub(r" loc\(#\w+\)|^#.*\n", "", text, flags=re.MULTILINE)
    assert [op.location for op in read(bare).entry().walk()] == [None] * 3


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ('loc("/a.py":3:4)', Location("/a.py", 3, 4)),
        ('loc(fused<"x">[unknown, "/a.py":3:4, "/b.py":1:1])', Location("/a.py", 3, 4)),
        ('loc("name"("/a.py":3:4))', Location("/a.py", 3, 4)),
        ('loc("name")', None),
        ("loc(unknown)", None),
        ('loc(callsite("/a.py":3:4 at unknown))', Location("/a.py", 3, 4)),
        ('loc(callsite(unknown at "/a.py":3:4))', Location("/a.py", 3, 4)),
        (
            'loc(callsite(callsite("/a.py":1:1 at "/b.py":2:2) at "/c.py":3:3))',
            Location("/a.py", 1, 1, Location("/b.py", 2, 2, Location("/c.py", 3, 3))),
        ),
        (
            'loc(#cuda_tile.di_loc<loc("/a.py":3:4) in #cuda_tile.di_subprogram<file = <"a.py" in "/">, line = 1>>)',
            Location("/a.py", 3, 4),
        ),
    ],
)
def test_other_ways_to_write_a_place(written: str, place: Location | None) -> None:
    assert read(f"entry @k() {{\n  return {written}\n}}").entry().body[0].location == place


def test_a_module_around_the_entries() -> None:
    text = "cuda_tile.module @m {\n  entry @k() {\n    cuda_tile.return\n  }\n}\n"
    assert read(text).entry("k").body[0].name == "return"
    assert read("").entries == ()


# Real kernels -----------------------------------------------------------------------------------------


@cache
def example(name: str, version: str, arch: str = "sm_90") -> bytes:
    """The bytecode of an example's shipped configuration, as `languages.cutile` lowers it."""
    task = load_task(str(EXAMPLES / f"{name}.py"))
    launch, hints = launch_of(task, Unit(task.selected(None)[0], task.space.shipped, default_board(arch)))
    kernel = launch.kernel.replace_hints(**hints)
    buffer = io.BytesIO()
    compilation.export_kernel(
        kernel,
        [cutile.signature_of(kernel, launch.args)],
        buffer,
        gpu_code=arch,
        output_format="tileir_bytecode",
        bytecode_version=version,
    )
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_examples_are_read_completely(name: str, version: str) -> None:
    text = disassemble(example(name, version))
    entry = read(text).entry()
    operations = list(entry.walk())
    written = [line for line in text.splitlines() if re.match(r" +(%[^(]* = )?[a-z]\w*( |$)", line)]
    explicit = [op for op in operations if op.location or op.name not in ("continue", "yield")]
    assert len(written) == len(explicit) > 40
    file = str(EXAMPLES / f"{name}.py")
    places = [op.location for op in operations if op.location]
    assert len(places) > len(operations) * 0.9
    assert {place.outermost.file for place in places} == {file}
    assert entry.location is not None and entry.location.file == file
    lines = text.splitlines()
    assert all(op.name in lines[op.text_line - 1] for op in explicit)


# What cannot be read ----------------------------------------------------------------------------------

WRONG = (
    ("%0 = frobnicate %x : tile<f32>", "unknown operation 'frobnicate'"),
    ("%0 = negf %y : tile<f32>", "%y is not defined here"),
    ("%0 = negf %x : tile<f16>", "%x is tile<f32>, not tile<f16>"),
    ("%0 = negf %x : tile<f33>", "expected an element type"),
    ("%0 = negf %x : tuple<f32>", "unknown type 'tuple'"),
    ("%0 = negf %x", "expected ':'"),
    ("%0, %1 = negf %x : tile<f32>", "'negf' has 1 results, but 2 are named"),
    ("negf %x : tile<f32>", "'negf' has 1 results, but 0 are named"),
    ("%x = negf %x : tile<f32>", "%x is defined twice"),
    ("%0 = negf %x : tile<f32> {extra}", "expected a word"),
    ("%0 = addf %x, %x rounding<upwards> : tile<f32>", "expected one of nearest_even"),
    ("%0 = negf %x : tile<f32> loc(#nowhere)", "#nowhere is not defined"),
    ("%0 = constant <i8: 300> : tile<i8>", "300 does not fit its type"),
    ("%0 = constant <f16: 1.0e+10> : tile<f16>", "1.0e+10 does not fit its type"),
    ("%0 = constant <i32: [1, 2, 3]> : tile<4xi32>", "3 numbers for the 4 elements of tile<4xi32>"),
    ("%0 = constant <i32: 1.5> : tile<i32>", "1.5 is no i32"),
    ('%0 = constant <i32: "0x00"> : tile<4xi32>', "1 bytes for tile<4xi32>"),
    ("%0 = assume even<2>, %x : tile<f32>", "unknown assumption 'even'"),
    ('"cuda_tile.negf"(%x) : (tile<f32>) -> tile<f32>', "operations in MLIR's generic form"),
    ("if %x {", "the text ends inside a region"),
)


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_an_error_names_the_line_and_shows_it(wrong: str, message: str) -> None:
    text = f"entry @k(%x: tile<f32>) {{\n  %a = absf %x : tile<f32>\n  {wrong}\n  return\n}}"
    with pytest.raises(ReadError) as caught:
        read(text)
    if wrong.endswith("{"):
        assert message in str(caught.value)
    else:
        assert str(caught.value).startswith(f"line 3: {message}")
        assert str(caught.value).endswith(f": {wrong}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what", "line 1: expected an entry or a global: what"),
        ("entry @k() {\n return\n}\n}", "line 4: expected an entry or a global: }"),
        ("entry @k() {\n return\n return\n}", "line 3: an operation after 'return': return"),
        ("entry @k() {\n return\n} loc(#l)\n#l = loc(#l)", "line 4: #l is defined by itself"),
        ("#l = loc(unknown) more\n", "line 1: '#l' has text after the location"),
        ("#l = affine_map<()>\n", "line 1: unknown alias '#l'"),
        ("entry @k() {" + "if %x {" * 100_000, "%x is not defined"),
        ("entry @k(%x: tile<i1>) {" + "if %x {" * 100_000, "nested too deeply"),
    ],
)
def test_errors_outside_operations(text: str, message: str) -> None:
    with pytest.raises(ReadError, match=re.escape(message)):
        read(text)


@cache
def sample_text() -> str:
    """A text with every construct: the fmha example and each case that has an attribute or several operands."""
    return disassemble(example("fmha", "13.4"))


SHORT = """global  @g <f32: [1.0e+00, 0x7FC00000]> : tile<2xf32> loc(#loc)
entry @k(%arg0: tile<ptr<f32>>, %arg1: tile<i32>) optimization_hints=<sm_90 = {occupancy = 2}> {
  %cst = constant <f32: 1.000000e+00> : tile<4x8xf32> loc(#loc1)
  %tview = make_tensor_view %arg0, shape = [%arg1, 64], strides = [64, 1] : tile<i32> -> TENSOR
  %pview = make_partition_view %tview : VIEW
  %tile, %token = load_view_tko weak %pview[%arg1, %arg1] HINTS : VIEW, tile<i32> -> tile<4x8xf32>, token
  %0:2 = reduce %tile, %cst dim=1 identities=[0xFF800000 : f32, 1.0e-01 : f32] : WIDE -> tile<4xf32>, tile<4xf32>
  (%a: tile<f32>, %b: tile<f32>, %c: tile<f32>, %d: tile<f32>) {
    yield %a, %c : tile<f32>, tile<f32>
  } loc(#loc2)
  %for = for unsigned %i in (%arg1 to %arg1, step %arg1) : tile<i32> iter_values(%s = %0#0) -> (tile<4xf32>) {
    %1 = addf %s, %0#1 rounding<zero> flush_to_zero : tile<4xf32>
    continue %1 : tile<4xf32>
  }
  %2 = assume div_by<4, every 2 along 0>, %for : tile<4xf32>
  return
} loc(#loc1)
#loc = loc(unknown)
#loc1 = loc("/a.py":1:2)
#loc2 = loc(callsite(#loc1 at #loc1))
""".replace("VIEW", "partition_view<tile=(4x8), padding_value = zero, TENSOR, dim_map=[1, 0]>")
SHORT = SHORT.replace("TENSOR", "tensor_view<?x64xf32, strides=[64,1]>")
SHORT = SHORT.replace("WIDE", "tile<4x8xf32>, tile<4x8xf32>")
SHORT = SHORT.replace("HINTS", "optimization_hints = <sm_90 = {latency = 3}> inbounds = [true, false]")
"""Most constructs in a few lines."""


def reads_or_says_why(text: str) -> None:
    try:
        module = read(text)
    except ReadError as error:
        assert str(error).startswith("line ")
    else:
        assert isinstance(module, TileModule)


@given(st.integers(0, len(SHORT)))
@settings(max_examples=80)
def test_a_truncated_text_is_an_error_or_a_module(end: int) -> None:
    reads_or_says_why(SHORT[:end])


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(SHORT)), st.integers(0, 6), st.text('%#0129abx<>()[]{}:,="\\-+.e ?_@\nftiü', max_size=5)
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=240)
def test_a_mutated_text_is_an_error_or_a_module(edits: list[tuple[int, int, str]]) -> None:
    text = SHORT
    for place, removed, inserted in edits:
        text = text[:place] + inserted + text[place + removed :]
    reads_or_says_why(text)


@given(st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_a_mutated_example_is_an_error_or_a_module(rng: random.Random) -> None:
    words = re.split(r"(\W)", sample_text())
    for _ in range(rng.randint(1, 4)):
        words[rng.randrange(len(words))] = rng.choice(words)
    reads_or_says_why("".join(words))


# The disassembler -------------------------------------------------------------------------------------


def test_the_short_text_reads() -> None:
    ops = list(read(SHORT).entry().walk())
    assert len(ops) == 11
    (load,) = (op for op in ops if op.name == "load_view_tko")
    assert load.attributes["inbounds"] == (True, False)
    assert load.attributes["optimization_hints"] == {"sm_90": {"latency": 3}}
    viewed = TensorViewType((None, 64), "f32", (64, 1))
    assert load.operand_types["view"] == (PartitionViewType((4, 8), (1, 0), "zero", viewed),)


@pytest.mark.parametrize("code", [b"", b"not bytecode", b"\x7fTileIR\x00\x0d\x05\x00\x00"])
def test_what_is_no_bytecode_is_an_error_of_one_line(code: bytes) -> None:
    with pytest.raises(ReadError, match="^tileirdisasm returned ") as caught:
        read_bytecode(code)
    assert "\n" not in str(caught.value)


def test_without_a_disassembler_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembling, "find_tileiras", lambda: Tool(tmp_path / "tileiras", (13, 4), "", True))
    with pytest.raises(CompilerMissing, match=r"tileirdisasm cannot be started .*: No such file.*pip install"):
        disassemble(b"")
    (tmp_path / "tileirdisasm").write_text("no program")
    with pytest.raises(CompilerMissing, match="cannot be started .permission denied.; fix: chmod .x "):
        disassemble(b"")
