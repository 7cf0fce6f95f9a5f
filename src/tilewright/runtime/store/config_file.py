"""A config file: the tuned configurations of one kernel that a library ships, and the look-up in them.

    {"format": …, "kernel": …, "module": …, "rule": …, "common": parts equal in all rows,
     "rows": [its parts, config, times]}

It is read with `json` alone, without a database, a search or a GPU. The file has the rule of the look-up, as text for
people (`MatchRule.to_json`) and as the data that the look-up uses: an equal row, else the nearest, else the shipped
configuration, which the caller has. Only the parts that the rule names may differ. The toolkit may, because it changes
how fast a configuration is and not what it computes.

Rows for another source of the kernel are not used, and one warning says so: their configurations were never compared
in the kernel as it is now. In the store this cannot happen, because the source is a part of the key.
"""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict, TypeGuard

from tilewright.errors import RequestError
from tilewright.records import Json, Value
from tilewright.runtime.store.warn_once import warn_once

FORMAT = "tilewright tuned kernel"
VERSION = 1
NAME_IN_PYTHON = "TABLE"
SOURCES = ("source", "sources", "functions")
"""The parts for the source of the kernel (`tilewright run` writes the second), and of the author's functions that make
grid and arguments of a configuration."""
ARRAY = frozenset(("dtype", "shape", "strides", "alignment"))
"""The fields that describe an array, anywhere in the parts (`key.array_part`)."""

Config: TypeAlias = Mapping[str, Value]
Parts: TypeAlias = Mapping[str, Json]
Order: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], bool]
Layout: TypeAlias = tuple[tuple[int, ...], tuple[Order, ...]]
"""All extents of a call's arrays, and of each array its `order_of`."""


class ArrayPart(TypedDict):
    """An array in the parts of a key."""

    dtype: str
    shape: list[int]
    strides: list[int]
    alignment: int


class RuleData(TypedDict):
    """A `MatchRule` in a file."""

    factor: float
    may_differ: list[str]
    fallback: str
    text: list[str]


class ConfigRow(TypedDict):
    """A row in a file. ``config`` and ``parts`` are required."""

    parts: dict[str, Json]
    config: dict[str, Value]
    us: float | None
    shipped_us: float | None
    shipped: dict[str, Value] | None
    index: int | None
    label: str
    created: str


class ConfigData(TypedDict):
    """A file."""

    format: str
    version: int
    kernel: str
    module: str
    rule: RuleData
    common: dict[str, Json]
    rows: list[ConfigRow]


@dataclass(frozen=True)
class MatchRule:
    """How a row is chosen for a call that has no row."""

    factor: float = 2.0
    """The largest ratio of two extents."""
    may_differ: tuple[str, ...] = ("toolkit", "space")
    """Parts that need not be equal. A configuration of another space is taken only if the caller allows it."""

    def to_json(self) -> RuleData:
        text = [
            "exact: a row whose parts all equal those of the call.",
            "nearest: else, the row with the smallest sum of |log2(extent / extent)| over all arrays;",
            f"each extent within a factor of {self.factor:g}, and strides in the same order;",
            f"every other part equal, but for: {', '.join(self.may_differ)}; of equally near rows the first.",
            "in either case, only a configuration that the space of the call has.",
            "source: rows of another source of the kernel are not used.",
            "fallback: else, the shipped configuration.",
        ]
        return {"factor": self.factor, "may_differ": list(self.may_differ), "fallback": "shipped", "text": text}


@dataclass(frozen=True)
class MatchingRow:
    config: Config
    match: Literal["exact", "nearest"]
    row: ConfigRow
    distance: float = 0.0
    """Sum of |log2 (extent / extent)|."""
    differs: tuple[str, ...] = ()
    """The parts that differ, as the rule allows."""

    @property
    def exact(self) -> bool:
        return self.match == "exact"


