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
from types import FunctionType
from typing import Any, Protocol

from tilewright.errors import RequestError
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
from tilewright.runtime.wrapper.signature import (
    KeyKinds,
    Pattern,
    dispatching_function,
    generated,
    hot_function,
    key_function,
    kind_of,
)
from tilewright.runtime.wrapper.torch_compile import not_compiled, not_traced, outside_graphs, without_memory
from tilewright.space.space import Space


def tuned(
    kernel: KernelObject,
    *,
    space: Space | Sequence[Mapping[str, Value]],
    grid: Callable[..., tuple[int, ...]] | None = None,
    outputs: Sequence[str] | None = None,
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
) -> TunedFunction:
    """Returns a function ``(stream, *arguments)`` that launches ``kernel`` in its fastest configuration.

    space: a `Space`, or a list of mappings whose first one is the shipped configuration.
    grid: a function of ``call, config`` that returns 1 to 3 numbers. ``call`` has the arguments by name, and
        ``call.hardware``. If left out, the smallest grid whose blocks store all elements of all written arrays is found
        by trying, at the first call with a key; `RequestError` is raised at the call if it is not proved to be right.
    outputs: names of the arrays that the kernel writes. If left out, each array may be one, so all arrays that start at
        the same address are a part of the key; this costs some time at each call.
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


class TunedFunction(Protocol):
    """The function that `tuned` returns."""

    tuned: Tuned

    def __call__(self, stream: Stream, *arguments: Any, **named: Any) -> None: ...


@dataclass(frozen=True)
class _Variant:
    """The functions for one pattern of arguments, and its known calls by the name of the mode."""

    hot: FunctionType
    key: Callable[..., Key]
    known_calls: Mapping[str, KnownCalls]

    def read_mode(self, default: Mode, scope: dict[str, Any]) -> None:
        """Makes the hot path with these globals read the known calls of the mode that applies now."""
        scope["_usual"] = self.known_calls[modes.shared(default).value]
        scope["_given"].clear()


class Tuned:
    """The state of a function that `tuned` returned. The function's attribute ``tuned`` is this object."""

    def __init__(self, declared: Declared, environment: Environment, config_file: ConfigFile | None):
        self.declared = declared
        self.chooser = Chooser(declared, environment, config_file)
        self._variants: dict[KeyKinds, _Variant] = {}
        self._by_class: dict[tuple[type, ...], FunctionType] = {}
        self._differing: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._environment = environment
        self._title = declared.name if declared.name.isidentifier() else "tuned_kernel"
        self._function = self._first_function()
        modes.scopes.add(self)

    def chosen(self, *values: CallValue) -> Choice | None:
        """Returns the choice for calls with such arguments in the present mode; None before the first such call."""
        if (variant := self._variants.get(self._kinds(values))) is None:
            return None
        return self._missed(variant, None, values).known(modes.mode(self.declared.mode))

    def read_mode(self) -> None:
        """Makes the hot paths read the mode again, because a scope for searches was opened or closed."""
        for place, variant in enumerate(list(self._variants.values())):
            variant.read_mode(self.declared.mode, variant.hot.__globals__)
            if not place:
                variant.read_mode(self.declared.mode, self._function.__globals__)

    @property
    def function(self) -> TunedFunction:
        function: Any = self._function
        made: TunedFunction = function
        return made

    def _first_function(self) -> FunctionType:
        """Returns the function that the user calls. At its first call, `_variant` replaces its code by the hot path."""
        parameters = ", ".join(("stream", *self.declared.parameters))
        text = f"def {self._title}({parameters}):\n    return _otherwise(None, ({parameters},))\n"
        function = generated(text, {"_otherwise": self._otherwise}, self._title)
        function.__doc__ = self.declared.kernel._pyfunc.__doc__
        function.__module__ = self.declared.kernel._pyfunc.__module__
        function.tuned = self  # type: ignore[attr-defined]
        not_traced(function)
        return function

    def _kinds(self, values: Sequence[CallValue]) -> KeyKinds:
        unkeyed = self.declared.unkeyed
        named = zip(self.declared.parameters, values, strict=True)
        return tuple(kind_of(value, name not in unkeyed) for name, value in named)

    def _variant(self, kinds: KeyKinds) -> _Variant:
        known = self._variants.get(kinds)
        if known is not None:
            return known
        with self._lock:
            if kinds not in self._variants:
                variant = self._made(kinds)
                if not self._variants:  # the user's function gets this code, which saves a call
                    self._function.__globals__.update(variant.hot.__globals__)
                    self._function.__code__ = variant.hot.__code__
                self._variants[kinds] = variant
                if len(self._variants) > 1:
                    self._dispatch()
        self.read_mode()
        return self._variants[kinds]

    def _made(self, kinds: KeyKinds) -> _Variant:
        declared, environment, layout = self.declared, self._environment, self.declared.layout
        pattern = Pattern(declared.parameters, kinds, declared.outputs, environment.devices())
        known_calls = {mode.value: KnownCalls(len(pattern.items), len(layout.constants)) for mode in Mode}
        hot = hot_function(
            self._title, layout, pattern, environment.launching(), known_calls, declared.mode, self._otherwise
        )
        not_compiled(*(each.__code__ for each in (hot, KnownCalls.looked_up, outside_graphs, Tuned._otherwise)))
        return _Variant(hot, key_function(pattern), known_calls)

    def _dispatch(self) -> None:
        """Makes the user's function select the hot function by the classes of the arguments whose kinds differ."""
        each = zip(self.declared.parameters, *self._variants, strict=True)
        self._differing = tuple(name for name, *kinds in each if len(set(kinds)) > 1)
        function = dispatching_function(self._title, self.declared.parameters, self._differing)
        self._by_class = {}
        self._function.__globals__.update(
            _hot=self._by_class.get, _any_hot=lambda *arguments: self._otherwise(None, arguments)
        )
        self._function.__code__ = function.__code__
        not_compiled(function.__code__)

    def _otherwise(self, kinds: KeyKinds | None, arguments: tuple[Any, ...]) -> None:
        """Handles a call whose key is not known, or whose arguments do not have the pattern of the function."""
        outside_graphs(self._handle, kinds, arguments)

    def _handle(self, kinds: KeyKinds | None, arguments: tuple[Any, ...]) -> None:
        stream, *values = arguments
        self._refuse_fake(values)
        actual = self._kinds(values)
        variant = self._variant(actual)
        if actual != kinds:
            named = dict(zip(self.declared.parameters, values, strict=True))
            self._by_class.setdefault(tuple(type(named[name]) for name in self._differing), variant.hot)
            variant.hot(*arguments)
        else:
            self.chooser.launch(self._missed(variant, stream, values))

    def _refuse_fake(self, values: Sequence[CallValue]) -> None:
        """Raises `RequestError` for a tensor without memory, which no kernel can read."""
        for name, value in zip(self.declared.parameters, values, strict=True):
            each = value if isinstance(value, (list, tuple)) else (value,)
            if kind := next(filter(None, map(without_memory, each)), None):
                raise RequestError(
                    f"{self.declared.name}: '{name}' is a {kind}, which has no memory to launch on; fix: call the "
                    "kernel in a torch.library.custom_op with register_fake (examples/library/softmax_compiled.py)"
                )

    def _missed(self, variant: _Variant, stream: Stream, values: Sequence[CallValue]) -> MissedCall:
        return MissedCall(self.declared, self._environment, stream, values, variant.key(*values), variant.known_calls)
