"""From a call that misses to its launch: the stages, in order.

    mode → memory → store → shipped config file → lock → search → keep → launch

The hot path (`signature`) comes here with a call whose key it does not know. A stage returns its choice, or None to
go on to the next. Whatever goes wrong, one warning says so and the shipped configuration is launched.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import in_one_line
from tilewright.runtime import modes
from tilewright.runtime.environment import Environment, warn
from tilewright.runtime.modes import Mode
from tilewright.runtime.store.config_file import ConfigFile
from tilewright.runtime.wrapper.background import in_background
from tilewright.runtime.wrapper.declared import Declared
from tilewright.runtime.wrapper.known import Choice
from tilewright.runtime.wrapper.lookups import Lookups
from tilewright.runtime.wrapper.missed_call import MissedCall
from tilewright.runtime.wrapper.searches import CallLauncher, Searches

TUNING = (Mode.NOW, Mode.BACKGROUND, Mode.STORED)
"""The modes that launch what was tuned. `Mode.OFF` has known calls of its own."""


class Chooser:
    """Chooses the configuration of each call of one tuned kernel, and launches it."""

    def __init__(self, declared: Declared, environment: Environment, config_file: ConfigFile | None):
        self.declared, self.environment = declared, environment
        self.launcher = CallLauncher(declared, environment)
        self.lookups = Lookups(declared, environment.winners, config_file)
        self.searches = Searches(declared, environment, self.launcher)

    def launch(self, call: MissedCall) -> None:
        choice = self._choice(call, modes.mode(self.declared.mode))
        self.launcher.launch(call, choice.config)

    def _choice(self, call: MissedCall, mode: Mode) -> Choice:
        if mode is Mode.OFF:
            return self._keep(call, self._shipped("tuning is off"), (Mode.OFF,))
        try:
            return (
                self._in_memory(call, mode)
                or self._in_store(call)
                or self._in_config_file(call)
                or self._without_search(call, mode)
                or self._searched(call, mode)
            )
        except Exception as error:  # the user's call goes on
            warn(f"{self.declared.name} is not tuned ({in_one_line(error)}); its shipped configuration runs")
            return self._keep(call, self._shipped("tuning failed"), (mode,))

    # The stages ---------------------------------------------------------------------------------------

    def _in_memory(self, call: MissedCall, mode: Mode) -> Choice | None:
        """Tuned in this process, in another mode."""
        known = (call.known(other) for other in TUNING)
        tuned = next((choice for choice in known if choice is not None and choice.tuned), None)
        return tuned and self._keep(call, tuned, (mode,))

    def _in_store(self, call: MissedCall) -> Choice | None:
        stored = self.lookups.in_store(call)
        return stored and self._keep(call, stored, TUNING)

    def _in_config_file(self, call: MissedCall) -> Choice | None:
        shipped = self.lookups.in_config_file(call)
        return shipped and self._keep(call, shipped, TUNING)

    def _without_search(self, call: MissedCall, mode: Mode) -> Choice | None:
        """Where nothing may be searched: in mode ``stored``, and while a CUDA graph is captured. The winner of the
        call's bucket is then launched although it was not checked on this shape."""
        capturing = self.environment.capturing(call.stream)
        if mode is not Mode.STORED and not capturing:
            return None
        bucket = self.lookups.in_bucket(call)
        choice = None if bucket is None else Choice(bucket, "bucket", "not checked on this shape")
        if mode is not Mode.STORED:  # not kept: the next call outside the capture is tuned
            return choice or self._shipped("a CUDA graph is being captured")
        if choice is None:
            self.lookups.say_missing(call)
        return self._keep(call, choice or self._shipped("nothing is stored"), (mode,))

    def _searched(self, call: MissedCall, mode: Mode) -> Choice:
        if mode is Mode.NOW:
            choice = self._locked_search(call)
            return self._keep(call, choice, TUNING if choice.tuned else (mode,))
        shipped = self._keep(call, self._shipped("it is being tuned beside"), (mode,))
        copied = call.copied()
        in_background(f"tuning {self.declared.name}", lambda: self._search_beside(copied))
        return shipped

    def _search_beside(self, call: MissedCall) -> None:
        choice = self._locked_search(call)
        if choice.tuned:
            self._keep(call, choice, TUNING)

    def _locked_search(self, call: MissedCall) -> Choice:
        """One process searches. The others wait for it, and launch what it stored."""
        with self.environment.search_lock(call.bucket_key or call.key, wait=True) as mine:
            known = self.lookups.in_store(call) or self.lookups.in_config_file(call)
            if known is not None:
                return known
            if not mine:
                warn(f"another process has been tuning {self.declared.name} for long; the shipped one runs")
                return self._shipped("another process is tuning it")
            return self.searches.winner(call, self.lookups.in_bucket(call))

    def _keep(self, call: MissedCall, choice: Choice, modes: Sequence[Mode]) -> Choice:
        """The hot path launches the choice in these modes from now on."""
        call.keep(modes, choice, self.launcher.entry(call, choice.config))
        return choice

    def _shipped(self, why: str) -> Choice:
        return Choice(self.declared.space.shipped, "shipped", why)
