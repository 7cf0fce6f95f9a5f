"""Records the arguments with which a program calls its functions on torch tensors, in the user's program.

A copy of the program has the decorator `observed` above such functions. The decorator does not change their results. If
recording fails, the function still runs as usual.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

VARIABLE = "TILEWRIGHT_CALLS"
"""The environment variable that names the folder for the records. Each process writes one file into this folder."""
KINDS = 64
"""The most kinds of call that are kept for one function. Calls of one kind have the same tensor shapes and plain
values."""
BETWEEN_WRITES = 1.0
"""Seconds. A program that is killed loses the calls after the last write."""
_calls: dict[tuple[str, str], dict[str, Any]] = {}
_lock = threading.Lock()
_written = 0.0


def observed(name: str, attributes: tuple[str, ...] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Returns a decorator that records the calls of a function as ``name``.

    attributes: attributes of the first argument that the function reads, recorded as ``self.NAME``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _is_compiling():
                return function(*args, **kwargs)
            given: dict[str, Any] | None = None
            with suppress(Exception):
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                given = {each: described(value) for each, value in bound.arguments.items()}
                given |= {f"self.{each}": described(getattr(args[0], each)) for each in attributes}
            started = perf_counter()
            result = function(*args, **kwargs)
            seconds = perf_counter() - started
            if given is not None:
                with suppress(Exception):
                    _count(name, given, result, seconds)
            return result

        return call

    return decorate


def _is_compiling() -> bool:
    """Returns whether torch.compile is tracing the function. Then nothing is recorded, because torch.compile would also
    trace the recording."""
    import torch

    return bool(torch.compiler.is_compiling())


def described(value: Any) -> dict[str, Any]:
    """Describes an argument: a tensor's dtype, shape and layout, or the text of a plain value. Returns an empty
    dictionary for other values."""
    import torch

    if isinstance(value, torch.Tensor):
        return {
            "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "device": value.device.type,
            "contiguous": value.is_contiguous(), "gradient": value.requires_grad,
            "plain": type(value) in (torch.Tensor, torch.nn.Parameter),
        }  # fmt: skip
    if isinstance(value, torch.dtype):
        return {"value": str(value)}
    return {"value": repr(tuple(value) if isinstance(value, torch.Size) else value)} if _is_plain(value) else {}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _count(name: str, given: Mapping[str, Any], result: Any, seconds: float) -> None:
    import torch

    results = result if isinstance(result, tuple) else (result,)
    autocast = any(map(torch.is_autocast_enabled, ("cuda", "cpu")))
    kind = {
        "arguments": given, "results": [described(each) for each in results], "grad": torch.is_grad_enabled(),
        "autocast": autocast,
    }  # fmt: skip
    key = (name, json.dumps(kind, sort_keys=True))
    with _lock:
        known = _calls.get(key)
        if known is None:
            if sum(each == name for each, _ in _calls) >= KINDS:
                return
            known = _calls[key] = {"function": name, **kind, "count": 0, "seconds": 0.0}
        known["count"] += 1
        known["seconds"] += seconds
        if known["count"] == 1 or perf_counter() - _written > BETWEEN_WRITES:
            _write()


def _write() -> None:
    global _written
    file = Path(os.environ[VARIABLE], f"{os.getpid()}.json")
    beside = file.with_suffix(".writing")
    beside.write_text(json.dumps(list(_calls.values())))
    beside.replace(file)
    _written = perf_counter()


@atexit.register
def _at_exit() -> None:
    with suppress(Exception), _lock:
        if _calls:
            _write()
