"""Reads a reference over arrays from its syntax tree. Nothing is executed, and neither NumPy nor torch is imported.

    def reference(x: "bfloat16[M, N]", weight: "[N]", eps=1e-6):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight

An annotation gives the dtype and the extents of a tensor. A parameter with a default is a number. Without annotations,
the first tensor is [M, N], and so are all others whose names are not in `ROLES`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import RequestError
from tilewright.specialists.writing import functions
from tilewright.specialists.writing.expression import FLOATS, Computation, Expression, Graph, Operand, OutsideForms
from tilewright.task.tensors import ITEM_BYTES

ROLES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("weight", "gamma", "scale", "bias", "beta", "shift", "w", "b"), ("", "N")),
    **dict.fromkeys(("labels", "target", "targets", "label"), ("int64", "M")),
    "mask": ("bool", "M, N"),
}
"""The dtype and the extents of parameters without an annotation, by name. "": the dtype of the other tensors."""
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8")
SIGNS: Mapping[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&", ast.BitOr: "|", ast.Lt: "<",
    ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
ARITHMETIC = {"+": float.__add__, "-": float.__sub__, "*": float.__mul__, "/": float.__truediv__}
NUMBERS = {"pi": math.pi, "e": math.e, "inf": math.inf, "newaxis": None}


def read(source: str, function: str, dtype: str = "bfloat16", file: str = "the reference") -> Computation:
    """Reads one function of a Python source.

    dtype: the dtype of float tensors whose annotation has none.
    Raises OutsideForms, which names the unsupported line, and RequestError if there is no such function.
    """
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise RequestError(f"{file} is no Python source: line {error.lineno}: {error.msg}") from None
    found = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    if function not in found:
        raise RequestError(f"{file} has no function '{function}'; its functions: {', '.join(found) or 'none'}")
    return ReferenceReader(module, found, file).computation(found[function], dtype)


def operands(function: ast.FunctionDef, dtype: str) -> tuple[Operand, ...]:
    """Returns the tensors among a function's parameters. They are the parameters without a default."""
    arguments = function.args
    if arguments.vararg or arguments.kwarg:
        raise OutsideForms(f"'{function.name}' has * or ** parameters; name each tensor")
    positional = (*arguments.posonlyargs, *arguments.args)
    tensors = positional[: len(positional) - len(arguments.defaults)]
    if not tensors:
        raise OutsideForms(f"'{function.name}' has no parameter without a default, so no tensor")
    return tuple(_operand(each.arg, each.annotation, dtype) for each in tensors)


def _operand(name: str, annotation: ast.expr | None, dtype: str) -> Operand:
    given, extents = ROLES.get(name, ("", "M, N"))
    written = annotation.value if isinstance(annotation, ast.Constant) else None
    if isinstance(written, str) and "[" in written:
        known = re.fullmatch(r"\s*(\w*)\s*\[([\w\s,]*)\]\s*", written)
        if known is None:
            raise RequestError(f"the annotation '{written}' of '{name}' is not of the form \"bfloat16[M, N]\"")
        given, extents = known[1], known[2]
    shape = tuple(1 if extent == "1" else extent for extent in re.findall(r"\w+", extents))
    if wrong := next((each for each in shape if isinstance(each, str) and not each.isidentifier()), None):
        raise RequestError(f"the extent {wrong} of '{name}' is a number; give it a name, such as D")
    if len({each for each in shape if each != 1}) < sum(each != 1 for each in shape):
        raise RequestError(f"two axes of '{name}' have one name; name each extent, and give equal sizes as workloads")
    if (given or dtype) not in ITEM_BYTES:
        raise RequestError(f"unknown dtype '{given or dtype}' of '{name}'; known: {', '.join((*FLOATS, *WHOLE))}")
    if (given or dtype) not in (*FLOATS, *WHOLE):
        raise OutsideForms(f"'{name}' is {given or dtype}; kernels are written for {', '.join((*FLOATS, *WHOLE))}")
    return Operand(name, shape, given or dtype)


