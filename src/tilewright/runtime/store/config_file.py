"""A config file: the tuned configurations of one kernel that a library ships, and the look-up in them.

    {"format": …, "kernel": …, "module": …, "rule": …, "common": parts equal in all rows,
     "rows": [its parts, config, times]}

The file is read with `json` alone, without a database, a search or a GPU. A look-up compares the parts of a call's key.
It finds the row with equal parts, else the nearest row. If there is no such row, the caller launches the shipped
configuration.

The rule of the look-up is in the file, as text for people and as data. Only the parts that the rule names may differ.
The toolkit is such a part, because it changes the speed of a configuration, but not its results. Rows for another
source of the kernel cause one warning and are not used: their configurations were never compared on the present kernel.
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
"""The names of the parts that contain source code. ``sources`` is the kernel's source in winners of `tilewright run`.
The others are the sources of the kernel and of the author's functions for the grid and the arguments.
"""
ARRAY = frozenset(("dtype", "shape", "strides", "alignment"))
"""The names of the items in an array's part of a key (`key.array_part`)."""

PREDICTED = "predicted, not measured"
"""The end of the label of a row that `tilewright tune` predicted without a GPU."""

Config: TypeAlias = Mapping[str, Value]
Parts: TypeAlias = Mapping[str, Json]
Order: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], bool]
Layout: TypeAlias = tuple[tuple[int, ...], tuple[Order, ...]]
"""The shape of all arrays of a call: their extents, and for each array the result of `order_of`."""


class ArrayPart(TypedDict):
    """The part of a key for an array. ``strides`` are in elements; ``alignment`` is the address modulo 16."""

    dtype: str
    shape: list[int]
    strides: list[int]
    alignment: int


class RuleData(TypedDict):
    """A `MatchRule` as JSON."""

    factor: float
    may_differ: list[str]
    fallback: str
    text: list[str]


class ConfigRow(TypedDict):
    """A row as JSON. Only ``config`` and ``parts`` are required."""

    parts: dict[str, Json]
    config: dict[str, Value]
    us: float | None
    shipped_us: float | None
    shipped: dict[str, Value] | None
    index: int | None
    label: str
    created: str


class ConfigData(TypedDict):
    """A config file as JSON."""

    format: str
    version: int
    kernel: str
    module: str
    rule: RuleData
    common: dict[str, Json]
    rows: list[ConfigRow]


@dataclass(frozen=True)
class MatchRule:
    """The rule that chooses a row for a call without an equal row. ``factor``: the largest ratio of two extents.
    ``may_differ``: parts that need not be equal. If the space differs, the call's space must have the configuration."""

    factor: float = 2.0
    may_differ: tuple[str, ...] = ("toolkit", "space")

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
    """The row for a call. ``distance``: sum of |log2(extent / extent)|. ``differs``: names of the parts that differ."""

    config: Config
    match: Literal["exact", "nearest"]
    distance: float = 0.0
    differs: tuple[str, ...] = ()
    label: str = ""


class ConfigFile:
    """The rows of one kernel. ``parts``: all parts of each row, with the common ones. ``name``: the file's name."""

    def __init__(self, data: ConfigData, rule: MatchRule, name: str) -> None:
        self.kernel, self.module, self.name = data["kernel"], data.get("module", ""), name
        self.rows, self.rule = data["rows"], rule
        self.parts: list[Parts] = [{**data["common"], **row["parts"]} for row in self.rows]
        self._compared = (*rule.may_differ, *SOURCES)
        self._exact: dict[str, int] = {}
        for index, parts in enumerate(self.parts):
            self._exact.setdefault(canonical(parts), index)

    def find(self, parts: Parts, *, allowed: Callable[[Config], bool] | None = None) -> MatchingRow | None:
        """Returns the row for a call with these parts; None if there is none. ``allowed``: returns whether the call's
        space has a configuration. Without ``allowed``, only rows with an equal space are used."""
        index = self._exact.get(canonical(parts))
        if index is not None and (allowed is None or allowed(self.rows[index]["config"])):
            return self._matching(index, "exact")
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
            if allowed is None or allowed(self.rows[index]["config"]):
                return self._matching(index, "nearest", distance, differs)
        if refused:
            warn_once(
                f"{self.name} was tuned for another source of {self.kernel} and is not used for it; fix: tune "
                f"again, then `tilewright tuned export {self.kernel}`; for a task, `tilewright tune FILE --into DIR`",
                about=f"source of {self.name}",
            )
        return None

    def _matching(
        self, index: int, match: Literal["exact", "nearest"], distance: float = 0.0, differs: tuple[str, ...] = ()
    ) -> MatchingRow:
        row = self.rows[index]
        return MatchingRow(row["config"], match, distance, differs, str(row.get("label", "")))

    @cached_property
    def _alike(self) -> dict[str, list[tuple[int, Layout, dict[str, str]]]]:
        """The rows, grouped by the parts that must be equal. Made at the first call without an equal row."""
        alike: dict[str, list[tuple[int, Layout, dict[str, str]]]] = {}
        for index, parts in enumerate(self.parts):
            row = (index, _layout(parts), self._compared_texts(parts))
            alike.setdefault(self._rigid_text(parts), []).append(row)
        return alike

    def _compared_texts(self, parts: Parts) -> dict[str, str]:
        return {name: canonical(parts.get(name)) for name in self._compared}

    def _rigid_text(self, parts: Parts) -> str:
        return canonical({name: _rigid(part) for name, part in parts.items() if name not in self._compared})


