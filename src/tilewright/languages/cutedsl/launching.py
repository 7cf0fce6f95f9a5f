"""Launches a compiled CuTe DSL kernel through its host code, which makes the tensor maps and calls CUDA.

The host code takes the address of a slot for each argument. A tensor whose shape and strides are constants is its
address alone, as `cutlass.compiler` documents for the calling convention CutlassCall.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tilewright.languages.cutedsl.tracing import front_end


def runtime_libraries() -> list[str]:
    """Returns the paths of the libraries that the host code calls."""
    return list(front_end().cute.runtime.find_runtime_libraries(enable_tvm_ffi=False))


@cache
def loaded(made: bytes, libraries: tuple[str, ...]) -> Any:
    """Loads the host code, and the cubin in it, until the process ends. Returns its function.

    The function unloads the cubin when it is freed. But a CUDA graph does not hold the code of its kernels. On an H200,
    14 of 36 processes that freed the code before a graph ended with a damaged heap (2026-11-29).
    """
    import cutlass.compiler as cc

    artifact = cc.deserialize_compilation_artifact(made)
    (metadata,) = artifact.metadata
    executor = cc.Executor.from_object_artifact(artifact, list(libraries))
    function = executor.get_executable_function(metadata.symbol_name)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))  # a graph may outlive this module when Python ends
    return function


class HostCode:
    """The host code of one kernel, loaded with the cubin in it. ``libraries``: the paths of the libraries it calls."""

    def __init__(self, made: bytes, libraries: Sequence[str]) -> None:
        self.compiler = front_end().compiler
        self.function = loaded(made, tuple(libraries))

    def bound(self, args: Sequence[Any]) -> Callable[[int | None], None]:
        """Returns a function that launches with these arguments on a stream."""
        left, stream = iter(args), ctypes.c_void_p(0)
        slots = [
            stream if isinstance(parameter, self.compiler.Stream) else self._slot(parameter, next(left))
            for parameter in self.function.metadata.params
        ]
        return _Bound(self.function, slots, stream, args)

    def _slot(self, parameter: Any, value: Any) -> Any:
        if isinstance(parameter, self.compiler.Tensor):
            return ctypes.c_void_p(int(value.data_ptr()))
        if parameter.abi_arg_index is None:  # a constant of the code, whose slot is not read
            return ctypes.c_void_p(0)
        return parameter.dtype.get_ctype()(value)


class _Bound:
    """Launches with the same arguments each time. It holds what is passed by address only: the slots, which the host
    code reads at each launch, and the tensors, which the kernel reads."""

    def __init__(self, function: Any, slots: Sequence[Any], stream: ctypes.c_void_p, args: Sequence[Any]) -> None:
        self._function, self._stream, self._held = function, stream, (slots, args)
        self._addresses = [ctypes.addressof(slot) for slot in slots]

    def __call__(self, stream: int | None) -> None:
        self._stream.value = stream or 0
        self._function.call(self._addresses, 0)
