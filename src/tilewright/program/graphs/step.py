"""Finds the step of a program: the functions that run again and again, and would be captured.

The step is a function that a loop calls, and that calls a model or a backward pass. In a program without such a
function, the forward passes of its models are the step. The functions of the program that a step calls belong to it.

    for x, y in loader:
        train_step(model, optimizer, x, y)      the step
        out = model(x)                          or: the forward pass of the model is the step
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from tilewright.program.graphs.values import FunctionValues, ValueKind, joined
from tilewright.program.reading.models import is_module, makes_model
from tilewright.program.reading.module import Function, ReadModule
from tilewright.source.source_file import argument, own, returned

LOOPS = (ast.For, ast.While, ast.AsyncFor)
COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
UPDATES = ("backward", "step", "minimize")
"""Methods that a training step calls."""
DEPTH = 6
Found: TypeAlias = Iterator[tuple[ast.AST, str]]
"""Nodes, each with what it does."""


@dataclass(frozen=True)
class StepFunction:
    """One function of the step, with the kinds of its values.

    forward: whether it is called by the forward pass of a model; else only by the step function around it.
    counters: the parameters that get another number in each step.
    """

    values: FunctionValues
    forward: bool
    counters: frozenset[str] = frozenset()

    @property
    def module(self) -> ReadModule:
        return self.values.module

    @property
    def node(self) -> Function:
        return self.values.function

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Yields the nodes of the function and of its lambdas, without those that run only outside of a capture."""
        return (each for each in ast.walk(self.node) if isinstance(each, kinds) and not self._is_apart(each))

    def _is_apart(self, node: ast.AST) -> bool:
        """Returns whether a node is in an inner class or function, a decorator or an annotation, or in a branch that a
        capture does not take."""
        if node in self._not_run:
            return True
        for each in self.module.above(node):
            if each is self.node:
                return False
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                return True
            if isinstance(each, ast.If) and "is_current_stream_capturing" in self.module.code(each.test):
                return True
        return False

    @cached_property
    def _not_run(self) -> set[ast.AST]:
        """The nodes of decorators and annotations."""
        annotations = [each.annotation for each in ast.walk(self.node.args) if isinstance(each, ast.arg)]
        parts = [*self.node.decorator_list, *annotations, self.node.returns]
        return {inner for each in parts if each is not None for inner in ast.walk(each)}

    def short(self, node: ast.AST) -> str:
        """Returns the text of a node in one short line."""
        text = " ".join(self.module.code(node).split())
        return text if len(text) <= 60 else f"{text[:57]}…"


