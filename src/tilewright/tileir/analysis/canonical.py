"""Operations written so that equal text means equal behaviour: without names, places and sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tilewright.tileir.analysis.accesses import type_text
from tilewright.tileir.read.tree import Assumption, Attribute, Constant, Global, KernelEntry, Op, Region

SHOWN = 4
"""Values of a constant that are written out."""


def first_difference(
    before: KernelEntry, after: KernelEntry, globals_: tuple[Sequence[Global], Sequence[Global]] = ((), ())
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


def _is_default(value: Attribute) -> bool:
    return value in DEFAULTS if isinstance(value, str) else value is None or value is False or value in ((), {})


def _shown(value: Attribute) -> str:
    if isinstance(value, Constant):
        head = ",".join(map(str, value.values[:SHOWN]))
        if len(value.values) <= SHOWN:
            return head
        digest = hashlib.sha256(repr(value).encode()).hexdigest()[:8]
        return f"{head},… ({len(value.values)} values, {digest})"
    if isinstance(value, Assumption):
        return _assumed(value)
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return str(value)


def _assumed(one: Assumption) -> str:
    if one.kind == "div_by":
        along = f" every {one.every} along {one.along}" if one.every is not None else ""
        return f"div_by({one.divisor}{along})"
    if one.kind == "bounded":
        low, high = ("?" if bound is None else str(bound) for bound in (one.low, one.high))
        return f"bounded({low},{high})"
    return f"{one.kind}({'x'.join(map(str, one.values))})"


def _written(entry: KernelEntry, globals_: Sequence[Global]) -> Iterator[tuple[str, Op | None]]:
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

    def inside(region: Region, op: Op) -> Iterator[tuple[str, Op | None]]:
        define([name for name, _ in region.arguments])
        yield f"region {[type_text(type_) for _, type_ in region.arguments]}", op
        for inner in region.body:
            yield from write(inner)

    define([name for name, _ in entry.parameters])
    held = [(one.name, repr(one.type), repr(one.value), one.alignment) for one in globals_]
    yield (f"entry {[repr(type_) for _, type_ in entry.parameters]} {held}", entry.body[0] if entry.body else None)
    for op in entry.body:
        yield from write(op)
