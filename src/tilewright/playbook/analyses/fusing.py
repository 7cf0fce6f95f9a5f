"""Joins an element-wise kernel with the kernel that reads its output, so that the output is never in memory.

Each load of the output becomes the loads and the arithmetic of the element-wise kernel, for the tile that the other
kernel loads. The cast of the element-wise kernel's store is kept, so the fused kernel has the same numbers.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, parameters, reaching
from tilewright.playbook.analyses.elementwise import ElementWise, Read, element_wise, read_outside
from tilewright.playbook.analyses.expressions import line_of
from tilewright.playbook.analyses.short_lines import with_short_lines
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Changes, Function, Line, Replacement, Source, argument, dotted, elements

PADDING = {"ZERO": "0", "NEG_ZERO": "-0.0", "POS_INF": "{INFINITY}", "NEG_INF": "-{INFINITY}", "NAN": "{NOT_A_NUMBER}"}
"""Maps a padding mode to the text of the padded value, with the names of `CONSTANTS`."""
CONSTANTS = {"INFINITY": 'float("inf")', "NOT_A_NUMBER": 'float("nan")'}


@dataclass(frozen=True)
class Fused:
    """A fused kernel.

    text: the file of the kernel, with all that it needs.
    parameters: its parameters, in their order.
    producer, consumer: map the fused kernel's parameters to those of the two kernels.
    index, shape: the texts of the producer's tile of the output, for each axis.
    whole: the fused kernel's parameter that has the shape of the producer's output.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    producer: Mapping[str, str]
    consumer: Mapping[str, str]
    index: tuple[str, ...]
    shape: tuple[str, ...]
    whole: str


@dataclass(frozen=True)
class _IntermediateLoad:
    """A load of the intermediate array in the consumer. ``line``: the statement with the load."""

    call: cst.Call
    line: Line
    index: tuple[str, ...]
    shape: tuple[str, ...]
    padding: str


def fused(
    text: str, producer: str, consumer: str, read: str, dtype: str, shapes: Mapping[str, tuple[int, ...]]
) -> Fused:
    """Returns the fused kernel of two kernels. Raises `NotApplicable` with the reason if there is none.

    text: a file with both kernels and all that they need.
    read: the consumer's parameter that gets the producer's output. dtype: the dtype of this output.
    shapes: the shapes of the producer's arrays.
    """
    source = Source("the fused kernel", text)
    parts = element_wise(source, producer)
    return _Joining(source, parts, consumer, read, dtype, shapes).joined()


