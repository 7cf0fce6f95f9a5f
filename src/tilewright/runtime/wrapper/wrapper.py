"""`tilewright.tuned`: a kernel that finds its configuration at the first call, and remembers it.

    rms_norm = tilewright.tuned(rms_norm_kernel, space=…, grid=lambda call, config: …, outputs=("y",))
    rms_norm(stream, x, weight, y, eps)

A call whose key is known is one look-up and `ct.launch` (`signature`). Otherwise, in this order: off → shipped;
stored; in a CUDA graph capture → shipped; the shipped config file; then, by the mode, tuned now, tuned beside, or
shipped with a warning that says what is missing. Whatever goes wrong with a search is one warning and the shipped
configuration. The launch that counts always follows, on the caller's own arrays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import in_one_line
from tilewright.records import Value
from tilewright.runtime import modes
from tilewright.runtime.environment import Environment, warn
from tilewright.runtime.modes import Mode
from tilewright.runtime.store.config_file import ConfigFile, load
from tilewright.runtime.wrapper.background import in_background
from tilewright.runtime.wrapper.buckets import Bucket
from tilewright.runtime.wrapper.choosing import Choice, Chooser, MissedCall
from tilewright.runtime.wrapper.declared import Declared
from tilewright.runtime.wrapper.known import KnownCalls
from tilewright.runtime.wrapper.signature import KeyKinds, Pattern, generated, hot_function, key_function, kind_of
from tilewright.space.space import Space


def tuned(
    kernel: Any,
    *,
    space: Space | Sequence[Mapping[str, Value]],
    grid: Callable[..., tuple[int, ...]],
    outputs: Sequence[str] = (),
    arguments: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    parameters: Sequence[str] | None = None,
    dims: Callable[..., Mapping[str, Value]] | None = None,
    buckets: Mapping[str, Bucket] | None = None,
    unkeyed: Sequence[str] = (),
    launch: str = "eager",
    mode: str | None = None,
    config_file: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    name: str | None = None,
    _environment: Environment | None = None,
) -> Callable[..., None]:
    """A function ``(stream, *arguments)`` that launches ``kernel`` in its fastest configuration.

    space: a `Space`, or a list of mappings, the shipped configuration first.
    grid: ``call, config`` → 1 to 3 numbers. ``call`` has the arguments by name, and ``call.hardware``.
    outputs: names of the arrays that the kernel writes.
    arguments: functions of ``call, config`` for parameters of the kernel that follow from the call, by name; or
        one function that returns all arguments of the kernel. By default they come by name: from the
        configuration what it names, the rest from the call.
    parameters: the names of the call's arguments, in order, where they are not the kernel's remaining ones.
    dims: ``call`` → what the space's predicates may ask for; by default the call's whole numbers and flags.
    buckets: argument → `powers_of_two`, another function of an extent, or one for each axis (None: exact).
    unkeyed: arguments that cannot change which configuration is fastest, nor grid and constants: also arrays that
        are always made like another.
    launch: ``"graph"`` where the kernel is deployed inside CUDA graphs; tuned and keyed apart.
    mode: ``now`` (default), ``background``, ``stored`` or ``off``; `TILEWRIGHT_TUNING` overrides it.
    config_file: a file or mapping that `tilewright tuned export` wrote.

    Raises `RequestError` for what cannot be: a name that the kernel lacks, a parameter that nothing gives.
    """
    declared = Declared(kernel, space, grid, outputs, arguments, parameters, dims, buckets, unkeyed, launch, mode, name)
    given = config_file if config_file is None or isinstance(config_file, Mapping) else os.fspath(config_file)
    shipped = None if given is None else load(given)
    return Tuned(declared, _environment or Environment(), shipped).function


@dataclass(frozen=True)
class _Variant:
    """What was generated for one pattern of arguments."""

    hot: Callable[..., None]
    key: Callable[..., tuple[Any, ...]]
    places: Mapping[str, KnownCalls]
    """By the name of the mode."""

    def choice(self, mode: Mode, key: Any) -> Choice | None:
        known = self.places[mode.value].calls.get(key)
        return None if known is None else known.choice


@dataclass(frozen=True)
class _Miss:
    """A call whose key is not known."""

    variant: _Variant
    key: Any
    request: MissedCall


class Tuned:
    """Behind the function that `tuned` returns, as its attribute ``tuned``."""

    def __init__(self, declared: Declared, environment: Environment, config_file: ConfigFile | None):
        self.declared = declared
        self.chooser = Chooser(declared, environment, config_file)
        self._variants: dict[KeyKinds, _Variant] = {}
        self._lock = threading.Lock()
        self._environment = environment
        self._title = declared.name if declared.name.isidentifier() else "tuned_kernel"
        self.function = self._first_function()

    def chosen(self, *values: Any) -> Choice | None:
        """What a call with these arguments launches in the mode in force; None before the first such call."""
        variant = self._variants.get(self._kinds(values))
        where = modes.mode(self.declared.mode)
        return None if variant is None else variant.choice(where, variant.key(*values))

    # The function --------------------------------------------------------------------------------

    def _first_function(self) -> Callable[..., None]:
        """What the user holds: until the first call it only finds out which arguments are arrays."""
        parameters = ", ".join(("stream", *self.declared.parameters))
        text = f"def {self._title}({parameters}):\n    return _otherwise(None, ({parameters},))\n"
        function = generated(text, {"_otherwise": self._otherwise}, self._title)
        function.__doc__ = self.declared.kernel._pyfunc.__doc__
        function.__module__ = self.declared.kernel._pyfunc.__module__
        function.tuned = self  # type: ignore[attr-defined]
        return function

    def _kinds(self, values: Sequence[Any]) -> KeyKinds:
        unkeyed = self.declared.unkeyed
        named = zip(self.declared.parameters, values, strict=True)
        return tuple(kind_of(value, name not in unkeyed) for name, value in named)

    def _variant(self, kinds: KeyKinds) -> _Variant:
        with self._lock:
            found = self._variants.get(kinds)
            if found is None:
                declared, world = self.declared, self._environment
                layout = declared.layout
                pattern = Pattern(declared.parameters, kinds, declared.outputs, world.devices())
                places = {mode.value: KnownCalls(len(pattern.items), len(layout.constants)) for mode in Mode}
                hot = hot_function(
                    self._title, layout, pattern, world.launching(), places, declared.mode, self._otherwise
                )
                found = _Variant(hot, key_function(pattern), places)
                if not self._variants:  # the user's function becomes this one: no call in between
                    self.function.__globals__.update(hot.__globals__)
                    self.function.__code__ = hot.__code__
                self._variants[kinds] = found
        return found

    def _otherwise(self, kinds: KeyKinds | None, arguments: tuple[Any, ...]) -> None:
        """The arguments are of another pattern than the function's, or their key is not known."""
        stream, *values = arguments
        actual = self._kinds(values)
        variant = self._variant(actual)
        if actual != kinds:
            variant.hot(*arguments)
        else:
            miss = _Miss(variant, variant.key(*values), self.chooser.request(stream, values))
            self.chooser.launch(miss.request, self._missed(miss))

    # A key that is not known ------------------------------------------------------------------------

    def _missed(self, miss: _Miss) -> Choice:
        mode, chooser = modes.mode(self.declared.mode), self.chooser
        if mode is Mode.OFF:
            return self._kept((Mode.OFF,), miss, chooser.shipped("tuning is off"))
        for other in TUNING:
            known = miss.variant.choice(other, miss.key)
            if known is not None and known.tuned:
                return self._kept((mode,), miss, known)
        try:
            return self._chosen(mode, miss)
        except Exception as error:  # whatever it is, the user's call goes on
            warn(f"{self.declared.name} is not tuned ({in_one_line(error)}); its shipped configuration runs")
            return self._kept((mode,), miss, chooser.shipped("tuning failed"))

    def _chosen(self, mode: Mode, miss: _Miss) -> Choice:
        chooser, request = self.chooser, miss.request
        capturing = self._environment.capturing(request.stream)
        found = chooser.stored(request, searching=mode is not Mode.STORED and not capturing)
        if found is not None and found.tuned:
            return self._kept(TUNING, miss, found)
        if mode is Mode.STORED:
            if found is None:
                chooser.say_missing(request)
            return self._kept((mode,), miss, found or chooser.shipped("nothing is stored"))
        if capturing:  # nothing of it is kept: the next call outside the capture tunes
            return found or chooser.shipped("a CUDA graph is being captured")
        if mode is Mode.NOW:
            choice = chooser.tuned(request)
            return self._kept(TUNING if choice.tuned else (mode,), miss, choice)
        choice = self._kept((mode,), miss, chooser.shipped("it is being tuned beside"))
        beside = replace(miss, request=chooser.copied(request))
        in_background(f"tuning {self.declared.name}", lambda: self._beside(beside))
        return choice

    def _beside(self, miss: _Miss) -> None:
        choice = self.chooser.tuned(miss.request)
        if choice.tuned:
            self._kept(TUNING, miss, choice)

    def _kept(self, where: Sequence[Mode], miss: _Miss, choice: Choice) -> Choice:
        """The choice, which is known in these modes from now on."""
        entry = self.chooser.entry(miss.request, choice)
        for mode in where:
            miss.variant.places[mode.value].keep(miss.key, choice, entry)
        return choice


TUNING = (Mode.NOW, Mode.BACKGROUND, Mode.STORED)
"""Modes that launch what was tuned. `Mode.OFF` has known calls of its own."""
