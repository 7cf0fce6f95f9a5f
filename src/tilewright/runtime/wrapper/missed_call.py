"""A call whose key is not known, and what follows from it: its GPU, its configurations, the parts of its key.

The key of a call (`key`) has all parts by name; each part changes it. With buckets there are two keys: that of the
exact call, and that of its bucket, under which the first winner of the bucket is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tilewright.records import Configuration, Json, Value
from tilewright.runtime.arrays import CallValue, Stream, facts_of, is_array
from tilewright.runtime.environment import Environment, device_of
from tilewright.runtime.key import array_part, digest, flag_part, toolkit
from tilewright.runtime.modes import Mode
from tilewright.runtime.wrapper.background import copies
from tilewright.runtime.wrapper.buckets import bucketed
from tilewright.runtime.wrapper.declared import Call, Declared
from tilewright.runtime.wrapper.known import Choice, Entry, Key, KnownCalls
from tilewright.runtime.wrapper.signature import KeyKind, kind_of
from tilewright.source.digest import source_of

FORMAT = 1
"""Counts up when the meaning of a part changes."""


class MissedCall:
    """``hot_key`` and ``places``: the key that the hot path did not find, and its known calls by mode."""

    def __init__(
        self,
        declared: Declared,
        environment: Environment,
        stream: Stream,
        values: Sequence[CallValue],
        hot_key: Key = (),
        places: Mapping[str, KnownCalls] | None = None,
    ):
        self.declared, self.environment, self.stream, self.values = declared, environment, stream, tuple(values)
        self.hot_key, self.places = hot_key, places or {}
        self.device = next((device for device in map(device_of, values) if device is not None), 0)
        self.call: Call = Call(declared.parameters, values, lambda: environment.hardware(self.device))

    def copied(self) -> MissedCall:
        """The same call on copies of its arrays and a stream of its own, for a search in the background."""
        stream, values = copies(self.stream, self.values)
        return MissedCall(self.declared, self.environment, stream, values, self.hot_key, self.places)

    def known(self, mode: Mode) -> Choice | None:
        """What is launched in this mode for calls with the same key."""
        known = self.places[mode.value].calls.get(self.hot_key)
        return None if known is None else known.choice

    def keep(self, modes: Sequence[Mode], choice: Choice, entry: Entry) -> None:
        """From now on the hot path launches ``entry`` for such calls in these modes."""
        for mode in modes:
            self.places[mode.value].keep(self.hot_key, choice, entry)

    @cached_property
    def board(self) -> str:
        return self.environment.board(self.device)

    @property
    def arch(self) -> int:
        return int(self.board.rpartition("sm_")[2])

    @cached_property
    def dims(self) -> dict[str, Value]:
        """What the space's predicates may use: the author's ``dims``, else the whole numbers and flags of the call."""
        declared = self.declared
        if declared.dims is not None:
            return dict(declared.dims(self.call))
        plain = {name: value for name, value in self._named.items() if isinstance(value, (bool, int, str))}
        return {name: value for name, value in plain.items() if name not in declared.space.knobs and name != "arch"}

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        return self.declared.space.configurations(self.arch, self.dims)

    def allows(self, config: Mapping[str, Value]) -> bool:
        """The shipped configuration always; others if the space allows them for the exact shape."""
        space = self.declared.space
        return dict(config) == dict(space.shipped) or space.allows(config, self.arch, self.dims) is None

    @cached_property
    def arrays(self) -> dict[str, Json]:
        """The parts of the key that describe arrays."""
        arrays = (name for name, kind in self._kinds.items() if kind in (KeyKind.ARRAY, KeyKind.ARRAYS))
        return {name: _array_part(self._named[name]) for name in arrays}

    @cached_property
    def parts(self) -> dict[str, Json]:
        """Everything that may change which configuration is the fastest, by name."""
        from tilewright.languages.cutile.private import decorated_hints

        declared = self.declared
        return {
            "format": FORMAT,
            "kernel": declared.name,
            "source": source_of(declared.kernel),
            "functions": {name: source_of(function) for name, function in declared.functions.items()},
            "board": self.board,
            "toolkit": toolkit(),
            "arrays": self.arrays,
            "flags": self._flags,
            "in_place": list(in_place(self._named, declared.outputs)),
            "launch_mode": declared.launch,
            "space": {
                "configurations": len(self.configurations),
                "digest": digest({"all": "\n".join(map(str, self.configurations))}),
            },
            "hints": {name: str(value) for name, value in decorated_hints(declared.kernel).items()},
        }

    @cached_property
    def _flags(self) -> dict[str, Json]:
        """The parts of the key that describe the other arguments."""
        others = (name for name in self._named if name not in self.arrays)
        return {name: flag_part(self._named[name], self._kinds[name] is KeyKind.VALUE) for name in others}

    @property
    def _named(self) -> dict[str, CallValue]:
        return self.call._values

    @cached_property
    def _kinds(self) -> dict[str, KeyKind]:
        return {name: kind_of(value, name not in self.declared.unkeyed) for name, value in self._named.items()}

    @cached_property
    def key(self) -> str:
        return digest(self.parts)

    @cached_property
    def bucket_parts(self) -> dict[str, Json] | None:
        """The parts of the key of the call's bucket; None if the author declares no buckets."""
        buckets = self.declared.buckets
        if not buckets:
            return None

        def rounded(parts: dict[str, Json]) -> dict[str, Json]:
            return {name: bucketed(part, buckets[name]) if name in buckets else part for name, part in parts.items()}

        # What the space allows depends on the exact shape: `allows` decides when a winner is served.
        arrays, flags = rounded(self.arrays), rounded(self._flags)
        return {**self.parts, "arrays": arrays, "flags": flags, "space": repr(self.declared.space)}

    @property
    def bucket_key(self) -> str | None:
        return None if self.bucket_parts is None else digest(self.bucket_parts)


def in_place(named: Mapping[str, CallValue], outputs: Sequence[str]) -> list[str]:
    """Arrays that start where an output does, as ``output = array``: such a call has another key."""
    starts = {name: facts.address for name, value in named.items() if (facts := facts_of(value)) and facts.address}
    return [
        f"{output} = {name}"
        for output in outputs
        for name, start in starts.items()
        if name != output and start == starts.get(output)
    ]


def _array_part(value: CallValue) -> Json:
    if isinstance(value, (list, tuple)):
        return [_array_part(item) for item in value]
    return array_part(value) if is_array(value) else flag_part(value)