class ProgramStep:
    """The functions of a program's step. ``functions`` is empty if the program has no step."""

    def __init__(self, modules: tuple[ReadModule, ...]) -> None:
        self.modules = modules
        self._classes = {
            node.name: (module, node)
            for module in modules for node in module.file.every(ast.ClassDef) if is_module(module, node)
        }  # fmt: skip
        self._functions: dict[Function, StepFunction] = {}
        self._depth, self._forward = 0, True
        for module, function in self._forward_passes():
            self._add(module, function, {})
        self._forward = False
        for module, function, counters in tuple(self._step_functions()):
            values = FunctionValues(module, function, dict.fromkeys(counters, "host"), self._returned)
            self._follow(StepFunction(values, False, counters))

    @property
    def functions(self) -> tuple[StepFunction, ...]:
        return tuple(self._functions.values())

    @property
    def found(self) -> bool:
        """Whether the program has a step: a function of its own, or a model that a loop calls."""
        return bool(self._functions) or any(
            self._is_model(module, call.func) and in_a_loop(module, call)
            for module in self.modules for call in module.file.every(ast.Call)
        )  # fmt: skip

    def _add(self, module: ReadModule, function: Function, given: Mapping[str, ValueKind]) -> StepFunction:
        known = self._functions.get(function)
        return known or self._follow(
            StepFunction(FunctionValues(module, function, given, self._returned), self._forward)
        )

    def _follow(self, function: StepFunction) -> StepFunction:
        """Adds a function, and the functions that it calls."""
        self._functions[function.node] = function
        for call in own(function.node, ast.Call):
            self._returned(call, function.values)
        return function

    def _returned(self, call: ast.Call, values: FunctionValues) -> ValueKind | None:
        """Adds the program's own function that a call calls. Returns the kind of its result; None for other calls."""
        found = self._called(call, values.module)
        if found is None or self._depth > DEPTH or found[1] is values.function:
            return None
        module, function = found
        if self._runs_steps(module, function) and function not in self._functions:
            return None
        method = bool(function.args.args) and function.args.args[0].arg in ("self", "cls")
        names = [each.arg for each in function.args.args][1 if method else 0 :]
        given = {name: values.of(each) for name, each in zip(names, call.args, strict=False)}
        given |= {each.arg: values.of(each.value) for each in call.keywords if each.arg in names}
        self._depth += 1
        try:
            inner = self._add(module, function, given).values
            return joined(*map(inner.of, returned(function)))
        finally:
            self._depth -= 1

    def _called(self, call: ast.Call, module: ReadModule) -> tuple[ReadModule, Function] | None:
        """Returns the function, or the method of the same object, that a call calls."""
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                owner = module.class_of(call)
                body = owner.body if owner is not None else []
                found = next((each for each in body if isinstance(each, Function) and each.name == name), None)
                return (module, found) if found is not None else None
        defined = module.defined(call.func)
        return (defined[0], defined[1]) if defined is not None and isinstance(defined[1], Function) else None

    # Beginnings -------------------------------------------------------------------------------------

    def _forward_passes(self) -> Iterator[tuple[ReadModule, Function]]:
        """Yields the forward pass of each model's class that the program makes."""
        named = {
            node.id if isinstance(node, ast.Name) else node.attr
            for module in self.modules for node in module.file.nodes
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        }  # fmt: skip
        for name, (module, owner) in self._classes.items():
            for each in owner.body if name in named else ():
                if isinstance(each, Function) and each.name == "forward":
                    yield module, each

    def _step_functions(self) -> Iterator[tuple[ReadModule, Function, frozenset[str]]]:
        for module in self.modules:
            for call in module.file.every(ast.Call):
                found = self._called(call, module)
                if found is None or not in_a_loop(module, call) or self._in_a_model(module, call):
                    continue
                where, function = found
                if self._in_a_model(where, function) or self._runs_steps(where, function):
                    continue
                if self._works(where, function):
                    yield where, function, _counters(module, call, function)

    def _in_a_model(self, module: ReadModule, node: ast.AST) -> bool:
        return any(each is found for each in module.above(node) for _, found in self._classes.values())

    def _works(self, module: ReadModule, function: Function, depth: int = 3) -> bool:
        """Returns whether a function calls a model or a backward pass, itself or through another function."""
        for call in own(function, ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr in UPDATES and not module.full(call.func):
                return True
            if self._is_model(module, call.func):
                return True
            found = self._called(call, module)
            if found is not None and depth and found[1] is not function and self._works(*found, depth - 1):
                return True
        return False

    def _is_model(self, module: ReadModule, called: ast.expr) -> bool:
        """Returns whether what is called is a model: by its assignment, or a parameter without another meaning."""
        if isinstance(called, ast.Attribute):
            return isinstance(called.value, ast.Name) and called.attr in ("model", "net", "module", "network")
        if not isinstance(called, ast.Name):
            return False
        bound = module.file.bindings(called.id, called)
        if any(each.kind == "parameter" for each in bound):
            return True
        return any(isinstance(each.value, ast.expr) and makes_model(module, each.value) for each in bound)

    def _runs_steps(self, module: ReadModule, function: Function) -> bool:
        """Returns whether a function has a loop over steps, such as an epoch: it is no step itself."""
        for loop in own(function, ast.AST):
            if not isinstance(loop, (*LOOPS, *COMPREHENSIONS)):
                continue
            calls = [each for each in ast.walk(loop) if isinstance(each, ast.Call)]
            updates = any(isinstance(each.func, ast.Attribute) and each.func.attr == "backward" for each in calls)
            if updates or any(self._trains(each, module) for each in calls):
                return True
            models = [each for each in calls if self._is_model(module, each.func)]
            if any(not _goes_on(module, loop, each) for each in models):
                return True
        return False

    def _trains(self, call: ast.Call, module: ReadModule) -> bool:
        found = self._called(call, module)
        return found is not None and any(
            isinstance(each.func, ast.Attribute) and each.func.attr == "backward" for each in own(found[1], ast.Call)
        )


def in_a_loop(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether a node is evaluated again and again by a loop or comprehension of its own function."""
    child = node
    for each in module.above(node):
        if isinstance(each, (*Function.__args__, ast.Lambda, ast.ClassDef)):
            return False
        if isinstance(each, LOOPS) and child in each.body:
            return True
        if isinstance(each, COMPREHENSIONS):
            return True
        child = each
    return False


def _goes_on(module: ReadModule, loop: ast.AST, call: ast.Call) -> bool:
    """Returns whether a loop gives the result of a model to its next call, as one that generates tokens.

    Such a loop is a part of a step. One over data has a step in each iteration.
    """
    numbers = isinstance(loop, ast.For) and "range(" in module.code(loop.iter)
    if not numbers and not isinstance(loop, ast.While):
        return False
    given = {node.id for each in call.args for node in ast.walk(each) if isinstance(node, ast.Name)}
    stored = (node for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return any(node.id in given and node.lineno >= call.lineno for node in stored)


def _counters(module: ReadModule, call: ast.Call, function: Function) -> frozenset[str]:
    """Returns the parameters that get the number of a step from the loop around a call."""
    counted: set[str] = set()
    for each in module.above(call):
        match each:
            case ast.For(target=ast.Name(id=name), iter=iterated) if "range(" in module.code(iterated):
                counted.add(name)
            case ast.For(target=ast.Tuple(elts=[ast.Name(id=name), *_]), iter=ast.Call(func=ast.Name(id="enumerate"))):
                counted.add(name)
    names = enumerate(each.arg for each in function.args.args if each.arg != "self")
    given = ((name, argument(call, place, name)) for place, name in names)
    return frozenset(name for name, each in given if isinstance(each, ast.Name) and each.id in counted)
