"""Decides whether a kernel is element-wise: each output element depends only on input elements at the same index.

Such a kernel loads tiles, computes with them, and stores one tile, in straight lines. Every loaded tile has the index
and the shape of the stored tile, or, along an axis that is broadcast, index 0 and one element. So the kernel's
arithmetic can be done for a tile of any index and shape, such as the tile that another kernel loads (`fusing`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.playbook.base import NotApplicable
from tilewright.source.source_file import argument
from tilewright.source.syntax import Source

ELEMENT_WISE = frozenset((
    "abs", "add", "astype", "atan2", "bitwise_and", "bitwise_lshift", "bitwise_not", "bitwise_or", "bitwise_rshift",
    "bitwise_xor", "ceil", "cos", "cosh", "equal", "exp", "exp2", "floor", "floordiv", "greater", "greater_equal",
    "isnan", "less", "less_equal", "log", "log2", "maximum", "minimum", "mod", "mul", "negative", "not_equal", "pow",
    "rsqrt", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "truediv", "where",
))  # fmt: skip
"""Functions of cuda.tile that compute each element from elements at the same index."""
BUILTINS = ("abs", "float", "int", "max", "min")
SCALAR = ("bid", "num_blocks", "num_tiles", "cdiv", "static_eval")
"""Functions of cuda.tile that return no tile."""
HINTS = ("padding_mode", "latency", "allow_tma")
"""Arguments of ``ct.load`` that do not change elements inside the array."""
PLACE = ("bid", "num_blocks")
ASKED = ("dtype", "ndim", "shape")
"""The attributes of its output that a kernel may use."""


@dataclass(frozen=True)
class Read:
    """A load. ``index``, ``shape``: the texts of the tile's index and shape, for each axis, in parameters only."""

    call: ast.Call
    array: str
    index: tuple[str, ...]
    shape: tuple[str, ...]

    @property
    def tiles(self) -> tuple[tuple[str, str], ...]:
        """The index and the extent of the tile, for each axis."""
        return tuple(zip(self.index, self.shape, strict=True))


@dataclass(frozen=True)
class ElementWise:
    """The body of an element-wise kernel.

    lines: the statements that the stored value needs, in order, without indices.
    value: the stored value.
    whole: the load of a tile with the index and the shape of the stored one.
    """

    kernel: str
    output: str
    lines: tuple[ast.stmt, ...]
    value: ast.expr
    reads: tuple[Read, ...]
    whole: Read
    parameters: Mapping[str, ast.arg]
    """The parameters that the value needs."""


def element_wise(source: Source, kernel: str) -> ElementWise:
    """Returns the parts of an element-wise kernel. Raises `NotApplicable` with the reason if it is not element-wise."""
    return _KernelReader(source, kernel).read()


def in_parts(node: ast.expr | None) -> list[ast.expr]:
    """Returns the items of a tuple; an expression that is no tuple is its only item."""
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List) else [] if node is None else [node]


