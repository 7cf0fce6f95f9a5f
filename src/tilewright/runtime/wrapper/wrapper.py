"""`tilewright.tuned`: makes a function that tunes a kernel at the first call and remembers the configuration.

    rms_norm = tilewright.tuned(rms_norm_kernel, space=…, grid=lambda call, config: …, outputs=("y",))
    rms_norm(stream, x, weight, y, eps)

A call whose key is known costs one look-up and `ct.launch` (`signature`). For any other call, `choosing` finds the
configuration and launches it on the caller's own arrays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.records import Json, Value
from tilewright.runtime import modes
from tilewright.runtime.arrays import CallValue, KernelObject, Stream
from tilewright.runtime.environment import Environment
from tilewright.runtime.modes import Mode
from tilewright.runtime.store.config_file import ConfigFile, load
from tilewright.runtime.wrapper.buckets import Bucket
from tilewright.runtime.wrapper.choosing import Chooser
from tilewright.runtime.wrapper.declared import CallFunction, Declared
from tilewright.runtime.wrapper.known import Choice, Key, KnownCalls
from tilewright.runtime.wrapper.missed_call import MissedCall
from tilewright.runtime.wrapper.signature import KeyKinds, Pattern, generated, hot_function, key_function, kind_of
from tilewright.space.space import Space


def tuned(
    kernel: KernelObject,
    *,
    space: Space | Sequence[Mapping[str, Value]],
    grid: Callable[..., tuple[int, ...]],
    outputs: Sequence[str] = (),
    arguments: CallFunction | Mapping[str, CallFunction] | None = None,
    parameters: Sequence[str] | None = None,
    dims: Callable[..., Mapping[str, Value]] | None = None,
    buckets: Mapping[str, Bucket] | None = None,
    unkeyed: Sequence[str] = (),
    launch: str = "eager",
    mode: str | None = None,
    config_file: str | os.PathLike[str] | Mapping[str, Json] | None = None,
    name: str | None = None,
    _environment: Environment | None = None,
) -> Callable[..., None]:
    """Returns a function ``(stream, *arguments)`` that launches ``kernel`` in its fastest configuration.

    space: a `Space`, or a list of mappings whose first one is the shipped configuration.
    grid: a function of ``call, config`` that returns 1 to 3 numbers. ``call`` has the arguments by name, and
        ``call.hardware``.
    outputs: names of the arrays that the kernel writes.
    arguments: functions of ``call, config``, by the name of the kernel's parameter whose value they return. Or one
        function that returns all arguments of the kernel. Other parameters get their values from the configuration if
        it names them, else from the call.
    parameters: the names of the call's arguments, in order; by default the kernel's parameters that need a value.
    dims: a function of ``call`` that returns values for the space's predicates; by default the call's integers, flags
        and strings.
    buckets: for each argument, `powers_of_two`, another function of an extent, or one function per axis (None: exact).
    unkeyed: arguments that change neither the fastest configuration nor the grid, and so are left out of the key.
    launch: ``"graph"`` if the kernel is deployed inside CUDA graphs; its winners are tuned and stored separately.
    mode: ``now`` (default), ``background``, ``stored`` or ``off``; `TILEWRIGHT_TUNING` overrides it.
    config_file: a file or mapping that `tilewright tuned export` wrote.

    Raises `RequestError` if a name is not the kernel's, if a parameter has no value, and for similar mistakes.
    """
    declared = Declared(kernel, space, grid, outputs, arguments, parameters, dims, buckets, unkeyed, launch, mode, name)
    given = config_file if config_file is None or isinstance(config_file, Mapping) else os.fspath(config_file)
    shipped = None if given is None else load(given)
    return Tuned(declared, _environment or Environment(), shipped).function


@dataclass(frozen=True)
class _Variant:
    """The functions for one pattern of arguments, and its known calls by the name of the mode."""

    hot: Callable[..., None]
    key: Callable[..., Key]
    known_calls: Mapping[str, KnownCalls]


class Tuned:
    """The state of a function that `tuned` returned. The function's attribute ``tuned`` is this object."""

    def __init__(self, declared: Declared, environment: Environment, config_file: ConfigFile | None):
        self.declared = declared
        self.chooser = Chooser(declared, environment, config_file)
        self._variants: dict[KeyKinds, _Variant] = {}
        self._lock = threading.Lock()
        self._environment = environment
        self._title = declared.name if declared.name.isidentifier() else "tuned_kernel"
        self.function = self._first_function()

    def chosen(self, *values: CallValue) -> Choice | None:
        """Returns the choice for calls with such arguments in the present mode; None before the first such call."""
        if (variant := self._variants.get(self._kinds(values))) is None:
            return None
        return self._missed(variant, None, values).known(modes.mode(self.declared.mode))

    def _first_function(self) -> Callable[..., None]:
        """Returns the function that the user calls. At its first call, `_variant` replaces its code by the hot path."""
        parameters = ", ".join(("stream", *self.declared.parameters))
        text = f"def {self._title}({parameters}):\n    return _otherwise(None, ({parameters},))\n"
        function = generated(text, {"_otherwise": self._otherwise}, self._title)
        function.__doc__ = self.declared.kernel._pyfunc.__doc__
        function.__module__ = self.declared.kernel._pyfunc.__module__
        function.tuned = self  # type: ignore[attr-defined]
        return function

    def _kinds(self, values: Sequence[CallValue]) -> KeyKinds:
        unkeyed = self.declared.unkeyed
        named = zip(self.declared.parameters, values, strict=True)
        return tuple(kind_of(value, name not in unkeyed) for name, value in named)

    def _variant(self, kinds: KeyKinds) -> _Variant:
        with self._lock:
            variant = self._variants.get(kinds)
            if variant is None:
                declared, environment, layout = self.declared, self._environment, self.declared.layout
                pattern = Pattern(declared.parameters, kinds, declared.outputs, environment.devices())
                known_calls = {mode.value: KnownCalls(len(pattern.items), len(layout.constants)) for mode in Mode}
                hot = hot_function(
                    self._title, layout, pattern, environment.launching(), known_calls, declared.mode, self._otherwise
                )
                variant = _Variant(hot, key_function(pattern), known_calls)
                if not self._variants:  # the user's function gets this code, which saves a call
                    self.function.__globals__.update(hot.__globals__)
                    self.function.__code__ = hot.__code__
                self._variants[kinds] = variant
        return variant

    def _otherwise(self, kinds: KeyKinds | None, arguments: tuple[Any, ...]) -> None:
        """Handles a call whose key is not known, or whose arguments do not have the pattern of the function."""
        stream, *values = arguments
        actual = self._kinds(values)
        variant = self._variant(actual)
        if actual != kinds:
            variant.hot(*arguments)
        else:
            self.chooser.launch(self._missed(variant, stream, values))

    def _missed(self, variant: _Variant, stream: Stream, values: Sequence[CallValue]) -> MissedCall:
        return MissedCall(self.declared, self._environment, stream, values, variant.key(*values), variant.known_calls)
