"""The author's declaration of a tuned kernel, validated once, and the launches that follow from it.

A configuration names constants of the kernel and compiler hints. A parameter of the kernel gets its value from the
configuration, if the configuration names the parameter. Otherwise the value comes from a function in ``arguments``, or
else from the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.errors import RequestError, SpaceError, UnknownChoice, choices
from tilewright.records import Configuration, Value
from tilewright.runtime.arrays import CallValue, KernelObject, Stream
from tilewright.runtime.modes import Mode, from_name
from tilewright.runtime.wrapper.buckets import Bucket
from tilewright.runtime.wrapper.config_names import unread
from tilewright.runtime.wrapper.known import Entry
from tilewright.runtime.wrapper.signature import KeyKind, Layout, kind_of
from tilewright.source.cutile import HINTS
from tilewright.source.digest import function_of
from tilewright.space.space import Space

if TYPE_CHECKING:
    from tilewright.hardware.architectures import Board

PLAIN = (type(None), bool, int, float, str)
"""Types of constants that may be kept for the next launch."""
CallFunction: TypeAlias = Callable[..., Any]
"""A function of a call and a configuration that returns one argument of the kernel, or all arguments."""


class Call:
    """The arguments of one call by name, for the author's functions ``grid``, ``arguments`` and ``dims``.

    ``call.hardware`` is the `Board` of the arrays' GPU (``call.hardware.sms``), unless an argument has that name. The
    object records which arguments are read, because a grid that depends on a float cannot be kept for the next call.
    """

    def __init__(self, names: Sequence[str], values: Sequence[CallValue], hardware: Callable[[], Board]):
        self._values = dict(zip(names, values, strict=True))
        self._hardware = hardware
        self._read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            self._read.add(name)
            return self._values[name]
        if name == "hardware":
            return self._hardware()
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownChoice("argument", name, self._values)


class Declared:
    """The declaration of one tuned kernel, with the parameters of `wrapper.tuned`."""

    def __init__(
        self,
        kernel: KernelObject,
        space: Space | Sequence[Mapping[str, Value]],
        grid: Callable[[Call, Configuration], tuple[int, ...]] | None = None,
        outputs: Sequence[str] | None = None,
        arguments: CallFunction | Mapping[str, CallFunction] | None = None,
        parameters: Sequence[str] | None = None,
        dims: Callable[[Call], Mapping[str, Value]] | None = None,
        buckets: Mapping[str, Bucket] | None = None,
        unkeyed: Sequence[str] = (),
        launch: str = "eager",
        mode: str | None = None,
        name: str | None = None,
    ):
        if not hasattr(kernel, "_pyfunc"):
            raise RequestError(f"{kernel!r} is no kernel; pass a function that @ct.kernel decorates")
        if grid is not None:
            _function("grid=", grid, "lambda call, config: (blocks, 1, 1)")
        if launch not in (known := ("eager", "graph")):
            raise UnknownChoice("launch=", launch, known)
        self.kernel, self.grid, self.dims, self.launch = kernel, grid, dims, launch
        self.kernel_parameters = tuple(inspect.signature(kernel._pyfunc).parameters)
        self.space = _space(space, self.kernel_parameters)
        self.mode = Mode.NOW if mode is None else from_name(mode, "mode")
        self.derived: Mapping[str, CallFunction] = arguments if isinstance(arguments, Mapping) else {}
        self.arguments = None if isinstance(arguments, Mapping) else arguments
        if self.arguments is not None:
            _function("arguments=", self.arguments, "a mapping of functions, or lambda call, config: (…)")
        if dims is not None:
            _function("dims=", dims, "lambda call: {…}")
        if parameters is None:
            parameters = [name for name in self.kernel_parameters if name not in {*self.space.constants, *self.derived}]
        self.parameters = tuple(parameters)
        self.names_outputs = outputs is not None
        self.outputs = self.parameters if outputs is None else self._known("outputs", outputs)
        self.unkeyed = frozenset(self._known("unkeyed", unkeyed))
        self.buckets = _buckets(buckets or {})
        self._known("buckets", tuple(self.buckets))
        self.name = name or kernel._pyfunc.__name__
        self._check()
        self._check_names()

    def _known(self, what: str, names: Sequence[str]) -> tuple[str, ...]:
        if isinstance(names, str):
            raise RequestError(f"{what}='{names}' is a string; pass a list of names, such as ['{names}']")
        for name in names:
            if name not in self.parameters:
                raise UnknownChoice(f"{what}: argument", name, self.parameters)
        return tuple(names)

    def _check(self) -> None:
        for name in self.parameters:
            if not name.isidentifier() or name == "stream" or name.startswith("_"):
                raise RequestError(f"an argument cannot be called '{name}'; rename the kernel's parameter")
        for name, function in self.derived.items():
            if name not in self.kernel_parameters:
                raise UnknownChoice("arguments: parameter of the kernel", name, self.kernel_parameters)
            if name in self.space.constants:
                raise RequestError(f"'{name}' is both derived and a constant of the space; declare it once")
            _function(f"arguments['{name}']", function, "lambda call, config: …")
        missing = {*self.kernel_parameters} - {*self.parameters, *self.derived, *self.space.constants}
        if self.arguments is None and missing:
            raise RequestError(f"no value for the kernel's {', '.join(sorted(missing))}; fix: name it in parameters=")

    def _check_names(self) -> None:
        """Raises `SpaceError` for a name in the space that changes no launch, such as a misspelt hint."""
        asked = {name for each in self.space.where for name in (*each.required, *each.optional)}
        others = [name for name in self.space.constants if name not in {*self.kernel_parameters, *asked}]
        for name in (
            *unread(others, self.functions.values()),
            *(each for each in self.space.hints if each not in HINTS),
        ):
            known = choices(name, dict.fromkeys((*self.kernel_parameters, *HINTS)))
            raise SpaceError(
                f"'{name}' in the space is no parameter of {self.name} and no hint of cuTile, and neither grid=, "
                f"arguments= nor where= reads it; {known}"
            )

    def problem(self, config: Mapping[str, Value]) -> str | None:
        """Returns the first name of a stored or imported configuration that the space has not, in one line."""
        odd = next((name for name in config if name not in self.space.knobs), None)
        return (
            None if odd is None else f"'{odd}' is no name in the space of {self.name}; {choices(odd, self.space.knobs)}"
        )

    def hints(self, config: Mapping[str, Value]) -> dict[str, Value]:
        """Returns the hints that the space names. The kernel keeps its other hints. An ``opt_level`` of None is left
        out, so the compiler chooses it."""
        return {name: config[name] for name in self.space.hints if name != "opt_level" or config[name] is not None}

    def kernel_arguments(self, call: Call, config: Configuration) -> tuple[CallValue, ...]:
        if self.arguments is not None:
            return tuple(self.arguments(call, config))
        return tuple(self._argument(name, call, config) for name in self.kernel_parameters)

    def _argument(self, name: str, call: Call, config: Configuration) -> CallValue:
        if name in self.derived:
            derived: CallValue = self.derived[name](call, config)
            return derived
        return call._values[name] if name in call._values else config[name]

    @cached_property
    def layout(self) -> Layout:
        """The layout of the launches that `entry` prepares. The layout's list of arguments is empty if a single
        function returns all arguments.
        """
        return Layout(self.parameters, self.kernel_parameters if self.arguments is None else ())

    def entry(
        self, call: Call, config: Configuration, kernel: KernelObject, ct_launch: Callable[..., None],
        found: tuple[int, ...] = (),
    ) -> Entry:  # fmt: skip
        """Returns the entry that `signature.hot_function` launches for all calls with the key of ``call``.

        If the grid and the constants depend only on the key, they are computed once, here. If the author's functions
        read a float or an unkeyed argument, or make arrays, they are called at each launch.
        found: the grid of all these calls, if the author gave none.
        """
        grid_of = self.grid or (lambda call, config: found)
        loose = self._loose(call)
        call._read.clear()
        grid = grid_of(call, config)
        constants = [self._argument(name, call, config) for name in self.layout.constants]
        plain = all(isinstance(value, PLAIN) for value in constants)
        if self.arguments is None and plain and not (call._read & loose):
            return grid, kernel, *constants
        hardware = call._hardware

        def launch(stream: Stream, *values: CallValue) -> None:
            now = Call(self.parameters, values, hardware)
            ct_launch(stream, grid_of(now, config), kernel, self.kernel_arguments(now, config))

        return launch, None, *[None] * len(constants)

    def _loose(self, call: Call) -> set[str]:
        """Returns the arguments of a call whose values may differ between calls with the same key."""
        return {name for name, value in call._values.items() if not _settled(value, name not in self.unkeyed)}

    def loose_parameters(self, call: Call, config: Configuration) -> set[str]:
        """Returns the kernel's parameters whose values may differ between calls with the same key."""
        loose = self._loose(call)

        def reads(function: CallFunction) -> bool:
            call._read.clear()
            function(call, config)
            return bool(call._read & loose)

        if self.arguments is not None:
            return {*self.kernel_parameters} if reads(self.arguments) else set()
        derived = {name for name, function in self.derived.items() if reads(function)}
        return derived | {name for name in loose - self.derived.keys() if name in self.kernel_parameters}

    @property
    def functions(self) -> dict[str, CallFunction]:
        """The author's functions that determine a launch, by name."""
        every = {"grid": self.grid, "arguments": self.arguments, **self.derived}
        return {name: function for name, function in every.items() if function is not None}


