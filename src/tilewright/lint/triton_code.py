"""Finds how Triton kernels use their pointers: which parameters they update, and with which offsets."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.lint.tile_code import exclusive, passed_by
from tilewright.source.source_file import (
    DEPTH,
    Named,
    SourceFile,
    argument,
    assignments,
    elements,
    names,
    own,
    parameters,
    remembered,
    stored,
)  # fmt: skip
from tilewright.source.triton import TritonKernel, kernels, operation
from tilewright.source.values import called_name

POINTERS = {
    "make_block_ptr", "advance", "make_tensor_descriptor", "multiple_of", "max_contiguous", "max_constancy", "cast",
    "to",
}  # fmt: skip
"""Functions whose result points to the same data as their first argument. ``to`` is a method."""
UNSAFE_TWICE = {"atomic_add", "atomic_xor"}
"""Atomic operations whose result changes if a launch runs twice. The other atomic operations give the same result."""


Place: TypeAlias = tuple[int, int]
"""Line and column."""
END: Place = (1 << 30, 0)


class Pointers:
    """The pointers in one Triton function, each with the parameters from which it may come."""

    def __init__(self, file: SourceFile, kernel: TritonKernel) -> None:
        self.file = file
        self.parameters = {one.arg for one in parameters(kernel.node)} - kernel.constants
        self.bound = _bound(kernel.node)

    def of(self, node: ast.AST | None, before: Place = END) -> set[str]:
        """Returns the parameters that a pointer may come from: ``x`` for ``x + row * stride``.

        before: a place in the file. Each name has the value of its last assignment before this place.
        """
        if isinstance(node, ast.Name):
            last = self.last(node.id, before)
            return self.of(last[1], last[0]) if last is not None else self.parameters & {node.id}
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            return self.of(node.left, before) or self.of(node.right, before)
        if isinstance(node, ast.Subscript):
            return self.of(node.value, before)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, before) | self.of(node.orelse, before)
        if isinstance(node, ast.Call) and called_name(node) in POINTERS:
            return self.of(base(self.file, node), before)
        return set()

    def last(self, name: str, before: Place) -> tuple[Place, ast.expr] | None:
        """Returns the last assignment to a name before a place, and its value."""
        return next((bound for bound in reversed(self.bound.get(name, [])) if bound[0] < before), None)


def base(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """Returns the pointer that a call changes: its first argument, or the object of a method."""
    is_method = not operation(file, call) and called_name(call) in {"to", "cast", "advance"}
    return call.func.value if is_method and isinstance(call.func, ast.Attribute) else argument(call, 0, "base")


def _bound(function: Named) -> dict[str, list[tuple[Place, ast.expr]]]:
    """Returns the names that a function assigns, each with its values in the order of the text."""
    bound: dict[str, list[tuple[Place, ast.expr]]] = {}
    for node in sorted(own(function, ast.Assign), key=place):
        pairs = [*assignments([node]), *_unpacked(node)]
        for name, value in pairs:
            bound.setdefault(name, []).append((place(node), value))
    return bound


def _unpacked(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yields the names and values of ``a, b = c, d``."""
    for target, value in zip(elements(node.targets[0]), elements(node.value), strict=False):
        if isinstance(target, ast.Name):
            yield target.id, value


