"""Makes the TTIR of a launch in this process: runs Triton's binder on array specifications, then its code generator.

Both routes of a Triton kernel begin with `ttir_of`. The PTX route compiles the TTIR in a child process. The other route
translates it to Tile IR.
"""

from __future__ import annotations

import gc
import re
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.errors import CompilerMissing, TaskError, first_line, in_one_line
from tilewright.hardware.architectures import architecture
from tilewright.hardware.machine import installed_version
from tilewright.languages.base import Argument, Hints
from tilewright.languages.triton.hints import HINTS
from tilewright.languages.triton.kernels import OPTIONS, KernelCall, ParameterType, called, jit_function
from tilewright.languages.triton.versions import NO_BLOCK_POINTERS, PATCH_WITHOUT, failing, untested
from tilewright.records import Configuration, Failed, Value
from tilewright.source.digest import source_of
from tilewright.task.task import Launch
from tilewright.task.tensors import Descriptor

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

    from tilewright.languages.triton.private import BoundCall

Option: TypeAlias = "Value | tuple[Option, ...]"

LACKING = (ImportError, AttributeError)
"""The errors that triton raises if a private part is missing, because its version is not a tested one."""
FOREIGN = frozenset(hint.name for hint in HINTS) - frozenset(OPTIONS)
"""The hints that are no options of Triton's compiler."""
GENERATED = 256
"""The most entries of the cache of TTIR. An entry belongs to a kernel with its constants."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the compiled entry. Constants and integers equal to 1 are not parameters."""

    name: str
    type: str
    """The type in Triton's notation: ``*bf16``, ``i32``, ``fp32`` and so on."""
    argument: Argument | Descriptor

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The values that the entry gets. For a descriptor: its address, its extents and its strides."""
        if isinstance(self.argument, Descriptor):
            return self.argument.base, *self.argument.base.shape, *self.argument.base.strides
        return (self.argument,)


@dataclass(frozen=True)
class Ttir:
    """The TTIR of one launch."""

    symbol: str
    """Name of the entry."""
    text: str
    """The text of the TTIR, with source locations."""
    parameters: tuple[Parameter, ...]
    """The parameters of the entry, in order."""
    options: tuple[tuple[str, Option], ...]
    """All options of Triton's compiler."""
    bound: BoundCall = field(repr=False, compare=False)
    """The launch as Triton's binder sees it."""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return tuple(argument for parameter in self.parameters for argument in parameter.arguments)


def ttir_of(launch: Launch, hints: Hints, config: Configuration, arch: str) -> Ttir | Failed:
    """Returns the TTIR of a launch for ``arch``, such as ``sm_90``. An error in the kernel is a `Failed` with its
    source line.

    For architectures below sm_90, Triton's own passes replace tensor descriptors by pointers. To keep descriptors, pass
    sm_90. Raises CompilerMissing if the installed triton lacks private parts that Tilewright uses.
    """
    private = private_parts()
    function, number = jit_function(launch.kernel), architecture(arch).number
    if function.is_gluon():
        return Failed("front end", f"'{function.__name__}' is a gluon kernel; fix: write it with @triton.jit")
    try:
        call = called(launch.kernel, launch.args, _options(hints), config)
        bound = private.bind(call.function, call.args, call.keywords, number)
        symbol, text = _again(lambda: _generated(call, bound, number))
        parameters = tuple(_parameters(bound.types.values(), bound.values))
    except TaskError as error:
        return Failed("front end", str(error))
    except Exception as error:  # many kinds of errors: of Triton, or of a hook of the task
        _refuse_untested(error)
        return Failed("front end", _said(error, function))
    return Ttir(symbol, text, parameters, tuple(vars(bound.options).items()), bound)


def parameters_of(launch: Launch) -> tuple[Parameter, ...]:
    """Returns the parameters of the compiled entry. They do not depend on the values of constants."""
    private, function = private_parts(), jit_function(launch.kernel)
    left = [each for each in function.params[len(launch.args) :] if not each.has_default]
    bound = private.bind(function, launch.args, {each.name: None for each in left}, private.ANY_ARCH, hooks=False)
    return tuple(_parameters(bound.types.values(), bound.values))


def private_parts() -> ModuleType:
    """Imports the private parts of triton. Raises CompilerMissing if the installed triton does not have them."""
    try:
        return import_module("tilewright.languages.triton.private")
    except LACKING as error:
        raise CompilerMissing(failing(installed_version("triton") or "of unknown version", error)) from error