class ConfigFile:
    """The rows of one kernel, for many look-ups."""

    def __init__(self, data: ConfigData, rule: MatchRule, name: str) -> None:
        """``name``: of the file, for warnings."""
        self.kernel, self.module, self.name = data["kernel"], data.get("module", ""), name
        self.rows, self.rule = data["rows"], rule
        self.parts: list[Parts] = [{**data["common"], **row["parts"]} for row in self.rows]
        """Of each row, with the common ones."""
        self._compared = (*rule.may_differ, *SOURCES)
        self._exact: dict[str, int] = {}
        for index, parts in enumerate(self.parts):
            self._exact.setdefault(canonical(parts), index)

    def find(self, parts: Parts, *, allowed: Callable[[Config], bool] | None = None) -> MatchingRow | None:
        """The configuration for a call with these parts, or None: launch the shipped one.

        ``allowed``: whether the space of this call has a configuration. Without it only rows with an equal space count.
        """
        index = self._exact.get(canonical(parts))
        if index is not None and (allowed is None or allowed(self.rows[index]["config"])):
            return MatchingRow(self.rows[index]["config"], "exact", self.rows[index])
        return self._nearest(parts, allowed)

    def _nearest(self, parts: Parts, allowed: Callable[[Config], bool] | None) -> MatchingRow | None:
        near, refused, call = [], False, _layout(parts)
        texts = self._compared_texts(parts)
        for index, layout, row in self._alike.get(self._rigid_text(parts), ()):
            distance = _distance(layout, call, self.rule.factor)
            if distance is None:
                continue
            differs = tuple(name for name in self._compared if row[name] != texts[name])
            if any(name in SOURCES for name in differs):
                refused = True
            elif "space" not in differs or allowed is not None:
                near.append((distance, "toolkit" in differs, index, differs))
        for distance, _, index, differs in sorted(near):
            config = self.rows[index]["config"]
            if allowed is None or allowed(config):
                return MatchingRow(config, "nearest", self.rows[index], distance, differs)
        if refused:
            warn_once(
                f"{self.name} was tuned for another source of {self.kernel} and is not used for it; fix: tune "
                f"again, then `tilewright tuned export {self.kernel}`",
                about=f"source of {self.name}",
            )
        return None

    @cached_property
    def _alike(self) -> dict[str, list[tuple[int, Layout, dict[str, str]]]]:
        """The rows by the parts that must be equal, with those that are compared. Made at the first inexact call."""
        alike: dict[str, list[tuple[int, Layout, dict[str, str]]]] = {}
        for index, parts in enumerate(self.parts):
            row = (index, _layout(parts), self._compared_texts(parts))
            alike.setdefault(self._rigid_text(parts), []).append(row)
        return alike

    def _compared_texts(self, parts: Parts) -> dict[str, str]:
        return {name: canonical(parts.get(name)) for name in self._compared}

    def _rigid_text(self, parts: Parts) -> str:
        return canonical({name: _rigid(part) for name, part in parts.items() if name not in self._compared})


# The rule


def distance_of(one: Parts, other: Parts, factor: float) -> float | None:
    """How far apart the arrays of two calls are; None if they cannot be compared. Symmetric; the calls have the same
    arrays with the same ranks."""
    return _distance(_layout(one), _layout(other), factor)


def _layout(parts: Parts) -> Layout:
    arrays = list(arrays_of_parts(dict(parts)))
    orders = tuple(order_of(array["shape"], array["strides"]) for array in arrays)
    return tuple(extent for array in arrays for extent in array["shape"]), orders


def _distance(one: Layout, other: Layout, factor: float) -> float | None:
    if one[1] != other[1]:
        return None
    distance, most = 0.0, math.log2(factor)
    for extents in zip(one[0], other[0], strict=True):
        low, high = sorted(extents)  # so that the distance is the same in both directions, to the last bit
        if low != high:
            apart = math.log2(high / low) if low > 0 else math.inf
            if apart > most:
                return None
            distance += apart
    return distance


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """The dimensions of an array from the longest stride to the shortest, those that are repeated (stride 0), and
    whether the innermost one is dense. Dimensions of extent 1 do not count."""
    real = [dim for dim, extent in enumerate(shape) if extent > 1]
    repeated = tuple(dim for dim in real if strides[dim] == 0)
    order = sorted((dim for dim in real if strides[dim]), key=lambda dim: (-abs(strides[dim]), dim))
    return tuple(order), repeated, bool(order) and strides[order[-1]] == 1


def _is_array(value: Json) -> TypeGuard[ArrayPart]:
    return isinstance(value, dict) and value.keys() >= ARRAY


def arrays_of_parts(value: Json) -> Iterator[ArrayPart]:
    """All arrays in the parts of a key, in an order that is the same for equal names."""
    if _is_array(value):
        yield value
    elif isinstance(value, dict):
        for name in sorted(value):
            yield from arrays_of_parts(value[name])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_of_parts(item)


