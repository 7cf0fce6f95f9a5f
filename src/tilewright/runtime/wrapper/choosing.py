"""Which configuration a call gets: from the store, from the shipped config file, or from a search that is then stored.

The key of a call (`key`) has every part by name; each part changes it. With buckets there are two keys: that of
the exact call, and that of its bucket, under which the first winner of the bucket stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from tilewright.errors import in_one_line
from tilewright.records import Configuration, Failed, Value
from tilewright.runtime.arrays import facts_of, is_array
from tilewright.runtime.environment import Environment, device_of, warn
from tilewright.runtime.key import array_part, digest, flag_part, source_of, toolkit
from tilewright.runtime.store.config_file import ConfigFile
from tilewright.runtime.store.winners import Winner
from tilewright.runtime.wrapper.background import copies
from tilewright.runtime.wrapper.buckets import bucketed
from tilewright.runtime.wrapper.declared import Call, Declared
from tilewright.runtime.wrapper.signature import KeyKind, kind_of

FORMAT = 1
"""Counts up when the meaning of a part changes."""

Origin = Literal["shipped", "stored", "bucket", "config file", "tuned"]


@dataclass(frozen=True)
class Choice:
    """A configuration, and where it is from."""

    config: Configuration
    origin: Origin
    why: str = ""

    @property
    def tuned(self) -> bool:
        """Whether it holds until the process ends, in each mode that tunes; others stand in for a winner."""
        return self.origin in ("stored", "config file", "tuned")


class MissedCall:
    """One call whose key was not known, and what follows from it when it is asked for."""

    def __init__(self, declared: Declared, environment: Environment, stream: Any, values: Sequence[Any]):
        self.declared, self.environment, self.stream, self.values = (declared, environment, stream, tuple(values))
        devices = (device_of(value) for value in values)
        self.device = next((one for one in devices if one is not None), 0)
        self.call: Call = declared.call(values, lambda: environment.hardware(self.device))

    @cached_property
    def board(self) -> str:
        return self.environment.board(self.device)

    @property
    def arch(self) -> int:
        return int(self.board.rpartition("sm_")[2])

    @cached_property
    def dims(self) -> dict[str, Value]:
        return self.declared.dimensions(self.call)

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        return self.declared.space.configurations(self.arch, self.dims)

    def allows(self, config: Mapping[str, Value]) -> bool:
        """The shipped one always; others where the space does, for the exact shape."""
        space = self.declared.space
        return dict(config) == dict(space.shipped) or space.allows(config, self.arch, self.dims) is None

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Everything that may change which configuration is the fastest, by name (A-15, X-21)."""
        declared = self.declared
        named = dict(zip(declared.parameters, self.values, strict=True))
        kinds = {name: kind_of(value, name not in declared.unkeyed) for name, value in named.items()}
        arrays = {
            name: _array_part(value) for name, value in named.items() if kinds[name] in (KeyKind.ARRAY, KeyKind.ARRAYS)
        }
        flags = {
            name: flag_part(value, kinds[name] is KeyKind.VALUE) for name, value in named.items() if name not in arrays
        }
        shown = "\n".join(map(str, self.configurations))
        return {
            "format": FORMAT,
            "kernel": declared.name,
            "source": source_of(declared.kernel),
            "functions": {name: source_of(function) for name, function in declared.functions()},
            "board": self.board,
            "toolkit": toolkit(),
            "arrays": arrays,
            "flags": flags,
            "in_place": in_place(named, declared.outputs),
            "launch_mode": declared.launch,
            "space": {"configurations": len(self.configurations), "digest": digest({"all": shown})},
            "hints": declared.decorated,
        }

    @cached_property
    def key(self) -> str:
        return digest(self.parts)

    @cached_property
    def bucket_parts(self) -> dict[str, Any] | None:
        """Of the bucket that the call is in; None where the author has none."""
        buckets = self.declared.buckets
        if not buckets:
            return None
        # What the space allows follows from the exact shape: it is checked where a winner is served.
        return {**bucketed(self.parts, buckets), "space": repr(self.declared.space)}


