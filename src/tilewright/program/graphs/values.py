"""Says which expressions of a function are tensors of the step, and which are values that the host knows anyway.

h = layer(x)                  a tensor: it is computed from one
n = x.shape[0]                of the host: shapes are known without the GPU
outputs.append(h)             `outputs` is a container of tensors
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from tilewright.program.reading.layers import is_self
from tilewright.program.reading.module import Function, ReadModule
from tilewright.source.source_file import elements, keywords, own

ValueKind: TypeAlias = Literal["tensor", "container", "host", "other"]
"""``other``: a model, an optimizer, or anything that the text does not show."""

OF_HOST = frozenset((
    "shape", "dtype", "device", "ndim", "training", "requires_grad", "is_cuda", "layout", "itemsize", "is_leaf",
    "size", "dim", "numel", "stride", "element_size", "is_contiguous", "data_ptr", "get_device", "nelement",
    "ndimension", "is_floating_point", "item", "tolist", "numpy", "type", "names", "is_sparse",
))  # fmt: skip
"""Attributes and methods of a tensor that the host knows, or gets by waiting."""
OF_TENSORS = ("weight", "bias", "grad", "data", "T", "mT", "H", "mH", "real", "imag")
"""Attributes that are tensors."""
MADE_ON_HOST = frozenset((
    "torch.is_tensor", "torch.numel", "torch.is_grad_enabled", "torch.device", "torch.Generator", "torch.finfo",
    "torch.iinfo", "torch.get_default_dtype", "torch.is_floating_point", "torch.is_autocast_enabled", "torch.Size",
    "torch.no_grad", "torch.enable_grad", "torch.inference_mode", "torch.autocast", "torch.is_inference_mode_enabled",
    "torch.equal", "torch.allclose", "torch.manual_seed", "torch.are_deterministic_algorithms_enabled",
))  # fmt: skip
MADE_HERE = tuple(
    f"torch.{name}"
    for name in ("arange", "zeros", "ones", "empty", "full", "eye", "linspace", "rand", "randn", "randint", "randperm",
                 "tensor", "as_tensor", "from_numpy", "asarray", "hann_window")
)  # fmt: skip
"""Functions that make a tensor of the host, unless a device is given."""
OF_NUMBERS = ("numpy.", "math.", "random.", "time.", "os.", "sys.", "logging.")
"""Packages that compute with values of the host."""
TENSOR_MODULES = ("torch.", "torch.nn.functional.", "torch.special.", "torch.linalg.", "torch.fft.", "torch.Tensor.")
OF_PYTHON = ("len", "isinstance", "hasattr", "range", "int", "float", "bool", "str", "repr", "id", "type", "callable")
OF_OBJECTS = frozenset((
    "step", "zero_grad", "parameters", "named_parameters", "train", "eval", "scale", "unscale_", "update", "forward",
    "state_dict", "modules", "config", "random", "integers", "choice", "shuffle",
))  # fmt: skip
"""Attributes that only models, optimizers, generators and the like have."""
BOOLEAN = frozenset((
    "bool", "eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "logical_and", "logical_or",
    "logical_not", "isin",
))  # fmt: skip
"""Functions and methods whose result is a boolean tensor."""
PLAIN_TYPES = ("int", "float", "bool", "str")
CONTAINER_TYPES = ("list", "tuple", "dict", "List", "Tuple", "Dict", "Sequence", "Mapping", "Iterable")


class FunctionValues:
    """The kinds of the values in one function.

    given: the kinds of some parameters. returns: the kind of what a call of the program's own function returns.
    """

    def __init__(
        self, module: ReadModule, function: Function, given: Mapping[str, ValueKind],
        returns: Callable[[ast.Call, FunctionValues], ValueKind | None],
    ) -> None:  # fmt: skip
        self.module, self.function, self._returns = module, function, returns
        self.kinds: dict[str, ValueKind] = {}
        self.masks: set[str] = set()
        """Names of boolean tensors."""
        parameters = function.args
        for each in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs):
            self.kinds[each.arg] = given.get(each.arg) or self._parameter(each)
        for starred in (parameters.vararg, parameters.kwarg):
            if starred is not None:
                self.kinds[starred.arg] = "container"
        for _ in range(3):  # a loop may use a name before the line that binds it
            self._bind()

    def of(self, node: ast.AST | None) -> ValueKind:
        """Returns the kind of an expression."""
        match node:
            case ast.Name(id=name):
                return self.kinds.get(name) or self._global(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript(value=value):
                whole = self.of(value)
                return "tensor" if whole == "container" else whole
            case ast.Call():
                return self._call(node)
            case ast.Compare(left=left, ops=ops, comparators=others):
                compared = [self.of(each) for each in (left, *others)]
                plain = any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in ops)
                text = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in (left, *others))
                return "host" if plain or text else joined(*compared)
            case ast.BinOp(left=left, right=right):
                return joined(self.of(left), self.of(right))
            case ast.UnaryOp(op=op, operand=operand):
                return "host" if isinstance(op, ast.Not) else self.of(operand)
            case ast.BoolOp(values=values):
                return joined(*map(self.of, values))
            case ast.IfExp(body=body, orelse=orelse):
                return joined(self.of(body), self.of(orelse))
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self.of(value)
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
                return "container"
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return "container"
            case ast.Constant() | ast.JoinedStr():
                return "host"
        return "other"

    def is_mask(self, node: ast.AST | None) -> bool:
        """Returns whether an expression is a boolean tensor, as the text shows."""
        match node:
            case ast.Name(id=name):
                given = any(each.arg == name for each in ast.walk(self.function.args) if isinstance(each, ast.arg))
                return name in self.masks or (given and "mask" in name and self.kinds[name] == "tensor")
            case ast.Compare():
                return self.of(node) == "tensor"
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self.is_mask(operand)
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor(), right=right):
                return self.is_mask(left) or self.is_mask(right)
            case ast.Call(func=ast.Attribute(attr=name)):
                made = any(
                    each.arg == "dtype" and self.module.full(each.value) == "torch.bool" for each in node.keywords
                )
                return made or name in BOOLEAN
        return False

    # Names ------------------------------------------------------------------------------------------

    def _parameter(self, parameter: ast.arg) -> ValueKind:
        kinds = {each.id for each in ast.walk(parameter.annotation or ast.Pass()) if isinstance(each, ast.Name)}
        if is_self(self.module, ast.Name(parameter.arg)) or parameter.arg in ("self", "cls"):
            return "other"
        if kinds & {*PLAIN_TYPES} or parameter.arg.endswith("device"):
            return "host"
        if kinds & {*CONTAINER_TYPES}:
            return "container"
        default = self._default(parameter)
        if isinstance(default, ast.Constant) and default.value is not None:
            return "host"
        if self._is_count(parameter.arg):
            return "host"
        return "other" if self._is_object(parameter.arg) else "tensor"

    def _default(self, parameter: ast.arg) -> ast.AST | None:
        args = self.function.args
        placed = [*args.posonlyargs, *args.args]
        if parameter in placed:
            at = placed.index(parameter) - (len(placed) - len(args.defaults))
            return args.defaults[at] if at >= 0 else None
        return args.kw_defaults[args.kwonlyargs.index(parameter)]

    def _is_object(self, name: str) -> bool:
        """Returns whether a parameter is called like a model, or has attributes of an optimizer."""
        for node in ast.walk(self.function):
            match node:
                case ast.Call(func=ast.Name(id=found)) if found == name:
                    return True
                case ast.Attribute(value=ast.Name(id=found), attr=attr) if found == name and attr in OF_OBJECTS:
                    return True
        return False

    def _is_count(self, name: str) -> bool:
        """Returns whether a parameter is a bound of a slice or of ``range``: a number of the host."""
        for node in ast.walk(self.function):
            match node:
                case ast.Slice(lower=ast.Name(id=found)) | ast.Slice(upper=ast.Name(id=found)) if found == name:
                    return True
                case ast.Call(func=ast.Name(id="range"), args=[*_, ast.Name(id=found)]) if found == name:
                    return True
        return False

    def _bind(self) -> None:
        nodes = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.withitem)
        for node in own(self.function, ast.AST):
            if not isinstance(node, nodes):
                continue
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._store(target, value)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._store(target, value)
                case ast.NamedExpr(target=target, value=value):
                    self._store(target, value)
                case ast.AugAssign(target=ast.Name(id=name), value=value):
                    self.kinds[name] = joined(self.kinds.get(name, "other"), self.of(value))
                case ast.For(target=target, iter=iterated) | ast.comprehension(target=target, iter=iterated):
                    self._iterate(target, iterated)

    def _store(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.kinds[target.id] = self.of(value)
            if self.is_mask(value):
                self.masks.add(target.id)
            return
        names, values = elements(target), elements(value)
        for at, each in enumerate(names):
            if len(names) == len(values):
                self._store(each, values[at])
            else:
                self._set(each, "tensor" if self.of(value) in ("tensor", "container") else self.of(value))

    def _set(self, target: ast.expr, kind: ValueKind) -> None:
        for each in ast.walk(target):
            if isinstance(each, ast.Name):
                self.kinds[each.id] = kind

    def _iterate(self, target: ast.expr, iterated: ast.expr) -> None:
        match iterated:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]) if elements(target):
                first, *rest = elements(target)
                self._set(first, "host")
                for each in rest:
                    self._iterate(each, inner)
            case ast.Call(func=ast.Name(id="zip"), args=args) if len(args) == len(elements(target)):
                for each, inner in zip(elements(target), args, strict=True):
                    self._iterate(each, inner)
            case ast.Call(func=ast.Name(id="range")):
                self._set(target, "host")
            case ast.Call(func=ast.Name(id="reversed" | "list" | "tuple" | "sorted"), args=[inner]):
                self._iterate(target, inner)
            case _:
                kind = self.of(iterated)
                if not _of_numbers(iterated):
                    self._set(target, "tensor" if kind in ("tensor", "container") else kind)
                else:
                    self._set(target, "host")

    def _global(self, node: ast.Name) -> ValueKind:
        if self.module.full(node) or self.module.is_builtin(node, node.id):
            return "other"
        values = self.module.file.values(node)
        kinds: set[ValueKind] = set()
        for value in values:
            if isinstance(value, (ast.Constant, ast.Compare, ast.IfExp, ast.BinOp)):
                kinds.add("host")
            elif isinstance(value, (ast.List, ast.Tuple, ast.Dict)):
                kinds.add("container")
            elif isinstance(value, ast.Call) and (name := self.module.called(value)):
                kinds.add(self._of_package(name, value))
        return kinds.pop() if len(kinds) == 1 else "other"

    def _attribute(self, node: ast.Attribute) -> ValueKind:
        if self.module.full(node):
            return "host" if self.module.full(node).startswith(("torch.", "math.")) else "other"
        whole = self.of(node.value)
        if node.attr in OF_HOST or whole == "host":
            return "host"
        if node.attr in OF_TENSORS and whole != "container":
            return "tensor"
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return self._of_self(node)
        return "other"

    def _of_self(self, node: ast.Attribute) -> ValueKind:
        owner = self.module.class_of(self.function)
        kinds: list[ValueKind] = []
        for each in ast.walk(owner) if owner is not None else ():
            match each:
                case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=name), *_]):
                    if name == node.attr:
                        return "tensor"
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        pairs = zip(elements(target), elements(value), strict=False)
                        for stored, given in (*pairs, (target, value)):
                            if isinstance(stored, ast.Attribute) and stored.attr == node.attr:
                                kinds.append(self._made(given))
        known = [kind for kind in kinds if kind not in ("other", "host")]
        return known[0] if known else "host" if kinds and all(kind == "host" for kind in kinds) else "other"

    def _made(self, value: ast.expr) -> ValueKind:
        """Returns the kind of a value that a method assigns to an attribute."""
        if isinstance(value, ast.Call):
            name = self.module.called(value)
            return "tensor" if name == "torch.nn.Parameter" else self._of_package(name, value) if name else "other"
        if isinstance(value, (ast.List, ast.Tuple, ast.Dict)):
            return "container"
        if isinstance(value, ast.Name) and self.module.function_of(value) is self.function:
            return self.kinds.get(value.id, "other")
        return "host" if isinstance(value, (ast.Constant, ast.BinOp)) else "other"

    # Calls ------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> ValueKind:
        full = self.module.full(node.func)
        given = [self.of(each) for each in (*node.args, *keywords(node).values())]
        some = any(kind in ("tensor", "container") for kind in given)
        if (returned := self._returns(node, self)) is not None:
            return returned
        if full:
            return self._of_package(full, node)
        if self.module.is_builtin(node.func, *OF_PYTHON):
            return "host"
        if self.module.is_builtin(node.func, "list", "tuple", "sorted", "zip", "enumerate", "map", "dict", "reversed"):
            return "container"
        if isinstance(node.func, ast.Attribute):
            whole = self.of(node.func.value)
            if whole == "tensor":
                return "host" if node.func.attr in OF_HOST else "tensor"
            if whole == "container":
                return "tensor" if node.func.attr in ("pop", "get") else "container"
            if whole == "host":
                return "tensor" if node.func.attr == "cuda" or self._moves(node) else "host"
        return "tensor" if some else "other"

    def _moves(self, call: ast.Call) -> bool:
        """Returns whether ``x.to(…)`` may name a device, not only a type."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "to":
            return False
        given = [*call.args, *(each.value for each in call.keywords if each.arg in ("device", "other"))]
        types = (
            self.module.full(each).startswith("torch.") or self.module.code(each).endswith("dtype") for each in given
        )
        return not all(types)

    def _of_package(self, full: str, node: ast.Call) -> ValueKind:
        """Returns the kind of what a function of a package returns.

        Without a tensor of the GPU among its arguments, and without a device, torch makes a tensor of the host.
        """
        module, _, name = full.rpartition(".")
        if full in MADE_ON_HOST or full.startswith(OF_NUMBERS):
            return "host"
        given = [self.of(each) for each in (*node.args, *keywords(node).values())]
        if not full.startswith("torch.") or (name.islower() and f"{module}." not in TENSOR_MODULES):
            return "tensor" if "tensor" in given or "container" in given else "host"
        if not name.islower():  # a class: a layer, an optimizer, a generator
            return "other"
        device = keywords(node).get("device")
        if isinstance(device, ast.Constant) and device.value == "cpu":
            return "host"
        if device is not None or any("torch.set_default_device" in each.text for each in self.module.program):
            return "tensor"
        return "host" if full in MADE_HERE or all(kind == "host" for kind in given) else "tensor"


def joined(*kinds: ValueKind) -> ValueKind:
    """Returns the kind of a value that is computed from values of these kinds."""
    order: tuple[ValueKind, ...] = ("tensor", "container", "other", "host")
    return next((kind for kind in order if kind in kinds), "other")


def _of_numbers(node: ast.AST) -> bool:
    """Returns whether a container of constants is written here: ``(1, 2, 4)``."""
    return bool(elements(node)) and all(isinstance(each, ast.Constant) for each in elements(node))