def _rigid(value: Json) -> Json:
    """A part without the extents and strides in it: what must be equal."""
    if isinstance(value, dict):
        rank: dict[str, Json] = {"rank": len(value["shape"])} if _is_array(value) else {}
        left_out = ("shape", "strides") if rank else ()
        return {name: _rigid(part) for name, part in value.items() if name not in left_out} | rank
    if isinstance(value, (list, tuple)):
        return [_rigid(part) for part in value]
    return value


def canonical(value: Json | Parts) -> str:
    """Equal for equal parts: their order does not count, their types do."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# The file


def load(given: Path | str | Mapping[str, Json]) -> ConfigFile:
    """The config file at a path, ``.json`` or ``.py`` (which is read, not run), or in a mapping such as the ``TABLE``
    of an exported module. Raises `RequestError` for anything else."""
    if isinstance(given, Mapping):
        return _config_file(dict(given), f"the config file of {given.get('kernel', 'a kernel')}")
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8")
        data = _of_python(text) if path.suffix == ".py" else json.loads(text)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise _no_config_file(str(path), error) from error
    return _config_file(data, str(path))


def _of_python(text: str) -> Json:
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == NAME_IN_PYTHON:
            value: Json = ast.literal_eval(statement.value)
            return value
    raise ValueError(f"it has no {NAME_IN_PYTHON} = {{…}}")


def _config_file(given: Json, name: str) -> ConfigFile:
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise _no_config_file(name, f"its format is not '{FORMAT}'")
    if given.get("version") != VERSION:
        raise RequestError(
            f"{name} has version {given.get('version')} of the format, this Tilewright reads {VERSION}; "
            "fix: update Tilewright, or export it again"
        )
    try:
        data: ConfigData = json.loads(json.dumps(given, allow_nan=False))  # with the types of JSON alone
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_config_file(name, error) from error
    try:
        rule, rows, common = data["rule"], data["rows"], data["common"]
        _need(isinstance(rule, dict), "rule", "an object")
        factor, may_differ = rule["factor"], rule["may_differ"]
        _need(_is_number(factor) and factor >= 1, "factor of the rule", "a number from 1 on")
        _need(isinstance(may_differ, list), "may_differ of the rule", "a list of names")
        _need(isinstance(rows, list), "rows", "a list")
        _need(isinstance(common, dict), "common", "an object")
        for index, row in enumerate(rows):
            _validate_row(row, f"row {index}", common)
        kernel, module = data["kernel"], data.get("module", "")
        _need(isinstance(kernel, str) and isinstance(module, str), "kernel or module", "a name")
    except (KeyError, _DamagedFile) as error:
        wrong = f"{error} is missing" if isinstance(error, KeyError) else error
        raise RequestError(f"{name}: {wrong}; export it again") from None
    return ConfigFile(data, MatchRule(float(factor), tuple(map(str, may_differ))), name)


def _no_config_file(name: str, why: object) -> RequestError:
    return RequestError(f"{name} is no file of tuned configurations: {why}")


class _DamagedFile(Exception):
    """What is wrong in a file that was changed by hand. It is refused as a whole, before anything is stored."""


def _need(right: bool, what: str, expected: str) -> None:
    if not right:
        raise _DamagedFile(f"{what} is not {expected}")


def _validate_row(row: ConfigRow, which: str, common: dict[str, Json]) -> None:
    _need(isinstance(row, dict), which, "an object")
    _need(isinstance(row["parts"], dict), f"parts of {which}", "an object")
    _need(_is_config(row["config"]), f"config of {which}", "an object of plain values")
    shipped, index = row.get("shipped"), row.get("index")
    _need(shipped is None or _is_config(shipped), f"shipped of {which}", "an object of plain values")
    for name, us in (("us", row.get("us")), ("shipped_us", row.get("shipped_us"))):
        _need(us is None or (_is_number(us) and us > 0), f"{name} of {which}", "a time in µs")
    _need(index is None or (type(index) is int and 0 <= index < 2**31), f"index of {which}", "a place")
    for array in arrays_of_parts({**common, **row["parts"]}):
        shape, strides = array["shape"], array["strides"]
        lists = isinstance(shape, list) and isinstance(strides, list) and len(shape) == len(strides)
        whole = lists and all(type(extent) is int for extent in (*shape, *strides))
        _need(whole, "shape and strides of an array", "a whole number for each dimension")


def _is_config(value: Config) -> bool:
    return isinstance(value, dict) and not any(isinstance(item, (dict, list)) for item in value.values())


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and abs(value) <= sys.float_info.max