def place(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset


@dataclass
class _Used:
    """The calls by which a function reads, overwrites and updates each parameter, in the order of the text."""

    read: dict[str, list[ast.Call]] = field(default_factory=dict)
    written: dict[str, list[ast.Call]] = field(default_factory=dict)
    updated: dict[str, list[ast.Call]] = field(default_factory=dict)


@remembered
def _known(file: SourceFile) -> dict[Named, tuple[dict[str, ast.Call], set[str]]]:
    return {}


def arrays(file: SourceFile, kernel: TritonKernel) -> dict[str, tuple[list[ast.expr], bool]]:
    """Returns the parameters that the kernel uses as addresses of data. For each: the addresses, and whether the kernel
    writes there."""
    used = _used(file, kernel, DEPTH)
    written = used.written.keys() | used.updated.keys()
    found: dict[str, tuple[list[ast.expr], bool]] = {}
    for places in (used.read, used.written, used.updated):
        for name, calls in places.items():
            addresses = [each for call in calls if (each := argument(call, 0, "pointer")) is not None]
            found[name] = ([*found.get(name, ([], False))[0], *addresses], name in written)
    return found


def updates(file: SourceFile, kernel: TritonKernel) -> dict[str, ast.Call]:
    """Returns the parameters whose data a second launch would update again, each with the call that updates the data.

    A parameter counts if an atomic operation adds to it, or if data is loaded and then stored at the same address. It
    does not count if the kernel first overwrites the data.
    """
    return _changes(file, kernel, DEPTH)[0]


def _changes(file: SourceFile, kernel: TritonKernel, depth: int) -> tuple[dict[str, ast.Call], set[str]]:
    """Returns the parameters that a function updates, and the parameters that it overwrites."""
    known = _known(file)
    if kernel.node not in known and depth:
        known[kernel.node] = ({}, set())  # for functions that call themselves
        used = _used(file, kernel, depth)
        known[kernel.node] = (_updates(file, used), set(used.written))
    return known.get(kernel.node, ({}, set()))


def _used(file: SourceFile, kernel: TritonKernel, depth: int) -> _Used:
    used, pointers = _Used(), Pointers(file, kernel)
    for call in sorted(own(kernel.node, ast.Call), key=place):
        for places, address in _accessed(file, used, call, depth):
            for root in pointers.of(address, place(call)):
                places.setdefault(root, []).append(call)
    return used


def _updates(file: SourceFile, used: _Used) -> dict[str, ast.Call]:
    found = {}
    for root, places in used.updated.items():
        first = next((call for call in places if not _overwritten(file, used, root, call)), None)
        if first is not None:
            found[root] = first
    for root, stores in used.written.items():
        pairs = itertools.product(used.read.get(root, ()), stores)
        first = next((store for load, store in pairs if _updated(file, used, root, load, store)), None)
        if first is not None:
            found.setdefault(root, first)
    return found


def _accessed(
    file: SourceFile, used: _Used, call: ast.Call, depth: int
) -> Iterator[tuple[dict[str, list[ast.Call]], ast.expr | None]]:
    """Yields, for each kind of access that a call makes, the record of this kind and the address."""
    name, address = operation(file, call), argument(call, 0, "pointer")
    if not name and isinstance(call.func, ast.Attribute):  # a tensor descriptor's method
        name, address = call.func.attr, call.func.value
    if name in {"load", "gather"}:
        yield used.read, address
    elif name in {"store", "scatter", "atomic_xchg"}:
        yield used.written, address
    elif name in UNSAFE_TWICE:
        yield used.updated, address
    called = file.value(call.func)
    if isinstance(called, Named) and called in kernels(file):
        updated, written = _changes(file, kernels(file)[called], depth - 1)
        passed = passed_by(call, called)
        yield from ((used.updated, passed.get(parameter)) for parameter in updated)
        yield from ((used.written, passed.get(parameter)) for parameter in written)


def _updated(file: SourceFile, used: _Used, root: str, load: ast.Call, store: ast.Call) -> bool:
    """Returns whether ``store`` changes data that ``load`` has read, so that a second launch would read other data.

    A load under a condition on the counter of a surrounding loop does not count, because the first iteration may skip
    the load.
    """
    if _address(load) != _address(store) or _end(load) > _end(store) or exclusive(file, load, store):
        return False
    above = list(file.above(load))
    counters = set().union(*(stored(loop.target) for loop, _ in above if isinstance(loop, ast.For)))
    conditional = any(isinstance(parent, ast.If) and counters & names(parent.test) for parent, _ in above)
    return not conditional and not _overwritten(file, used, root, load)


def _address(call: ast.Call) -> str:
    """Returns the text of an access's address: a pointer, or a descriptor with its offsets."""
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.args:
        is_descriptor = called_name(call) in {"load", "store"} and isinstance(call.args[0], (ast.List, ast.Tuple))
        if is_descriptor:
            return f"{call.func.value.id}{ast.unparse(call.args[0])}"
    address = argument(call, 0, "pointer")
    return ast.unparse(address) if address is not None else ""


def _end(call: ast.Call) -> Place:
    """Returns the place where a call ends. A load among the arguments of a store ends, and runs, before the store."""
    return call.end_lineno or 0, call.end_col_offset or 0


def _overwritten(file: SourceFile, used: _Used, root: str, access: ast.Call) -> bool:
    """Returns whether a store before ``access`` may have written the data that ``access`` reads."""
    before = (store for store in used.written.get(root, ()) if _end(store) < _end(access))
    return any(not exclusive(file, store, access) for store in before)