class _KernelReader:
    def __init__(self, source: Source, kernel: str) -> None:
        top = ast.parse(source.text).body
        self.source, self.kernel = source, kernel
        self.functions = {each.name: each for each in top if isinstance(each, ast.FunctionDef)}
        arguments = self.functions[kernel].args
        self.parameters = {each.arg: each for each in (*arguments.posonlyargs, *arguments.args)}
        self.scalars: dict[str, ast.expr] = {}
        """The values of names that hold no tile, written with parameters only."""
        self.tiles: set[str] = set()
        self.loads: list[Read] = []
        self.checked: set[str] = set()
        lines = (each for each in top if isinstance(each, ast.Assign | ast.AnnAssign))
        bound = {each.id for line in lines for each in ast.walk(line) if isinstance(each, ast.Name)} | {*self.functions}
        self.builtins = {each for each in BUILTINS if each not in bound and source.origin(each) == each}

    def refused(self, reason: str) -> NotApplicable:
        return NotApplicable(f"{self.kernel} is not element-wise: {reason}")

    def read(self) -> ElementWise:
        lines: list[tuple[str, ast.stmt]] = []
        store: ast.Call | None = None
        for statement in self.functions[self.kernel].body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring
            if store is not None:
                raise self.refused("it does something after its first store")
            if isinstance(statement, ast.Expr) and self._tile_name(statement.value) == "store":
                assert isinstance(statement.value, ast.Call)
                store = statement.value
                continue
            for target, value, line in self._assigned(statement):
                lines.append((target, line))
                self._define(target, value)
        if store is None:
            raise self.refused("it stores no tile with ct.store")
        return self._result(store, lines)

    def _result(self, store: ast.Call, lines: Sequence[tuple[str, ast.stmt]]) -> ElementWise:
        output, value = argument(store, 0, "array"), argument(store, 2, "tile")
        if not isinstance(output, ast.Name) or value is None or any(each.arg == "order" for each in store.keywords):
            raise self.refused("its store is not of the form ct.store(array, index, tile)")
        self._check(value)
        calls = [read.call for read in self.loads]
        needed, kept = read_outside(value, calls), list[ast.stmt]()
        for target, line in reversed(lines):
            if target in needed:
                kept.append(line)
                needed |= read_outside(line, calls)
        for part in (*kept, value):
            if any(self._tile_name(each) in PLACE for each in _outside(part, calls)):
                raise self.refused(f"its arithmetic uses the number of the block: {ast.unparse(part)}")
            self._refuse_use(output.id, part)
        used = [each for part in (*kept, value) for each in ast.walk(part)]
        reads = tuple(read for read in self.loads if any(read.call is each for each in used))
        whole = self._whole(reads, self._texts(argument(store, 1, "index")))
        for read in reads:
            self._refuse_other_place(read, whole)
        wanted = needed | {read.array for read in reads}
        if output.id in {read.array for read in reads}:
            raise self.refused(f"it reads '{output.id}', which it writes")
        parameters = {name: each for name, each in self.parameters.items() if name in wanted - {output.id}}
        return ElementWise(self.kernel, output.id, tuple(reversed(kept)), value, reads, whole, parameters)

    def _assigned(self, statement: ast.stmt) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
        """Yields the name, the value and the statement of each assignment."""
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                yield name, value, statement
            case ast.Assign(targets=[ast.Tuple(elts=[*targets])], value=ast.Tuple(elts=values)) if len(targets) == len(
                values
            ) and not {*map(ast.unparse, targets)} & read_outside(statement, ()):
                for target, value in zip(targets, values, strict=True):
                    line = ast.Assign([target], value, lineno=statement.lineno)
                    yield from self._assigned(line)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                yield name, ast.BinOp(ast.Name(name, ast.Load()), op, value), statement
            case _:
                what = type(statement).__name__.lower()
                raise self.refused(f"line {statement.lineno - self.functions[self.kernel].lineno + 1} is a '{what}'")

    def _refuse_use(self, output: str, part: ast.AST) -> None:
        """Raises `NotApplicable` if a part asks the output for more than its shape and dtype, or hands it on."""
        known = [each.value for each in ast.walk(part) if isinstance(each, ast.Attribute) and each.attr in ASKED]
        for each in ast.walk(part):
            if isinstance(each, ast.Name) and each.id == output and not any(each is value for value in known):
                raise self.refused(f"its arithmetic uses '{output}', which it writes: {ast.unparse(part)}")

    def _define(self, name: str, value: ast.expr) -> None:
        is_load = self._tile_name(value) == "load"
        if name in self.parameters and name not in self.tiles and not is_load:
            raise self.refused(f"it assigns to its parameter '{name}'")
        if self._has_tile(value):
            self._check(value)
            self.tiles.add(name)
            self.scalars.pop(name, None)
        else:
            self.scalars[name] = _substituted(value, self.scalars)
            self.tiles.discard(name)

    def _has_tile(self, value: ast.expr) -> bool:
        return any(
            (isinstance(each, ast.Name) and each.id in self.tiles)
            or (isinstance(each, ast.Call) and not self._returns_scalar(each))
            for each in ast.walk(value)
        )

    def _returns_scalar(self, call: ast.Call) -> bool:
        """Returns whether a call returns no tile, if none of its arguments is one."""
        called = _dotted(call.func)
        return (
            self._tile_name(call) in SCALAR or called in self.builtins or self.source.origin(called).startswith("math.")
        )

    def _tile_name(self, node: ast.AST) -> str:
        return self.source.tile_name(_dotted(node.func)) if isinstance(node, ast.Call) else ""

    def _check(self, value: ast.expr, loads: bool = True) -> None:
        """Raises `NotApplicable` if an expression is not element-wise."""
        match value:
            case ast.Name() | ast.Constant():
                return
            case ast.UnaryOp(operand=operand):
                self._check(operand, loads)
            case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
                self._check(left, loads)
                self._check(right, loads)
            case ast.Compare(left=left, comparators=others):
                for each in (left, *others):
                    self._check(each, loads)
            case ast.Attribute(attr=attr) if attr != "T" and (attr == "dtype" or not self._has_tile(value)):
                return
            case ast.Subscript() if not self._has_tile(value):
                return
            case ast.Call():
                self._check_call(value, loads)
            case _:
                raise self.refused(f"it computes {ast.unparse(value)}")

    def _check_call(self, call: ast.Call, loads: bool) -> None:
        name, called = self._tile_name(call), _dotted(call.func)
        parts = [*call.args, *(each.value for each in call.keywords)]
        if name == "load" and loads:
            self.loads.append(self._load(call))
            return
        if isinstance(call.func, ast.Attribute) and call.func.attr == "astype" and not name:
            self._check(call.func.value, loads)
        elif called in self.functions:
            self._check_helper(self.functions[called])
        elif name not in ELEMENT_WISE and (name or called not in self.builtins) and self._has_tile(call):
            raise self.refused(f"it calls {ast.unparse(call.func)}")
        for part in parts:
            self._check(part, loads)

    def _check_helper(self, helper: ast.FunctionDef) -> None:
        """Raises `NotApplicable` if a function of the file is not element-wise in its arguments."""
        if helper.name in self.checked:
            return
        self.checked.add(helper.name)
        for statement in helper.body:
            match statement:
                case ast.Expr(value=ast.Constant()):
                    pass
                case ast.Return(value=ast.expr() as value):
                    self._check_in_helper(helper, value)
                case _:
                    for _, value, _ in self._assigned(statement):
                        self._check_in_helper(helper, value)

    def _check_in_helper(self, helper: ast.FunctionDef, value: ast.expr) -> None:
        """Checks an expression in which every name may be a tile."""
        if any(self._tile_name(each) in PLACE for each in ast.walk(value)):
            raise self.refused(f"{helper.name} uses the number of the block: {ast.unparse(value)}")
        before = self.tiles
        self.tiles = {
            each.id for each in ast.walk(helper) if isinstance(each, ast.Name) and each.id != self._root(each)
        }
        self.tiles |= {each.arg for each in helper.args.args}
        try:
            self._check(value, loads=False)
        finally:
            self.tiles = before

    def _root(self, name: ast.Name) -> str:
        """Returns the name itself if it is imported, as that of cuda.tile; else ""."""
        return name.id if self.source.origin(name.id) != name.id else ""

    def _texts(self, node: ast.expr | None) -> tuple[str, ...]:
        parts = in_parts(_substituted(node, self.scalars)) if node is not None else []
        return tuple(ast.unparse(part) for part in parts)

    def _load(self, call: ast.Call) -> Read:
        array = argument(call, 0, "array")
        if not isinstance(array, ast.Name) or array.id not in self.parameters:
            raise self.refused(f"it loads from {ast.unparse(array) if array else 'nothing'}, which is no parameter")
        if others := [each.arg for each in call.keywords if each.arg not in ("index", "shape", *HINTS)]:
            raise self.refused(f"a load of '{array.id}' has the option '{others[0]}'")
        index, shape = self._texts(argument(call, 1, "index")), self._texts(argument(call, 2, "shape"))
        if not index or len(index) != len(shape):
            raise self.refused(f"the index and the shape of a load of '{array.id}' are not two tuples of one length")
        return Read(call, array.id, index, shape)

    def _whole(self, reads: Sequence[Read], index: tuple[str, ...]) -> Read:
        """Returns the load of the largest tile with the index of the store."""
        same = [read for read in reads if read.index == index]
        if not same:
            raise self.refused(f"it loads no tile at ({', '.join(index)}), the index of the tile that it stores")
        return min(same, key=lambda read: read.shape.count("1"))

    def _refuse_other_place(self, read: Read, whole: Read) -> None:
        """Raises `NotApplicable` if a load reads other elements than those at the index of the stored tile."""
        missing = len(whole.tiles) - len(read.tiles)
        if missing < 0:
            raise self.refused(f"'{read.array}' has more axes than the tile that it stores")
        for own, other in zip(read.tiles, whole.tiles[missing:], strict=True):
            if own not in (other, ("0", "1")):
                place = f"tile {own[0]} of {own[1]} elements of '{read.array}'"
                raise self.refused(f"it loads {place}, and stores tile {other[0]} of {other[1]}")