class Chooser:
    """The choices for one tuned kernel."""

    def __init__(self, declared: Declared, environment: Environment, config_file: ConfigFile | None):
        self._declared, self._world, self._config_file = declared, environment, config_file
        self._kernels: dict[tuple[tuple[str, Any], ...], Any] = {}
        self._said_missing = self._checked_outputs = False

    def request(self, stream: Any, values: Sequence[Any]) -> MissedCall:
        return MissedCall(self._declared, self._world, stream, values)

    def copied(self, request: MissedCall) -> MissedCall:
        """The same call on copies of its arrays and a stream of its own, for a search beside the program."""
        stream, values = copies(request.stream, request.values)
        return MissedCall(self._declared, self._world, stream, values)

    def shipped(self, why: str) -> Choice:
        return Choice(self._declared.space.shipped, "shipped", why)

    def entry(self, request: MissedCall, choice: Choice) -> tuple[Any, ...]:
        """What the hot dictionary holds for calls like this one."""
        kernel = self._kernel(choice.config)
        return self._declared.entry(request.call, choice.config, kernel, self._world.launching())

    def launch(self, request: MissedCall, choice: Choice) -> None:
        """This one call, on its own arrays."""
        declared, call, config = self._declared, request.call, choice.config
        arguments = declared.kernel_arguments(call, config)
        self._world.launching()(request.stream, declared.grid(call, config), self._kernel(config), arguments)

    def _kernel(self, config: Configuration) -> Any:
        """With the hints applied; one object for equal hints, since each has a JIT cache of its own (A-47)."""
        hints = self._declared.hints(config)
        key = tuple(sorted(hints.items()))
        if key not in self._kernels:
            kernel = self._declared.kernel
            self._kernels.setdefault(key, kernel.replace_hints(**hints) if hints else kernel)
        return self._kernels[key]

    # What is known ----------------------------------------------------------------------------------

    def stored(self, request: MissedCall, searching: bool) -> Choice | None:
        """From the store, else from the shipped config file. ``searching``: a bucket's winner that has not been checked
        on this shape will be; otherwise it is taken as the author's bucket says."""
        winner = self._winner(request, request.key)
        if winner is not None:
            return Choice(winner, "stored", f"key {request.key[:12]}")
        neighbour = self._neighbour(request)
        if neighbour == self._declared.space.shipped:
            return Choice(neighbour, "stored", "the bucket's winner, which is the shipped one")
        if neighbour is not None:
            return None if searching else Choice(neighbour, "bucket", "not checked on this shape")
        if self._config_file is not None:
            found = self._config_file.find(request.parts, allowed=request.allows)
            if found is not None:
                return Choice(self._configuration(found.config), "config file", found.match)
        return None

    def _winner(self, request: MissedCall, key: str) -> Configuration | None:
        winner = self._world.winners.get(key)
        if winner is None or winner.config is None or not request.allows(winner.config):
            return None
        return self._configuration(winner.config)

    def _neighbour(self, request: MissedCall) -> Configuration | None:
        parts = request.bucket_parts
        return None if parts is None else self._winner(request, digest(parts))

    def _configuration(self, config: Mapping[str, Value]) -> Configuration:
        return Configuration.of({name: config[name] for name in self._declared.space.knobs})

    def say_missing(self, request: MissedCall) -> None:
        """Once for a kernel: what is not stored, and how to get it."""
        if self._said_missing:
            return
        self._said_missing = True
        arrays = ", ".join(f"{name} {shown(part)}" for name, part in request.parts["arrays"].items())
        warn(
            f"nothing is stored for {self._declared.name} on {request.board} with {arrays}: its shipped "
            f"configuration runs (TILEWRIGHT_TUNING=stored never searches); fix: run once with "
            f"TILEWRIGHT_TUNING=now, or `tilewright tuned import` what another machine exported"
        )

    # What has to be found ----------------------------------------------------------------------------

    def tuned(self, request: MissedCall) -> Choice:
        """One process searches, the others wait for it and launch what it stored.

        Raises whatever a search raises.
        """
        parts = request.bucket_parts
        with self._world.search_lock(digest(parts) if parts else request.key, wait=True) as mine:
            found = self.stored(request, searching=True)
            if found is not None:
                return found
            if not mine:
                warn(f"another process has been tuning {self._declared.name} for long; the shipped one runs")
                return self.shipped("another process is tuning it")
            neighbour = self._neighbour(request)
            if neighbour is not None:
                choice = self._searched(request, (self._declared.space.shipped, neighbour))
                if choice.config == neighbour:
                    return replace(choice, why="the bucket's winner, checked on this shape")
            return self._searched(request, request.configurations)

    def _searched(self, request: MissedCall, configs: Sequence[Configuration]) -> Choice:
        whole = len(configs) == len(request.configurations)
        made = self._trials(request, configs)
        self._check_outputs(request, made[0])
        found = self._world.search(made, stream=request.stream, shipped=0, launch_mode=self._declared.launch)
        best = configs[found.best]
        if not whole and found.best == 0 and best != configs[1]:
            return Choice(best, "tuned")  # the neighbour lost: a search of its own follows, which is stored
        winner = self._record(request, configs, made, found)
        stood = self._world.winners.put(winner)
        if request.bucket_parts is not None:
            self._world.winners.put(replace(winner, key=digest(request.bucket_parts), parts=request.bucket_parts))
        if not isinstance(made[found.best], Failed):
            self._kernels.setdefault(tuple(sorted(self._declared.hints(best).items())), made[found.best].kernel)
        config = stood.config if stood.config is not None and request.allows(stood.config) else best
        return Choice(self._configuration(config), "tuned", found.note)

    def _check_outputs(self, request: MissedCall, shipped: Any) -> None:
        """Says once which arrays the kernel writes and the author did not declare: calls in place on them share
        a key with calls that are not."""
        if self._checked_outputs or isinstance(shipped, Failed):
            return
        self._checked_outputs = True
        from tilewright.runtime.search.writes import written_by

        try:
            written = written_by(shipped, f"sm_{request.arch}")
        except Exception:  # code that cannot be read: the search finds out what it can
            return
        for name in sorted((written or frozenset()) & set(self._declared.parameters)):
            if name not in self._declared.outputs:
                declared = (*self._declared.outputs, name)
                warn(f"{self._declared.name} writes '{name}', which is not declared; fix: outputs={declared!r}")

    def _trials(self, request: MissedCall, configs: Sequence[Configuration]) -> list[Any]:
        from tilewright.runtime.search.trials import trials

        declared, call = self._declared, request.call
        return trials(
            list(configs),
            lambda config: declared.grid(call, config),
            declared.kernel,
            lambda config: declared.kernel_arguments(call, config),
            declared.hints,
        )

    def _record(self, request: MissedCall, configs: Sequence[Configuration], made: Sequence[Any], found: Any) -> Winner:
        from tilewright.runtime.store.recording import launches_of, machine_of, outcomes_as_json

        try:
            launches = launches_of(made, found)
        except Exception as error:
            warn(f"the launches of {self._declared.name} cannot be written down ({in_one_line(error)})")
            launches = None
        return Winner(
            key=request.key,
            kernel=self._declared.name,
            parts=request.parts,
            config=dict(configs[found.best]),
            index=found.best,
            label=found.outcomes[found.best].label,
            shipped=dict(configs[0]),
            runner_up=None if found.runner_up is None else dict(configs[found.runner_up]),
            outcomes=outcomes_as_json([one.label for one in found.outcomes], found.outcomes),
            launches=launches,
            origin="wrapper",
            machine=machine_of(request.board, toolkit(), found),
            created="",
        )


def in_place(named: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
    """Arrays that start where an output does, as ``output = array``: another call than one on separate arrays."""
    found = {name: facts_of(value) for name, value in named.items()}
    starts = {name: facts.address for name, facts in found.items() if facts is not None and facts.address}
    return [
        f"{output} = {name}"
        for output in outputs
        for name, start in starts.items()
        if name != output and start == starts.get(output)
    ]


def shown(part: Any) -> str:
    """``bfloat16 4096×1024`` of an array's part of the key."""
    if isinstance(part, list):
        return f"[{', '.join(map(shown, part))}]"
    return f"{part['dtype']} {'×'.join(map(str, part['shape'])) or 'scalar'}"


def _array_part(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_array_part(one) for one in value]
    return array_part(value) if is_array(value) else flag_part(value)
