"""Rewrites a loop over parameters as operations on lists of all of them: ``torch._foreach_add_(ps, gs, alpha=-lr)``.

`ListedLoop` reads the body of the loop once. An expression becomes one of three things: a number that is the same for
all parameters, a list with one tensor for each parameter, or, after a norm or a sum, a vector with one element for each
parameter. Any other expression raises NotSure. The order of the work changes: a statement is done for all parameters
before the next one is.
"""

from __future__ import annotations

import ast
import re
from typing import Literal, TypeAlias

from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.operations import arithmetic, operation, option
from tilewright.program.reading.purity import is_pure_call
from tilewright.source.source_file import keywords, stored

Kind: TypeAlias = Literal["number", "list", "vector"]
Loop: TypeAlias = ast.For | ast.comprehension
SIGNED = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
UNARY = ("sqrt", "abs", "neg", "exp", "log", "reciprocal", "sign", "tanh", "sigmoid")
IN_PLACE = ("add_", "sub_", "mul_", "div_", "copy_", "zero_", "sqrt_", "neg_", "clamp_min_", "clamp_max_")
NORMS = ("norm", "vector_norm")
OWN = ("clone", "zeros_like", "ones_like", "empty_like", "full_like", "zeros", "deepcopy")
"""Operations that make a tensor with memory of its own."""
SAME = ("detach", "clone", "data", "contiguous")


