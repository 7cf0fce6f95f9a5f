"""Tile IR bytecode made by hand for tests: any operation, of any version, without cuTile's front end.

    with Builder("13.3") as b, b.entry("kernel", "ptr<f32>", "i32") as (pointer, count):
        ones = b.constant("4xf32", 1.0)
        total = b.op("AddF", "4xf32", lhs=ones, rhs=ones, rounding_mode="zero")
        with b.nested("If", "4xf32", condition=flag) as branch:
            with branch.block():
                b.op("Yield", operands=[total])
            with branch.block():
                b.op("Yield", operands=[ones])
        (chosen,) = branch.results
    code = b.code

Operations go by the names of cuda-tile's encoders (``encode_AddFOp``), their operands and attributes
by the encoders' parameters. An entry that is not closed by a terminator gets its ``return``.
"""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from cuda.tile import _bytecode as bc
from cuda.tile._bytecode import attribute, encodings
from cuda.tile._bytecode.basic import encode_int_list
from cuda.tile._bytecode.float import float_bit_size, float_to_bits
from cuda.tile._bytecode.type import SimpleType

from tilewright.tileir.read.reader import OPERATIONS
from tilewright.tileir.read.tree import (
    Assumption,
    Constant,
    GatherScatterViewType,
    Location,
    PartitionViewType,
    PointerType,
    StridedViewType,
    TensorViewType,
    TileType,
    TokenType,
    Type,
)

VERSIONS = ("13.1", "13.2", "13.3", "13.4")
Value = bc.Value

SIMPLE = {("Token" if one.name == "Token" else one.name.lower()): one for one in SimpleType}
OVERFLOW = {"none": "NONE", "no_signed_wrap": "NSW", "no_unsigned_wrap": "NUW", "no_wrap": "NW"}
PADDING = {
    None: bc.PaddingValue.Missing,
    "zero": bc.PaddingValue.Zero,
    "neg_zero": bc.PaddingValue.NegZero,
    "nan": bc.PaddingValue.Nan,
    "pos_inf": bc.PaddingValue.PosInf,
    "neg_inf": bc.PaddingValue.NegInf,
}
DEFAULTS: dict[str, Any] = {
    "rounding_mode": "nearest_even",
    "rounding": "zero",
    "overflow": "none",
    "signedness": "signed",
    "memory_ordering_semantics": "weak",
    "memory_scope": None,
}
"""Of arguments that a call leaves out. Sequences are empty, flags False, optional arguments absent."""
PER_OPERATION = {
    ("FToI", "rounding_mode"): "nearest_int_to_zero",
    ("Exp", "rounding_mode"): "full",
    ("TanH", "rounding_mode"): "full",
}


def texts(enumeration: type[enum.Enum]) -> dict[str, enum.Enum]:
    """The members of an enumeration of the encoders by their spelling in the text of Tile IR."""
    if enumeration is encodings.IntegerOverflow:
        return {text: enumeration[name] for text, name in OVERFLOW.items()}
    return {one.name.lower(): one for one in enumeration}


def text_name(operation: str) -> str:
    """``LoadViewTko`` → ``load_view_tko``. Raises StopIteration for what cannot stand in an entry."""
    return next(name for name in OPERATIONS if name.replace("_", "") == operation.lower())


def tile(text: str) -> TileType:
    """``4x8xf32``, ``f32``, ``2xptr<i8>`` → the tile's type."""
    head, _, pointee = text.partition("ptr<")
    *shape, element = head.split("x") if not pointee else [*head.split("x")[:-1], ""]
    extents = tuple(int(extent) for extent in shape)
    return TileType(extents, PointerType(pointee.rstrip(">")) if pointee else element)


HERE = Location("/tests/kernel.py", 1)
"""Of an entry that gives no place of its own (without one, operations inside may have none either)."""


class Nested:
    """An operation whose regions are being written; ``results`` is there when the last is closed."""

    def __init__(self, builder: Builder, nested: Any) -> None:
        self._builder, self._nested = builder, nested
        self.results: tuple[Value, ...] = ()

    @contextmanager
    def block(self, *arguments: str | Type) -> Iterator[tuple[Value, ...]]:
        with self._nested.new_block([self._builder.type(one) for one in arguments]) as values:
            yield values


