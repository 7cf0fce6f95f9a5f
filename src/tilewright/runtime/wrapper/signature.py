"""The hot path of a tuned kernel: one generated function from the arguments of a call to its launch.

A launch of cuda-tile costs a few µs on the host, and a look-up must cost less than that. So one Python function is
generated for each pattern of arguments (which are arrays, which are flags). It reads these properties:

    array                       shape, dtype; strides, unless all are row-major; address modulo 16, unless all are 0;
                                whether an address is 0
    output                      whether it starts where another array starts, because a call in place has its own key
    first array                 its device, if there are several GPUs
    int, bool, str, None        the value and its type
    float, unkeyed argument     the type

The properties form the key of one dictionary look-up, whose entry is launched. Before the look-up, the call is compared
with the expected next call (`known`): one check covers all tensors, and no key is made. After several wrong guesses in
a row, the next calls are looked up without a guess. The mode is read first, and selects the dictionary. The hot path
takes no lock, hashes no source and makes no kernel object.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import count
from types import FunctionType
from typing import Any, TypeAlias

from tilewright.runtime import modes
from tilewright.runtime.arrays import CallValue, facts_of, is_array
from tilewright.runtime.wrapper import tensor_guards
from tilewright.runtime.wrapper.known import Key, KnownCalls
from tilewright.task.tensors import DIVISOR


class KeyKind(Enum):
    """The way in which an argument enters the key. ``ARRAYS``: a list of arrays, or an array of another library than
    torch. A function reads such an argument, which is slower. ``TYPE``: the key has only the type."""

    ARRAY = "array"
    ARRAYS = "arrays"
    VALUE = "value"
    TYPE = "type"


KeyKinds: TypeAlias = tuple[KeyKind, ...]
_numbers = count()


def kind_of(value: CallValue, keyed: bool = True) -> KeyKind:
    """Returns the kind of an argument. ``keyed=False``: the author declares that the value does not matter."""
    if not keyed or isinstance(value, float):
        return KeyKind.TYPE
    if hasattr(value, "data_ptr"):
        return KeyKind.ARRAY
    if is_array(value) or (isinstance(value, (list, tuple)) and any(map(is_array, value))):
        return KeyKind.ARRAYS
    try:
        hash(value)
    except TypeError:
        return KeyKind.TYPE
    return KeyKind.VALUE


def arrays_key(value: CallValue) -> tuple[CallValue, ...]:
    """Returns the items of the key for an argument of the kind `KeyKind.ARRAYS`.

    For an array, the items are dtype, shape, strides and alignment. For a list or tuple, they are the same properties
    of each array, and all other elements unchanged. Raises TypeError if ``value`` is neither array, list nor tuple.
    """
    if isinstance(value, (list, tuple)):
        return tuple(arrays_key(item) if is_array(item) else item for item in value)
    facts = facts_of(value)
    if facts is None:
        raise TypeError(f"{type(value).__name__} is not an array")
    return facts.dtype, facts.shape, facts.strides, facts.alignment


@dataclass(frozen=True)
class Pattern:
    """The kinds of the arguments of a call, and the Python code that computes and compares the keys of such calls.
    Nearly all arrays are aligned and row-major, so the key has one item for all alignments and one for all strides.
    ``devices``: the number of GPUs. The device is read only if there are several."""

    names: tuple[str, ...]
    kinds: KeyKinds
    outputs: tuple[str, ...]
    devices: int

    @cached_property
    def by_name(self) -> dict[str, KeyKind]:
        return dict(zip(self.names, self.kinds, strict=True))

    @cached_property
    def arrays(self) -> list[str]:
        return [name for name, kind in self.by_name.items() if kind is KeyKind.ARRAY]

    @property
    def addresses(self) -> str:
        """A statement that assigns the addresses of the arrays to variables."""
        return "; ".join(f"_p_{name} = {name}.data_ptr()" for name in self.arrays) or "pass"

    @property
    def unaligned(self) -> str:
        """An expression that is 0 if all arrays are aligned. It has one `&` per array, which is faster than one `&` for
        all."""
        return f"({' or '.join(f'_p_{name} & {DIVISOR - 1}' for name in self.arrays) or 0})"

    @cached_property
    def items(self) -> dict[str, str]:
        """The expression of each item of the key, by name, without the tensors' properties."""
        form = {KeyKind.ARRAYS: "_arrays_key({0})", KeyKind.VALUE: "{0}", KeyKind.TYPE: "{0}.__class__"}
        items = {name: form[kind].format(name) for name, kind in self.by_name.items() if kind is not KeyKind.ARRAY}
        for name in self.arrays:
            others = [f"_p_{other}" for other in self.arrays if other != name]
            if name in self.outputs and others:
                items[f"_at_{name}"] = " or ".join(f"_p_{name} == {other}" for other in others)
        return items

    @property
    def key(self) -> str:
        """An expression for the key, a tuple."""
        items = [f"{name}.shape, {name}.dtype" for name in self.arrays]
        for name, item in self.items.items():  # with the class, because 1 equals True
            items.append(f"{item}, {item}.__class__" if self.by_name.get(name) is KeyKind.VALUE else item)
        if self.arrays:
            row_major = " and ".join(f"{name}.is_contiguous()" for name in self.arrays)
            strides = ", ".join(f"{name}.stride()" for name in self.arrays)
            each = ", ".join(f"_p_{name} & {DIVISOR - 1}" for name in self.arrays)
            items.append(f"{row_major} or ({strides},)")
            items.append(f"{self.unaligned} and ({each},)")
            # a tensor without memory must not have the key of another: it is refused when its key is not known
            items.append(f"not ({' and '.join(f'_p_{name}' for name in self.arrays)})")
            if self.devices > 1:
                items.append(f"{self.arrays[0]}.get_device()")
        return _tuple(items)

    @property
    def guessed(self) -> str:
        """An expression that is true if the call has the expected key. ``_check`` compares the tensors, and the
        variables ``_i_…`` have the other items of that key. The expected call always has aligned arrays."""
        tests = [f"_check({', '.join(self.arrays)})", f"not {self.unaligned}"]
        for name, item in self.items.items():
            kind, expected = self.by_name.get(name), f"_i_{name}"
            if kind is KeyKind.VALUE:  # nearly always the same object
                tests.append(
                    f"({item} is {expected} or {item}.__class__ is {expected}.__class__ and {item} == {expected})"
                )
            else:
                tests.append(f"{item} == {expected}" if kind is KeyKind.ARRAYS else f"({item}) is {expected}")
        return " and ".join(tests)


