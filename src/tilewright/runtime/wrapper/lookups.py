"""What is known of a call without a search: winners in the store, and the config file that the library ships."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.records import Configuration, Value
from tilewright.runtime.environment import warn
from tilewright.runtime.store.config_file import ConfigFile
from tilewright.runtime.store.winners import Winners
from tilewright.runtime.wrapper.declared import Declared
from tilewright.runtime.wrapper.known import Choice
from tilewright.runtime.wrapper.missed_call import MissedCall


class Lookups:
    """For one tuned kernel."""

    def __init__(self, declared: Declared, winners: Winners, config_file: ConfigFile | None):
        self._declared, self._winners, self._config_file = declared, winners, config_file
        self._said_missing = False

    def in_store(self, call: MissedCall) -> Choice | None:
        """The winner of the exact call. The winner of its bucket counts only if it is the shipped configuration."""
        winner = self._winner(call, call.key)
        if winner is not None:
            return Choice(winner, "stored", f"key {call.key[:12]}")
        bucket = self.in_bucket(call)
        if bucket is not None and bucket == self._declared.space.shipped:
            return Choice(bucket, "stored", "the bucket's winner, which is the shipped one")
        return None

    def in_bucket(self, call: MissedCall) -> Configuration | None:
        """The winner of the call's bucket. On this shape it has to be verified and raced against the shipped one."""
        return None if call.bucket_key is None else self._winner(call, call.bucket_key)

    def in_config_file(self, call: MissedCall) -> Choice | None:
        """Not asked for a call whose bucket has a winner."""
        if self._config_file is None or self.in_bucket(call) is not None:
            return None
        match = self._config_file.find(call.parts, allowed=call.allows)
        return None if match is None else Choice(self.configuration(match.config), "config file", match.match)

    def _winner(self, call: MissedCall, key: str) -> Configuration | None:
        winner = self._winners.get(key)
        if winner is None or winner.config is None or not call.allows(winner.config):
            return None
        return self.configuration(winner.config)

    def configuration(self, config: Mapping[str, Value]) -> Configuration:
        """In the order of the space's knobs."""
        return Configuration.of({name: config[name] for name in self._declared.space.knobs})

    def say_missing(self, call: MissedCall) -> None:
        """Once for a kernel: what is not stored, and what to do."""
        if not self._said_missing:
            from tilewright.runtime.store.evidence import shapes_of

            self._said_missing = True
            arrays = ", ".join(f"{name} {shapes_of(part)}" for name, part in call.arrays.items())
            warn(
                f"nothing is stored for {self._declared.name} on {call.board} with {arrays}: its "
                "shipped configuration runs (TILEWRIGHT_TUNING=stored never searches); fix: run once with "
                "TILEWRIGHT_TUNING=now, or `tilewright tuned import` what another machine exported"
            )
