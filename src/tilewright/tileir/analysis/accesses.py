"""Describes how memory operations access memory, and finds the first difference between two kernels.

A description consists of traits, such as the shape, the padding, the memory order and the hints. Two operations are
compared trait by trait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from tilewright.tileir.read import tree
from tilewright.tileir.read.tree import Op

Trait: TypeAlias = "str | int | bool | None"

WAYS: Mapping[type, str] = {
    tree.PartitionViewType: "partition view",
    tree.StridedViewType: "strided view",
    tree.GatherScatterViewType: "gather/scatter view",
}
PASSED = (
    "make_partition_view", "make_strided_view", "make_gather_scatter_view", "make_tensor_view", "assume",
    "reshape", "broadcast", "offset", "ptr_to_ptr", "permute",
)  # fmt: skip
"""Operations that make an address from another address, which is the operand named in `ADDRESSES`."""
ADDRESSES = ("tensor_view", "base", "value", "source", "ptr")
SHOWN = 4  # a description shows at most this many values of a constant
DEFAULTS: tuple[tree.Attribute, ...] = ("none", "nearest_even", "weak", "signed", "nearest_int_to_zero", None, (), {})


class Definitions:
    """Finds the definitions of a kernel's values.

    tensors: maps a parameter's name, with its ``%``, to the name of the array in the source.
    """

    def __init__(self, entry: tree.KernelEntry, tensors: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._ops = {name: op for op in entry.walk() for name in op.results}
        self._first = {
            name: first
            for op in entry.walk()
            if op.name in ("for", "loop")
            for (name, _), first in zip(
                op.regions[0].arguments[op.name == "for" :], op.operands["initValues"], strict=False
            )
        }
        self._parameters = {name for name, _ in entry.parameters}

    def tensor(self, op: Op) -> str | None:
        """Returns the name of the array that ``op`` accesses, or None if no single parameter determines the address."""
        name = op.address or ""
        for _ in range(len(self._ops)):
            if name in self._parameters:
                return self._tensors.get(name, name)
            definition = self._ops.get(name)
            if definition is None and name in self._first:
                name = self._first[name]
            elif definition is not None and definition.name in PASSED:
                name = next(names[0] for operand in ADDRESSES if (names := definition.operands.get(operand)))
            else:
                return None
        return None

    def constant(self, name: str) -> str:
        """Returns the constant to which all elements of the value ``name`` are equal, as a string.

        Returns the string ``a value`` if there is no such constant.
        """
        definition = self._ops.get(name)
        while definition is not None and definition.name in ("reshape", "broadcast"):
            definition = self._ops.get(definition.operands["source"][0])
        value = definition.attributes.get("value") if definition is not None else None
        return f"{value.values[0]}" if isinstance(value, tree.Constant) and len(value.values) == 1 else "a value"


def direction(op: Op) -> str:
    """Returns ``load``, ``store`` or ``atomic``. Returns the name of any other operation, such as ``print_tko``."""
    for word in ("atomic", "load", "store"):
        if word in op.name:
            return word
    return "store" if op.name.startswith("multimem") else op.name


def traits(op: Op, definitions: Definitions) -> dict[str, Trait]:
    """Returns the traits of a memory operation by name. Traits that do not apply to the operation are absent."""
    attributes = op.attributes
    view = next(iter(op.operand_types.get("view", ())), None)
    found: dict[str, Trait] = {"operation": op.name}
    if moved := moved_type(op):
        found["tile"] = type_text(moved)
    if isinstance(view, tree.ViewType):
        found |= {"through": WAYS[type(view)], "padding": view.padding, "tensor_view": type_text(view.tensor)}
        if isinstance(view, tree.GatherScatterViewType):
            found["sparse_axis"] = view.sparse_dim
        elif view.dim_map != tuple(range(len(view.dim_map))):
            found["axes"] = ",".join(map(str, view.dim_map))
        if isinstance(view, tree.StridedViewType):
            found["traversal_strides"] = "x".join(map(str, view.traversal_strides))
    elif op.address:
        padding = op.operands.get("paddingValue", ())
        found |= {"through": "pointers", "mask": bool(op.operands.get("mask"))}
        found["padding"] = definitions.constant(padding[0]) if padding else None
    if any(attributes.get("inbounds", ())):
        found["inbounds"] = ",".join("yes" if one else "no" for one in attributes["inbounds"])
    if "memory_ordering_semantics" in attributes:
        found["order"] = attributes["memory_ordering_semantics"]
        found["scope"] = attributes.get("memory_scope")
    for name in ("mode", "reduction"):
        if name in attributes:
            found[name] = str(attributes[name])
    for architecture, hints in (attributes.get("optimization_hints") or {}).items():
        prefix = "" if architecture == "default" else f"{architecture}."
        found |= {prefix + hint: value for hint, value in hints.items()}
    return found


def moved_type(op: Op) -> tree.Type | None:
    """Returns the type of the tile that ``op`` loads or stores, or None."""
    kinds: list[tree.Type] = [kind for kind in op.result_types if not isinstance(kind, tree.TokenType)]
    for operand in ("tile", "value", "arg", "val"):
        kinds += op.operand_types.get(operand, ())
    return kinds[0] if kinds else None


def type_text(type_: tree.Type) -> str:
    """Formats a type as a short string. For a view, the string contains the kind of view and the tile."""
    if isinstance(type_, (tree.TileType, tree.TokenType)):
        return str(type_)
    if isinstance(type_, tree.TensorViewType):
        shape = "x".join(_size(extent) for extent in type_.shape)
        return f"{shape}x{type_.element}, strides {'x'.join(map(_size, type_.strides))}"
    return f"{WAYS[type(type_)]} of {'x'.join(map(str, (*type_.tile, type_.tensor.element)))}"


def _size(number: int | None) -> str:
    return "?" if number is None else str(number)


def first_difference(
    before: tree.KernelEntry,
    after: tree.KernelEntry,
    globals_: tuple[Sequence[tree.Global], Sequence[tree.Global]] = ((), ()),
) -> Op | None:
    """Returns the first operation of ``after`` that differs from ``before``, or None if both kernels are equal.

    If ``after`` ends early, returns its last operation. Does not compare the hints of the kernels.
    globals_: the globals of both modules.
    """
    last = None
    for old, new in zip_longest(_lines(before, globals_[0]), _lines(after, globals_[1])):
        last = new[1] if new else last
        if old is None or new is None or old[0] != new[0]:
            return last
    return None


def details(op: Op) -> str:
    """Returns the attributes that differ from their defaults, as ``name=value``."""
    others = ((name, value) for name, value in op.attributes.items() if value not in DEFAULTS and value is not False)
    return " ".join(f"{name}={_shown(value)}" for name, value in others)


def _shown(value: tree.Attribute) -> str:
    if isinstance(value, tree.Constant):
        head = ",".join(map(str, value.values[:SHOWN]))
        if len(value.values) <= SHOWN:
            return head
        digest = hashlib.sha256(repr(value).encode()).hexdigest()[:8]
        return f"{head},… ({len(value.values)} values, {digest})"
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    if not isinstance(value, tree.Assumption):
        return str(value)
    shown = "x".join(map(str, value.values))
    if value.kind == "div_by":
        shown = str(value.divisor) + (f" every {value.every} along {value.along}" if value.every is not None else "")
    elif value.kind == "bounded":
        shown = f"{_size(value.low)},{_size(value.high)}"
    return f"{value.kind}({shown})"


def _lines(entry: tree.KernelEntry, globals_: Sequence[tree.Global]) -> Iterator[tuple[str, Op | None]]:
    """Yields pairs of a string and an operation, for the entry, for each operation and for each region.

    The operation of a region is the operation around the region. The operation of the entry is the first operation.

    The strings contain numbers instead of the values' names. So two kernels that differ only in names give equal
    strings.
    """
    numbers: dict[str, int] = {}

    def define(names: Sequence[str]) -> None:
        for name in names:
            numbers[name] = len(numbers)

    def write(op: Op) -> Iterator[tuple[str, Op | None]]:
        operands = {name: [numbers.get(value, value) for value in of] for name, of in op.operands.items()}
        attributes = sorted((name, repr(value)) for name, value in op.attributes.items())
        yield f"{op.name} {operands} {attributes} {list(map(repr, op.result_types))} {len(op.regions)}", op
        for region in op.regions:
            yield from inside(region, op)
        define(op.results)

    def inside(region: tree.Region, op: Op) -> Iterator[tuple[str, Op | None]]:
        define([name for name, _ in region.arguments])
        yield f"region {[type_text(type_) for _, type_ in region.arguments]}", op
        for inner in region.body:
            yield from write(inner)

    define([name for name, _ in entry.parameters])
    constants = [(one.name, repr(one.type), repr(one.value), one.alignment) for one in globals_]
    yield (f"entry {[repr(type_) for _, type_ in entry.parameters]} {constants}", entry.body[0] if entry.body else None)
    for op in entry.body:
        yield from write(op)
