"""The hot path of a tuned kernel: from the arguments of a call to its launch, as one generated function.

A launch of cuda-tile costs a few µs on the host, so a look-up may not cost more than one. For each pattern of
arguments (which are arrays, which are flags) one Python function is generated, which asks each argument for
exactly what decides, and nothing twice:

    array      shape, dtype; strides, unless all are row-major; address modulo 16, unless all are aligned
    output     whether it starts where another array starts: a call in place is another call
    the first  its device, where there are several
    int, bool, str, None    the value
    float, and what the author calls unkeyed    the type

The values form the key of one dictionary look-up; what it holds launches. The dictionary is that of the mode
in force, which is read first (A-16). No lock, no hash of a source, no new kernel object (A-21, A-47).
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any

from tilewright.runtime import modes
from tilewright.runtime.arrays import is_array


class Kind(Enum):
    """What an argument is to the key."""

    ARRAY = "array"
    ARRAYS = "arrays"
    """A list or tuple of arrays, or an array that is not torch's: asked by a function, more slowly."""
    VALUE = "value"
    TYPE = "type"


Kinds = tuple[Kind, ...]
_numbers = count()


def kind_of(value: Any, keyed: bool = True) -> Kind:
    """``keyed=False``: the author says that the value does not decide."""
    if not keyed:
        return Kind.TYPE
    if hasattr(value, "data_ptr"):
        return Kind.ARRAY
    if is_array(value) or (isinstance(value, (list, tuple)) and any(is_array(one) for one in value)):
        return Kind.ARRAYS
    if isinstance(value, float):
        return Kind.TYPE
    try:
        hash(value)
    except TypeError:
        return Kind.TYPE
    return Kind.VALUE


def arrays_key(value: Any) -> tuple[Any, ...]:
    """What `Kind.ARRAYS` puts into the key."""
    from tilewright.runtime.key import array_part

    if isinstance(value, (list, tuple)):
        return tuple(arrays_key(one) if is_array(one) else one for one in value)
    part = array_part(value)
    return part["dtype"], tuple(part["shape"]), tuple(part["strides"]), part["alignment"]


def key_expression(
    names: Sequence[str], kinds: Kinds, outputs: Sequence[str], devices: int
) -> tuple[str, str]:
    """Two pieces of Python: what reads the addresses of the arrays, and the tuple that is the key.

    What nearly every call has in common costs one item for all arrays: that they are aligned, and row-major.
    With at most one GPU (``devices``) nothing is asked of the device.
    """
    arrays = [name for name, kind in zip(names, kinds, strict=True) if kind is Kind.ARRAY]
    items: list[str] = []
    for name, kind in zip(names, kinds, strict=True):
        form = {
            Kind.ARRAY: "{0}.shape, {0}.dtype",
            Kind.ARRAYS: "_arrays_key({0})",
            Kind.VALUE: "{0}",
            Kind.TYPE: "{0}.__class__",
        }[kind]
        items.append(form.format(name))
    for name in arrays:
        others = [f"_p_{other}" for other in arrays if other != name]
        if name in outputs and others:
            items.append(" or ".join(f"_p_{name} == {other}" for other in others))
    if arrays:
        row_major = " and ".join(f"{name}.is_contiguous()" for name in arrays)
        strides = ", ".join(f"{name}.stride()" for name in arrays)
        addresses = " | ".join(f"_p_{name}" for name in arrays)
        each = ", ".join(f"_p_{name} & 15" for name in arrays)
        items.append(f"{row_major} or ({strides},)")
        items.append(f"({addresses}) & 15 and ({each},)")
        if devices > 1:
            items.append(f"{arrays[0]}.get_device()")
    return "; ".join(f"_p_{name} = {name}.data_ptr()" for name in arrays), f"({', '.join(items)},)"


_HOT = """\
def {title}({parameters}):
    _table = _usual
    if _variable in _environment or _switch in _environment or _other_switch in _environment:
        _table = _tables[_mode(_default).value]
    try:
        {addresses}
        _grid, _kernel{constants} = _table[{key}]
    except (KeyError, AttributeError, TypeError):
        _grid, _kernel = _missed, None
    if _kernel is None:
        return _grid({parameters})
    _ct_launch(stream, _grid, _kernel, ({arguments}))
"""


@dataclass(frozen=True)
class Layout:
    """Where the arguments of a launch come from: ``names`` are the call's, ``arguments`` the kernel's, in order."""

    names: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def constants(self) -> tuple[str, ...]:
        """Those that the call does not give."""
        return tuple(name for name in self.arguments if name not in self.names)

    @property
    def text(self) -> str:
        """The tuple of arguments, without its brackets."""
        return "".join(f"{name if name in self.names else f'_c_{name}'}, " for name in self.arguments)


def hot_function(
    title: str,
    layout: Layout,
    kinds: Kinds,
    outputs: Sequence[str],
    devices: int,
    launch: Callable[..., None],
    tables: Mapping[str, dict[Any, Any]],
    default: modes.Mode,
    otherwise: Callable[[Kinds, tuple[Any, ...]], None],
) -> Callable[..., None]:
    """The function for one pattern of arguments. Its first parameter is the stream.

    tables: by the name of the mode, key → (grid, kernel, *constants) as ``layout`` has them; or, where a launch
    needs more than that, (a function of the stream and the arguments, None, …).
    otherwise: called with the pattern and all arguments where the key is not there, or where the arguments are
    not of this pattern.
    """
    addresses, key = key_expression(layout.names, kinds, outputs, devices)
    text = _HOT.format(
        title=title,
        parameters=", ".join(("stream", *layout.names)),
        addresses=addresses or "pass",
        key=key,
        constants="".join(f", _c_{name}" for name in layout.constants),
        arguments=layout.text,
    )
    variable, switch, other_switch = modes.NAMES
    scope = {
        "_usual": tables[default.value],
        "_tables": tables,
        "_environment": modes.CONTAINER,
        "_variable": variable,
        "_switch": switch,
        "_other_switch": other_switch,
        "_mode": modes.mode,
        "_default": default,
        "_missed": lambda *arguments: otherwise(kinds, arguments),
        "_ct_launch": launch,
        "_arrays_key": arrays_key,
    }
    return generated(text, scope, title)


def key_function(
    names: Sequence[str], kinds: Kinds, outputs: Sequence[str], devices: int
) -> Callable[..., tuple[Any, ...]]:
    """The key of the hot dictionary, for the cold path: the same expression as in `hot_function`."""
    addresses, key = key_expression(names, kinds, outputs, devices)
    text = f"def key({', '.join(names)}):\n    {addresses or 'pass'}\n    return {key}\n"
    return generated(text, {"_arrays_key": arrays_key}, "key")


def generated(text: str, scope: dict[str, Any], name: str) -> Callable[..., Any]:
    """The function ``name`` of the text; its lines show in tracebacks."""
    file = f"<tilewright {name} {next(_numbers)}>"
    exec(compile(text, file, "exec"), scope)  # noqa: S102 (its names are checked to be identifiers)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    function: Callable[..., Any] = scope[name]
    return function
