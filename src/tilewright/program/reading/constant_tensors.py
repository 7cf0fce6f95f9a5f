"""Finds tensors that depend only on sizes, devices and types: masks, tables of positions, means of channels.

`ConstantsOf` reads the statements of one function. A constant depends on *keys*, such as ``x.size(1)`` or ``x.device``:
equal keys give an equal tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.program.reading.devices import is_device
from tilewright.program.reading.flow import assigned, last_change
from tilewright.program.reading.layers import is_self
from tilewright.program.reading.module import Function, ReadModule
from tilewright.program.reading.numbers import is_number, number_value
from tilewright.program.reading.operations import operation
from tilewright.program.reading.purity import METHODS
from tilewright.source.source_file import returned, stored

MADE = ("arange", "ones", "zeros", "full", "eye", "linspace", "logspace", "tensor", "as_tensor", "tril_indices",
        "triu_indices", "hann_window", "hamming_window")  # fmt: skip
PURE = (*METHODS, "outer", "cat", "stack", "meshgrid", "cos", "sin", "tan", "tanh", "polar", "cumprod", "arange",
        "where", "logspace", "linspace", "ones_like", "zeros_like", "full_like", "concat", "log2", "log10", "deg2rad",
        "device", "masked_fill", "kron", "diag", "bitwise_not", "float_power", "clamp", "remainder")  # fmt: skip
PRODUCTS = ("matmul", "bmm", "mm", "einsum")
"""Operations that autocast rounds differently."""
COPIES = ("to", "cuda", "tensor", "as_tensor")
SIZED = ("arange", "ones", "zeros", "eye", "empty", "view", "reshape", "expand", "repeat", "randn", "rand")
LAYERS = ("Linear", "Embedding", "LayerNorm", "GroupNorm", "RMSNorm", "Conv1d", "Conv2d", "range")
DEPTH = 6


@dataclass
class ConstantRun:
    """Consecutive statements of one block that make constants; or one constant expression in a statement."""

    statements: list[ast.stmt]
    expression: ast.expr | None
    keys: dict[str, list[ast.expr]]
    """Text of a key → the expressions that have it."""
    names: set[str]
    """The names that the statements bind."""
    work: int
    copies: bool


class ConstantsOf:
    """Reads one function of a file."""

    def __init__(self, module: ReadModule, function: Function) -> None:
        self.module, self.function = module, function
        self.sized = set(_sized(module))

    def runs(self) -> Iterator[ConstantRun]:
        """Yields the runs of statements, and the expressions of other statements, in the order of the text."""
        run = _empty()
        for statement in self.function.body:
            if self._extend(run, statement):
                continue
            if run.statements and self._is_number_statement(statement):
                continue  # this statement is not moved: it stays above the last statement of the run
            if run.statements:
                yield run
            run = _empty()
            if self._extend(run, statement):
                continue
            yield from self._expressions(statement)
        if run.statements:
            yield run

    def _extend(self, run: ConstantRun, statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                keys = self.keys(value, statement, run.names)
                if keys is None or not (_makes(self.module, value) or self._reads(value, run.names)):
                    return False
                run.names.add(name)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=index)], value=value):
                inner = self.keys(value, statement, run.names)
                index_keys = self.keys(index, statement, run.names)
                if name not in run.names or inner is None or index_keys is None:
                    return False
                keys = [*inner, *index_keys]
            case _:
                return False
        run.statements.append(statement)
        self._count(run, statement, keys)
        return True

    def _expressions(self, statement: ast.stmt) -> Iterator[ConstantRun]:
        """Yields the largest constant expressions of a statement that is not constant as a whole."""
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.With, ast.Try)):
            return
        waiting: list[ast.AST] = [statement.test] if isinstance(statement, ast.If) else [statement]
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp, ast.JoinedStr)):
                continue
            if isinstance(node, (ast.Call, ast.BinOp)) and _makes(self.module, node):
                keys = self.keys(node, statement, set())
                if keys is not None:
                    run = _empty()
                    run.expression = node
                    self._count(run, node, keys)
                    yield run
                    continue
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))

    def _count(self, run: ConstantRun, node: ast.AST, keys: list[ast.expr]) -> None:
        for key in keys:
            run.keys.setdefault(self.module.code(key), []).append(key)
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                name = operation(self.module, each)[0]
                run.work += name not in ("size", "device", "")
                run.copies = run.copies or name in COPIES or self._helper(each) is not None
            run.work += isinstance(each, ast.BinOp) and self._reads(each, run.names)
        if isinstance(node, ast.stmt) and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            run.work += 1

    def _reads(self, node: ast.AST, names: set[str]) -> bool:
        return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))

    # Expressions ------------------------------------------------------------------------------------------

    def keys(self, node: ast.AST, at: ast.stmt, names: set[str], depth: int = 40) -> list[ast.expr] | None:
        """Returns the keys of a constant expression; None for other expressions. names: constants that earlier
        statements make.
        """
        if isinstance(node, ast.expr) and self._is_key(node, at, names):
            return [] if self._is_plain(node) else [node]
        inside: list[ast.AST]
        match node:
            case ast.Constant() | ast.expr_context():
                return []
            case ast.Name(id=name):
                return [] if name in names or self.module.full(node) or _is_constant_list(self.module, node) else None
            case ast.Attribute() if self.module.full(node).startswith(("torch.", "math.", "numpy.")):
                return []
            case ast.Attribute(value=value, attr="T" | "mT"):
                inside = [value]
            case ast.Call():
                if not self._is_pure(node):
                    return None
                base = (
                    [node.func.value]
                    if isinstance(node.func, ast.Attribute) and not self.module.full(node.func)
                    else []
                )
                inside = [*base, *node.args, *(keyword.value for keyword in node.keywords)]
            case ast.BinOp(op=ast.MatMult()):
                return None
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.Tuple() | ast.List() | ast.Subscript() | ast.Slice():
                inside = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
            case ast.Starred(value=value):
                inside = [value]
            case _:
                return None
        found: list[ast.expr] = []
        for each in inside:
            keys = self.keys(each, at, names, depth - 1) if depth else None
            if keys is None:
                return None
            found += keys
        return found

    def _is_plain(self, node: ast.expr) -> bool:
        """Returns whether an expression is a literal, or has the same value everywhere."""
        return not any(isinstance(each, ast.Name) and not self.module.full(each) for each in ast.walk(node))

    def _is_key(self, node: ast.expr, at: ast.stmt, names: set[str]) -> bool:
        if self._reads(node, names):
            return False
        match node:
            case ast.Attribute(attr="device" | "dtype", value=value):
                return not self.module.full(node) and not self._calls(value)
            case ast.Name() | ast.Attribute() if not self.module.full(node) and is_device(self.module, node):
                return True
            case ast.Constant(value=str()):
                return True
        return self._is_number(node, at)

    def _calls(self, node: ast.AST) -> bool:
        return any(isinstance(each, ast.Call) for each in ast.walk(node))

    def _is_number(self, node: ast.AST, at: ast.stmt, depth: int = DEPTH) -> bool:
        if depth == 0:
            return False
        match node:
            case ast.Name(id=name):
                change = last_change(self.module, name, at)
                value = assigned(change, name)
                if change is not None and value is not None:
                    return self._is_number(value, change, depth - 1)
                return is_number(self.module, node) or self.module.code(node) in self.sized
            case ast.Attribute():
                return is_number(self.module, node) or self._is_size(node)
            case ast.BinOp(left=left, right=right, op=op) if not isinstance(op, ast.MatMult):
                return self._is_number(left, at, depth - 1) and self._is_number(right, at, depth - 1)
            case ast.UnaryOp(operand=operand):
                return self._is_number(operand, at, depth - 1)
            case ast.Call(func=func, args=args) if self.module.full(func).startswith("math."):
                return all(self._is_number(each, at, depth - 1) for each in args)
        return is_number(self.module, node)

    def _is_size(self, node: ast.Attribute) -> bool:
        """Returns whether an attribute is a size: the file uses it as a size, or uses the argument of the same name as
        a size.
        """
        if self.module.code(node) in self.sized:
            return True
        return is_self(self.module, node.value) and node.attr in self.sized

    def _is_number_statement(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign(targets=[ast.Name()], value=value):
                return self._is_number(value, statement) or is_device(self.module, value)
        return False

    def _is_pure(self, call: ast.Call) -> bool:
        return is_pure_operation(self.module, call) or self._helper(call) is not None

    def _helper(self, call: ast.Call) -> ast.AST | None:
        """Returns the program's function that a call runs, if the function only makes a constant from its arguments."""
        found = self.module.defined(call.func) if isinstance(call.func, ast.Name) else None
        if found is None or not isinstance(found[1], ast.FunctionDef) or found[1] is self.function:
            return None
        other, function = found[0], found[1]
        if function.decorator_list or len(returned(function)) != 1 or function.args.vararg or function.args.kwarg:
            return None
        for statement in function.body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if not isinstance(statement, (ast.Assign, ast.Return)):
                return None
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and not is_pure_operation(other, node):
                    return None
                read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not other.full(node)
                known = {arg.arg for arg in function.args.args} | stored(function)
                if isinstance(node, ast.Name) and read and node.id not in known:
                    return None
        return function


