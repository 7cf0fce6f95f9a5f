"""Finds Triton kernels, their decorators and their launches in the text of a Python file."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from tilewright.errors import RequestError
from tilewright.source.configurations import Listed, tuned_by
from tilewright.source.source_file import Named, SourceFile, argument, elements, keywords, parameters, remembered
from tilewright.source.values import called_name

LANGUAGE = "triton.language"
JIT = {"triton.jit", "triton.runtime.jit.jit", "triton.runtime.jit"}
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""The options of a configuration that are not parameters of the kernel."""


@dataclass(frozen=True)
class Tuner:
    """A decorator that tunes a kernel: ``@triton.autotune(…)``, or a decorator of another library that takes the same
    arguments. Flash-linear-attention (fla) has such a decorator.
    """

    call: ast.Call
    configurations: Listed | None
    """The configurations; None if the text does not show them."""

    @property
    def takes_trials(self) -> bool:
        """Whether the tuner may time several configurations. If there is only one, Triton times none."""
        listed = self.configurations
        return listed is None or bool(listed.notes) or listed.unread or len(listed.configurations) > 1

    @property
    def fields(self) -> set[str]:
        """The fields that the configurations set: parameters of the kernel and options."""
        listed = self.configurations.configurations if self.configurations else ()
        return {name for configuration in listed for name, _ in configuration.fields}

    def names(self, file: SourceFile, position: int, keyword: str) -> dict[str, ast.expr] | None:
        """Returns the expressions in a list of parameter names, such as ``key``, by the name.

        position, keyword: the list's argument in the call. Returns None if the text does not show all names.
        """
        written = argument(self.call, position, keyword)
        given = file.value(written)
        if written is None or (isinstance(given, ast.Constant) and given.value is None):
            return {}
        found = {one.value: one for one in elements(given) if isinstance(one, ast.Constant)}
        is_whole = isinstance(given, (ast.List, ast.Tuple)) and len(found) == len(elements(given))
        return {str(name): node for name, node in found.items()} if is_whole else None


@dataclass(frozen=True)
class TritonKernel:
    """A function decorated with ``@triton.jit``.

    computed: maps a parameter to the function that computes its value, for ``@triton.heuristics`` above the tuner.
    computed_late: the parameters that heuristics below the tuner compute. The tuner's key cannot contain these.
    """

    node: Named
    tuner: Tuner | None
    computed: Mapping[str, ast.expr]
    computed_late: frozenset[str]

    @property
    def constants(self) -> set[str]:
        """The parameters that are annotated as compile-time constants."""
        return {one.arg for one in parameters(self.node) if "constexpr" in _written(one)}


@dataclass(frozen=True)
class TritonLaunch:
    """One launch ``kernel[grid](…)``. ``passed`` maps parameters and options to the expressions passed."""

    call: ast.Call
    kernel: TritonKernel
    passed: Mapping[str, ast.expr]
    is_whole: bool
    """Whether the text shows all arguments. Arguments that are passed by a star (``*args``) are not shown."""


def _written(parameter: ast.arg) -> str:
    return "" if parameter.annotation is None else ast.unparse(parameter.annotation)


@remembered
def kernels(file: SourceFile) -> Mapping[Named, TritonKernel]:
    """Returns the functions decorated with ``@triton.jit``, including those that only kernels call."""
    found = {}
    for node in file.functions:
        if any(file.dotted(_called(decorator)) in JIT for decorator in node.decorator_list):
            found[node] = _kernel(file, node)
    return found


def _called(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _kernel(file: SourceFile, node: Named) -> TritonKernel:
    calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    tuner = next((call for call in calls if called_name(call).endswith("autotune")), None)
    above: dict[str, ast.expr] = {}
    below: set[str] = set()
    for call in calls:
        if called_name(call) == "heuristics":
            given = file.value(argument(call, 0, "values"))
            pairs = zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ()
            named = {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            if tuner is not None and call.lineno > tuner.lineno:
                below |= set(named)
            else:
                above |= named
    return TritonKernel(node, _tuner(file, tuner) if tuner else None, above, frozenset(below))


def _tuner(file: SourceFile, call: ast.Call) -> Tuner:
    try:
        listed = tuned_by(file, call)
    except (RequestError, RecursionError):
        listed = None
    return Tuner(call, listed if listed and listed.configurations else None)


@remembered
def launches(file: SourceFile) -> tuple[TritonLaunch, ...]:
    """Returns the launches of the file's own kernels."""
    found = []
    for call in file.every(ast.Call) if kernels(file) else ():
        if isinstance(call.func, ast.Subscript):
            for value in file.values(call.func.value):
                if isinstance(value, Named) and value in kernels(file):
                    found.append(_launch(call, kernels(file)[value]))
    return tuple(found)


def launches_of(file: SourceFile, kernel: TritonKernel) -> list[TritonLaunch]:
    """Returns the launches of one kernel."""
    # Two objects may stand for one kernel: what is remembered of a file is forgotten after other files were read.
    return [launch for launch in launches(file) if launch.kernel.node is kernel.node]


def _launch(call: ast.Call, kernel: TritonKernel) -> TritonLaunch:
    plain = list(takewhile(lambda value: not isinstance(value, ast.Starred), call.args))
    passed = {one.arg: value for one, value in zip(parameters(kernel.node), plain, strict=False)}
    is_whole = len(plain) == len(call.args) and all(keyword.arg is not None for keyword in call.keywords)
    return TritonLaunch(call, kernel, passed | keywords(call), is_whole)


def operation(file: SourceFile, call: ast.Call) -> str:
    """Returns the name of an operation of Triton's language, ``load`` for `tl.load(…)`; "" for any other call."""
    prefix, _, name = file.dotted(call.func).rpartition(".")
    return name if prefix == LANGUAGE else ""
