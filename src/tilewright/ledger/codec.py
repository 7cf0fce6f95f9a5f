"""Converts records to strict JSON and back. `to_json` uses the values, `from_json` the type hints of the record.

* A record becomes an object with all its fields. A `Configuration` becomes an object with its knobs in their order. A
  tuple becomes a list, and a NumPy scalar a Python number.
* JSON has no infinity and no NaN. They become ``{"$float": "inf"}`` (``"-inf"``, ``"nan"``). To keep this unambiguous,
  a mapping whose only key is ``$float`` is refused.
* A field with the hint `Json` or `Any` is read as lists and dictionaries.
* Other values, such as bytes and sets, are refused. Keys that are not text are refused, too.

Every error is a `ValueError` of one line that names the field.
"""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, Union, cast, overload

from tilewright.records import Configuration, Json, Value

if TYPE_CHECKING:
    import numpy as np

Decoded = TypeVar("Decoded")


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Encodable: TypeAlias = "Dataclass | Mapping[str, Encodable] | Sequence[Encodable] | np.generic | Value"

_FLOAT = "$float"
_NOT_FINITE = ("inf", "-inf", "nan")
_SCALARS = (int, float, bool, str, NoneType)


@overload
def to_json(record: Dataclass) -> dict[str, Json]: ...
@overload
def to_json(record: Encodable) -> Json: ...
def to_json(record: Encodable) -> Json:
    """Converts a record to dictionaries, lists, text and numbers of strict JSON."""
    return _write(record, type(record).__name__)


def from_json(kind: type[Decoded], data: Json, *, defaults: bool = False, finite: bool = False) -> Decoded:
    """Reads JSON that `to_json` wrote. Raises `ValueError` if a field is unknown, missing or of another type.

    kind: a record, or a type hint such as ``dict[str, float]``.
    defaults: whether missing fields get their defaults, as for older data.
    finite: whether ``data`` has neither infinity nor NaN (`has_float`). Data without a hint is then not copied.
    """
    try:
        return cast(Decoded, _quick(cast("Hashable", kind), defaults, finite)(data))
    except ValueError:
        return cast(Decoded, _Reader(defaults).read(kind, data, kind.__name__))  # finds the field for the error


def has_float(text: str) -> bool:
    """Returns whether JSON text may have infinity or NaN."""
    return _FLOAT in text or "\\u" in text


