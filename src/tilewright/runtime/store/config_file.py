"""A config file: the tuned configurations of one kernel that a library ships, and the look-up in them.

    {"format": …, "kernel": …, "module": …, "rule": …, "common": parts equal in all rows,
     "rows": [its parts, config, times]}

It is read with `json` alone: no database, no search, no GPU. The rule of the look-up stands in the file, as
text for people and as the data that the look-up itself uses:

* *exact*: a row whose parts are all those of the call.
* *nearest*: else the row with the smallest sum of |log2 (extent / extent)| over all extents of all arrays,
  no extent more than ``factor`` apart. All other parts are equal (kernel, board, launch, flags, dtypes,
  alignments), the strides are in the same order, and the first of equally near rows is taken. Only the
  parts that the rule names may differ: the toolkit may, since it changes how fast a configuration is and
  not what it computes.
* *fallback*: else the shipped configuration, which the caller has.

Rows of another source of the kernel are not used, and that is said once: nobody has compared what their
configurations compute in the kernel as it is now. The store's own rows cannot be stale in this way, since
the source is a part of their key.
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
from typing import Any, Literal

from tilewright.errors import RequestError
from tilewright.runtime.store.warn_once import warn_once

FORMAT = "tilewright tuned kernel"
VERSION = 1
NAME_IN_PYTHON = "TABLE"
SOURCES = ("source", "sources", "functions")
"""The parts that say what is launched: the kernel (`tilewright run` writes the second), and the author's functions
that make grid and arguments of a configuration."""
ARRAY = frozenset(("dtype", "shape", "strides", "alignment"))
"""What the description of an array has, wherever in the parts it stands (`key.array_part`)."""

Config = Mapping[str, Any]
Layout = tuple[tuple[int, ...], tuple[Any, ...]]
"""All extents of a call's arrays, and how each array lies (`order_of`)."""


@dataclass(frozen=True)
class MatchRule:
    """How a row is chosen for a call that is not in the file."""

    factor: float = 2.0
    """The most that two extents may be apart."""
    may_differ: tuple[str, ...] = ("toolkit", "space")
    """Parts that need not be equal. A configuration of another space is taken only where the caller allows it."""

    def to_json(self) -> dict[str, Any]:
        return {"factor": self.factor, "may_differ": list(self.may_differ), "fallback": "shipped"} | {
            "text": [
                "exact: a row whose parts all equal those of the call.",
                "nearest: else, the row with the smallest sum of |log2(extent / extent)| over all arrays;",
                f"each extent within a factor of {self.factor:g}, and strides in the same order;",
                f"every other part equal, but for: {', '.join(self.may_differ)}; of equally near rows the first.",
                "in either case, only a configuration that the space of the call has.",
                "source: rows of another source of the kernel are not used.",
                "fallback: else, the shipped configuration.",
            ]
        }


@dataclass(frozen=True)
class MatchingRow:
    config: Config
    match: Literal["exact", "nearest"]
    row: Mapping[str, Any]
    """The row as it stands in the file, with the evidence."""
    distance: float = 0.0
    """Sum of |log2 (extent / extent)|."""
    differs: tuple[str, ...] = ()
    """The parts that the rule allows to differ, and that do."""

    @property
    def exact(self) -> bool:
        return self.match == "exact"


