"""Finds what prevents the capture of a program's step, from its source alone. One method a kind of hazard.

The rules follow tensors through the functions of the step (`step`, `values`). Code outside of the step may read values,
print and wait: it stays outside of the graph.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tilewright.program.graphs.hazards import CaptureHazard, HazardKind
from tilewright.program.graphs.step import Step, StepFunction
from tilewright.program.reading.flow import loads
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.operations import operation
from tilewright.source.source_file import elements, keywords, stored

Found = Iterator[tuple[ast.AST, str]]
"""A node, and what it does."""

READS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__")
CHECKS = ("torch.equal", "torch.allclose", "torch.save", "torch.inverse", "torch.linalg.inv", "torch.linalg.solve",
          "torch.linalg.cholesky")  # fmt: skip
"""Functions of torch that wait for a value, such as whether a matrix can be inverted."""
COMPUTED_HERE = ("float", "int", "bool", "range", "round", "max", "min", "any", "all", "sorted")
"""Functions of Python that read the values of a tensor."""
SIZED_BY_VALUES = ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount")
FROM_PYTHON = ("torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.asarray")
SEEDS = ("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.seed",
         "torch.random.fork_rng", "torch.get_rng_state", "torch.set_rng_state", "torch.cuda.get_rng_state",
         "torch.cuda.set_rng_state")  # fmt: skip
RANDOM = ("random.", "numpy.random.", "secrets.", "uuid.")
DRAWS = ("random", "integers", "choice", "shuffle", "uniform", "normal", "randint")
"""Methods of the generators of Python and NumPy."""
DRAWN_HERE = ("torch.rand", "torch.randn", "torch.randint", "torch.randperm")
CLOCKS = ("time.", "datetime.")
WAITS = ("torch.cuda.synchronize", "torch.cuda.current_stream.synchronize", "torch.accelerator.synchronize")
STREAMS = ("torch.cuda.stream", "torch.cuda.Stream", "torch.cuda.StreamContext")
CHECKED = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "ASGD", "RMSprop", "Rprop", "Adadelta", "Adafactor")
"""Optimizers of torch 2.13 that refuse a capture unless they are made with ``capturable=True``."""


def hazards_of(modules: tuple[ReadModule, ...]) -> tuple[CaptureHazard, ...]:
    """Returns what prevents the capture of a program's step, in the order of the files and lines.

    modules: the files of the program, as `reach.reached_modules` returns them. One line has at most one hazard.
    """
    return hazards_in(Step(modules))


def hazards_in(step: Step) -> tuple[CaptureHazard, ...]:
    """Returns what prevents the capture of a step, in the order of the files and lines."""
    found: dict[tuple[ReadModule, int], CaptureHazard] = {}
    for function in step.functions:
        for rule in RULES:
            for node, what in rule(function, step):
                line = int(getattr(node, "lineno", 1))
                hazard = CaptureHazard(RULES[rule], function.module.path, line, what, function.forward)
                found.setdefault((function.module, line), hazard)
    order = {module: n for n, module in enumerate(step.modules)}
    return tuple(found[key] for key in sorted(found, key=lambda key: (order[key[0]], key[1])))


def _own(function: StepFunction, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """Yields the nodes of a function and of its lambdas, without those that run only outside of a capture."""
    return (node for node in ast.walk(function.node) if isinstance(node, kinds) and not _is_apart(function, node))


def _is_apart(function: StepFunction, node: ast.AST) -> bool:
    """Returns whether a node is in an inner class or function, or in a branch that a capture does not take."""
    for each in function.module.above(node):
        if each is function.node:
            break
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return True
        if isinstance(each, ast.If) and "is_current_stream_capturing" in function.module.code(each.test):
            return True
    arguments = (each for each in ast.walk(function.node.args) if isinstance(each, ast.arg))
    annotation = [function.node.returns, *(each.annotation for each in arguments)]
    decorated = [*function.node.decorator_list, *filter(None, annotation)]
    return any(node is inner for each in decorated for inner in ast.walk(each))


# Rules --------------------------------------------------------------------------------------------------


def _data_branches(function: StepFunction, _: Step) -> Found:
    module = function.module
    for node in _own(function, ast.If, ast.While, ast.Assert, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.comprehension):
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
            if not isinstance(each, ast.BoolOp) and function.values.of(each) == "tensor" and not _is_plain(function, each):
                yield each, f"{_short(module, each)} decides a branch by values of the GPU"


def _is_plain(function: StepFunction, test: ast.expr) -> bool:
    """Returns whether a test only compares parameters with numbers, or asks for their truth.

    Such a parameter is a number or a list: the truth of a tensor of several elements is an error.
    """
    parameters = {each.arg for each in ast.walk(function.node.args) if isinstance(each, ast.arg)} - stored(function.node)
    parts = [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
    return all(
        isinstance(each, ast.Constant) or (isinstance(each, ast.Name) and each.id in parameters)
        or function.values.of(each) == "host"
        for each in parts
    )  # fmt: skip


def _host_reads(function: StepFunction, step: Step) -> Found:
    values, module = function.values, function.module
    for node in _own(function, ast.Call):
        assert isinstance(node, ast.Call)
        full = module.full(node.func)
        code = _short(module, node)
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
    for node in _own(function, ast.Slice):
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


def _is_cpu(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str() as text) | ast.Call(args=[ast.Constant(value=str() as text)]):
            return text == "cpu"
    return False


def _is_scaler(module: ReadModule, node: ast.expr) -> bool:
    return any(module.called(each).endswith("GradScaler") for each in module.file.values(node)) or (
        isinstance(node, ast.Name) and "scaler" in node.id.lower() and not module.full(node)
    )


def _synchronisations(function: StepFunction, _: Step) -> Found:
    module = function.module
    for node in _own(function, ast.Call):
        assert isinstance(node, ast.Call)
        method = isinstance(node.func, ast.Attribute) and node.func.attr in ("synchronize", "query") and not node.args
        if module.full(node.func) in WAITS or method:
            yield node, f"{_short(module, node)} waits for the GPU"


def _data_shapes(function: StepFunction, _: Step) -> Found:
    values, module = function.values, function.module
    for node in _own(function, ast.Call, ast.Subscript):
        if isinstance(node, ast.Subscript):
            parts = elements(node.slice) or [node.slice]
            if any(map(values.is_mask, parts)) and values.of(node.value) == "tensor" and not _fills(module, node):
                yield node, f"{_short(module, node)} has as many elements as the mask has true ones"
            continue
        assert isinstance(node, ast.Call)
        name, args = operation(module, node)
        if name in SIZED_BY_VALUES and args and values.of(args[0]) in ("tensor", "container"):
            yield node, f"{_short(module, node)} has a size that depends on values"
        elif name == "where" and len(args) == 1 and len(node.keywords) == 0:
            yield node, f"{_short(module, node)} has a size that depends on values"
        elif name == "repeat_interleave" and "output_size" not in keywords(node):
            repeats = args[1] if len(args) > 1 else keywords(node).get("repeats")
            if repeats is not None and values.of(repeats) == "tensor":
                yield node, f"{_short(module, node)} has a size that depends on values"


def _fills(module: ReadModule, node: ast.Subscript) -> bool:
    """Returns whether ``x[mask] = number`` is assigned, whose shape is known."""
    statement = module.statement(node)
    stores = not isinstance(node.ctx, ast.Load)
    return stores and isinstance(statement, (ast.Assign, ast.AugAssign)) and isinstance(statement.value, ast.Constant)


def _host_tensors(function: StepFunction, _: Step) -> Found:
    values, module = function.values, function.module
    for node in _own(function, ast.Call, ast.Subscript):
        if isinstance(node, ast.Subscript):
            parts = elements(node.slice) or [node.slice]
            if values.of(node.value) == "tensor" and any(isinstance(each, ast.List) for each in parts):
                yield node, f"{_short(module, node)} copies a list from the host"
            continue
        assert isinstance(node, ast.Call)
        full, code = module.full(node.func), _short(module, node)
        device = keywords(node).get("device")
        if full in FROM_PYTHON and device is not None and not _is_cpu(device):
            yield node, f"{code} copies values from the host"
        match node:
            case ast.Call(func=ast.Attribute(value=made, attr="to" | "cuda" as method)) if not full:
                if values.of(node) == "tensor" and values.of(made) == "host":
                    yield node, f"{code} makes a tensor on the host and copies it"
                elif method == "cuda" or any(_is_place(module, each) for each in (*node.args, *filter(None, [device]))):
                    if _comes_from_outside(function, made):
                        yield node, f"{code} copies a tensor of the host"
            case ast.Call(func=ast.Attribute(attr="new_tensor")):
                yield node, f"{code} copies values from the host"


def _is_place(module: ReadModule, node: ast.expr) -> bool:
    """Returns whether an argument of ``to`` is the device of the program, not that of another tensor."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("cuda")
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    plain = isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and module.code(node.value) in ("self", "args", "cfg"))
    return plain and name.lower().endswith("device") and not module.full(node)