def _write(value: Encodable, where: str) -> Json:
    numpy = sys.modules.get("numpy")  # importing it takes 0.1 s; if it is not loaded, no value is NumPy's
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, Mapping):
        return _write_mapping(value, where)
    if isinstance(value, (tuple, list)):
        return [_write(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _write(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
    raise ValueError(f"{where}: {type(value).__name__} has no JSON form")


def _write_mapping(value: Mapping[str, Encodable], where: str) -> dict[str, Json]:
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{where}: the key {key!r} is {type(key).__name__}, not text")
    if list(value) == [_FLOAT]:
        raise ValueError(f"{where}: the key '{_FLOAT}' is reserved for infinity and NaN")
    return {key: _write(item, f"{where}.{key}") for key, item in value.items()}


@cache
def _quick(hint: Any, defaults: bool, finite: bool) -> Callable[[Any], Any]:
    """Returns a function that reads JSON as `_Reader` does, four times as fast, and whose errors name no field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint == Json:
        return _same if finite else _quick_json
    if hint in _SCALARS:
        return lambda data: data if type(data) is hint else _scalar(hint, data, "")
    if is_dataclass(hint) and hint is not Configuration:
        return _quick_record(cast(type, hint), defaults, finite)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _quick(arguments[0], defaults, finite)
        return lambda data: tuple(map(item, _shaped(list, data, "")))
    if origin in (Mapping, dict):
        value = _quick(arguments[1], defaults, finite)
        if value is _same:
            return lambda data: _shaped(dict, data, "")
        return lambda data: {key: value(each) for key, each in _shaped(dict, data, "").items()}
    if origin in (Union, UnionType) and sum(member is not NoneType for member in arguments) == 1:
        member = _quick(next(member for member in arguments if member is not NoneType), defaults, finite)
        optional = NoneType in arguments
        return lambda data: None if data is None and optional else member(data)
    if origin in (Union, UnionType) and set(arguments) == {*_SCALARS}:  # the value of a knob
        return lambda data: _value(data, "")
    return lambda data: _Reader(defaults).read(hint, data, "")


def _quick_record(kind: Callable[..., Dataclass], defaults: bool, finite: bool) -> Callable[[Any], Any]:
    known: dict[str, Callable[[Any], Any]] = {}  # filled later, because a record may have fields of its own type
    required = {name for name, (_, optional) in _fields(kind).items() if not (optional and defaults)}

    def read(data: Any) -> Dataclass:
        if not known:
            known.update({name: _quick(hint, defaults, finite) for name, (hint, _) in _fields(kind).items()})
        if not isinstance(data, dict) or not known.keys() >= data.keys() or not data.keys() >= required:
            raise ValueError
        return kind(**{name: known[name](value) for name, value in data.items()})

    return read


def _same(data: Any) -> Any:
    return data


def _quick_json(data: Any) -> Any:
    if isinstance(data, dict):
        if len(data) == 1 and _FLOAT in data:
            return _scalar(float, data, "")
        return {key: _quick_json(item) if isinstance(item, (dict, list)) else item for key, item in data.items()}
    if isinstance(data, list):
        return [_quick_json(item) if isinstance(item, (dict, list)) else item for item in data]
    return data


@dataclass(frozen=True)
class _Reader:
    """Reads JSON by type hints. ``where`` is the path of the field, for errors."""

    defaults: bool

    def read(self, hint: Any, data: Json, where: str) -> Encodable:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is Any or hint == Json:
            return _decoded(data, where)
        if hint in _SCALARS:
            return _scalar(hint, data, where)
        if hint is Configuration:
            items = _shaped(dict, data, where).items()
            return Configuration.of({key: _value(item, f"{where}.{key}") for key, item in items})
        if is_dataclass(hint):
            return self._record(cast(type, hint), _shaped(dict, data, where), where)
        if origin is tuple:
            return self._tuple(arguments, _shaped(list, data, where), where)
        if origin in (Mapping, dict):
            items = _shaped(dict, data, where).items()
            return {key: self.read(arguments[1], item, f"{where}.{key}") for key, item in items}
        if origin is Literal:
            return _literal(arguments, data, where)
        if origin in (Union, UnionType):
            return self._union(arguments, data, where)
        raise ValueError(f"{where}: no JSON form for {hint}")

    def _record(self, kind: Callable[..., Dataclass], data: dict[str, Json], where: str) -> Dataclass:
        known = _fields(kind)
        for name in data:
            if name not in known:
                raise ValueError(f"{where}: unknown field '{name}'; known: {', '.join(known)}")
        values = {}
        for name, (hint, optional) in known.items():
            if name in data:
                values[name] = self.read(hint, data[name], f"{where}.{name}")
            elif not (optional and self.defaults):
                raise ValueError(f"{where}: missing field '{name}'")
        return kind(**values)

    def _tuple(self, hints: tuple[Any, ...], data: list[Json], where: str) -> tuple[Encodable, ...]:
        if len(hints) == 2 and hints[1] is Ellipsis:
            hints = (hints[0],) * len(data)
        if len(hints) != len(data):
            raise ValueError(f"{where}: {len(data)} items, expected {len(hints)}")
        pairs = zip(hints, data, strict=True)
        return tuple(self.read(hint, item, f"{where}[{index}]") for index, (hint, item) in enumerate(pairs))

    def _union(self, members: tuple[Any, ...], data: Json, where: str) -> Encodable:
        """Reads ``data`` as a member of the union. A member of exactly the same type comes first: 1 must not become
        1.0."""
        if type(data) in members:
            return data
        others = [member for member in members if member is not NoneType]
        if len(others) == 1:
            return self.read(others[0], data, where)
        for member in others:
            try:
                return self.read(member, data, where)
            except ValueError:
                continue
        names = ", ".join(getattr(member, "__name__", str(member)) for member in members)
        raise ValueError(f"{where}: {_shown(data)} is none of {names}")


def _decoded(data: Json, where: str) -> Json:
    """Reads data without a hint."""
    if isinstance(data, list):
        return [_decoded(item, where) for item in data]
    if not isinstance(data, dict):
        return data
    if list(data) == [_FLOAT]:
        return _scalar(float, data, where)
    return {key: _decoded(item, f"{where}.{key}") for key, item in data.items()}


def _value(data: Json, where: str) -> Value:
    """Reads the value of a knob."""
    if isinstance(data, dict):
        return _scalar(float, data, where)
    if isinstance(data, list):
        raise ValueError(f"{where}: {_shown(data)} is none of int, float, bool, str, NoneType")
    return data


def _scalar(hint: type, data: Json, where: str) -> Value:
    if type(data) is hint and not isinstance(data, (dict, list)):
        return data
    if hint is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < 2**1023:
        return float(data)
    if hint is float and isinstance(data, dict) and list(data) == [_FLOAT] and data[_FLOAT] in _NOT_FINITE:
        return float(str(data[_FLOAT]))
    raise ValueError(f"{where}: {_shown(data)} is not {hint.__name__}")


def _literal(choices: tuple[Value, ...], data: Json, where: str) -> Value:
    for choice in choices:
        if type(choice) is type(data) and choice == data:
            return choice
    raise ValueError(f"{where}: {_shown(data)} is not one of {', '.join(map(repr, choices))}")


def _shaped(kind: type[Decoded], data: Json, where: str) -> Decoded:
    """Returns ``data`` if its type is ``kind`` (``dict`` or ``list``). Otherwise raises ValueError."""
    if not isinstance(data, kind):
        raise ValueError(f"{where}: {_shown(data)} is not {'an object' if issubclass(kind, dict) else 'a list'}")
    return data


def _shown(data: Json) -> str:
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."


@cache
def _fields(kind: Callable[..., Dataclass]) -> Mapping[str, tuple[Any, bool]]:
    """Maps each field's name to its type hint and whether it has a default."""
    hints = typing.get_type_hints(kind, localns={"Json": Any})
    return {
        field.name: (hints[field.name], field.default is not MISSING or field.default_factory is not MISSING)
        for field in fields(cast(type[Dataclass], kind))
    }
