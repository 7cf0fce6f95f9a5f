"""What fails a capture: the host needs a value, waits, or copies a tensor."""

from __future__ import annotations

import ast

from tilewright.program.graphs.step import Found, ProgramStep, StepFunction
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.operations import operation
from tilewright.source.source_file import elements, keywords, stored

READS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__")
CHECKS = ("torch.equal", "torch.allclose", "torch.save", "torch.inverse", "torch.linalg.inv", "torch.linalg.solve",
          "torch.linalg.cholesky")  # fmt: skip
"""Functions of torch that wait for a value, such as whether a matrix can be inverted."""
COMPUTED_HERE = ("float", "int", "bool", "range", "round", "max", "min", "any", "all", "sorted")
"""Functions of Python that read the values of a tensor."""
SIZED_BY_VALUES = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount")
FROM_PYTHON = ("torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.asarray")
WAITS = ("torch.cuda.synchronize", "torch.accelerator.synchronize")


def host_reads(function: StepFunction, step: ProgramStep) -> Found:
    """Finds where the host reads values of the GPU."""
    values, module = function.values, function.module
    for node in function.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        full = module.full(node.func)
        code = function.short(node)
        match node.func:
            case ast.Attribute(value=value, attr=name) if name in READS and not full and values.of(value) != "host":
                yield node, f"{code} reads values on the host"
            case ast.Attribute(value=value, attr="to") if not full and any(map(_is_cpu, node.args)):
                yield node, f"{code} copies to the host"
            case ast.Attribute(attr="step", value=scaler) if not full and _is_scaler(module, scaler):
                yield node, f"{code} reads on the host whether a gradient is infinite"
        given = [values.of(each) for each in node.args]
        tensor = "tensor" in given
        if tensor and (module.is_builtin(node.func, *COMPUTED_HERE) or full in CHECKS):
            yield node, f"{code} reads a value on the host"
        elif tensor and full.startswith(("math.", "numpy.")):
            yield node, f"{code} computes on the host"
        elif _prints(module, node) and any(_shows(function, each) for each in node.args):
            yield node, f"{code} prints values of the GPU"
        elif full.endswith(".one_hot") and len(node.args) == 1 and "num_classes" not in keywords(node):
            yield node, f"{code} reads the largest class on the host"
        elif full.endswith("pack_padded_sequence") and given[1:2] == ["tensor"]:
            yield node, f"{code} reads the lengths on the host"
    for node in function.nodes(ast.Slice):
        assert isinstance(node, ast.Slice)
        if any(values.of(each) == "tensor" for each in (node.lower, node.upper) if each is not None):
            yield module.parent(node) or node, "a slice by values of the GPU"


def _prints(module: ReadModule, call: ast.Call) -> bool:
    if module.is_builtin(call.func, "print", "str", "repr"):
        return True
    match call.func:
        case ast.Attribute(value=ast.Name(id=name), attr="info" | "debug" | "warning" | "log"):
            return "log" in name.lower()
    return False