class ConfigFile:
    """The rows of one kernel, to be asked many times."""

    def __init__(self, kernel: str, module: str, rows: Sequence[Mapping[str, Any]],
                 parts: Sequence[Mapping[str, Any]], rule: MatchRule, name: str) -> None:  # fmt: skip
        """``parts``: of each row, those that are common to all included. ``name``: how warnings call the file."""
        self.kernel, self.module, self.name = kernel, module, name
        self.rows, self.parts, self.rule = rows, parts, rule
        self._exact: dict[str, int] = {}
        for place, one in enumerate(parts):
            self._exact.setdefault(_text(one), place)

    def find(self, parts: Mapping[str, Any], *, allowed: Callable[[Config], bool] | None = None) -> MatchingRow | None:
        """The configuration for a call with these parts, or None: launch the shipped one.

        ``allowed``: whether the space of this call has a configuration. Without it only rows of the very same
        space count.
        """
        place = self._exact.get(_text(parts))
        if place is not None and (allowed is None or allowed(self.rows[place]["config"])):
            return MatchingRow(self.rows[place]["config"], "exact", self.rows[place])
        return self._nearest(parts, allowed)

    def _nearest(self, parts: Mapping[str, Any], allowed: Callable[[Config], bool] | None) -> MatchingRow | None:
        near, refused, call = [], False, _layout(parts)
        names = (*self.rule.may_differ, *SOURCES)
        texts = {name: _text(parts.get(name)) for name in names}
        for place, layout, row in self._alike.get(self._rigid_text(parts), ()):
            distance = _distance(layout, call, self.rule.factor)
            if distance is None:
                continue
            differs = tuple(name for name in names if row[name] != texts[name])
            if any(name in SOURCES for name in differs):
                refused = True
            elif "space" not in differs or allowed is not None:
                near.append((distance, "toolkit" in differs, place, differs))
        for distance, _, place, differs in sorted(near):
            config = self.rows[place]["config"]
            if allowed is None or allowed(config):
                return MatchingRow(config, "nearest", self.rows[place], distance, differs)
        if refused:
            warn_once(
                f"{self.name} was tuned for another source of {self.kernel} and is not used for it; fix: tune "
                f"again, then `tilewright tuned export {self.kernel}`",
                about=f"source of {self.name}",
            )
        return None

    @cached_property
    def _alike(self) -> dict[str, list[tuple[int, Layout, dict[str, str]]]]:
        """The rows by what has to be equal, with what is compared. Made at the first call that is in no row."""
        alike: dict[str, list[tuple[int, Layout, dict[str, str]]]] = {}
        for place, one in enumerate(self.parts):
            texts = {name: _text(one.get(name)) for name in (*self.rule.may_differ, *SOURCES)}
            alike.setdefault(self._rigid_text(one), []).append((place, _layout(one), texts))
        return alike

    def _rigid_text(self, parts: Mapping[str, Any]) -> str:
        left_out = {*self.rule.may_differ, *SOURCES}
        return _text({name: _rigid(one) for name, one in parts.items() if name not in left_out})


# The rule


def distance_of(one: Mapping[str, Any], other: Mapping[str, Any], factor: float) -> float | None:
    """How far apart the arrays of two calls are, or None: not comparable. Symmetric; the calls have the same
    arrays with the same ranks."""
    return _distance(_layout(one), _layout(other), factor)


def _layout(parts: Mapping[str, Any]) -> Layout:
    """All extents, and in which order the arrays lie."""
    arrays = list(arrays_of_parts(parts))
    orders = tuple(order_of(array["shape"], array["strides"]) for array in arrays)
    return tuple(extent for array in arrays for extent in array["shape"]), orders


def _distance(one: Layout, other: Layout, factor: float) -> float | None:
    if one[1] != other[1]:
        return None
    distance, most = 0.0, math.log2(factor)
    for extent, wanted in zip(one[0], other[0], strict=True):
        if extent != wanted:
            apart = _apart(extent, wanted)
            if apart > most:
                return None
            distance += apart
    return distance


def _apart(extent: int, other: int) -> float:
    """|log2 (extent / other)|, the same in both directions to the last bit."""
    low, high = sorted((extent, other))
    return math.log2(high / low) if low > 0 else math.inf


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[Any, ...]:
    """How an array lies: its dimensions from the longest stride to the shortest, which of them are repeated
    (stride 0), and whether the innermost is dense. Dimensions of extent 1 lie anyhow."""
    real = [dim for dim, extent in enumerate(shape) if extent > 1]
    repeated = tuple(dim for dim in real if strides[dim] == 0)
    order = sorted((dim for dim in real if strides[dim]), key=lambda dim: (-abs(strides[dim]), dim))
    return tuple(order), repeated, bool(order) and strides[order[-1]] == 1


def _is_array(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= ARRAY


def arrays_of_parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """All descriptions of arrays in the parts of a key, in an order that is the same for equal names."""
    if _is_array(value):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value):
            yield from arrays_of_parts(value[name])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from arrays_of_parts(one)