def _layout(parts: Parts) -> Layout:
    arrays = list(arrays_of_parts(dict(parts)))
    orders = tuple(order_of(array["shape"], array["strides"]) for array in arrays)
    return tuple(extent for array in arrays for extent in array["shape"]), orders


def _distance(one: Layout, other: Layout, factor: float) -> float | None:
    """Returns the sum of |log2(extent / extent)| over the arrays of two calls. Returns None if an extent differs by
    more than ``factor``, or if the order of strides differs. Both calls have the same arrays with the same ranks."""
    if one[1] != other[1]:
        return None
    distance, most = 0.0, math.log2(factor)
    for extents in zip(one[0], other[0], strict=True):
        low, high = sorted(extents)  # so that rounding is the same in both directions
        if low != high:
            apart = math.log2(high / low) if low > 0 else math.inf
            if apart > most:
                return None
            distance += apart
    return distance


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """Returns the dimensions from the longest stride to the shortest, and the dimensions with stride 0. Also returns
    whether the innermost dimension is dense. Dimensions of extent 1 are left out."""
    real = [dim for dim, extent in enumerate(shape) if extent > 1]
    repeated = tuple(dim for dim in real if strides[dim] == 0)
    order = sorted((dim for dim in real if strides[dim]), key=lambda dim: (-abs(strides[dim]), dim))
    return tuple(order), repeated, bool(order) and strides[order[-1]] == 1


def is_array_part(value: Json) -> TypeGuard[ArrayPart]:
    return isinstance(value, dict) and value.keys() >= ARRAY


def arrays_of_parts(value: Json) -> Iterator[ArrayPart]:
    """Yields all arrays in the parts of a key, sorted by the names of the parts."""
    if is_array_part(value):
        yield value
    elif isinstance(value, dict):
        for name in sorted(value):
            yield from arrays_of_parts(value[name])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_of_parts(item)


def _rigid(value: Json) -> Json:
    """Returns a part without the extents and strides of its arrays. The rest must be equal in a matching row."""
    if isinstance(value, dict):
        rank: dict[str, Json] = {"rank": len(value["shape"])} if is_array_part(value) else {}
        left_out = ("shape", "strides") if rank else ()
        return {name: _rigid(part) for name, part in value.items() if name not in left_out} | rank
    if isinstance(value, (list, tuple)):
        return [_rigid(part) for part in value]
    return value


def canonical(value: Json | Parts) -> str:
    """Returns text that is the same for equal parts. The order of names does not matter; types do."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def load(given: Path | str | Mapping[str, Json]) -> ConfigFile:
    """Reads a config file. ``given``: a path to ``.json`` or ``.py`` (parsed, not run), or a mapping such as the
    ``TABLE`` of an exported module. Raises `RequestError` for anything else."""
    if isinstance(given, Mapping):
        return _config_file(dict(given), f"the config file of {given.get('kernel', 'a kernel')}")
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8")
        data = _of_python(text) if path.suffix == ".py" else json.loads(text)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except (
        ValueError,
        SyntaxError,
        RecursionError,
        MemoryError,
    ) as error:  # the last two are raised for text that is nested too deeply
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
        versions = f"version {given.get('version')!r} of the format, this Tilewright reads {VERSION}"
        raise RequestError(f"{name} has {versions}; fix: update Tilewright, or export it again")
    try:
        data: ConfigData = json.loads(json.dumps(given, allow_nan=False))  # so that it has only JSON types
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_config_file(name, error) from error
    try:
        rule, rows, common = data["rule"], data["rows"], data["common"]
        _need(isinstance(rule, dict), "rule", "an object")
        factor, may_differ = rule["factor"], rule["may_differ"]
        _need(_is_number(factor) and factor >= 1, "factor of the rule", "a number from 1 on")
        open_parts = MatchRule().may_differ  # any other part may change the results
        _need(
            isinstance(may_differ, list) and all(name in open_parts for name in may_differ),
            "may_differ of the rule", f"a list of: {', '.join(open_parts)}",
        )  # fmt: skip
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
    """An error in a file that was changed by hand. The whole file is refused, before anything is stored."""


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
    _need(index is None or (type(index) is int and 0 <= index < 2**31), f"index of {which}", "a whole number from 0 on")
    for array in arrays_of_parts({**common, **row["parts"]}):
        shape, strides = array["shape"], array["strides"]
        lists = isinstance(shape, list) and isinstance(strides, list) and len(shape) == len(strides)
        whole = lists and all(type(extent) is int and abs(extent) < 2**63 for extent in (*shape, *strides))
        _need(whole, "shape and strides of an array", "a whole number for each dimension")


def _is_config(value: Config) -> bool:
    return isinstance(value, dict) and not any(isinstance(item, (dict, list)) for item in value.values())


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool and abs(value) <= sys.float_info.max