def _shows(function: StepFunction, node: ast.expr) -> bool:
    """Returns whether a printed expression contains the value of a tensor."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(each, ast.FormattedValue) and _shows(function, each.value) for each in node.values)
    return function.values.of(node) == "tensor"


def _is_scaler(module: ReadModule, node: ast.expr) -> bool:
    return any(module.called(each).endswith("GradScaler") for each in module.file.values(node)) or (
        isinstance(node, ast.Name) and "scaler" in node.id.lower() and not module.full(node)
    )


def synchronisations(function: StepFunction, _: ProgramStep) -> Found:
    """Finds where the host waits for the GPU."""
    module = function.module
    for node in function.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        method = isinstance(node.func, ast.Attribute) and node.func.attr in ("synchronize", "query") and not node.args
        if module.full(node.func) in WAITS or method:
            yield node, f"{function.short(node)} waits for the GPU"


def data_branches(function: StepFunction, _: ProgramStep) -> Found:
    """Finds branches that depend on values of the GPU."""
    for node in function.nodes(ast.If, ast.While, ast.Assert, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.comprehension):
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test) | ast.IfExp(test=test):
                tests = [test]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                tests = [operand]
            case ast.BoolOp(values=tests) | ast.comprehension(ifs=tests):
                pass
            case _:
                continue
        for each in tests:
            if (
                not isinstance(each, ast.BoolOp)
                and function.values.of(each) == "tensor"
                and not _is_plain(function, each)
            ):
                yield each, f"{function.short(each)} decides a branch by values of the GPU"


def _is_plain(function: StepFunction, test: ast.expr) -> bool:
    """Returns whether a test only compares parameters with numbers, or asks for their truth.

    Such a parameter is a number or a list: the truth of a tensor of several elements is an error.
    """
    parameters = {each.arg for each in ast.walk(function.node.args) if isinstance(each, ast.arg)} - stored(
        function.node
    )
    parts = [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
    return all(
        isinstance(each, ast.Constant) or (isinstance(each, ast.Name) and each.id in parameters)
        or function.values.of(each) == "host"
        for each in parts
    )  # fmt: skip


def data_shapes(function: StepFunction, _: ProgramStep) -> Found:
    """Finds results whose size depends on values."""
    values, module = function.values, function.module
    for node in function.nodes(ast.Call, ast.Subscript):
        if isinstance(node, ast.Subscript):
            parts = elements(node.slice) or [node.slice]
            if any(map(values.is_mask, parts)) and values.of(node.value) == "tensor" and not _fills(module, node):
                yield node, f"{function.short(node)} has as many elements as the mask has true ones"
            continue
        assert isinstance(node, ast.Call)
        name, args = operation(module, node)
        if (name in SIZED_BY_VALUES and args and values.of(args[0]) in ("tensor", "container")) or (
            name == "where" and len(args) == 1 and len(node.keywords) == 0
        ):
            yield node, f"{function.short(node)} has a size that depends on values"
        elif name == "repeat_interleave" and "output_size" not in keywords(node):
            repeats = args[1] if len(args) > 1 else keywords(node).get("repeats")
            if repeats is not None and values.of(repeats) == "tensor":
                yield node, f"{function.short(node)} has a size that depends on values"


def _fills(module: ReadModule, node: ast.Subscript) -> bool:
    """Returns whether ``x[mask] = number`` is assigned, whose shape is known."""
    statement = module.statement(node)
    stores = not isinstance(node.ctx, ast.Load)
    return stores and isinstance(statement, (ast.Assign, ast.AugAssign)) and isinstance(statement.value, ast.Constant)


def host_tensors(function: StepFunction, _: ProgramStep) -> Found:
    """Finds tensors of the host that the step copies to the GPU."""
    values, module = function.values, function.module
    for node in function.nodes(ast.Call, ast.Subscript):
        if isinstance(node, ast.Subscript):
            parts = elements(node.slice) or [node.slice]
            if values.of(node.value) == "tensor" and any(isinstance(each, ast.List) for each in parts):
                yield node, f"{function.short(node)} copies a list from the host"
            continue
        assert isinstance(node, ast.Call)
        full, code = module.full(node.func), function.short(node)
        device = keywords(node).get("device")
        if full in FROM_PYTHON and device is not None and not _is_cpu(device):
            yield node, f"{code} copies values from the host"
        match node:
            case ast.Call(func=ast.Attribute(value=made, attr="to" | "cuda" as method)) if not full:
                if values.of(node) == "tensor" and values.of(made) == "host":
                    yield node, f"{code} makes a tensor on the host and copies it"
                elif _comes_from_outside(function, made) and (
                    method == "cuda" or any(_is_place(module, each) for each in (*node.args, *filter(None, [device])))
                ):
                    yield node, f"{code} copies a tensor of the host"
            case ast.Call(func=ast.Attribute(attr="new_tensor")):
                yield node, f"{code} copies values from the host"


def _is_place(module: ReadModule, node: ast.expr) -> bool:
    """Returns whether an argument of ``to`` is the device of the program, not that of another tensor."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("cuda")
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    plain = isinstance(node, ast.Name) or (
        isinstance(node, ast.Attribute) and module.code(node.value) in ("self", "args", "cfg")
    )
    return plain and name.lower().endswith("device") and not module.full(node)


def _comes_from_outside(function: StepFunction, node: ast.expr) -> bool:
    """Returns whether a tensor is a parameter of the step, which may be of the host."""
    names = {each.arg for each in ast.walk(function.node.args) if isinstance(each, ast.arg)}
    return any(isinstance(each, ast.Name) and each.id in names and each.id != "self" for each in ast.walk(node))


def _is_cpu(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str() as text) | ast.Call(args=[ast.Constant(value=str() as text)]):
            return text == "cpu"
    return False
