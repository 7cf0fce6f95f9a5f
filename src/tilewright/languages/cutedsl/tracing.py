"""Traces a launch of a CuTe DSL kernel in this process: runs the host function on tensors without data.

CuTe DSL cannot trace in two threads at the same time (4.8.1 ends the process), so a lock guards it. A tensor's shape
and strides are constants of the code, as for a tensor that `cute.runtime.from_dlpack` passes.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tilewright.errors import CompilerMissing, in_one_line
from tilewright.hardware.machine import installed_version
from tilewright.languages.cutedsl.versions import FIX, PACKAGE, TESTED
from tilewright.records import Failed
from tilewright.task.tensors import DIVISOR, ITEM_BYTES, ArraySpec

STREAM = "CUstream"
"""The type of the host function's parameter for the stream."""
TRACED = 256
"""The most traced launches to keep. A launch is traced for its code, for its name, and when it runs."""
TYPES = {
    "bool": "Boolean", "bfloat16": "BFloat16", "float16": "Float16", "float32": "Float32", "float64": "Float64",
    "float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2", "float8_e8m0fnu": "Float8E8M0FNU",
    **{f"{kind.lower()}{bits}": f"{kind}{bits}" for kind in ("Int", "Uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Maps a dtype to the name of the class in cutlass."""
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Traced:
    """A traced launch: the code of its kernel and of its host function, before compilation."""

    code: bytes
    symbol: str
    """Name of the kernel's entry."""
    grid: tuple[int, int, int] | None
    """The CTAs of the launch; None if they are not constants of the host function."""
    threads: int
    cluster: tuple[int, int, int]


def host_function(kernel: Any) -> FunctionType | None:
    """Returns the `@cute.jit` or `@cute.kernel` function of a launch's kernel, which may also be an object whose
    ``__call__`` is one. Returns None for other kernels."""
    for each in (kernel, inspect.getattr_static(type(kernel), "__call__", None)):
        if getattr(getattr(each, "_dsl_cls", None), "__module__", "").split(".")[0] == "cutlass":
            function: FunctionType = inspect.unwrap(each)
            return function
    return None


def traced(kernel: Any, args: Sequence[Any], arch: str) -> Traced | Failed:
    """Returns the trace of a launch. An error in the kernel is a `Failed` with its source line.

    args: arrays as `ArraySpec`, or numbers and other values in the order of the host function.
    arch: as the compiler names it, such as ``sm_90a``.
    """
    unnamed = tuple(_unnamed(arg) for arg in args)
    try:
        hash((kernel, unnamed))
    except TypeError as error:
        return Failed("front end", f"the launch passes a list, or another value that may change: {error}")
    with _LOCK:
        return _traced(kernel, unnamed, repr(unnamed), arch)


def _unnamed(arg: Any) -> Any:
    """Returns the argument as it determines the code. An array's name does not."""
    if not isinstance(arg, ArraySpec):
        return arg
    return ArraySpec("", arg.shape, arg.dtype, arg.strides, arg.address_offset).as_compiled()


@lru_cache(maxsize=TRACED)
def _traced(kernel: Any, args: tuple[Any, ...], written: str, arch: str) -> Traced | Failed:
    """``written``: the arguments as text, because 1, 1.0 and True are equal keys."""
    function = host_function(kernel)
    assert function is not None, "the language recognised it"
    if getattr(function, "_decorator_kind", "") == "kernel":
        return Failed("front end", f"'{function.__name__}' is a device function (@cute.kernel); fix: launch the "
                      "@cute.jit function that launches it")  # fmt: skip
    cutlass, texts = front_end(), list[str]()
    try:
        given = _given(function, kernel, [_argument(cutlass, arg) for arg in args])
        made = cutlass.cute.compile.to_precompiled_mlir(
            kernel, *given, options=f"--gpu-arch {arch}",
            trace_finalize_hooks=lambda owner, module, name: texts.append(str(module)),
        )  # fmt: skip
        return _launch_in("".join(texts), bytes(cutlass.compiler.serialize_compilation_artifact(made)))
    except _Refused as error:
        return Failed("front end", str(error))
    except Exception as error:  # many kinds of errors: of CuTe DSL, or of the kernel's own code
        return Failed("front end", _said(error))


class _Refused(Exception):
    """A launch that Tilewright cannot take. The message is one line."""


def _given(function: FunctionType, kernel: Any, args: list[Any]) -> list[Any]:
    """Returns the arguments of the host function, with a stream for its last parameter."""
    names = list(inspect.signature(function).parameters)
    names = names if kernel is function or isinstance(kernel, FunctionType) else names[1:]  # without self
    if len(names) != len(args) + 1 or not _is_stream(function, names[-1]):
        what = f"'{function.__name__}' has the parameters {', '.join(names) or 'none'}; the launch passes {len(args)}"
        raise _Refused(f"{what}; fix: pass all but the last parameter, which is `stream: {STREAM}`")
    return [*args, front_end().cute.runtime.make_fake_stream()]


def _is_stream(function: FunctionType, name: str) -> bool:
    return name == "stream" or STREAM in str(function.__annotations__.get(name, ""))


def _argument(cutlass: ModuleType, arg: Any) -> Any:
    if not isinstance(arg, ArraySpec):
        return arg
    if arg.dtype not in TYPES:
        raise _Refused(f"CuTe DSL has no type for {arg.dtype}; known: {', '.join(TYPES)}")
    alignment = DIVISOR
    while arg.address_offset % alignment:
        alignment //= 2
    return cutlass.cute.runtime.make_fake_tensor(
        getattr(cutlass, TYPES[arg.dtype]), arg.shape, arg.strides, assumed_align=max(alignment, ITEM_BYTES[arg.dtype])
    )


_KERNEL = re.compile(r"cuda\.kernel @(?P<name>\w+)\(.*?cutlass_launch_facts = \{(?P<facts>[^}]*)\}")
_LAUNCH = re.compile(r"^( *)%\S+ = cuda\.launch_ex @", re.MULTILINE)
BODY = "    "
"""The indentation of the host function's body in the text of a module. Loops and branches have more."""


def _launch_in(text: str, code: bytes) -> Traced:
    """Reads the launch in the text of the traced module."""
    kernels, launches = list(_KERNEL.finditer(text)), _LAUNCH.findall(text)
    if len(kernels) != 1 or launches != [BODY]:
        how = f"{len(launches)} kernels" if len(launches) != 1 else "a kernel in a loop or in a branch"
        raise _Refused(f"the host function launches {how}; fix: launch exactly one, always")
    facts = {
        name: tuple(map(int, numbers.split(",")))
        for name, numbers in re.findall(r"exact_(\w+)_dim = array<i64: ([\d, ]+)>", kernels[0]["facts"])
    }
    if "block" not in facts or ("cluster_launch = true" in kernels[0]["facts"] and "cluster" not in facts):
        raise _Refused("the threads or the cluster of the launch are not constants of the host function")
    x, y, z = facts["block"]
    cluster = facts.get("cluster", (1, 1, 1))
    return Traced(code, kernels[0]["name"], facts.get("grid"), x * y * z, cluster)  # type: ignore[arg-type]


@cache
def front_end() -> ModuleType:
    """Imports cutlass. Raises CompilerMissing if it is missing, or if it lacks parts that Tilewright uses."""
    try:
        cutlass = import_module("cutlass")
        compiler = import_module("cutlass.compiler")
        _ = (cutlass.cute.compile.to_precompiled_mlir, cutlass.cute.runtime.make_fake_tensor,
             compiler.serialize_compilation_artifact)  # fmt: skip
        return cutlass
    except (ImportError, AttributeError) as error:
        version = installed_version(PACKAGE)
        if version is None:
            raise CompilerMissing(f"{PACKAGE} is not installed: {FIX}") from error
        what = f"{PACKAGE} {version} does not work with Tilewright (tested: {TESTED}): {in_one_line(error)}"
        raise CompilerMissing(f"{what}; fix: {FIX}") from error


def _said(error: Exception) -> str:
    """Returns an error of CuTe DSL in one line, with its place in the source if known."""
    message, file, line = (getattr(error, name, None) for name in ("message", "filename", "line"))
    text = re.sub(r"\x1b\[[\d;]*m", "", str(message or in_one_line(error)))
    said = next((each.strip() for each in text.splitlines() if each.strip()), type(error).__name__)
    with suppress(TypeError):
        return f"{Path(file).name}:{int(line)}: {said}"  # type: ignore[arg-type]
    return said