def _settled(value: CallValue, keyed: bool) -> bool:
    """Returns whether all calls with the same key have the same value for this argument.

    Returns False if the key holds only the argument's type. Also returns False for an object that is compared by
    identity, because its attributes may change.
    """
    kind, by_identity = kind_of(value, keyed), getattr(type(value), "__hash__", None) is object.__hash__
    changing = by_identity and bool(type(value).__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE: a class made in Python
    return kind in (KeyKind.ARRAY, KeyKind.ARRAYS) or (kind is KeyKind.VALUE and not changing)


def _function(what: str, given: CallFunction, form: str) -> None:
    """Raises `RequestError` unless ``given`` is a function whose source can be in a key. ``form``: shown as an
    example."""
    try:
        function_of(given)
    except TypeError:
        raise RequestError(f"{what} is no Python function; pass {form}") from None


def _buckets(given: Mapping[str, Bucket]) -> dict[str, Bucket]:
    if not isinstance(given, Mapping):
        raise RequestError("buckets= is no mapping; pass {'x': (tilewright.powers_of_two, None)}")
    for name, bucket in given.items():
        each = bucket if isinstance(bucket, (list, tuple)) else (bucket,)
        if bucket is None or not all(axis is None or callable(axis) for axis in each):
            raise RequestError(f"buckets['{name}'] is no function; pass tilewright.powers_of_two, or one for each axis")
    return dict(given)


def _space(space: Space | Sequence[Mapping[str, Value]], parameters: Sequence[str]) -> Space:
    """Returns the `Space`, or makes one from a list of mappings. The first mapping is the shipped configuration."""
    if isinstance(space, Space):
        return space
    if not isinstance(space, (list, tuple)) or not all(isinstance(config, Mapping) for config in space):
        return Space.checked(space)
    if not space:
        raise SpaceError("space is empty; list at least the configuration that ships today, first")
    shipped = dict(space[0])
    for index, config in enumerate(space):
        if set(config) != set(shipped):
            raise SpaceError(f"space[{index}] names {', '.join(config)}; space[0] names {', '.join(shipped)}")
    hints = [name for name in shipped if name in HINTS and name not in parameters]
    return Space(
        constants={name: [shipped[name]] for name in shipped if name not in hints},
        hints={name: [shipped[name]] for name in hints},
        shipped=shipped,
        only=[dict(config) for config in space],
    )
