"""A call whose key is not known: its GPU, its configurations and the parts of its key.

`MissedCall.key` is the digest of all parts, so each part changes it. If the author declares buckets, a call has two
keys: one for its exact shapes and one for its bucket. The bucket's first winner is stored under the second key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tilewright.errors import NoGpu
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
from tilewright.space.space import Space

FORMAT = 1
"""The format of the key. Increase it when the meaning of a part of the key changes."""


class MissedCall:
    """One call that the hot path does not know.

    hot_key: the key of the call on the hot path.
    known_calls: the cache of calls for each tuning mode.
    """

    def __init__(
        self,
        declared: Declared,
        environment: Environment,
        stream: Stream,
        values: Sequence[CallValue],
        hot_key: Key,
        known_calls: Mapping[str, KnownCalls],
    ):
        self.declared, self.environment, self.stream, self.values = declared, environment, stream, tuple(values)
        self.hot_key, self.known_calls = hot_key, known_calls
        self.device = next((device for device in map(device_of, values) if device is not None), 0)
        self.call: Call = Call(declared.parameters, values, lambda: environment.hardware(self.device))
        self.named = self.call._values
        self._found: dict[tuple[Value, ...], tuple[int, ...]] = {}

    def grid(self, config: Configuration) -> tuple[int, ...]:
        """Returns the grid of a configuration. If the author gave none, it is found once for each set of constants.
        Raises `GridNotFound` if it cannot be found."""
        declared, call = self.declared, self.call
        if declared.grid is not None:
            return declared.grid(call, config)
        from tilewright.runtime.search.cutile_trials import CuTileTrial
        from tilewright.runtime.wrapper.left_out_grid import found_grid

        constants = tuple(config[name] for name in declared.space.constants)
        if constants not in self._found:
            arguments = declared.kernel_arguments(call, config)
            trial = CuTileTrial(config, str(config), declared.kernel, (1,), lambda: arguments, {})
            loose = declared.loose_parameters(call, config)
            arch = f"sm_{self.arch}" if self.has_gpu else "sm_90"
            self._found[constants] = found_grid(declared.name, trial, loose, arch)
        return self._found[constants]

    def copied(self) -> MissedCall:
        """Returns the same call on copies of its arrays and on a new stream, for a search in the background."""
        stream, values = copies(self.stream, self.values)
        copied = MissedCall(self.declared, self.environment, stream, values, self.hot_key, self.known_calls)
        copied._found = self._found
        return copied

    def known(self, mode: Mode) -> Choice | None:
        """Returns the choice for calls with this key in a mode; None if there is none yet."""
        known = self.known_calls[mode.value].get(self.hot_key)
        return None if known is None else known.choice

    def keep(self, modes: Sequence[Mode], choice: Choice, entry: Entry) -> None:
        """Makes the hot path launch ``entry`` for calls with this key in these modes."""
        for mode in modes:
            self.known_calls[mode.value].keep(self.hot_key, choice, entry)

    @cached_property
    def board(self) -> str:
        return self.environment.board(self.device)

    @cached_property
    def has_gpu(self) -> bool:
        try:
            return bool(self.board)
        except NoGpu:
            return False

    @property
    def arch(self) -> int:
        return int(self.board.rpartition("sm_")[2])

    @cached_property
    def dims(self) -> dict[str, Value]:
        """The values for the space's predicates: the author's ``dims``, else the integers, flags and strings."""
        declared = self.declared
        if declared.dims is not None:
            return dict(declared.dims(self.call))
        own = {*declared.space.knobs, "arch"}
        return {n: value for n, value in self.named.items() if isinstance(value, (bool, int, str)) and n not in own}

    @cached_property
    def space(self) -> Space:
        """The space of the kernel, with the configuration that ships on this GPU."""
        space = self.declared.space
        return space.on(f"sm_{self.arch}") if space.shipped_for else space

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        return self.space.configurations(self.arch, self.dims)

    def allows(self, config: Mapping[str, Value]) -> bool:
        """Returns whether the space has a configuration, with values of the same types, and allows it for the exact
        shape. A stored or imported configuration may have any values. The shipped one is always allowed."""
        space, own = self.space, self.space.restored(config)
        if own is None:
            return False
        return space.declares(own) and (own == space.shipped or space.allows(own, self.arch, self.dims) is None)

    @cached_property
    def arrays(self) -> dict[str, Json]:
        """The parts of the key that describe arrays."""
        arrays = (name for name, kind in self._kinds.items() if kind in (KeyKind.ARRAY, KeyKind.ARRAYS))
        return {name: _array_part(self.named[name]) for name in arrays}

    @cached_property
    def _flags(self) -> dict[str, Json]:
        """The parts of the key that describe the other arguments."""
        others = (name for name in self.named if name not in self.arrays)
        return {name: flag_part(self.named[name], self._kinds[name] is KeyKind.VALUE) for name in others}

    @property
    def arguments(self) -> dict[str, Json]:
        """The parts of the key that describe the arguments."""
        return {**self.arrays, **self._flags}

    @cached_property
    def _kinds(self) -> dict[str, KeyKind]:
        return {name: kind_of(value, name not in self.declared.unkeyed) for name, value in self.named.items()}

    @cached_property
    def parts(self) -> dict[str, Json]:
        """Everything that may change which configuration is the fastest, by name."""
        from tilewright.languages.cutile.private import decorated_hints

        declared, configurations = self.declared, self.configurations
        space_digest = digest({"all": "\n".join(map(str, configurations))})
        return {
            "format": FORMAT,
            "kernel": declared.name,
            "source": source_of(declared.kernel),
            "functions": {name: source_of(function) for name, function in declared.functions.items()},
            "board": self.board,
            "toolkit": toolkit(),
            "arrays": self.arrays,
            "flags": self._flags,
            "in_place": list(in_place(self.named, declared.outputs)),
            "launch_mode": declared.launch,
            "space": {"configurations": len(configurations), "digest": space_digest},
            "hints": {name: str(value) for name, value in decorated_hints(declared.kernel).items()},
        }

    @cached_property
    def key(self) -> str:
        return digest(self.parts)

    @cached_property
    def bucket_parts(self) -> dict[str, Json] | None:
        """The parts of the bucket's key; None if the author declares no buckets."""
        buckets = self.declared.buckets
        if not buckets:
            return None

        def rounded(parts: dict[str, Json]) -> dict[str, Json]:
            return {name: bucketed(part, buckets[name]) if name in buckets else part for name, part in parts.items()}

        # A bucket's key has the space, because the allowed configurations depend on the exact shape (see `allows`).
        arrays, flags = rounded(self.arrays), rounded(self._flags)
        return {**self.parts, "arrays": arrays, "flags": flags, "space": repr(self.declared.space)}

    @property
    def bucket_key(self) -> str | None:
        return None if self.bucket_parts is None else digest(self.bucket_parts)


def in_place(named: Mapping[str, CallValue], outputs: Sequence[str]) -> list[str]:
    """Returns ``output = array`` for each array that starts at the address of an output. So the key of
    a call in place differs from the key of a call on separate arrays."""
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
