"""Pads the narrow side of products to the least width that reaches the tensor cores.

    ct.mma(keys, queries, acc)        queries (D, 4): four heads share the keys; padded with zeros to (D, 8)

A product with less than 8 columns or 16 rows reaches no tensor core (tileiras 13.4, sm_90): each thread multiplies with
operands that it reads from shared memory. All tiles with this extent get the padded one. So tiles are padded only where
they are loaded, and cut only where they are stored. The rows and columns that are added must meet no others. So a tile
with this extent, or of a shape that is not known, may only enter operations that are known to keep rows apart. It may
not be reduced or multiplied along the extent, nor reshaped in another way than by axes of length 1.

The kernel keeps its form for other values of the constant, and of the constants that choose its branches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.constant_branches import (
    WITH,
    compiled_only,
    decided_branches,
    equal_constants,
    is_live,
    read_constants,
    written_constants,
)
from tilewright.playbook.analyses.dataflow import names_assigned
from tilewright.playbook.analyses.expressions import imported, line_around
from tilewright.playbook.analyses.straight_names import original, with_straight_names
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.analyses.tile_shapes import (
    ELEMENTWISE,
    FILLED,
    REDUCTIONS,
    SCANS,
    SHAPED,
    Shape,
    Tile,
    TurnedShapes,
    reduced_axes,
    reshaped,
    same_elements,
    tile_call,
    tuple_text,
    turned,
)
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    unless_refused,
)
from tilewright.playbook.rewriting import preceded, starting_with
from tilewright.records import Value
from tilewright.source.syntax import Changes, Function, Replacement, Source, argument, dotted, elements
from tilewright.space import knobs

COLUMNS, ROWS = 8, 16
"""The least columns and rows of a product on tensor cores."""
_APART = (*ELEMENTWISE, *FILLED, "astype", "bitcast", "transpose", "permute", "load", "store")
"""Functions whose results keep the elements of different rows apart."""
_OF_NUMBERS = ("bid", "num_blocks", "num_tiles", "cdiv", "range", "int", "float", "bool", "len")
"""Functions that give numbers, not tiles."""
_ASKED = re.compile(r"(\w+) to (\d+) ")
"""The start of a value: ``BLOCK_H to 8 with BLOCK_H=4 TRANSPOSED=True``."""


class ProductPadding(Entry):
    about = EntryDescription(
        id="product_padding",
        name="padded products",
        what="tiles with less than 8 columns or 16 rows in a product are padded with zeros, for the tensor cores",
        when="decoding attention whose groups have 2 or 4 heads; products with a few rows",
        when_not="products that are wide enough; tiles that are reduced along the narrow extent",
        priority={"memory": 2, "balanced": 2, "compute": 3},
        eases=("tensor path", "issue slots", "residency", "bytes in flight", "tile size"),
        together=HINTS_OF_TILES,
        order=54,
        effect=Effect(
            1.0, 3.8, "paged decoding with four heads a group: 1818 → 482 µs, H200", "2026-11-30"
        ),
    )  # fmt: skip

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for padding, least in _narrow(source, facts):
            if unless_refused(padding.padded, least) is not None:
                what, why = f"{padding.name} of products", f"{padding.extent} of {least}"
                found.append(Site.at(source, padding.function, what, (padding.value(least),), why=why))
        return found

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        try:
            for padding, least in _narrow(source, facts):
                padding.padded(least)
        except NotApplicable as reason:
            return str(reason)
        return ""

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function, given = site.function_here(source), read_constants(str(value))
        asked = _ASKED.match(str(value))
        if asked is None or type(given.get(asked[1])) is not int:
            raise NotApplicable(f"'{value}' names no extent; an example is BLOCK_H to 8 with BLOCK_H=4")
        return _Padding(source, function, asked[1], given).padded(int(asked[2]))


def _narrow(source: Source, facts: KernelFacts) -> Iterator[tuple[_Padding, int]]:
    """Yields the extents that are too narrow for the tensor cores in a product, each with the least that is not."""
    if facts.kernel in source.kernels:
        constants = equal_constants(source, facts)
        for name, extent in constants.items():
            if knobs.is_power_of_two(extent) and 1 < int(extent) < ROWS:  # type: ignore[arg-type]
                padding = _Padding(source, source.kernels[facts.kernel], name, constants)
                if least := padding.least():
                    yield padding, least


@dataclass
class _Padding:
    """Pads the extent ``name`` of the tiles of a kernel, for the values ``constants`` of its constant parameters."""

    source: Source
    function: Function
    name: str
    constants: Mapping[str, Value]

    def __post_init__(self) -> None:
        every = decided_branches(self.source, self.function, self.constants)
        self.branches = [branch for branch in every if self._names(branch.node)]
        own, compiled = self.function.name.value, compiled_only(self.source, self.branches)
        self.plain = with_straight_names(compiled, compiled.functions[own])
        self.compiled = self.plain.functions[own]
        self.shapes = TurnedShapes(self.plain, self.compiled, (self.name,))

    @property
    def extent(self) -> int:
        extent = self.constants[self.name]
        assert isinstance(extent, int)
        return extent

    def _names(self, node: cst.CSTNode) -> bool:
        """Returns whether the extent is named in a node."""
        return any(each.value == self.name for each in self.source.every(cst.Name, node))

    def least(self) -> int:
        """Returns the least extent for the tensor cores; 0 if no product is too narrow."""
        least = 0
        for call in self.plain.calls("mma", inside=self.compiled):
            match self.shapes.of(call):
                case (_, columns) if columns == self.name:
                    least = max(least, COLUMNS)
                case (rows, _) if rows == self.name:
                    least = max(least, ROWS)
        return least if self.extent < least else 0

    def value(self, least: int) -> str:
        tests = " ".join(self.source.code(branch.node.test) for branch in self.branches)
        used = [name for name in self.constants if name == self.name or re.search(rf"\b{name}\b", tests)]
        return f"{self.name} to {least}{WITH}{written_constants(self.constants, used)}"

    def padded(self, least: int) -> str:
        """Returns the text with padded tiles. Raises `NotApplicable`."""
        self._refuse()
        wide = fresh_in(self.source, self.function.name.value, f"PADDED_{self.name}")
        chosen = dict.fromkeys(branch.condition(self.source) for branch in self.branches)
        conditions = [f"{self.name} == {self.extent}", *chosen]
        first = cst.parse_statement(f"{wide} = {least} if {' and '.join(conditions)} else {self.name}")
        changes: Changes = {node: cst.Name(wide) for node in self._extents()}
        for old, shape in self._accesses("load"):
            padding = self._pad_loaded(old, shape, wide, least // self.extent)
            if padding.keys() & changes.keys():
                raise NotApplicable(f"{self.source.code(old)} is not the only load of its statement")
            changes = {**changes, **padding}
        for old, shape in self._accesses("store"):
            changes = {**changes, **self._cut_stored(old, shape)}
        return self.source.replaced({**changes, self.function.body: starting_with(first)})

    def _refuse(self) -> None:
        """Raises `NotApplicable` if padding might change more than the products."""
        if self.name in names_assigned(self.function.body):
            raise NotApplicable(f"{self.name} changes")
        for call in self.plain.every(cst.Call, self.compiled):
            if (tile_call(self.plain, call) or dotted(call.func)) not in _OF_NUMBERS and self._enters(call):
                self._expect_apart(call)
        for product in self.plain.every(cst.BinaryOperation, self.compiled):
            if isinstance(product.operator, cst.MatrixMultiply) and self._enters(product):
                raise self._refused(product, "may multiply along")
        for node in self.plain.every(cst.Attribute, self.compiled):
            if node.attr.value == "shape" and self._has(self.shapes.tile(node.value)):
                raise self._refused(node, "may depend on")

    def _refused(self, node: cst.CSTNode, why: str) -> NotApplicable:
        return NotApplicable(f"{original(self.plain.code(node))} {why} {self.name}")

    def _has(self, tile: Tile) -> bool:
        """Returns whether a tile has the extent, or may have it."""
        return tile.varies if tile.shape is None else self._names_it(*tile.shape)

    def _names_it(self, *sizes: str) -> bool:
        return any(re.search(rf"\b{self.name}\b", size) for size in sizes)

    def _enters(self, node: cst.CSTNode) -> bool:
        """Returns whether the extent, or a tile that may have it, is named in a node."""
        names = {each.value for each in self.plain.every(cst.Name, node)}
        return self.name in names or any(self._has(tile) for name, tile in self.shapes.names.items() if name in names)

    def _expect_apart(self, call: cst.Call) -> None:
        """Raises `NotApplicable` if a call may bring together what a tile has along the extent."""
        plain, name, result = self.plain, tile_call(self.plain, call), self.shapes.of(call) or ()
        inside = self.shapes.tile(call.args[0].value) if call.args else Tile(None, varies=True)
        known, shaped = inside.shape or (), reshaped(plain, call)
        if shaped is not None:
            tile = self.shapes.tile(shaped[0])
            before, after = ([size for size in shape if size != "1"] for shape in (tile.shape or (), result))
            mixes = before != after and (self._has(tile) or self._names_it(*result))
            self._expect(not mixes and (tile.shape is not None or not tile.varies), call, "may mix the rows of")
        elif name in (*FILLED, "broadcast_to"):
            given = argument(call, "shape", SHAPED[name])
            listed = elements(given) or [given or call]
            own = [isinstance(each, cst.Name) and each.value == self.name for each in listed]
            self._expect(own == [self._names_it(size) for size in result], call, "has another form of")
            kept = name != "broadcast_to" or not self._has(inside) or known == result[len(result) - len(known) :]
            self._expect(kept, call, "may mix the rows of")
        elif name in (*REDUCTIONS, *SCANS):
            axes = reduced_axes(call, len(known)) if inside.shape is not None else None
            apart = axes is not None and not self._names_it(*(known[axis] for axis in axes))
            self._expect(apart or not self._has(inside), call, "may reduce")
        elif name == "mma":
            self._expect(self._multiplies_apart(call), call, "may multiply along")
        else:
            numbers = dotted(call.func) in ("min", "max") and all(
                self.shapes.of(each.value) == () for each in call.args
            )
            apart = name in _APART or same_elements(plain, call) is not None or turned(plain, call) is not None
            self._expect(numbers or apart, call, "may depend on")

    def _expect(self, right: bool, call: cst.Call, otherwise: str) -> None:
        if not right:
            raise self._refused(call, otherwise)

    def _multiplies_apart(self, call: cst.Call) -> bool:
        """Returns whether the extent is a side of the total, and not one along which the product multiplies."""
        sides = []
        for place, name in enumerate(("x", "y", "acc")):
            node = argument(call, name, place)
            tile = Tile(None, varies=True) if node is None else self.shapes.tile(node)
            if self._has(tile) and len(tile.shape or ()) != 2:
                return False
            sides.append(tile.shape if self._has(tile) and tile.shape else ("", ""))
        (rows, inner), (other, columns), (high, wide) = sides
        pairs = (rows, high), (columns, wide)
        return not self._names_it(inner, other) and all(a == b for a, b in pairs if self._names_it(a, b))

    def _extents(self) -> Iterator[cst.Name]:
        """Yields the places where the extent stands in the shape of a new or reshaped tile."""
        source = self.source
        for call in source.every(cst.Call, self.function):
            if (shaped := reshaped(source, call)) is not None:
                listed = shaped[1]
            elif tile_call(source, call) in (*FILLED, "broadcast_to"):
                given = argument(call, "shape", 1 if tile_call(source, call) == "broadcast_to" else 0)
                listed = elements(given) or ([given] if given is not None else [])
            else:
                continue
            yield from (each for each in listed if isinstance(each, cst.Name) and each.value == self.name)

    def _accesses(self, kind: str) -> Iterator[tuple[cst.Call, Shape]]:
        """Yields the compiled loads or stores of tiles with the extent, each with its shape."""
        live = [
            call for call in self.source.calls(kind, inside=self.function) if is_live(self.source, call, self.branches)
        ]
        compiled = self.plain.calls(kind, inside=self.compiled)
        for old, new in zip(live, compiled, strict=True):
            shape = self.shapes.accessed(new)
            if shape is None:
                raise NotApplicable(f"the shape of {self.source.code(old)} is not known")
            if shape.count(self.name) > 1:
                raise NotApplicable(f"{self.source.code(old)} has {self.name} along two axes")
            if any(original(size) != size or (size != self.name and self._names_it(size)) for size in shape):
                raise NotApplicable(f"the extents of {self.source.code(old)} are computed")
            if self.name in shape:
                yield old, shape

    def _pad_loaded(self, call: cst.Call, shape: Shape, wide: str, times: int) -> Changes:
        """Returns the changes that pad a loaded tile with zeros."""
        source, axis = self.source, shape.index(self.name)
        line, array = line_around(source, call), dotted(call.args[0].value)
        if line is None or not array.isidentifier():
            raise NotApplicable(f"{source.code(call)} is not loaded in a statement of its own")
        match line.body:
            case [cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=tile))], value=value)] if value is call:
                loaded = []
            case _:
                tile = fresh_in(source, self.function.name.value, f"{array}_loaded")
                loaded = [f"{tile} = {source.code(call)}"]
        cat, zeros, lines = imported(source, "cat"), imported(source, "zeros"), [f"if {wide} > {self.name}:"]
        for size in (1 << step for step in range(times.bit_length() - 1)):
            extents = tuple(f"{size} * {each}" if size > 1 and each == self.name else each for each in shape)
            lines.append(f"    {tile} = {cat}(({tile}, {zeros}({tuple_text(extents)}, dtype={array}.dtype)), {axis})")
        new = [cst.parse_statement(text) for text in (*loaded, "\n".join(lines) + "\n")]
        changes: dict[cst.CSTNode, Replacement | Callable[[cst.CSTNode], Replacement]] = {}
        if loaded:
            changes[call] = cst.Name(tile)
        changes[line] = partial(preceded, new) if loaded else lambda now: cst.FlattenSentinel([now, *new])
        return changes

    def _cut_stored(self, call: cst.Call, shape: Shape) -> Changes:
        """Returns the changes that cut a stored tile to its old extent."""
        stored = argument(call, "tile", 2)
        if not isinstance(stored, cst.Name):
            raise NotApplicable(f"{self.source.code(call)} stores no named tile")
        start, cut = tuple_text(("0",) * len(shape)), imported(self.source, "extract")
        return {stored: cst.parse_expression(f"{cut}({stored.value}, {start}, {tuple_text(shape)})")}


ENTRY = ProductPadding()