class _Joining:
    def __init__(
        self, source: Source, parts: ElementWise, consumer: str, read: str, dtype: str,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:  # fmt: skip
        self.source, self.parts, self.read = source, parts, read
        self.function: Function = source.functions[consumer]
        self.dtype_name = dtype
        self.dtype = self._spelled("bool_" if dtype == "bool" else dtype)
        self.rank = len(shapes[parts.output])
        self.everywhere = {each.value for each in source.every(cst.Name, source.module)}
        self.constants = {name: self._unused(name) for name in CONSTANTS}
        self.taken = {each.value for each in source.every(cst.Name, self.function)} - {read}
        self.taken |= {
            *source.functions,
            *self.constants.values(),
            dotted(cst.parse_expression(self.dtype)).split(".")[0],
        }
        self.taken |= _read(parts) - {*parts.parameters, *self._locals}
        self.names = {name: self._fresh(name) for name in parts.parameters}
        self.whole = self.names[parts.whole.array]
        for each in parts.reads:
            self._refuse_extents(each, shapes)

    def refused(self, reason: str) -> NotApplicable:
        return NotApplicable(f"{self.function.name.value}: {reason}")

    def _spelled(self, name: str) -> str:
        text = self.source.spelled(name)
        if not text:
            raise self.refused(f"its file does not import '{name}' of cuda.tile, which the fused kernel needs")
        return text

    def _unused(self, name: str) -> str:
        return name if name not in self.everywhere else self._unused(f"{name}_")

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _refuse_extents(self, load: Read, shapes: Mapping[str, tuple[int, ...]]) -> None:
        output, own = shapes[self.parts.output], shapes[load.array]
        if len(load.index) != len(own) or len(self.parts.whole.index) != len(output):
            raise NotApplicable(f"{self.parts.kernel}: a tile of '{load.array}' has not the axes of the array")
        for axis, extent in enumerate(own):
            stored = axis + len(output) - len(own)
            if self._follows(load, axis) and extent != output[stored]:
                what = f"'{load.array}' has {extent} elements along axis {axis}, and the output {output[stored]}"
                raise NotApplicable(f"{self.parts.kernel}: {what}")

    def _follows(self, load: Read, axis: int) -> bool:
        """Returns whether the load's tile along an axis has the index of the stored tile."""
        return load.tiles[axis] == self.parts.whole.tiles[axis - len(load.tiles)]

    def joined(self) -> Fused:
        if names_assigned(self.function)[self.read] > 0:
            raise self.refused(f"it assigns to '{self.read}', the name of the intermediate array")
        own = self.parts.parameters.keys() | {self.parts.output} | self._locals
        shared = (_read(self.parts) - own) & {*names_assigned(self.function.body), *parameters(self.function)}
        if shared:
            raise self.refused(f"it uses the name '{min(shared)}', which {self.parts.kernel} uses for something else")
        changes: dict[cst.CSTNode, Replacement | Callable[[cst.CSTNode], Replacement]] = {}
        before: dict[Line, list[str]] = {}
        for node in self.source.every(cst.Name, self.function.body):
            if node.value == self.read:
                changes |= self._use(node, before)
        if not before:
            raise self.refused(f"it does not load '{self.read}' with ct.load")
        return self._result({**changes, **{line: partial(_after, added) for line, added in before.items()}})

    @property
    def _locals(self) -> set[str]:
        """The names that the producer's statements assign."""
        every = (each for line in self.parts.lines for each in ast.walk(line) if isinstance(each, ast.Name))
        return {each.id for each in every if isinstance(each.ctx, ast.Store)}

    def _use(self, node: cst.Name, before: dict[Line, list[str]]) -> dict[cst.CSTNode, Replacement]:
        """Returns the changes for one use of the intermediate array."""
        above = self.source.parent(node)
        if isinstance(above, cst.Arg) and above.keyword is node:
            return {}
        if isinstance(above, cst.Attribute):
            if above.attr is node:
                return {}
            if above.attr.value == "dtype":
                return {above: cst.parse_expression(self.dtype)}
            if above.attr.value in ("shape", "ndim"):
                return {node: cst.Name(self.whole)}
        call = self.source.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call) and argument(call, "array", 0) is node:
            name = self.source.tile_name(dotted(call.func))
            if name == "num_tiles":
                return {node: cst.Name(self.whole)}
            if name == "load":
                access = self._access(call)
                lines, value = self._computed(access)
                before.setdefault(access.line, []).extend(lines)
                return {call: cst.Name(value)}
        text = self.source.code(call or above or node).strip()
        raise self.refused(f"it uses '{self.read}' in {text}, not only in ct.load")

    def _access(self, call: cst.Call) -> _IntermediateLoad:
        if argument(call, "order") is not None:
            raise self.refused(f"it loads '{self.read}' with the option 'order'")
        line: Line | None = None
        for outer in self.source.parents(call):
            if isinstance(outer, cst.Lambda | cst.CompFor | cst.BaseComp):
                raise self.refused(f"it loads '{self.read}' in {self.source.code(outer).strip()}")
            if isinstance(outer, cst.SimpleStatementLine):
                if len(outer.body) > 1:
                    raise self.refused(f"the line that loads '{self.read}' has several statements")
                line = outer
            if isinstance(outer, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                break
        if line is None:
            raise self.refused(f"it loads '{self.read}' in the head of a statement")
        index, shape = self._items(call, "index", 1), self._items(call, "shape", 2)
        padding = argument(call, "padding_mode", 3)
        mode = "" if padding is None else self.source.tile_name(dotted(padding)).removeprefix("PaddingMode.")
        has_value = mode in PADDING and (self.dtype_name != "bool" or mode == "ZERO")
        if padding is not None and not has_value and mode != "UNDETERMINED":
            raise self.refused(f"it loads '{self.read}' with the padding {self.source.code(padding)}")
        return _IntermediateLoad(call, line, index, shape, mode)

    def _items(self, call: cst.Call, name: str, place: int) -> tuple[str, ...]:
        """Returns the texts of the items of an index or a shape."""
        node = argument(call, name, place)
        if isinstance(node, cst.Name) and (known := reaching(self.source, node.value, call)):
            texts = [self.source.code(part) for part in elements(known.value) or ()]
            if len(texts) == self.rank:
                return tuple(each if each.isdigit() else f"{node.value}[{at}]" for at, each in enumerate(texts))
        parts = elements(node)
        if parts is None and node is not None and self.rank == 1:
            parts = [node]
        if parts is None or len(parts) != self.rank:
            raise self.refused(f"the {name} of its load of '{self.read}' is not written as {self.rank} numbers")
        return tuple(self.source.code(part) for part in parts)

    def _computed(self, access: _IntermediateLoad) -> tuple[list[str], str]:
        """Returns the statements that compute a tile of the intermediate array, and the name of the tile."""
        names = self.names | {name: self._fresh(name) for name in sorted(self._locals)}
        loads = {id(each.call): _MovedLoad(self._load(each, access)) for each in self.parts.reads}
        rename = _Renaming(names, self.parts.output, self.whole, self.dtype)

        def changed(part: ast.AST) -> str:
            return ast.unparse(rename.visit(copy.deepcopy(part, {**loads})))

        lines, stored = [changed(line) for line in self.parts.lines], changed(self.parts.value)
        tile = self._fresh(self.read)
        lines.append(f"{tile} = {self._cast(stored)}")
        if access.padding in PADDING and (inside := " & ".join(self._inside(access))):
            padded = "False" if self.dtype_name == "bool" else PADDING[access.padding].format(**self.constants)
            lines.append(f"{tile} = {self._spelled('where')}({inside}, {tile}, {padded})")
        return lines, tile

    def _cast(self, stored: str) -> str:
        """Returns the stored value in the dtype of the intermediate array, as text."""
        function = self._spelled("astype")
        is_call = isinstance(self.parts.value, ast.Call)
        by_function = stored.startswith(f"{function}(") and stored.endswith(f", {self.dtype})")
        if is_call and (by_function or stored.endswith(f".astype({self.dtype})")):
            return stored
        return f"{function}({stored}, {self.dtype})"

    def _load(self, load: Read, access: _IntermediateLoad) -> ast.expr:
        """Returns a load of the producer for the tile that the consumer loads."""
        first = len(access.index) - len(load.index)
        places = [
            (access.index[first + axis], access.shape[first + axis]) if self._follows(load, axis) else ("0", "1")
            for axis in range(len(load.index))
        ]
        index, shape = ("".join(f"{part}, " for part in parts) for parts in zip(*places, strict=True))
        call = f"{ast.unparse(load.call.func)}({self.names[load.array]}, ({index}), ({shape}))"
        return ast.parse(call, mode="eval").body

    def _inside(self, access: _IntermediateLoad) -> Iterator[str]:
        """Yields the conditions of the elements inside the array. A block's own tile of one element is inside."""
        for axis, (index, shape) in enumerate(zip(access.index, access.shape, strict=True)):
            if shape == "1":
                if not self._is_own(index, access.call):
                    yield f"({index} < {self.whole}.shape[{axis}])"
            else:
                places = f"{self._spelled('arange')}({shape}, dtype={self._spelled('int32')})"
                places += "" if index == "0" else f" + {_factor(index)} * {_factor(shape)}"
                axes = ", ".join(":" if each == axis else "None" for each in range(self.rank))
                shown = "" if self.rank == 1 else f"[{axes}]"
                yield f"({places} < {self.whole}.shape[{axis}]){shown}"

    def _is_own(self, index: str, at: cst.CSTNode) -> bool:
        """Returns whether an index is 0 or the number of the block."""
        node = cst.parse_expression(index)
        known = reaching(self.source, index, at) if isinstance(node, cst.Name) else None
        if known is not None and isinstance(known.value, cst.BaseExpression):
            node = known.value
        return index == "0" or (isinstance(node, cst.Call) and self.source.tile_name(dotted(node.func)) == "bid")

    def _result(self, changes: Changes) -> Fused:
        producer, consumer = self.parts.kernel, self.function.name.value
        params = self.function.params
        self.taken |= self.everywhere
        name = self._fresh(f"{producer}_{consumer}")
        if params.posonly_params or params.kwonly_params:
            raise self.refused("it has parameters that are only positional, or only keywords")
        given: list[cst.Param] = []
        for param in params.params:
            if param.name.value == self.read:
                given += [self._parameter(each) for each in self.parts.parameters.values()]
            else:
                given.append(param.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        changed = self.source.changed({
            **changes,
            self.function.name: cst.Name(name),
            params: params.with_changes(params=given),
        })  # fmt: skip
        gone = changed.functions.get(producer)
        text = changed.replaced({} if gone is None else {gone: cst.FlattenSentinel([])})
        mine = {param.name.value: param.name.value for param in params.params if param.name.value != self.read}
        whole = self.parts.whole
        own = {new: old for old, new in self.names.items()}
        names = tuple(param.name.value for param in given)
        return Fused(name, self._with_constants(text), names, own, mine, whole.index, whole.shape, self.whole)

    def _with_constants(self, text: str) -> str:
        used = [
            f"{self.constants[name]} = {value}\n" for name, value in CONSTANTS.items() if self.constants[name] in text
        ]
        return with_short_lines("", "".join((*used, "\n" if used else "", text.lstrip("\n"))))

    def _parameter(self, own: ast.arg) -> cst.Param:
        text = f"def f({self.names[own.arg]}{f': {ast.unparse(own.annotation)}' if own.annotation else ''}): pass"
        function = cst.parse_statement(text)
        assert isinstance(function, cst.FunctionDef)
        return function.params.params[0]


class _MovedLoad(ast.expr):
    """The place of a load, with the load of the fused kernel, whose names stay."""

    def __init__(self, load: ast.expr) -> None:
        super().__init__()
        self.load = load


class _Renaming(ast.NodeTransformer):
    """Gives names new names, and replaces what a kernel asks about its output."""

    def __init__(self, names: Mapping[str, str], output: str, whole: str, dtype: str) -> None:
        self.names, self.output, self.whole, self.dtype = names, output, whole, dtype

    def visit__MovedLoad(self, node: _MovedLoad) -> ast.expr:
        return node.load

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.output:
            if node.attr == "dtype":
                return ast.parse(self.dtype, mode="eval").body
            return ast.Attribute(ast.Name(self.whole, ast.Load()), node.attr, node.ctx)
        return self.generic_visit(node)


def _read(parts: ElementWise) -> set[str]:
    """Returns the names that the producer's arithmetic reads."""
    calls = [read.call for read in parts.reads]
    return {name for part in (*parts.lines, parts.value) for name in read_outside(part, calls)}


def _factor(text: str) -> str:
    return text if re.fullmatch(r"\w+(\[\d+\])?", text) else f"({text})"


def _after(added: Sequence[str], line: cst.CSTNode) -> Replacement:
    return cst.FlattenSentinel([*map(line_of, added), line])