def _tuple(items: Iterable[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


_HOT = """\
def {title}({parameters}):
    _at = _usual
    if _variable in _environment or _switch in _environment or _other_switch in _environment:
        _at = _given[_get(_variable), _get(_switch), _get(_other_switch)]
    {look_up}
    if _kernel is None:
        return _grid({parameters})
    _ct_launch(stream, _grid, _kernel, ({arguments}))
"""
_LOOK_UP = """\
try:
        {addresses}
        _grid, _kernel{constants} = _at.calls[{key}].entry
    except (KeyError, AttributeError, TypeError, RuntimeError):
        _grid, _kernel = _missed, None"""
_GUESS = """\
try:
        if _at.quiet > 0:
            _at.quiet -= 1
            {addresses}
            _grid, _kernel{constants} = _at.calls[{key}].entry
        else:
            _known = _at.last.next
            _check{items}, _grid, _kernel{constants} = _known.facts
            {addresses}
            if {guessed}:
                _at.last = _known
                _at.wrong = 0
            else:
                _grid, _kernel{constants} = _at.looked_up({key}, {arrays}, {actual}, not {unaligned})
    except (KeyError, AttributeError, TypeError, RuntimeError):
        _grid, _kernel = _missed, None"""


@dataclass(frozen=True)
class Layout:
    """The parameters of the kernel (``arguments``) and of the call (``names``). A parameter of the kernel that is in
    ``names`` gets its value from the call."""

    names: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def constants(self) -> tuple[str, ...]:
        """The kernel's parameters whose values are not from the call."""
        return tuple(name for name in self.arguments if name not in self.names)

    @property
    def text(self) -> str:
        """The expression for the tuple of arguments, without its brackets."""
        return "".join(f"{name if name in self.names else f'_c_{name}'}, " for name in self.arguments)


class _Given(dict[tuple[modes.Text | None, ...], KnownCalls]):
    """Maps the values of the environment variables to the cache of calls for the tuning mode that they select. Each
    mode is computed once.
    """

    def __init__(self, known_calls: Mapping[str, KnownCalls], default: modes.Mode) -> None:
        super().__init__()
        self._known_calls, self._default = known_calls, default

    def __missing__(self, values: tuple[modes.Text | None, ...]) -> KnownCalls:
        mode = modes.shared(modes.in_use(values, self._default))
        known = self[values] = self._known_calls[mode.value]
        return known


def hot_function(
    title: str,
    layout: Layout,
    pattern: Pattern,
    launch: Callable[..., None],
    known_calls: Mapping[str, KnownCalls],
    default: modes.Mode,
    otherwise: Callable[[KeyKinds, tuple[CallValue, ...]], None],
) -> FunctionType:
    """Generates the function that handles calls with one pattern of arguments. Its first parameter is the stream.

    known_calls: the cache of calls for each tuning mode, by the mode's name.
    default: the mode that the author chose.
    otherwise: handles a call whose key is not known, or whose arguments have another pattern.
    """
    guess = bool(pattern.arrays) and tensor_guards.available()
    look_up = (_GUESS if guess else _LOOK_UP).format(
        addresses=pattern.addresses,
        key=pattern.key,
        guessed=pattern.guessed,
        unaligned=pattern.unaligned,
        arrays=_tuple(pattern.arrays),
        items="".join(f", _i_{name}" for name in pattern.items),
        actual=_tuple(pattern.items.values()),
        constants="".join(f", _c_{name}" for name in layout.constants),
    )
    text = _HOT.format(
        title=title, parameters=", ".join(("stream", *layout.names)), look_up=look_up, arguments=layout.text
    )
    variable, switch, other_switch = modes.NAMES
    scope = {
        "_usual": known_calls[default.value],
        "_given": _Given(known_calls, default),
        "_environment": modes.CONTAINER,
        "_variable": variable,
        "_switch": switch,
        "_other_switch": other_switch,
        "_get": modes.CONTAINER.get,
        "_missed": lambda *arguments: otherwise(pattern.kinds, arguments),
        "_ct_launch": launch,
        "_arrays_key": arrays_key,
    }
    return generated(text, scope, title)


def dispatching_function(title: str, names: Sequence[str], differing: Sequence[str]) -> FunctionType:
    """Generates the function that selects one of several hot functions, by the classes of the arguments in
    ``differing``. Its globals must have ``_hot``, which returns the hot function, and ``_any_hot``, the default."""
    parameters, classes = ", ".join(("stream", *names)), _tuple(f"{name}.__class__" for name in differing)
    return generated(f"def {title}({parameters}):\n    _hot({classes}, _any_hot)({parameters})\n", {}, title)


def key_function(pattern: Pattern) -> Callable[..., Key]:
    """Generates a function for the cold path: it returns the key of a call, as `hot_function` computes it."""
    text = f"def key({', '.join(pattern.names)}):\n    {pattern.addresses}\n    return {pattern.key}\n"
    return generated(text, {"_arrays_key": arrays_key}, "key")


def generated(text: str, scope: dict[str, Any], name: str) -> FunctionType:
    """Runs ``text`` and returns the function ``name`` that it defines. Tracebacks show the lines of ``text``."""
    file = f"<tilewright {name} {next(_numbers)}>"
    exec(compile(text, file, "exec"), scope)  # noqa: S102 (its names are checked to be identifiers)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    function: FunctionType = scope[name]
    return function