def _dotted(node: ast.expr) -> str:
    """Returns the text of a name or attribute, such as ``ct.load``; "" for any other expression."""
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return node.id if isinstance(node, ast.Name) else ""


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replaces an item of a tuple by its value: ``(row, column)[1]``."""
        node = ast.Subscript(self.visit(node.value), self.visit(node.slice), node.ctx)
        match node:
            case ast.Subscript(value=ast.Tuple(elts=items), slice=ast.Constant(value=int(at))) if at < len(items):
                return items[at]
        return node


def _substituted(node: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    """Returns a copy of an expression with names replaced by their values."""
    copy = ast.parse(ast.unparse(node), mode="eval").body
    new: ast.expr = _Substitution(values).visit(copy)
    return new


def read_outside(part: ast.AST, calls: Sequence[ast.Call]) -> set[str]:
    """Returns the names that a statement or an expression reads, but not those in ``calls``."""
    names = {each.id for each in _outside(part, calls) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    changed = isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
    return names | ({part.target.id} if changed else set())  # type: ignore[attr-defined]


def _outside(part: ast.AST, calls: Sequence[ast.Call]) -> Iterator[ast.AST]:
    """Yields the nodes of a statement or an expression, but not those in ``calls``."""
    waiting = [part]
    while waiting:
        node = waiting.pop()
        if not any(node is call for call in calls):
            yield node
            waiting += ast.iter_child_nodes(node)
