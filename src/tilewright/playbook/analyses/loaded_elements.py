"""Finds tile loads whose elements an earlier tile has already: as it was loaded, or reshaped.

Two loads have the same elements if they access the same array by the same tile index, with the same extents along each
axis of the array and the same padding. ``order`` and axes of extent 1 may put the axes of the tiles at other places. If
all axes of more than one element keep their sequence, one tile is the other one reshaped, because the elements are
numbered alike. A transposed tile is not.

Two parameters of a kernel are one array if the launch passes one name for both. A kernel that relies on this is wrong
for a launch that passes two arrays, and cannot test it: the change therefore gets a comment that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, parameters
from tilewright.playbook.analyses.task_code import argument_of
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted, elements, keywords, number

Text: TypeAlias = Callable[[cst.CSTNode], str]
HINTS = ("latency", "allow_tma")
LOADED = ("array", "index", "shape")


@dataclass(frozen=True)
class _TileLoad:
    """A tile load. ``elements`` is equal for loads of the same elements in the same sequence."""

    array: str
    shape: Expression
    elements: tuple[object, ...]


def one_array(source: Source, kernel: str) -> dict[str, str]:
    """Maps parameters of ``kernel`` to the first one for which the launch passes the same name."""
    first, found = dict[str, str](), dict[str, str]()
    for name in parameters(source.functions[kernel]):
        passed = argument_of(source, kernel, name)
        if isinstance(passed, cst.Name) and (known := first.setdefault(passed.value, name)) != name:
            found[name] = known
    return found


def loaded_pairs(source: Source, kernel: str, same: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns two parameters of each pair that is one array, if ``kernel`` loads from both.

    same: the result of `one_array`.
    """
    calls = source.calls("load", inside=source.functions[kernel])
    loaded = {dotted(array) for call in calls if (array := argument(call, "array", 0)) is not None}
    return [(first, name) for name, first in same.items() if {first, name} <= loaded]


@dataclass
class LoadedElements:
    """Follows which names hold the elements of which load, in the statements of one block.

    one_array: maps parameters to the parameter that stands for their array.
    """

    source: Source
    function: Function
    effects: Effects
    one_array: Mapping[str, str]
    _held: dict[str, _TileLoad] = field(default_factory=dict)
    """Name → the load whose elements it holds, perhaps reshaped."""

    def __post_init__(self) -> None:
        """Leaves out arrays that the kernel writes by one of their names, and names that it assigns."""
        names, assigned = parameters(self.function), names_assigned(self.function)
        written = names if self.effects.written is None else self.effects.written
        changed = {self.one_array.get(name, name) for name in names if name in written or assigned[name]}
        stands_for = {name: self.one_array.get(name, name) for name in names}
        self._arrays = {name: array for name, array in stands_for.items() if array not in changed}

    def forget(self, names: Iterable[str]) -> None:
        """Notes that ``names`` have other values now."""
        for name in names:
            self._held.pop(name, None)

    def assigned(self, target: str, value: Expression, line: Line, text: Text) -> Line | None:
        """Notes that ``line`` assigns ``value`` to ``target``. If a name holds the loaded elements already, returns the
        line that replaces ``line``; otherwise None.

        text: returns the text of a node with values in place of names.
        """
        load = self._load(value, text)
        held = load or self._held.get(dotted(self._reshaped(value) or value))
        known = [each for each in self._held.items() if load is not None and each[1].elements == load.elements]
        self.forget([target])
        if held is not None:
            self._held[target] = held
        if load is None or not known:
            return None
        name, first = known[0]
        new = f"{self.source.spelled('reshape')}({name}, {self.source.code(load.shape)})"
        above = list(line.leading_lines)
        if first.array != load.array:
            what = f"# Right only if each launch passes one array as {first.array} and {load.array}."
            above.append(cst.EmptyLine(comment=cst.Comment(what)))
        assign = cst.ensure_type(line.body[0], cst.Assign).with_changes(value=cst.parse_expression(new))
        return line.with_changes(body=[assign], leading_lines=above)

    def _reshaped(self, value: Expression) -> Expression | None:
        """Returns what an expression reshapes; None if it is no reshape."""
        match value:
            case cst.Call(func=cst.Attribute(value=tile, attr=cst.Name(value="reshape"))) if (
                dotted(tile) != self.source.tile_module
            ):
                return tile
            case cst.Call() if self.effects.name_of(value) == "reshape":
                return argument(value, "x", 0)
        return None

    def _load(self, value: Expression, text: Text) -> _TileLoad | None:
        """Reads ``ct.load(array, (…), (…), …)``. Returns None for anything else."""
        if not isinstance(value, cst.Call) or self.effects.name_of(value) != "load":
            return None
        array, index, shape = (argument(value, name, place) for place, name in enumerate(LOADED))
        indices, extents = elements(index), elements(shape)
        name = "" if array is None else dotted(array)
        if name not in self._arrays or shape is None or not indices or not extents or len(indices) != len(extents):
            return None
        if (order := _order(argument(value, "order"), len(extents))) is None:
            return None
        axes = {axis: (text(indices[place]), text(extents[place])) for place, axis in enumerate(order)}
        sequence = tuple(axis for axis, extent in zip(order, extents, strict=True) if number(extent) != 1)
        if keywords(value).keys() & {"memory_order", "memory_scope"} or not self.source.spelled("reshape"):
            return None
        given = {key: text(each) for key, each in keywords(value).items() if key not in (*LOADED, *HINTS, "order")}
        found = self._arrays[name], tuple(sorted(axes.items())), sequence, tuple(sorted(given.items()))
        return _TileLoad(name, shape, found)


def _order(order: Expression | None, rank: int) -> list[int] | None:
    """Returns the axis of the array for each axis of the tile; None if ``order`` is not written as a literal."""
    text = order.evaluated_value if isinstance(order, cst.SimpleString) else "C" if order is None else ""
    if text in ("C", "F"):
        return list(range(rank)) if text == "C" else list(reversed(range(rank)))
    listed = [number(axis) for axis in elements(order) or ()]
    axes = [axis for axis in listed if isinstance(axis, int)]
    return axes if sorted(axes) == list(range(rank)) and len(listed) == rank else None
