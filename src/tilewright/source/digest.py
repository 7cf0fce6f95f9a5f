"""Hashes a kernel's code: its source, the source of its helpers, and the constants that they use.

The names in the kernel's syntax tree, including `module.name` and `object.name`, are resolved in the same way as by the
front end. The hash contains the source of each function and the value of each constant. Comments and layout do not
change the hash. The source of the packages in `_VERSIONED` is omitted. Instead, callers add the versions of these
packages to their keys.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from tilewright.source.source_file import source_of_object, stored

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_VERSIONED = ("builtins", "cuda.tile", "cutlass", "numpy", "scipy", "torch", "triton")
"""Packages whose functions enter the hash by name, without source."""

Chains: TypeAlias = tuple[tuple[str, ...], ...]
_PARSED: dict[int, tuple[CodeType | type, Chains, str]] = {}
"""Maps the id of a code object or a class to the object, the names in the object (`_chains`), and the object's source.

The key is an id because equal code objects may have different decorators. The object is kept in the value, so that no
other object gets the same id. The cache saves time: to find a class, Python parses the whole file (0.1 s for
`typing.Any`).
"""


def source_of(*kernels: Any) -> str:
    """Returns the SHA-256 of the source of kernels or other functions.

    Includes all helpers and global constants that they use, directly or indirectly.
    """
    functions = [function_of(kernel) for kernel in kernels]
    lines = [_described(kernel, functions) for kernel in kernels if isinstance(kernel, partial)]
    for function in functions:  # the list grows during the loop
        defaults = _described((function.__defaults__, function.__kwdefaults__), [])
        lines.append(f"{function.__qualname__}: {_parsed(function.__code__)[1]} {defaults}")
        lines += [f"  {name} = {_described(value, functions)}" for name, value in _used(function)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def function_of(thing: Any) -> FunctionType:
    """Returns the Python function of a kernel, a tile function, a method, a `functools.partial` or a callable object.

    Raises TypeError for any other object.
    """
    inner = inspect.unwrap(_python_of(thing))
    if isinstance(inner, partial):
        return function_of(inner.func)
    for function in (inner, getattr(inner, "__func__", None), inspect.getattr_static(type(inner), "__call__", None)):
        if isinstance(function, FunctionType):
            return function
    raise TypeError(f"{thing!r} is not a kernel; pass a function decorated with @ct.kernel or @triton.jit")


def _python_of(thing: Any) -> Any:
    """Returns the function in a cuTile kernel, a tile function or Triton's decorators; any other object unchanged."""
    while hasattr(thing, "fn") and any(base.__module__.startswith("triton.") for base in type(thing).__mro__):
        thing = thing.fn  # also works for a library's own subclass of Triton's autotuner
    return getattr(thing, "_pyfunc", thing)


def has_source(thing: Any) -> bool:
    """Returns whether `function_of` finds a Python function. False for None and for functions written in C."""
    try:
        function_of(thing)
    except TypeError:
        return False
    return True


def _parsed(thing: CodeType | type) -> tuple[Chains, str]:
    """Returns the names in code or in a class, sorted, and its source. Without source, formats the code as a string."""
    if id(thing) not in _PARSED:
        if (file := source_of_object(thing)) is not None:
            _PARSED[id(thing)] = thing, tuple(sorted(set(_chains(file.tree)))), ast.unparse(file.tree)
        else:
            names = () if isinstance(thing, type) else tuple((name,) for name in sorted(_names(thing)))
            _PARSED[id(thing)] = thing, names, _bare(thing)
    return _PARSED[id(thing)][1:]


def _bare(code: CodeType | type) -> str:
    if isinstance(code, type):
        return ""
    constants = [_bare(each) if isinstance(each, CodeType) else _described(each, []) for each in code.co_consts]
    return f"{code.co_code.hex()} {constants!r} {code.co_names!r}"


def _names(code: CodeType) -> set[str]:
    """Returns the global names and attributes that code uses, also in its inner functions and generators."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the dotted name and the value of each object that a function uses from outside its body, by name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    outside = {**function.__globals__, **cells}
    local = set(function.__code__.co_varnames) - set(function.__code__.co_freevars)
    for chain in _parsed(function.__code__)[0]:
        root, *rest = chain
        if root in local or root not in outside:
            continue
        value, path = _contents(outside[root]), [root]
        for name in rest:
            if isinstance(value, ModuleType) and _versioned(value.__name__):
                break
            try:
                value = getattr(value, name)
            except Exception:  # an attribute that exists only in tile code: the object itself enters the hash
                break
            path.append(name)
        yield ".".join(path), value


def _versioned(module: str) -> bool:
    return module.startswith(tuple(f"{package}." for package in _VERSIONED)) or module in _VERSIONED


def _contents(value: Any) -> Any:
    if type(value).__name__ != "cell":
        return value
    try:
        return value.cell_contents
    except ValueError:  # not filled yet
        return None


def _chains(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yields all names in a tree, with their attributes: ``a.b.c`` as ("a", "b", "c").

    Leaves out the parameters of lambdas and the variables of comprehensions.
    """
    inner, own = set[ast.AST](), set[ast.AST]()
    for node in ast.walk(tree):  # the walk gives ``a.b`` before ``a``, and a lambda before its body
        if node in inner:
            continue
        own.update(_own_names(node))
        names: list[str] = []
        part: ast.AST = node
        while isinstance(part, ast.Attribute):
            names.append(part.attr)
            part = part.value
            inner.add(part)
        if isinstance(part, ast.Name) and part not in own:
            yield (part.id, *reversed(names))
        else:
            inner.discard(part)


def _own_names(node: ast.AST) -> Iterator[ast.Name]:
    """Yields each use of a lambda's own parameters, or of a comprehension's own variables."""
    own: set[str] = set()
    if isinstance(node, ast.Lambda):
        own = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        own = {name for generator in node.generators for name in stored(generator.target)}
    if own:
        yield from (each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in own)


def _described(value: Any, functions: list[FunctionType], depth: int = 0) -> str:
    """Formats a value as a string that is the same in every process. Adds the functions in the value to
    ``functions``."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}={value.value!r}"
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if depth > 8:
        return type(value).__qualname__

    def inner(part: Any) -> str:
        return _described(part, functions, depth + 1)

    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{inner(key)}: {inner(part)}' for key, part in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} [{', '.join(map(inner, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"set {sorted(map(inner, value))}"
    if isinstance(value, partial):
        return f"partial {inner((value.func, value.args, value.keywords))}"
    return _described_object(value, functions)


def _described_object(value: Any, functions: list[FunctionType]) -> str:
    module = str(getattr(value, "__module__", "") or "")
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {module}.{value.__qualname__} {'' if _versioned(module) else _parsed(value)[1]}"
    python = inspect.unwrap(_python_of(value))
    if isinstance(python, FunctionType) and not _versioned(module):
        if python not in functions:
            functions.append(python)
        return f"function {python.__qualname__}"
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return f"function {module}.{value.__qualname__}"
    text = "" if hasattr(value, "shape") else repr(value)
    return type(value).__qualname__ if not text or " at 0x" in text else f"{type(value).__qualname__} {text}"