def _rigid(value: Any) -> Any:
    """A part without the extents and strides in it: what has to be equal."""
    if _is_array(value):
        kept = {name: one for name, one in value.items() if name not in ("shape", "strides")}
        return kept | {"rank": len(value["shape"])}
    if isinstance(value, Mapping):
        return {name: _rigid(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rigid(one) for one in value]
    return value


def _text(value: Any) -> str:
    """Equal for equal parts: their order does not count, their types do."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# The file


def load(given: Path | str | Mapping[str, Any]) -> ConfigFile:
    """The config file in a ``.json`` or ``.py`` file (which is read, not run), or in a mapping such as the ``TABLE`` of
    an exported module. Raises `RequestError` for what is no such file."""
    if isinstance(given, Mapping):
        return _config_file(given, f"the config file of {given.get('kernel', 'a kernel')}")
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8")
        data = _of_python(text) if path.suffix == ".py" else json.loads(text)
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise _no_config_file(str(path), error) from error
    return _config_file(data, str(path))


def _of_python(text: str) -> Any:
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == NAME_IN_PYTHON:
            return ast.literal_eval(statement.value)
    raise ValueError(f"it has no {NAME_IN_PYTHON} = {{…}}")


def _config_file(data: Any, name: str) -> ConfigFile:
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise _no_config_file(name, f"its format is not '{FORMAT}'")
    if data.get("version") != VERSION:
        raise RequestError(
            f"{name} has version {data.get('version')} of the format, this Tilewright reads {VERSION}; "
            "fix: update Tilewright, or export it again"
        )
    try:
        data = json.loads(json.dumps(dict(data), allow_nan=False))  # of Python's types, those that JSON has
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_config_file(name, error) from error
    try:
        rule, rows, common = _rule(data["rule"]), data["rows"], data["common"]
        _need(isinstance(rows, list), "rows", "a list")
        _need(isinstance(common, dict), "common", "an object")
        for place, row in enumerate(rows):
            _check_row(row, f"row {place}")
        parts = [{**common, **row["parts"]} for row in rows]
        list(map(_check_arrays, parts))
        kernel, module = data["kernel"], data.get("module", "")
        _need(isinstance(kernel, str) and isinstance(module, str), "kernel or module", "a name")
    except KeyError as error:
        raise RequestError(f"{name}: {error} is missing; export it again") from None
    except _DamagedFile as wrong:
        raise RequestError(f"{name}: {wrong}; export it again") from None
    return ConfigFile(kernel, module, rows, parts, rule, name)


def _no_config_file(name: str, why: object) -> RequestError:
    return RequestError(f"{name} is no file of tuned configurations: {why}")


class _DamagedFile(Exception):
    """What is wrong in a file that another hand changed. It is refused as a whole, before anything is stored."""


def _need(right: bool, what: str, expected: str) -> None:
    if not right:
        raise _DamagedFile(f"{what} is not {expected}")


def _rule(data: Any) -> MatchRule:
    _need(isinstance(data, dict), "rule", "an object")
    factor, may_differ = data["factor"], data["may_differ"]
    _need(_is_number(factor) and factor >= 1, "factor of the rule", "a number from 1 on")
    _need(isinstance(may_differ, list), "may_differ of the rule", "a list of names")
    return MatchRule(float(factor), tuple(map(str, may_differ)))


def _check_row(row: Any, which: str) -> None:
    _need(isinstance(row, dict), which, "an object")
    _need(isinstance(row["parts"], dict), f"parts of {which}", "an object")
    _need(_is_config(row["config"]), f"config of {which}", "an object of plain values")
    _need(row.get("shipped") is None or _is_config(row["shipped"]), f"shipped of {which}", "an object of plain values")
    for name in ("us", "shipped_us"):
        us = row.get(name)
        _need(us is None or (_is_number(us) and us > 0), f"{name} of {which}", "a time in µs")
    index = row.get("index")
    _need(index is None or (type(index) is int and 0 <= index < 2**31), f"index of {which}", "a place")


def _check_arrays(parts: Mapping[str, Any]) -> None:
    for array in arrays_of_parts(parts):
        shape, strides = array["shape"], array["strides"]
        lists = isinstance(shape, list) and isinstance(strides, list) and len(shape) == len(strides)
        whole = lists and all(type(one) is int for one in (*shape, *strides))
        _need(whole, "shape and strides of an array", "a whole number for each dimension")


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) and not any(isinstance(one, (dict, list)) for one in value.values())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
