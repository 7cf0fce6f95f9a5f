"""The only module that uses cuda-tile's private bytecode writer. `writer_module` checks its version.

`Writer.emit` writes any operation by its name. It takes `ValueType`s for types, and names for enumerations.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.errors import ToolFailed
from tilewright.languages.tileir_from_triton.ttir import SourcePlace, Untranslated, ValueType

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cuda.tile._bytecode import (
        DebugAttrId,
        Float,
        Integer,
        OptimizationHints,
        SimpleType,
        TaggedAttribute,
        TypeId,
        Value,
    )
    from cuda.tile._bytecode.code_builder import NestedBlockBuilder

KNOWN = ("1.7.",)
VERSIONS = ((13, 4), (13, 3))
"""Bytecode versions that have strided views and that cuda-tile 1.7 writes without development features. The best is
first."""

Handle: TypeAlias = "Value"
"""A value of the bytecode. For a tensor descriptor: a `descriptors.View`."""
Attributes: TypeAlias = Mapping[str, str | bool | None]
"""Attributes of an operation by name. A string is the name of a member of an enumeration."""
Plain: TypeAlias = str | bytes | int | bool | None
Operand: TypeAlias = "ValueType | TypeId | Handle | TaggedAttribute | OptimizationHints | Plain | Sequence[Operand]"
"""An argument of an encoder."""
Element: TypeAlias = float | str
"""An element of a constant. A float may be given as a string: its bits."""
TOKEN = ValueType("token")
NAMES = {"f8E4M3FN": "F8E4M3FN", "f8E5M2": "F8E5M2", "token": "Token"}
HINTS = {"num_ctas": "num_cta_in_cga", "occupancy": "occupancy", "num_worker_warps": "num_worker_warps_per_cta"}


@cache
def writer_module() -> ModuleType:
    """Returns cuda-tile's bytecode package. Raises ToolFailed if the package has a version that this module does not
    support."""
    version = metadata.version("cuda-tile")
    if not version.startswith(KNOWN):
        known = ", ".join(f"{name}x" for name in KNOWN)
        raise ToolFailed(f"Triton on Tile IR needs the bytecode writer of cuda-tile {known}, not {version}")
    return import_module("cuda.tile._bytecode")


@cache
def _encoder(name: str) -> tuple[Callable[..., Any], tuple[tuple[str, Any], ...]]:
    """Returns the encoder of an operation, and the name and annotation of each of its parameters."""
    function = getattr(writer_module(), f"encode_{name}Op")
    parameters = tuple(inspect.signature(function).parameters.values())[1:]
    return function, tuple((one.name, one.annotation) for one in parameters)


class Writer:
    """Writes the bytecode of one kernel entry. ``code`` holds the bytecode when the context of `entry` has ended."""

    def __init__(self, arch: str, version: tuple[int, int] = VERSIONS[0]) -> None:
        self.bytecode, self.arch, self.code = writer_module(), arch, bytearray()
        self.version = self.bytecode.BytecodeVersion[f"V_{version[0]}_{version[1]}"]
        self.latency: int | None = None

    @contextmanager
    def entry(
        self, name: str, parameters: Sequence[ValueType], place: SourcePlace | None, hints: Mapping[str, int | None]
    ) -> Iterator[tuple[Handle, ...]]:
        """Begins the entry and yields its parameters. All operations written inside the ``with`` block belong to its
        body."""
        code = self.bytecode
        chosen = {HINTS[hint]: value for hint, value in hints.items() if hint in HINTS and value is not None}
        attributes = {self.arch: _attribute().EntryHints(**chosen)} if chosen else {}
        with code.write_bytecode(1, self.code, self.version) as module:
            self.types, self.debug = module.type_table, module.debug_attr_table
            self.scope = self._subprogram(name, place) if place else None
            debug, types = self._location(place), [self.type(kind) for kind in parameters]
            with module.function(name, types, [], True, attributes, debug) as function:
                self.builder = function.code_builder
                yield function.parameters

    @contextmanager
    def at(self, place: SourcePlace | None) -> Iterator[None]:
        """Gives a source place to all operations that are written inside the ``with`` block.

        None keeps the source place of the outer block.
        """
        if place is None:
            yield
        else:
            with self.builder.debug_attr(self._location(place)):
                yield

    def emit(self, name: str, *values: Operand, **more: Operand) -> Any:
        """Writes the operation whose encoder is called ``encode_<name>Op``. Returns its result or results."""
        encode, parameters = _encoder(name)
        given = {**dict(zip((one for one, _ in parameters), values, strict=False)), **more}
        return encode(self.builder, **{one: self._converted(kind, given.get(one)) for one, kind in parameters})

    def block(
        self, nested: NestedBlockBuilder, types: Sequence[ValueType]
    ) -> AbstractContextManager[tuple[Handle, ...]]:
        """Returns a context manager that begins the next block of an operation with regions.

        The context manager yields the arguments of the block.
        """
        block: AbstractContextManager[tuple[Handle, ...]] = nested.new_block([self.type(kind) for kind in types])
        return block

    def constant(self, value: Element | list[Element], kind: ValueType) -> Handle:
        """Writes a constant: a number for all elements, or a flat list. A float that is given as a string is its
        bits."""
        items = value if isinstance(value, list) else [value]
        if kind.element == "i1":
            bits = [bool(item) for item in items]
            packed = b"\xff" if all(bits) else b"\x00" if not any(bits) else None
            if packed is None:
                raise Untranslated("a constant of different truth values")
            return self.emit("Constant", kind, packed)
        return self.emit("Constant", kind, b"".join(self.bits(item, kind) for item in items))

    def bits(self, value: Element, kind: ValueType) -> bytes:
        """Returns the bytes of an element in memory."""
        size = kind.bits // 8
        if isinstance(value, str):
            return int(value, 16).to_bytes(size, "little")
        if kind.is_float:
            return int(self.bytecode.float_to_bits(float(value), self._simple(kind.element))).to_bytes(size, "little")
        return (int(value) & ((1 << kind.bits) - 1)).to_bytes(size, "little")

    def identity(self, value: float, kind: ValueType) -> Float | Integer:
        """Returns a number as the attribute that reductions and scans take for the neutral element."""
        if kind.is_float:
            return self.bytecode.Float(float(value), self._simple(kind.element), self.types)
        return self.bytecode.Integer(self.type_of_element(kind), kind.bits, int(value))

    def assume(self, value: Handle, kind: ValueType, divisor: int, every: int | None, along: int | None) -> Handle:
        """Writes the assumption that each number, or each address in bytes, is a multiple of ``divisor``."""
        return self.emit("Assume", kind, value, self.bytecode.DivBy(divisor, every, along))

    def bounded(self, value: Handle, kind: ValueType, least: int, most: int) -> Handle:
        """Writes the assumption that each number lies between ``least`` and ``most``, both included."""
        return self.emit("Assume", kind, value, self.bytecode.Bounded(least, most))

    def hints(self) -> OptimizationHints | None:
        """Returns the optimisation hints of a load or store; None if there are none."""
        if self.latency is None:
            return None
        attribute = _attribute()
        return attribute.make_load_store_hints({self.arch: attribute.LoadStoreHints(latency=self.latency)})

    def type_of_element(self, kind: ValueType) -> TypeId:
        simple = self.types.simple(self._simple(kind.element))
        return self.types.pointer(simple, self.bytecode.PtrAttr.Missing) if kind.pointer else simple

    def type(self, kind: ValueType) -> TypeId:
        """Returns the type in the bytecode's table of types."""
        if kind.element == "token":
            return self.types.Token
        return self.types.tile(self.type_of_element(kind), kind.shape)

    def gather_type(self, block: ValueType, tile: ValueType) -> TypeId:
        """Returns the type of a view whose tiles hold arbitrary rows of the tensor."""
        tensor, _ = self.view_types(block, "Zero")
        return self.types.gather_scatter_view(tile.shape, tensor, 0, self.bytecode.PaddingValue.Zero)

    def view_types(self, block: ValueType, padding: str) -> tuple[TypeId, TypeId]:
        """Returns the types of a tensor with a contiguous last axis, and of a view of it.

        The view may begin at any element.
        """
        dynamic, rank = self.bytecode.DYNAMIC_SHAPE, len(block.shape)
        element, strides = self.type_of_element(block), [*[dynamic] * (rank - 1), 1]
        tensor = self.types.tensor_view(element, [dynamic] * rank, strides, self.bytecode.PtrAttr.Missing)
        order, value = list(range(rank)), self.bytecode.PaddingValue[padding]
        return tensor, self.types.strided_view(block.shape, [1] * rank, tensor, order, value)

    def _simple(self, element: str) -> SimpleType:
        name = NAMES.get(element, element.upper())
        if name not in self.bytecode.SimpleType.__members__:
            raise Untranslated(f"Tile IR has no elements of type {element}")
        return self.bytecode.SimpleType[name]

    def _converted(self, annotation: Any, value: Operand) -> Operand | enum.Enum:
        if isinstance(value, ValueType):
            return self.type(value)
        if isinstance(value, str) and (kind := _enumeration(annotation)):
            return kind[value]
        if isinstance(value, (list, tuple)):
            return [self.type(item) if isinstance(item, ValueType) else item for item in value]
        return value

    def _subprogram(self, name: str, place: SourcePlace) -> DebugAttrId:
        folder, _, file = place.file.rpartition("/")
        where = self.debug.file(file, folder)
        unit = self.debug.compile_unit(where)
        return self.debug.subprogram(where, place.line, name, name, unit, place.line)

    def _location(self, place: SourcePlace | None) -> DebugAttrId:
        if place is None or self.scope is None:
            return self.bytecode.MISSING_DEBUG_ATTR_ID
        return self.debug.loc(self.scope, place.file, place.line, place.column)


def _attribute() -> ModuleType:
    return import_module("cuda.tile._bytecode.attribute")


def _enumeration(annotation: Any) -> type[enum.Enum] | None:
    """Returns the enumeration type in an annotation such as ``E`` or ``E | None``; None if there is none."""
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)), None)