def _comes_from_outside(function: StepFunction, node: ast.expr) -> bool:
    """Returns whether a tensor is a parameter of the step, which may be of the host."""
    names = {each.arg for each in ast.walk(function.node.args) if isinstance(each, ast.arg)}
    return any(isinstance(each, ast.Name) and each.id in names and each.id != "self" for each in ast.walk(node))


def _changed_addresses(function: StepFunction, step: Step) -> Found:
    values, module = function.values, function.module
    for node in _own(function, ast.Attribute, ast.Call, ast.Assign):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                statement = module.statement(node)
                if isinstance(statement, ast.AugAssign) or values.of(_assigned(statement, node)) not in ("tensor", "other"):
                    continue
                if _reads_attribute(function, name, step):
                    yield node, f"self.{name} is another tensor after each call, and the next call reads it"
            case ast.Attribute(attr="data" | "grad", ctx=ast.Store(), value=owner):
                given = _assigned(module.statement(node), node)
                if not isinstance(module.statement(node), ast.AugAssign) and not isinstance(given, ast.Constant):
                    yield node, f"{module.code(owner)}.{node.attr} becomes another tensor"
            case ast.Call(func=ast.Attribute(value=kept, attr="append" | "extend" | "insert" | "add"), args=[*_, given]):
                if values.of(given) in ("tensor", "container") and not _is_own(function, kept):
                    yield node, f"{_short(module, node)} keeps a tensor that the next replay overwrites"
            case ast.Assign(targets=[ast.Name(id=name)]) if name in _globals(function):
                if values.of(node.value) == "tensor":
                    yield node, f"{name} is another tensor after each call"


