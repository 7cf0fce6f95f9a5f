"""What a capture refuses besides waits, or takes and then repeats wrongly: addresses, numbers, random states, streams
and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.graphs.step import Found, ProgramStep, StepFunction
from tilewright.program.reading.flow import loads
from tilewright.program.reading.module import ReadModule
from tilewright.source.source_file import elements, keywords

SEEDS = ("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.seed",
         "torch.random.fork_rng", "torch.get_rng_state", "torch.set_rng_state", "torch.cuda.get_rng_state",
         "torch.cuda.set_rng_state")  # fmt: skip
RANDOM = ("random.", "numpy.random.", "secrets.", "uuid.")
DRAWS = ("random", "integers", "choice", "shuffle", "uniform", "normal", "randint")
"""Methods of the generators of Python and NumPy."""
DRAWN_HERE = ("torch.rand", "torch.randn", "torch.randint", "torch.randperm")
CLOCKS = ("time.", "datetime.")
STREAMS = ("torch.cuda.stream", "torch.cuda.StreamContext")
CHECKED = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "ASGD", "RMSprop", "Rprop", "Adadelta", "Adafactor")
"""Optimizers of torch 2.13 that refuse a capture unless they are made with ``capturable=True``."""


def changed_addresses(function: StepFunction, step: ProgramStep) -> Found:
    """Finds tensors that the next step needs at another address than a graph knows."""
    values, module = function.values, function.module
    for node in function.nodes(ast.Attribute, ast.Call, ast.Assign):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                statement = module.statement(node)
                kept = not isinstance(statement, ast.AugAssign) and values.of(_assigned(statement, node))
                if kept in ("tensor", "other") and _reads_attribute(function, name, step):
                    yield node, f"self.{name} is another tensor after each call, and the next call reads it"
            case ast.Attribute(attr="data" | "grad", ctx=ast.Store(), value=owner):
                given = _assigned(module.statement(node), node)
                if not isinstance(module.statement(node), ast.AugAssign) and not isinstance(given, ast.Constant):
                    yield node, f"{module.code(owner)}.{node.attr} becomes another tensor"
            case ast.Call(
                func=ast.Attribute(value=keeper, attr="append" | "extend" | "insert" | "add"), args=[*_, given]
            ) if values.of(keeper) != "tensor":
                if values.of(given) in ("tensor", "container") and not _is_own(function, keeper):
                    yield node, f"{function.short(node)} keeps a tensor that the next replay overwrites"
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


def _reads_attribute(function: StepFunction, name: str, step: ProgramStep) -> bool:
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


def baked_values(function: StepFunction, _: ProgramStep) -> Found:
    """Finds numbers of the host that differ from step to step."""
    values, module = function.values, function.module
    for parameter in function.node.args.args:
        if parameter.arg in function.counters and loads(function.node, parameter.arg):
            yield parameter, f"{parameter.arg} is a number of the host that differs in each step"
    for node in function.nodes(ast.AugAssign, ast.Assign, ast.Call):
        match node:
            case ast.AugAssign(target=ast.Attribute(value=ast.Name(id="self")) as counter, value=added):
                if values.of(added) == "host" and values.of(counter) in ("host", "other"):
                    yield node, f"{module.code(counter)} is counted on the host"
            case ast.AugAssign(target=ast.Name(id=name)) if name in _globals(function):
                if values.of(node.value) == "host":
                    yield node, f"{name} is counted on the host"
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self")) as counter], value=ast.BinOp() as value):
                same = any(
                    module.code(each) == module.code(counter)
                    for each in ast.walk(value)
                    if isinstance(each, ast.Attribute)
                )
                if same and values.of(value) == "host":
                    yield node, f"{module.code(counter)} is counted on the host"
            case ast.Call() if module.full(node.func).startswith(CLOCKS):
                yield node, f"{function.short(node)} reads the clock"
            case ast.Call(func=ast.Attribute(value=scheduler, attr="step")) if (
                "sched" in module.code(scheduler).lower()
            ):
                yield node, f"{function.short(node)} changes the learning rate on the host"


def random_states(function: StepFunction, _: ProgramStep) -> Found:
    """Finds random numbers that no graph advances."""
    module = function.module
    for node in function.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        full, code = module.full(node.func), function.short(node)
        given = keywords(node).get("generator")
        own_generator = isinstance(node.func, ast.Attribute) and node.func.attr in DRAWS and not full
        if full.startswith(RANDOM) or full in SEEDS or (own_generator and "rng" in module.code(node.func).lower()):
            yield node, f"{code} uses random numbers or seeds of the host"
        elif given is not None and not (isinstance(given, ast.Constant) and given.value is None):
            yield node, f"{code} uses a generator that no graph knows"


def host_draws(function: StepFunction, _: ProgramStep) -> Found:
    """Finds random numbers that torch draws on the host."""
    for node in function.nodes(ast.Call):
        assert isinstance(node, ast.Call)
        if function.module.full(node.func) in DRAWN_HERE and function.values.of(node) == "host":
            yield node, f"{function.short(node)} draws random numbers on the host"


def streams(function: StepFunction, _: ProgramStep) -> Found:
    """Finds work on another stream that is not between two waits."""
    module = function.module
    for node in function.nodes(ast.With):
        assert isinstance(node, ast.With)
        for item in node.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or module.full(call.func) not in STREAMS or not call.args:
                continue
            stream, inside = module.code(call.args[0]), {*ast.walk(node)}
            waits = [each for each in function.nodes(ast.Call) if isinstance(each, ast.Call) and each not in inside]
            begins = any(_waiting(module, each) == stream and each.lineno < node.lineno for each in waits)
            joins = any(_waiting(module, each) not in ("", stream) and each.lineno > node.lineno for each in waits)
            if not (begins and joins):
                yield node, f"the work on {stream} does not {'begin after' if joins else 'end before'} that of the step"


def _waiting(module: ReadModule, call: ast.Call) -> str:
    """Returns the code of the stream that a call lets wait; "" for other calls."""
    waits = isinstance(call.func, ast.Attribute) and call.func.attr in ("wait_stream", "wait_event")
    return module.code(call.func.value) if waits and isinstance(call.func, ast.Attribute) else ""


def optimizers(function: StepFunction, _: ProgramStep) -> Found:
    """Finds steps of optimizers that refuse a capture."""
    module = function.module
    for node in function.nodes(ast.Call):
        match node:
            case ast.Call(func=ast.Attribute(value=optimizer, attr="step")) if not module.full(node.func):
                for made in _made_optimizers(module, optimizer):
                    if module.called(made).rpartition(".")[2] in CHECKED and _is_counted_on_host(made):
                        yield node, f"{function.short(node)} counts its steps on the host"


def _made_optimizers(module: ReadModule, optimizer: ast.expr) -> Iterator[ast.Call]:
    """Yields the calls that may make an optimizer: those that its name is bound to, for a parameter in all files."""
    name = optimizer.id if isinstance(optimizer, ast.Name) else getattr(optimizer, "attr", "")
    for file in module.program:
        for node in file.file.every(ast.Assign):
            for target in node.targets:
                names = {
                    each.id if isinstance(each, ast.Name) else getattr(each, "attr", "")
                    for each in (target, *elements(target))
                }
                values = [node.value, *elements(node.value)]
                if name in names:
                    yield from (each for each in values if isinstance(each, ast.Call) and "optim" in file.called(each))


def _is_counted_on_host(made: ast.Call) -> bool:
    given = keywords(made).get("capturable")
    return given is None or (isinstance(given, ast.Constant) and not given.value)