class Builder:
    """One module. Leave its ``with`` block, then take ``code``."""

    def __init__(self, version: str = "13.4", entries: int = 1) -> None:
        self.version = bc.BytecodeVersion[f"V_{version.replace('.', '_')}"]
        self._buffer = bytearray()
        self._writing = bc.write_bytecode(entries, self._buffer, self.version)

    def __enter__(self) -> Builder:
        self.writer = self._writing.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writing.__exit__(*error)

    @property
    def code(self) -> bytes:
        return bytes(self._buffer)

    @contextmanager
    def entry(
        self,
        name: str,
        *parameters: str | Type,
        hints: Mapping[str, attribute.EntryHints] | None = None,
        location: Location | None = HERE,
        returns: bool = True,
    ) -> Iterator[tuple[Value, ...]]:
        """A kernel; ``returns`` ends it with ``return``."""
        types = [self.type(one) for one in parameters]
        self._linkage = name
        place = self._place(location) if location else bc.DebugAttrId(0)
        with self.writer.function(name, types, [], True, hints or {}, place) as (code, values):
            self.builder = code
            yield values
            if returns:
                self.op("Return")

    def op(self, operation: str, /, *results: str | Type, **arguments: Any) -> Any:
        """Writes the operation; gives its value, a tuple of several, or None."""
        encoder = getattr(encodings, f"encode_{operation}Op")
        given: dict[str, Any] = {}
        remaining = [self.type(one) for one in results]
        for parameter in list(inspect.signature(encoder, eval_str=True).parameters.values())[1:]:
            if parameter.annotation == bc.TypeId:
                given[parameter.name] = remaining.pop(0)
            elif "TypeId" in str(parameter.annotation) and "Sequence" in str(parameter.annotation):
                given[parameter.name], remaining = remaining, []
            elif "TypeId" in str(parameter.annotation):
                given[parameter.name] = remaining.pop(0) if remaining else None
            else:
                given[parameter.name] = self._argument(operation, parameter, arguments, given)
        assert not arguments and not remaining, f"{operation} does not take {[*arguments, *remaining]}"
        return encoder(self.builder, **given)

    @contextmanager
    def nested(self, operation: str, /, *results: str | Type, **arguments: Any) -> Iterator[Nested]:
        """An operation with regions; each is a ``with nested.block(argument types…) as values``."""
        nested = self.op(operation, *results, **arguments)
        writing = Nested(self, nested)
        yield writing
        writing.results = nested.done()

    def constant(self, type_: str | TileType, value: Any) -> Value:
        """``value``: a number for all elements, a sequence of one each in row-major order, or the raw bytes."""
        wanted = tile(type_) if isinstance(type_, str) else type_
        data = value if isinstance(value, bytes) else constant_bytes(wanted, value)
        return self.op("Constant", wanted, value=data)

    def some(self, wanted: str | Type) -> Value:
        """A value of the type: zero, a null pointer, a fresh token. (An entry's parameters are scalars.)"""
        if wanted == "token" or isinstance(wanted, TokenType):
            return self.op("MakeToken", "token")
        of = tile(wanted) if isinstance(wanted, str) else wanted
        assert isinstance(of, TileType), f"{of} is made from other values"
        if isinstance(of.element, PointerType):
            return self.op("IntToPtr", of, source=self.constant(TileType(of.shape, "i64"), 0))
        if of.element == "i4":
            return self.op("Unpack", of, source=self.constant(f"{of.size // 2}xi8", 0))
        return self.constant(of, 1 if of.element == "f8E8M0FNU" else 0)

    def identity(self, element: str, value: float) -> attribute.TaggedAttribute:
        """What ``reduce`` and ``scan`` start from."""
        if element.startswith("i"):
            return attribute.Integer(self.type_table.simple(SIMPLE[element]), int(element[1:]), int(value))
        return attribute.Float(value, SIMPLE[element.lower()], self.type_table)

    def global_(self, name: str, type_: str, value: Any, alignment: int = 0) -> None:
        data = constant_bytes(tile(type_), value)
        self.writer.global_section.define_global(name, self.type(type_), data, alignment)

    def at(self, location: Location) -> AbstractContextManager[Any]:
        """The place in the source of the operations inside."""
        return self.builder.debug_attr(self._place(location))

    # Types --------------------------------------------------------------------------------------------

    @property
    def type_table(self) -> Any:
        return self.writer.type_table

    def type(self, wanted: str | Type) -> Any:
        """The writer's number of a type; a text other than ``token`` is a tile."""
        table = self.type_table
        match TokenType() if wanted == "token" else tile(wanted) if isinstance(wanted, str) else wanted:
            case TokenType():
                return table.Token
            case TileType(shape, element):
                return table.tile(self._element(element), shape)
            case TensorViewType(shape, element, strides):
                return table.tensor_view(self._element(element), _sizes(shape), _sizes(strides), bc.PtrAttr.Missing)
            case PartitionViewType(shape, dim_map, padding, tensor):
                return table.partition_view(shape, self.type(tensor), dim_map, PADDING[padding])
            case StridedViewType(shape, steps, dim_map, padding, tensor):
                return table.strided_view(shape, steps, self.type(tensor), dim_map, PADDING[padding])
            case GatherScatterViewType(shape, sparse, padding, tensor):
                return table.gather_scatter_view(shape, self.type(tensor), sparse, PADDING[padding])
        raise AssertionError(wanted)

    def _element(self, element: str | PointerType) -> Any:
        if isinstance(element, PointerType):
            return self.type_table.pointer(self._element(element.pointee), bc.PtrAttr.Missing)
        return self.type_table.simple(SIMPLE[element.lower()])

    # Arguments ----------------------------------------------------------------------------------------

    def _argument(self, name: str, parameter: inspect.Parameter, arguments: dict[str, Any], given: Any) -> Any:
        wanted = str(parameter.annotation)
        if parameter.name in arguments:
            value = arguments.pop(parameter.name)
        elif (name, parameter.name) in PER_OPERATION:
            value = PER_OPERATION[name, parameter.name]
        elif parameter.name in DEFAULTS:
            value = DEFAULTS[parameter.name]
        elif "Optional" in wanted:
            value = None
        elif parameter.name == "inbounds":
            wide_enough = self.version >= bc.BytecodeVersion.V_13_4
            value = (False,) * len(given["index"]) if wide_enough else ()
        elif "Sequence" in wanted:
            value = ()
        else:
            assert parameter.annotation is bool, f"{name} needs {parameter.name}"
            value = False
        return self._encoded(parameter, value)

    def _encoded(self, parameter: inspect.Parameter, value: Any) -> Any:
        """An argument as the encoders want it: enumerations' members for words, attributes for the tree's."""
        if isinstance(value, str):
            return _member(parameter.annotation, value)
        if isinstance(value, Assumption):
            return _predicate(value)
        if isinstance(value, Mapping):
            return attribute.OptimizationHints([(arch, _dictionary(of)) for arch, of in value.items()])
        if parameter.name == "identities":
            return [self._identity(one) for one in value]
        return value

    def _identity(self, one: Any) -> attribute.TaggedAttribute:
        if not isinstance(one, Constant):
            return one
        if one.element == "i1":
            return attribute.Bool(bool(one.values[0]))
        return self.identity(one.element, one.values[0])

    def _place(self, location: Location) -> Any:
        table = self.writer.debug_attr_table
        linkage = self._linkage if location.caller is None else f"called_from_{location.caller.line}"
        directory, _, base = location.file.rpartition("/")
        file = table.file(base, directory)
        scope = table.subprogram(file, 1, "f", linkage, table.compile_unit(file), 1)
        place = table.loc(scope, location.file, location.line, location.column)
        return table.call_site(place, self._place(location.caller)) if location.caller else place