@dataclass
class ReferenceReader:
    """Evaluates a function on expressions instead of arrays."""

    module: ast.Module
    functions: Mapping[str, ast.FunctionDef]
    file: str
    graph: Graph = field(default_factory=Graph)
    imported: set[str] = field(default_factory=set)
    constants: dict[str, Any] = field(default_factory=dict)
    depth: int = 0

    def __post_init__(self) -> None:
        for node in self.module.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imported |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                try:
                    self.constants[node.targets[0].id] = self.value(node.value, {})
                except (OutsideForms, RequestError):
                    continue  # it is an error only if the reference uses it

    def computation(self, function: ast.FunctionDef, dtype: str) -> Computation:
        """Reads the function that has the tensors as parameters."""
        inputs = operands(function, dtype)
        kinds = {each.name: "float" if each.dtype in FLOATS else each.dtype for each in inputs}
        known = {
            each.name: self.graph.make("input", (), each.shape, each.name, kinds[each.name]) for each in inputs
        }  # fmt: skip
        result = self.called(function, list(known.values()), {})
        results = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(each, Expression) for each in results) or any(each.dtype != "float" for each in results):
            raise OutsideForms(f"'{function.name}' returns something that is no array of floats")
        floats = [each.dtype for each in inputs if each.dtype in FLOATS]
        if not floats:
            raise OutsideForms(f"'{function.name}' has no tensor of floats")
        names = self._names(results, {each.name for each in inputs})
        outputs = tuple((Operand(name, each.shape, floats[0]), each) for name, each in zip(names, results, strict=True))
        return Computation(function.name, inputs, outputs, self.graph)

    def _names(self, results: tuple[Expression, ...], taken: set[str]) -> list[str]:
        names: list[str] = []
        for number, each in enumerate(results):
            plain = "y" if len(results) == 1 else f"y{number}"
            own = self.graph.names.get(each, plain) if len(results) > 1 else plain
            names.append(own if own not in taken | set(names) and own.isidentifier() else f"{own}_out")
        return names

    def called(self, function: ast.FunctionDef, given: list[Any], options: Mapping[str, Any]) -> Any:
        """Evaluates a call of a function of the same file."""
        self.depth += 1
        if self.depth > 8:
            raise OutsideForms(f"'{function.name}' calls itself, or too many others")
        arguments = (*function.args.posonlyargs, *function.args.args)
        defaults = function.args.defaults
        names = {each.arg: self.value(value, {}) for each, value in zip(
            arguments[len(arguments) - len(defaults) :], defaults, strict=True)}  # fmt: skip
        names |= {each.arg: self.value(value, {}) for each, value in zip(
            function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value is not None}  # fmt: skip
        names |= dict(zip((each.arg for each in arguments), given, strict=False))
        names |= options
        try:
            return self._body(function, names)
        finally:
            self.depth -= 1

    def _body(self, function: ast.FunctionDef, names: dict[str, Any]) -> Any:
        for node in function.body:
            if isinstance(node, ast.Return) and node.value is not None:
                return self.value(node.value, names)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], self.value(node.value, names), names)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, self.value(node.value, names), names)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                done = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
                self._assign(node.target, self.value(ast.copy_location(done, node), names), names)
            else:
                raise self.outside(node, f"a statement '{type(node).__name__.lower()}'")
        raise OutsideForms(f"'{function.name}' returns nothing")

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(target.elts) == len(value):
            for each, part in zip(target.elts, value, strict=True):
                self._assign(each, part, names)
        elif isinstance(target, ast.Name):
            names[target.id] = value
            if isinstance(value, Expression) and value.op not in ("input", "number", "extent"):
                self.graph.names.setdefault(value, target.id)
        else:
            raise self.outside(target, "an assignment to a part of an array")

    def outside(self, node: ast.AST, what: str) -> OutsideForms:
        return OutsideForms(f"{self.file}, line {getattr(node, 'lineno', '?')}: {what}")

    # Expressions ----------------------------------------------------------------------------------

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """Evaluates one expression to an `Expression`, a number, a tuple, text or None."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.outside(node, f"'{ast.unparse(node)}'")
        try:
            return method(node, names)
        except OutsideForms as error:
            if ", line " in str(error):
                raise
            raise self.outside(node, str(error)) from None
        except (TypeError, IndexError, AttributeError, ZeroDivisionError):
            raise self.outside(node, f"'{ast.unparse(node)}'") from None

    def _constant(self, node: ast.Constant, names: Mapping[str, Any]) -> Any:
        return node.value

    def _tuple(self, node: ast.Tuple, names: Mapping[str, Any]) -> Any:
        return tuple(self.value(each, names) for each in node.elts)

    _list = _tuple

    def _name(self, node: ast.Name, names: Mapping[str, Any]) -> Any:
        for known in (names, self.constants):
            if node.id in known:
                return known[node.id]
        raise self.outside(node, f"'{node.id}', which is neither a parameter nor a constant of the file")

    def _binop(self, node: ast.BinOp, names: Mapping[str, Any]) -> Any:
        left, right = self.value(node.left, names), self.value(node.right, names)
        if isinstance(node.op, ast.MatMult):
            return functions.matmul(self.graph, left, right)
        if isinstance(node.op, ast.Pow):
            numbers = isinstance(left, int | float) and isinstance(right, int | float)
            return left**right if numbers else functions.power(self.graph, left, right)
        sign = SIGNS.get(type(node.op))
        if sign is None:
            raise self.outside(node, f"'{ast.unparse(node)}'")
        return self.applied(sign, left, right)

    def applied(self, sign: str, left: Any, right: Any) -> Any:
        """Applies a sign to two values. If both are numbers, the result is a number."""
        if isinstance(left, int | float) and isinstance(right, int | float) and sign in ARITHMETIC:
            return ARITHMETIC[sign](float(left), float(right))
        return self.graph.apply(sign, left, right)

    def _unaryop(self, node: ast.UnaryOp, names: Mapping[str, Any]) -> Any:
        of = self.value(node.operand, names)
        if isinstance(node.op, ast.USub):
            return -of if isinstance(of, int | float) else self.graph.apply("neg", of)
        if isinstance(node.op, ast.Invert):
            return self.graph.apply("not", of)
        raise self.outside(node, f"'{ast.unparse(node)}'")

    def _compare(self, node: ast.Compare, names: Mapping[str, Any]) -> Any:
        if len(node.ops) != 1 or type(node.ops[0]) not in SIGNS:
            raise self.outside(node, f"'{ast.unparse(node)}'")
        return self.graph.apply(
            SIGNS[type(node.ops[0])], self.value(node.left, names), self.value(node.comparators[0], names)
        )

    def _attribute(self, node: ast.Attribute, names: Mapping[str, Any]) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in self.imported - set(names):
            return NUMBERS.get(node.attr)  # others are dtypes, which have no effect
        of = self.value(node.value, names)
        if node.attr == "shape" and isinstance(of, Expression):
            return tuple(self._extent(extent) for extent in of.shape)
        if isinstance(of, tuple) and node.attr == "values":  # torch's x.max(dim=-1).values
            return of[0]
        if node.attr in ("T", "mT"):
            return functions.transposed(self.graph, of)
        raise self.outside(node, f"'{ast.unparse(node)}'")

    def _extent(self, extent: str | int) -> Any:
        return self.graph.make("extent", value=extent) if isinstance(extent, str) else extent

    def _subscript(self, node: ast.Subscript, names: Mapping[str, Any]) -> Any:
        of = self.value(node.value, names)
        if isinstance(of, tuple):
            return of[self.value(node.slice, names)]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        whole = [isinstance(part, ast.Slice) and not (part.lower or part.upper or part.step) for part in parts]
        dots = [isinstance(part, ast.Constant) and part.value is ... for part in parts]
        rest = [part for part, plain, dot in zip(parts, whole, dots, strict=True) if not plain and not dot]
        if any(isinstance(part, ast.Slice) for part in rest):
            raise self.outside(node, f"the part '{ast.unparse(node)}' of an array")
        if rest and all(self.value(part, names) is None for part in rest):
            for place, (plain, dot) in enumerate(zip(whole, dots, strict=True)):
                if not plain and not dot:
                    after = any(dots[:place])
                    of = functions.expanded(self.graph, of, -1 if after else place)
            return of
        if len(rest) == 1 and rest[0] is parts[-1] and self.value(rest[0], names) == 0:
            return functions.dropped(self.graph, of, -1)
        if len(parts) == 2 and len(rest) == 2 and len(of.shape) == 2:
            rows, labels = (self.value(part, names) for part in parts)
            if isinstance(rows, Expression) and rows.op == "index" and rows.value == of.shape[0]:
                return functions.picked(self.graph, of, labels)
        raise self.outside(node, f"the part '{ast.unparse(node)}' of an array")

    def _call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        given = [self.value(each, names) for each in node.args if not isinstance(each, ast.Starred)]
        options = {each.arg: self.value(each.value, names) for each in node.keywords if each.arg is not None}
        if len(given) != len(node.args) or len(options) != len(node.keywords):
            raise self.outside(node, f"'{ast.unparse(node)}'")
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            return self.called(self.functions[node.func.id], given, options)
        name, of = self._callee(node.func, names)
        if name == "arange" and len(given) == 1 and isinstance(given[0], Expression) and given[0].op == "extent":
            extent = str(given[0].value)
            return self.graph.make("index", (), (extent,), extent, "int64")
        arguments = [*of, *given]
        if arguments and all(isinstance(each, int | float) for each in arguments) and hasattr(math, name):
            return getattr(math, name)(*arguments)
        if name == "size" and of:  # torch's x.size(-1)
            return self._extent(of[0].shape[given[0]])
        if name in ("float", "int") and arguments and isinstance(arguments[0], int | float):
            return arguments[0]
        if name not in functions.FUNCTIONS:
            raise self.outside(node, f"the function '{name}'")
        result = functions.FUNCTIONS[name](self.graph, *arguments, **options)
        return (result, None) if name in ("max", "min") and self._gives_places(len(arguments), options) else result

    def _gives_places(self, arguments: int, options: Mapping[str, Any]) -> bool:
        """Returns whether a call of ``max`` or ``min`` is torch's, with an axis: it returns values and indices."""
        return "dim" in options or (arguments > 1 and "torch" in self.imported and "axis" not in options)

    def _callee(self, node: ast.expr, names: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """Returns the name of a called function. For a method, also returns its array."""
        if isinstance(node, ast.Name):
            return node.id, []
        if not isinstance(node, ast.Attribute):
            raise self.outside(node, f"'{ast.unparse(node)}'")
        root: ast.expr = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.imported and root.id not in names:
            return node.attr, []
        return node.attr, [self.value(node.value, names)]
