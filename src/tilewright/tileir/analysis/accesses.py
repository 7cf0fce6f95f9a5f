"""What a memory operation does, in words that can be compared: how it gets at memory, with what shape, padding, order
and hints.
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
Globals: TypeAlias = Sequence[tree.Global]
STEPS = ("tensor_view", "base", "value", "source", "ptr")
"""Operands by which an address goes from the parameter to the access."""
PASSED = (
    "make_partition_view", "make_strided_view", "make_gather_scatter_view", "make_tensor_view", "assume",
    "reshape", "broadcast", "offset", "ptr_to_ptr", "permute",
)  # fmt: skip


class Definitions:
    """Where each value of an entry comes from."""

    def __init__(self, entry: tree.KernelEntry, tensors: Mapping[str, str]) -> None:
        """``tensors``: parameters (with their %) → the name that the source gives the array."""
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
        """The array that ``op`` accesses; None unless it is exactly one parameter."""
        name = op.address or ""
        for _ in range(len(self._ops)):
            if name in self._parameters:
                return self._tensors.get(name, name)
            made = self._ops.get(name)
            if made is None:
                if name not in self._first:
                    return None
                name = self._first[name]
            elif made.name in PASSED:
                name = next(made.operands[step][0] for step in STEPS if made.operands.get(step))
            else:
                return None
        return None

    def constant(self, name: str) -> str:
        """The number that fills the value; ``a value`` where it is not one constant."""
        made = self._ops.get(name)
        while made is not None and made.name in ("reshape", "broadcast"):
            made = self._ops.get(made.operands["source"][0])
        value = made.attributes.get("value") if made is not None and made.name == "constant" else None
        return f"{value.values[0]}" if isinstance(value, tree.Constant) and len(value.values) == 1 else "a value"


def direction(op: Op) -> str:
    """``load``, ``store`` or ``atomic``; otherwise the operation's name (``print_tko``)."""
    for word in ("atomic", "load", "store"):
        if word in op.name:
            return word
    return "store" if op.name.startswith("multimem") else op.name


def traits(op: Op, definitions: Definitions) -> dict[str, Trait]:
    """By stable names. Those that do not apply to the operation are left out."""
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
    """The tile that goes to or from memory."""
    kinds: list[tree.Type] = [kind for kind in op.result_types if not isinstance(kind, tree.TokenType)]
    for operand in ("tile", "value", "arg", "val"):
        kinds += op.operand_types.get(operand, ())
    return kinds[0] if kinds else None


def type_text(type_: tree.Type) -> str:
    """A type in a few letters; of a view what it hands out."""
    if isinstance(type_, (tree.TileType, tree.TokenType)):
        return str(type_)
    if isinstance(type_, tree.TensorViewType):
        shape = "x".join(_size(extent) for extent in type_.shape)
        return f"{shape}x{type_.element}, strides {'x'.join(map(_size, type_.strides))}"
    return f"{WAYS[type(type_)]} of {'x'.join(map(str, (*type_.tile, type_.tensor.element)))}"


def _size(number: int | None) -> str:
    return "?" if number is None else str(number)


SHOWN = 4
"""Values of a constant that are written out."""


def first_difference(
    before: tree.KernelEntry,
    after: tree.KernelEntry,
    globals_: tuple[Sequence[tree.Global], Sequence[tree.Global]] = ((), ()),
) -> Op | None:
    """The first operation of ``after`` (or, where that ends early, its last) that is not as in ``before``.

    globals_: what the modules of both hold beside the kernels. None where both do the same. Hints of the whole kernel
    are not compared.
    """
    old, new = list(_written(before, globals_[0])), list(_written(after, globals_[1]))
    last = None
    for one, other in zip_longest(old, new):
        last = other[1] if other else last
        if one is None or other is None or one[0] != other[0]:
            return last
    return None


def details(op: Op) -> str:
    """The attributes that are not the default, as ``name=value``."""
    shown = {name: _shown(value) for name, value in op.attributes.items() if not _is_default(value)}
    return " ".join(f"{name}={value}" for name, value in shown.items())


DEFAULTS = ("none", "nearest_even", "weak", "signed", "nearest_int_to_zero")


def _is_default(value: tree.Attribute) -> bool:
    return value in DEFAULTS if isinstance(value, str) else value is None or value is False or value in ((), {})


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


def _written(entry: tree.KernelEntry, globals_: Sequence[tree.Global]) -> Iterator[tuple[str, Op | None]]:
    numbers: dict[str, int] = {}

    def define(names: Sequence[str]) -> None:
        for name in names:
            numbers[name] = len(numbers)

    def write(op: Op) -> Iterator[tuple[str, Op | None]]:
        operands = {name: [numbers.get(value, value) for value in of] for name, of in op.operands.items()}
        attributes = sorted((name, repr(value)) for name, value in op.attributes.items())
        types = [repr(one) for one in op.result_types]
        yield f"{op.name} {operands} {attributes} {types} {len(op.regions)}", op
        for region in op.regions:
            yield from inside(region, op)
        define(op.results)

    def inside(region: tree.Region, op: Op) -> Iterator[tuple[str, Op | None]]:
        define([name for name, _ in region.arguments])
        yield f"region {[type_text(type_) for _, type_ in region.arguments]}", op
        for inner in region.body:
            yield from write(inner)

    define([name for name, _ in entry.parameters])
    held = [(one.name, repr(one.type), repr(one.value), one.alignment) for one in globals_]
    yield (f"entry {[repr(type_) for _, type_ in entry.parameters]} {held}", entry.body[0] if entry.body else None)
    for op in entry.body:
        yield from write(op)