def _refuse_untested(error: Exception) -> None:
    """Raises CompilerMissing if ``error`` says that an untested triton lacks a private part that Tilewright uses."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    version, is_ours = installed_version("triton"), innermost.f_code.co_filename == private_parts().__file__
    if version and untested(version) and is_ours and isinstance(error, LACKING):
        raise CompilerMissing(failing(version, error)) from error


def _options(hints: Hints) -> dict[str, Value]:
    """Returns the hints that are options of Triton's compiler. A launch may have options that are no `HINTS`."""
    return {name: value for name, value in hints.items() if value is not None and name not in FOREIGN}


def _parameters(types: Iterable[ParameterType], values: Mapping[str, Any] | Sequence[Any]) -> Iterator[Parameter]:
    named = values.items() if isinstance(values, Mapping) else ((str(at), value) for at, value in enumerate(values))
    for kind, (name, value) in zip(types, named, strict=True):
        if isinstance(kind, tuple):
            yield from (Parameter(f"{name}.{each.name}", each.type, each.argument) for each in _parameters(kind, value))
        elif kind != "constexpr":
            yield Parameter(name, kind, _cut_off(value) if kind == "bf16" else value)


def _cut_off(number: float) -> float:
    """Returns a number as Triton's launcher passes it to a bf16 parameter: without the last 16 bits of its float32.

    See ``pack_bf16`` in Triton 3.6, ``extractBF16`` in 3.9.
    """
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    (cut,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(cut)


_GENERATED: dict[tuple[object, ...], list[tuple[dict[str, str], tuple[str, str]]]] = {}


def _generated(call: KernelCall, bound: BoundCall, arch: int) -> tuple[str, str]:
    """Returns the name of the entry and its TTIR, from a cache if possible.

    The cache key has the source of the kernel and of its helpers, and the constants that both read. The key also has
    the compiler options that the front end read, but no other options. So configurations that differ in ``num_warps``
    or ``num_stages`` share one TTIR, unless the kernel reads these options.
    """
    key = (call.function, source_of(call.function), repr(bound.types), repr(sorted(bound.constants.items(), key=repr)),
           repr(bound.attributes), arch)  # fmt: skip
    for read, made in _GENERATED.get(key, ()):
        if all(repr(getattr(bound.options, name)) == value for name, value in read.items()):
            return made
    symbol, text, names = private_parts().lower(call.function, bound, arch)
    if len(_GENERATED) >= GENERATED:
        _GENERATED.pop(next(iter(_GENERATED)), None)
    read = {name: repr(getattr(bound.options, name)) for name in names}
    _GENERATED.setdefault(key, []).append((read, (symbol, text)))
    return symbol, text


PARSES = 20
MISCOUNTED = "AST constructor recursion depth mismatch"
"""Part of the message of a SystemError that Python 3.11 raises by mistake. `ast.parse` counts the depth of its tree for
all threads together. So it may fail if another thread parses at the same time
(https://github.com/python/cpython/issues/106905)."""


def _again(made: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Calls ``made`` again as long as Python raises the `MISCOUNTED` error, up to `PARSES` times.

    Garbage collection is switched off meanwhile, because a collection lets another thread run during `ast.parse`.
    """
    collects = gc.isenabled()
    try:
        for _ in range(PARSES):
            try:
                return made()
            except Exception as error:
                if MISCOUNTED not in "".join(traceback.format_exception(error)):
                    raise
                gc.disable()
                time.sleep(0.1)
        return made()
    finally:
        if collects:
            gc.enable()


def _said(error: BaseException, function: JITFunction[FunctionType]) -> str:
    """Returns an error of Triton's front end in one line: the innermost message, and its place in the source."""
    innermost, place = error, ""
    while True:
        node, source = getattr(innermost, "node", None), getattr(innermost, "src", None)
        if node is not None and isinstance(source, str):
            place = _place(function, source, getattr(node, "lineno", 0)) or place
        if innermost.__cause__ is None:
            break
        innermost = innermost.__cause__
    message = first_line(getattr(innermost, "error_message", None) or "") or in_one_line(innermost)
    hint = PATCH_WITHOUT if NO_BLOCK_POINTERS in message else ""
    return place + re.sub(r"""^(\w+)\((['"])(.*)\2\)$""", r"\1: \3", message) + hint


def _place(function: JITFunction[FunctionType], source: str, line: int) -> str:
    """Returns the place of a line in the source of a kernel or of its helper, such as ``matmul.py:12: ``."""
    known = [function, *(each for each in function.get_capture_scope().values() if hasattr(each, "raw_src"))]
    for each in known:
        if each.src == source:
            skipped = "".join(each.raw_src).partition("def ")[0].count("\n")  # lines of decorators
            file = Path(each.fn.__code__.co_filename).name
            return f"{file}:{each.starting_line_number + skipped + line - 1}: "
    return ""