def _assigned(statement: ast.stmt, target: ast.expr) -> ast.expr | None:
    """Returns the value that a statement assigns to a target."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    given = elements(statement.value)
    for whole in targets:
        names = elements(whole)
        if target in names and len(names) == len(given):
            return given[names.index(target)]
    return statement.value


def _reads_attribute(function: StepFunction, name: str, step: Step) -> bool:
    """Returns whether the step reads ``self.name`` in a place that may come before the assignment."""
    owner = function.module.class_of(function.node)
    for other in step.functions:
        if other.module.class_of(other.node) is not owner:
            continue
        for node in ast.walk(other.node):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=found, ctx=ast.Load()) if found == name:
                    if not _is_tested_for_none(other.module, node):
                        return True
    return False


def _is_tested_for_none(module: ReadModule, node: ast.AST) -> bool:
    test = module.parent(node)
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))


def _is_own(function: StepFunction, kept: ast.expr) -> bool:
    """Returns whether a container is made in the function itself."""
    if not isinstance(kept, ast.Name) or kept.id in _globals(function):
        return False
    bound = function.module.file.bindings(kept.id, kept)
    return any(function.module.function_of(each.place) is function.node and each.kind == "value" for each in bound)


def _globals(function: StepFunction) -> set[str]:
    nodes = (node for node in ast.walk(function.node) if isinstance(node, (ast.Global, ast.Nonlocal)))
    return {name for node in nodes for name in node.names}


def _baked_values(function: StepFunction, _: Step) -> Found:
    values, module = function.values, function.module
    for parameter in function.node.args.args:
        if parameter.arg in function.counters and loads(function.node, parameter.arg):
            yield parameter, f"{parameter.arg} is a number of the host that differs in each step"
    for node in _own(function, ast.AugAssign, ast.Assign, ast.Call):
        match node:
            case ast.AugAssign(target=ast.Attribute(value=ast.Name(id="self")) as counter, value=added):
                if values.of(added) == "host" and values.of(counter) in ("host", "other"):
                    yield node, f"{module.code(counter)} is counted on the host"
            case ast.AugAssign(target=ast.Name(id=name)) if name in _globals(function):
                if values.of(node.value) == "host":
                    yield node, f"{name} is counted on the host"
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self")) as counter], value=ast.BinOp() as value):
                same = any(module.code(each) == module.code(counter) for each in ast.walk(value) if isinstance(each, ast.Attribute))
                if same and values.of(value) == "host":
                    yield node, f"{module.code(counter)} is counted on the host"
            case ast.Call() if module.full(node.func).startswith(CLOCKS):
                yield node, f"{_short(module, node)} reads the clock"
            case ast.Call(func=ast.Attribute(value=scheduler, attr="step")) if "sched" in module.code(scheduler).lower():
                yield node, f"{_short(module, node)} changes the learning rate on the host"


def _random_states(function: StepFunction, _: Step) -> Found:
    module = function.module
    for node in _own(function, ast.Call):
        assert isinstance(node, ast.Call)
        full, code = module.full(node.func), _short(module, node)
        given = keywords(node).get("generator")
        own_generator = isinstance(node.func, ast.Attribute) and node.func.attr in DRAWS and not full
        if full.startswith(RANDOM) or full in SEEDS or (own_generator and "rng" in module.code(node.func).lower()):
            yield node, f"{code} uses random numbers or seeds of the host"
        elif given is not None and not (isinstance(given, ast.Constant) and given.value is None):
            yield node, f"{code} uses a generator that no graph knows"


def _host_draws(function: StepFunction, _: Step) -> Found:
    for node in _own(function, ast.Call):
        assert isinstance(node, ast.Call)
        if function.module.full(node.func) in DRAWN_HERE and function.values.of(node) == "host":
            yield node, f"{_short(function.module, node)} draws random numbers on the host"


def _streams(function: StepFunction, _: Step) -> Found:
    module = function.module
    for node in _own(function, ast.With):
        assert isinstance(node, ast.With)
        for item in node.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or module.full(call.func) not in STREAMS or not call.args:
                continue
            stream, inside = module.code(call.args[0]), {*ast.walk(node)}
            waits = [each for each in _own(function, ast.Call) if isinstance(each, ast.Call) and each not in inside]
            begins = any(_waits(module, each, stream) and each.lineno < node.lineno for each in waits)
            joins = any(_joins(module, each, stream) and each.lineno > node.lineno for each in waits)
            if not (begins and joins):
                yield node, f"the work on {stream} does not {'begin after' if joins else 'end before'} that of the step"


def _waits(module: ReadModule, call: ast.Call, stream: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("wait_stream", "wait_event") and (
        module.code(call.func.value) == stream
    )


def _joins(module: ReadModule, call: ast.Call, stream: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("wait_stream", "wait_event") and (
        module.code(call.func.value) != stream
    )


def _optimizers(function: StepFunction, _: Step) -> Found:
    module = function.module
    for node in _own(function, ast.Call):
        match node:
            case ast.Call(func=ast.Attribute(value=optimizer, attr="step")) if not module.full(node.func):
                for made in _made_optimizers(module, optimizer):
                    if module.called(made).rpartition(".")[2] in CHECKED and _is_counted_on_host(made):
                        yield node, f"{_short(module, node)} counts its steps on the host"


def _made_optimizers(module: ReadModule, optimizer: ast.expr) -> Iterator[ast.Call]:
    """Yields the calls that may make an optimizer: those that its name is bound to, for a parameter in all files."""
    name = optimizer.id if isinstance(optimizer, ast.Name) else getattr(optimizer, "attr", "")
    for file in module.program:
        for node in file.file.every(ast.Assign):
            for target in node.targets:
                names = {each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in (target, *elements(target))}
                values = [node.value, *elements(node.value)]
                if name in names:
                    yield from (each for each in values if isinstance(each, ast.Call) and "optim" in file.called(each))


def _is_counted_on_host(made: ast.Call) -> bool:
    given = keywords(made).get("capturable")
    return given is None or (isinstance(given, ast.Constant) and not given.value)


def _short(module: ReadModule, node: ast.AST) -> str:
    """Returns the text of a node in one short line."""
    text = " ".join(module.code(node).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


RULES: dict[Callable[[StepFunction, Step], Found], HazardKind] = {
    _host_reads: "host-read", _synchronisations: "synchronisation", _random_states: "random-state",
    _data_branches: "data-branch", _data_shapes: "data-shape", _host_tensors: "host-tensor",
    _changed_addresses: "changed-address", _baked_values: "baked-value", _streams: "stream", _optimizers: "optimizer",
    _host_draws: "random-state",
}  # fmt: skip
"""Rule → the kind of what it finds. Of several on one line, the first counts."""