class ListedLoop:
    """Generates the lines that do a loop's work on lists. ``lines`` grows with each statement that is read."""

    def __init__(self, module: ReadModule, loop: Loop, foreach: str) -> None:
        """foreach: how the file writes ``torch._foreach``."""
        self.module, self.loop, self.foreach = module, loop, foreach
        self.lines: list[str] = []
        self.lists: dict[str, str] = {}
        """Text of an element → name of the list."""
        self.local: dict[str, tuple[str, Kind]] = {}
        """Name → list or vector that the loop computes."""
        self.aliases: dict[str, str] = {}
        """Name → the element that it is another name of."""
        self.read: set[str] = set()
        """Vectors whose elements the host reads."""
        self.conditions = [module.code(test) for test in loop.ifs] if isinstance(loop, ast.comprehension) else []
        self.targets = stored(loop.target)
        self.work = 0
        """How many operations stand for one on each parameter."""

    # Statements -----------------------------------------------------------------------------------------

    def body(self, statements: list[ast.stmt]) -> None:
        """Reads statements. Raises NotSure."""
        for at, statement in enumerate(statements):
            match statement:
                case ast.If(test=test, body=[ast.Continue()], orelse=[]) if not self.lines:
                    self._condition(ast.UnaryOp(ast.Not(), test), test)
                case ast.If(test=test, body=inner, orelse=[]) if at == len(statements) - 1 and not self.lines:
                    self._condition(test, test)
                    self.body(inner)
                case ast.With(items=[item]) if self.module.called(item.context_expr) == "torch.no_grad":
                    outside, self.lines = self.lines, []
                    self.body(statement.body)
                    header = f"with {self.module.code(item.context_expr)}:"
                    self.lines = [*outside, header, *(f"    {line}" for line in self.lines)]
                case _:
                    self._statement(statement)

    def _condition(self, test: ast.expr, at: ast.expr) -> None:
        for node in ast.walk(at):
            plain = isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Name, ast.Attribute, ast.Constant))
            if not plain and isinstance(node, ast.expr):
                raise NotSure(f"{self.module.code(at)} decides a branch for each parameter", at)
        code = self._element(at)
        if isinstance(test, ast.UnaryOp):
            match at:
                case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                    code = f"{self._element(left)} is not None"
                case ast.UnaryOp(op=ast.Not(), operand=inner):
                    code = self._element(inner)
                case _:
                    code = f"not ({code})"
        self.conditions.append(code)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=ast.Call() as call):
                self._in_place(call)
            case ast.AugAssign(target=target, op=op, value=value) if type(op) in (ast.Add, ast.Sub, ast.Mult, ast.Div):
                self._augmented(statement, target, op, value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in self.targets:
                    raise NotSure(f"'{name}' is bound anew in the loop", statement)
                self._bound(name, value)
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=value) if self._is_element(value):
                for part in parts:
                    if not isinstance(part, ast.Name):
                        raise NotSure(f"{self.module.code(part)} is no name", part)
                    each = f"({self.module.code(value)} {self._each()})"
                    all_ = self._fresh(part.id)
                    self.lines.append(f"{all_} = [{part.id} for {self.module.code(statement.targets[0])} in {each}]")
                    self.local[part.id] = (all_, "list")
            case ast.Assign(targets=[(ast.Attribute() | ast.Subscript()) as target], value=value):
                self._stored(target, value)
            case _:
                raise NotSure(f"line {statement.lineno} is no operation on all parameters", statement)

    def _bound(self, name: str, value: ast.expr) -> None:
        if self._is_element(value):
            self.aliases[name] = self._element(value)
            return
        code, kind = self._value(value)
        if kind == "number":
            raise NotSure(f"'{name}' is the same for each parameter", value)
        fresh = code if code.isidentifier() else self._fresh(name)
        if fresh != code:
            self.lines.append(f"{fresh} = {code}")
        self.local[name] = (fresh, kind)
        if any(isinstance(n, ast.Attribute) and n.attr == "item" for n in ast.walk(value)):
            self.read.add(fresh)

    def _in_place(self, call: ast.Call) -> str:
        """Reads ``x.mul_(a).add_(b)``. Returns the name of the list."""
        if not isinstance(call.func, ast.Attribute):
            raise NotSure(f"{self.module.code(call)} is not known", call)
        base, name, given = call.func.value, call.func.attr, keywords(call)
        chained = isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr.endswith("_")
        target = self._in_place(base) if isinstance(base, ast.Call) and chained else self._target(base)
        values = [self._value(each) for each in call.args]
        function, more = f"{self.foreach}_{name}", ""
        if name in ("addcmul_", "addcdiv_") and len(values) == 2 and [kind for _, kind in values] == ["list"] * 2:
            more = f", value={self._number(given['value'])}" if "value" in given else ""
        elif name == "lerp_" and len(values) == 2 and [kind for _, kind in values] == ["list", "number"]:
            pass
        elif name == "clamp_" and len(values) == 2 and not given:
            self._do(f"{self.foreach}_clamp_min_({target}, {values[0][0]})")
            self._do(f"{self.foreach}_clamp_max_({target}, {values[1][0]})")
            return target
        elif name in IN_PLACE and len(values) == (0 if name in ("zero_", "sqrt_", "neg_") else 1):
            if name == "copy_" and values[0][1] != "list":
                raise NotSure(f"{self.module.code(call)} copies one tensor to all parameters", call)
            more = f", alpha={self._number(given['alpha'])}" if "alpha" in given else ""
        else:
            raise NotSure(f"{self.module.code(call)} is not known for lists", call)
        if set(given) - {"alpha", "value"} or any(kind == "vector" for _, kind in values):
            raise NotSure(f"{self.module.code(call)} is not known for lists", call)
        self._do(f"{function}({', '.join((target, *(code for code, _ in values)))}{more})")
        return target

    def _augmented(self, statement: ast.stmt, target: ast.expr, op: ast.operator, value: ast.expr) -> None:
        sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(op)]
        if isinstance(target, ast.Name) and target.id not in self.targets and target.id not in self.local:
            if sign != "+":
                raise NotSure(f"line {statement.lineno} collects something other than a sum", statement)
            code, kind = self._value(value)
            if kind != "vector":
                raise NotSure(f"line {statement.lineno} adds something other than a norm or a sum", statement)
            self.lines.append(f"{target.id} += {self.summed(code, value)}")
            return
        to = self._target(target)
        if sign in "+-" and (scaled := self._scaled(value)) is not None:
            factor, code = scaled
            self._do(f"{self.foreach}_{SIGNED[sign]}_({to}, {code}, alpha={factor})")
            return
        code, kind = self._value(value)
        if kind == "vector":
            raise NotSure(f"line {statement.lineno} has a number for each parameter", statement)
        self._do(f"{self.foreach}_{SIGNED[sign]}_({to}, {code})")

    def summed(self, vector: str, value: ast.expr) -> str:
        """Returns the sum of a vector. The host reads the sum if ``value`` reads each element."""
        item = any(isinstance(n, ast.Attribute) and n.attr == "item" for n in ast.walk(value))
        names = {self.local[n.id][0] for n in ast.walk(value) if isinstance(n, ast.Name) and n.id in self.local}
        return f"({vector}).double().sum().item()" if item or names & self.read else f"({vector}).sum()"

    def _stored(self, target: ast.Attribute | ast.Subscript, value: ast.expr) -> None:
        """Reads ``p.data = …`` and ``m[i] = …`` with a new tensor on the right: its numbers are copied."""
        if isinstance(target, ast.Attribute) and target.attr not in ("data", "grad"):
            raise NotSure(f"{self.module.code(target)} is set for each parameter", target)
        place = self._element(target)
        self._check_own(target)
        if isinstance(value, ast.Constant) and value.value is None and not self.conditions:
            self.lines += [f"for {self.module.code(self.loop.target)} in {self.module.code(self.loop.iter)}:",
                           f"    {self.module.code(target)} = None"]  # fmt: skip
            return
        if isinstance(value, ast.Name) and self.aliases.get(value.id) == place:
            return  # the value was read from the target and changed in place
        if place in self.aliases.values():
            raise NotSure(f"{self.module.code(target)} has another name, which keeps the old tensor", target)
        code, kind = self._value(value)
        if kind != "list" or code in self.lists.values():
            raise NotSure(f"{self.module.code(value)} is no new tensor for each parameter", value)
        self._do(f"{self.foreach}_copy_({self._target(target)}, {code})")

    def _check_own(self, target: ast.expr) -> None:
        """Raises NotSure for ``kept[name] = …`` if ``kept`` may hold the parameters themselves, because the change
        would write into them.
        """
        if not isinstance(target, ast.Subscript):
            return
        kept, code = target.value, self.module.code
        found: list[ast.AST] = list(self.module.file.values(kept)) if isinstance(kept, ast.Name) else []
        if isinstance(kept, ast.Attribute):
            places = (each for each in self.module.file.every(ast.Assign))
            found = [each.value for each in places if any(code(to) == code(kept) for to in each.targets)]
        for made in found:
            inside = made.value if isinstance(made, ast.DictComp) else getattr(made, "elt", None)
            inside = made if isinstance(made, ast.Call) else inside
            calls = [n for n in ast.walk(inside) if isinstance(n, ast.Call)] if inside is not None else []
            if inside is not None and not any(operation(self.module, call)[0] in OWN for call in calls):
                raise NotSure(f"the tensors in '{code(kept)}' may be the parameters themselves", target)

    def _target(self, node: ast.expr) -> str:
        """Returns the name of the list whose tensors are changed."""
        code, kind = self._value(node)
        if kind != "list" or not code.isidentifier():
            raise NotSure(f"{self.module.code(node)} may be other tensors each time", node)
        return code

    def _do(self, line: str) -> None:
        self.lines.append(line)
        self.work += 1

    # Expressions ----------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> tuple[str, Kind]:
        if isinstance(node, ast.Name) and node.id in self.local:
            return self.local[node.id]
        if isinstance(node, ast.Name) and node.id in self.aliases:
            return self._list_of(self.aliases[node.id]), "list"
        if not self._mentions(node):
            return self._plain(node), "number"
        if self._is_element(node):
            return self._list_of(self._element(node)), "list"
        found = self._arithmetic(node) or self._call(node)
        if found is None:
            raise NotSure(f"{self.module.code(node)} is not known for lists", node)
        self.work += found[1] == "list"
        return found

    def _number(self, node: ast.expr) -> str:
        if self._mentions(node):
            raise NotSure(f"{self.module.code(node)} is another number for each parameter", node)
        return self._plain(node)

    def _plain(self, node: ast.expr) -> str:
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and not is_pure_call(self.module, each):
                raise NotSure(f"{self.module.code(each)} is called for each parameter", each)
        return self.module.argument(node)

    def _mentions(self, node: ast.AST) -> bool:
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        return bool(names & {*self.targets, *self.local, *self.aliases})

    def _is_element(self, node: ast.expr) -> bool:
        """Returns whether an expression is a variable of the loop, or such a variable's attribute, element or
        ``detach()``. These need no GPU work.
        """
        for each in ast.walk(node):
            match each:
                case ast.Call(func=ast.Attribute(attr="detach"), args=[], keywords=[]):
                    continue
                case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Constant() | ast.expr_context():
                    continue
            return False
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        return bool(names & {*self.targets, *self.aliases}) and not names & set(self.local)

    def _element(self, node: ast.expr) -> str:
        """Returns the text of an element, in which each alias is replaced by the name that the loop goes over."""
        code = self.module.code(node)
        for name, stands in self.aliases.items():
            code = re.sub(rf"(?<![\w.'\"]){name}(?!\w)", lambda _, text=stands: text, code)  # type: ignore[misc]
        return code

    def _list_of(self, code: str) -> str:
        if code not in self.lists:
            words = [word for word in code.replace(".", "_").replace("_data", "").split("_") if word.isidentifier()]
            name = self._fresh("_".join(words) if code.replace(".", "_").isidentifier() else "value")
            self.lines.append(f"{name} = [{code} {self._each()}]")
            self.lists[code] = name
        return self.lists[code]

    def _each(self) -> str:
        target, over = self.module.code(self.loop.target), self.module.code(self.loop.iter)
        return f"for {target} in {over}" + "".join(f" if {test}" for test in self.conditions)

    def _fresh(self, base: str) -> str:
        taken = {node.id for node in self.module.file.every(ast.Name)} | {line.split(" ")[0] for line in self.lines}
        name = f"all_{base}"
        while name in taken:
            name += "_"
        return name

    def _scaled(self, node: ast.expr) -> tuple[str, str] | None:
        """Returns the factor and the list of ``lr * p.grad / n``; None if it is not a product of a list and a
        number.
        """
        if (parts := arithmetic(self.module, node)) is None or parts[0] not in ("*", "/"):
            return None
        sign, left, right = parts
        if sign == "*" and not self._mentions(left):
            left, right = right, left
        if self._mentions(right) or not self._mentions(left):
            return None
        inner = self._scaled(left)
        factor = self.module.operand(right)
        self._plain(right)
        if inner is not None:
            return f"{inner[0]} {sign} {factor}", inner[1]
        code, kind = self._value(left)
        return (factor if sign == "*" else f"1 / {factor}", code) if kind == "list" else None

    def _arithmetic(self, node: ast.expr) -> tuple[str, Kind] | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            code, kind = self._value(node.operand)
            return (f"{self.foreach}_neg({code})", "list") if kind == "list" else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            (code, kind), exponent = self._value(node.left), self._number(node.right)
            return (
                (f"{self.foreach}_pow({code}, {exponent})", "list")
                if kind == "list"
                else (f"{code} ** {exponent}", kind)
            )
        parts = arithmetic(self.module, node)
        if parts is None:
            return None
        sign, left, right = parts
        if sign in "+-" and self._mentions(left) and (scaled := self._scaled(right)) is not None:
            code, kind = self._value(left)
            if kind == "list":
                return f"{self.foreach}_{SIGNED[sign]}({code}, {scaled[1]}, alpha={scaled[0]})", "list"
        (one, kind), (other, other_kind) = self._value(left), self._value(right)
        if "vector" in (kind, other_kind):
            return None
        if kind == "list":
            return f"{self.foreach}_{SIGNED[sign]}({one}, {other})", "list"
        if sign in "+*":
            return f"{self.foreach}_{SIGNED[sign]}({other}, {one})", "list"
        if sign == "-":
            return f"{self.foreach}_add({self.foreach}_neg({other}), {one})", "list"
        return f"{self.foreach}_mul({self.foreach}_reciprocal({other}), {one})", "list"

    def _call(self, node: ast.expr) -> tuple[str, Kind] | None:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return self._value(node.value)
        if not isinstance(node, ast.Call):
            return None
        name, args = operation(self.module, node)
        full = self.module.full(node.func)
        if full == "torch.linalg.vector_norm" or full == "torch.linalg.norm":
            name, args = "norm", list(node.args)
        if not args:
            return None
        code, kind = self._value(args[0])
        if name == "item" and kind == "vector":
            return code, "vector"
        if name in SAME and len(args) == 1 and not node.keywords:
            return (f"{self.foreach}_clone({code})", "list") if name == "clone" and kind == "list" else (code, kind)
        if kind == "vector" and name in ("pow", "square") and (name == "square" or len(args) == 2):
            return f"({code}) ** {'2' if name == 'square' else self._number(args[1])}", "vector"
        if kind != "list":
            return None
        if name in NORMS and self._is_two(option(node, args, 1, "p", "ord")):
            stack = f"{self.foreach.removesuffix('._foreach')}.stack"
            self.work += 1
            return f"{stack}({self.foreach}_norm({code}))", "vector"
        if name == "sum" and len(args) == 1 and not node.keywords and (base := self._squared(args[0])) is not None:
            stack = f"{self.foreach.removesuffix('._foreach')}.stack"
            return f"{stack}({self.foreach}_norm({self._value(base)[0]})) ** 2", "vector"
        if name == "square" and len(args) == 1:
            return f"{self.foreach}_pow({code}, 2)", "list"
        if name == "pow" and len(args) == 2:
            return f"{self.foreach}_pow({code}, {self._number(args[1])})", "list"
        if name in UNARY and len(args) == 1 and not node.keywords:
            return f"{self.foreach}_{name}({code})", "list"
        return None

    def _is_two(self, node: ast.expr | None) -> bool:
        return node is None or (isinstance(node, ast.Constant) and node.value == 2)

    def _squared(self, node: ast.expr) -> ast.expr | None:
        """Returns the tensor x of ``x ** 2``, ``x.pow(2)``, ``x.square()`` and ``x * x``."""
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Pow):
                return node.left if self._is_two(node.right) else None
            same = isinstance(node.op, ast.Mult) and self.module.code(node.left) == self.module.code(node.right)
            return node.left if same else None
        name, args = operation(self.module, node)
        if name == "square" or (name == "pow" and len(args) == 2 and self._is_two(args[1])):
            return args[0]
        return None