def is_pure_operation(module: ReadModule, call: ast.Call) -> bool:
    """Returns whether a call gives the same result for the same arguments, and uses neither products nor random
    numbers.
    """
    if any(keyword.arg in ("out", "requires_grad", "generator", None) for keyword in call.keywords):
        return False
    if module.full(call.func).startswith("math.") or module.is_builtin(call.func, "int", "float", "len"):
        return True
    name = operation(module, call)[0]
    return name in (*MADE, *PURE) and name not in PRODUCTS and not name.endswith("_")


def _empty() -> ConstantRun:
    return ConstantRun([], None, {}, set(), 0, False)


def _makes(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether an expression makes a tensor, directly or by a function of the program."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            if module.called(each).removeprefix("torch.") in MADE:
                return True
            found = module.defined(each.func) if isinstance(each.func, ast.Name) else None
            inside = ast.walk(found[1]) if found is not None and isinstance(found[1], ast.FunctionDef) else ()
            if found is not None and any(found[0].called(n).removeprefix("torch.") in MADE for n in inside):
                return True
    return False


def _is_constant_list(module: ReadModule, node: ast.Name) -> bool:
    """Returns whether a name is a list or a tuple of literal numbers at the top of the file, which nothing changes."""
    bound = module.file.bindings(node.id, node)
    if len(bound) != 1 or bound[0] not in module.file.at_top(node.id) or bound[0].kind != "value":
        return False
    value, name = bound[0].value, node.id
    if not isinstance(value, (ast.List, ast.Tuple)) or name in module.declared_global:
        return False
    if not all(number_value(each) is not None for each in value.elts):
        return False
    nodes = [each for other in module.program for each in other.file.nodes]
    imported = any(isinstance(each, ast.alias) and each.name in (name, "*") for each in nodes)
    imported = imported or any(isinstance(each, ast.Attribute) and each.attr == name for each in nodes)
    uses = (each for each in module.file.nodes if isinstance(each, ast.Name) and each.id == name)
    return not imported and (isinstance(value, ast.Tuple) or all(_only_reads(module, each, value) for each in uses))


def _only_reads(module: ReadModule, use: ast.Name, value: ast.expr) -> bool:
    parent = module.parent(use)
    match parent:
        case ast.Assign(value=bound):
            return bound is value
        case ast.Call(func=function, args=args):
            known = module.full(function).startswith(("torch.", "numpy.")) or module.is_builtin(function, "len", "sum")
            return known and use in args
        case ast.Subscript(value=whole, ctx=ast.Load()):
            return whole is use
        case ast.comprehension(iter=whole) | ast.For(iter=whole):
            return whole is use
    return False


def _sized(module: ReadModule) -> Iterator[str]:
    """Yields the texts that the file uses as a size of a tensor or a layer, or as the end of a range."""
    for call in module.file.every(ast.Call):
        name = module.full(call.func).rpartition(".")[2] or getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in (*SIZED, *LAYERS):
            for each in (*call.args, *(keyword.value for keyword in call.keywords)):
                for part in each.elts if isinstance(each, ast.Tuple) else (each,):
                    if isinstance(part, (ast.Name, ast.Attribute)):
                        yield module.code(part)