class SameElements(attribute.SameElements):
    """cuda-tile has the class, without its encoding."""

    def encode_tagged(self, string_table: Any, buf: bytearray) -> None:
        buf.extend(attribute.AttributeTag.SameElements._value_)
        encode_int_list(self.values, 8, buf)


def _predicate(one: Assumption) -> attribute.AssumePredicate:
    if one.kind == "div_by":
        return attribute.DivBy(one.divisor, one.every, one.along)
    return SameElements(one.values) if one.kind == "same_elements" else attribute.Bounded(one.low, one.high)


def _dictionary(hints: Mapping[str, Any]) -> attribute.Dictionary:
    return attribute.Dictionary(
        [
            (name, attribute.Bool(one) if isinstance(one, bool) else attribute.Integer.create_i32(one))
            for name, one in hints.items()
        ]
    )


def _member(annotation: Any, text: str) -> Any:
    """The enumeration's member that ``text`` names; the text itself where a text is wanted."""
    for one in (annotation, *getattr(annotation, "__args__", ())):
        if inspect.isclass(one) and issubclass(one, enum.Enum):
            return texts(one)[text]
    return text


def _sizes(sizes: Sequence[int | None]) -> list[int]:
    return [bc.DYNAMIC_SHAPE if size is None else size for size in sizes]


def constant_bytes(type_: TileType, value: Any) -> bytes:
    """The bytes of a dense constant: of one element for all, or of each in turn (booleans as bits)."""
    if not isinstance(value, Sequence):
        return element_bytes(str(type_.element), value)
    assert len(value) == math.prod(type_.shape), f"{len(value)} values for {type_}"
    if type_.element == "i1":
        bits = sum(1 << place for place, one in enumerate(value) if one)
        return bits.to_bytes((len(value) + 7) // 8, "little")
    return b"".join(element_bytes(str(type_.element), one) for one in value)


def element_bytes(element: str, value: Any) -> bytes:
    """One element as the constant section holds it; ``true`` has all bits set, tf32 has three bytes."""
    if element == "i1":
        return b"\xff" if value else b"\x00"
    if element.startswith("i"):
        width = (int(element[1:]) + 7) // 8
        return (int(value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    kind = SIMPLE[element.lower()]
    return float_to_bits(float(value), kind).to_bytes((float_bit_size(kind) + 7) // 8, "little")
