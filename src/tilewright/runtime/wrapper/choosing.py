"""Chooses and launches the configuration of a call that the hot path does not know, in these stages:

    mode → memory → store → shipped config file → lock → search → keep → launch

The hot path (`signature`) calls this module. A stage returns its choice, or None to go on to the next stage. After an
error, a warning says what failed, and the shipped configuration is launched.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.errors import GridNotFound, NoGpu, in_one_line
from tilewright.records import Configuration, Failed, Value
from tilewright.runtime import modes
from tilewright.runtime.arrays import KernelObject
from tilewright.runtime.environment import Environment, warn
from tilewright.runtime.modes import Mode
from tilewright.runtime.store.config_file import ConfigFile
from tilewright.runtime.store.warn_once import warn_once
from tilewright.runtime.wrapper.background import in_background
from tilewright.runtime.wrapper.declared import Declared
from tilewright.runtime.wrapper.endless import EndlessSearches
from tilewright.runtime.wrapper.known import Choice
from tilewright.runtime.wrapper.missed_call import MissedCall

if TYPE_CHECKING:
    from tilewright.runtime.search.trials import FailedTrial, Trial

TUNING = (Mode.NOW, Mode.BACKGROUND, Mode.STORED)
"""The modes that launch tuned configurations."""


class Chooser:
    """Chooses the configuration of each call of one tuned kernel, and launches it."""

    def __init__(self, declared: Declared, environment: Environment, config_file: ConfigFile | None):
        self.declared, self.environment, self._config_file = declared, environment, config_file
        self._kernels: dict[tuple[tuple[str, Hashable], ...], KernelObject] = {}
        self._warned_missing = self._checked_outputs = False
        self._searches = EndlessSearches()

    def launch(self, call: MissedCall) -> None:
        """Launches the kernel on the call's own arrays. Raises `NoGpu` if there is none."""
        mode = modes.mode(self.declared.mode)
        nowhere = Choice(self.declared.space.shipped, "shipped", "there is no GPU")
        choice = self._choice(call, mode) if call.has_gpu else nowhere
        arguments = self.declared.kernel_arguments(call.call, choice.config)
        grid = call.grid(choice.config)
        try:
            self.environment.launching()(call.stream, grid, self._kernel(choice.config), arguments)
        except OSError as error:  # cuda-tile's, for the missing library of the driver
            if call.has_gpu:
                raise
            fix = "fix: run it where there is an NVIDIA GPU with its driver (`tilewright doctor` shows what is missing)"
            raise NoGpu(f"{self.declared.name} cannot be launched: there is no GPU that CUDA can use; {fix}") from error

    def _choice(self, call: MissedCall, mode: Mode) -> Choice:
        if mode is Mode.OFF:
            return self._keep(call, mode, self._shipped(call, "tuning is off"))
        try:
            known = self._in_memory(call) or self._in_store(call) or self._in_config_file(call)
            if known is not None:
                return self._keep(call, mode, known)
            return self._without_search(call, mode) or self._searched(call, mode)
        except GridNotFound:
            raise
        except Exception as error:  # the user's call goes on
            warn(f"{self.declared.name} is not tuned ({in_one_line(error)}); its shipped configuration runs")
            return self._keep(call, mode, self._shipped(call, "tuning failed"))

    def _keep(self, call: MissedCall, mode: Mode, choice: Choice) -> Choice:
        """Makes the hot path launch ``choice``. If the choice is tuned, this applies to all modes of `TUNING`, else
        only to ``mode``."""
        config, launching = choice.config, self.environment.launching()
        found = call.grid(config) if self.declared.grid is None else ()
        entry = self.declared.entry(call.call, config, self._kernel(config), launching, found)
        call.keep(TUNING if choice.tuned else (mode,), choice, entry)
        return choice

    def _shipped(self, call: MissedCall, why: str) -> Choice:
        return Choice(call.space.shipped, "shipped", why)

    def _in_memory(self, call: MissedCall) -> Choice | None:
        """Returns a choice that was tuned in this process, in another mode."""
        known = (call.known(other) for other in TUNING)
        return next((choice for choice in known if choice is not None and choice.tuned), None)

    def _in_store(self, call: MissedCall) -> Choice | None:
        """Returns the stored winner of the exact call. If there is none, and the bucket's winner is the shipped
        configuration, returns the shipped configuration, which needs no check."""
        winner = self._winner(call, call.key)
        if winner is not None:
            return Choice(winner, "stored", f"key {call.key[:12]}")
        bucket = self._in_bucket(call)
        if bucket is not None and bucket == call.space.shipped:
            return Choice(bucket, "stored", "the bucket's winner, which is the shipped one")
        return None

    def _in_bucket(self, call: MissedCall) -> Configuration | None:
        """Returns the winner of the call's bucket, or None. The winner was neither verified nor raced on this shape."""
        return None if call.bucket_key is None else self._winner(call, call.bucket_key)

    def _in_config_file(self, call: MissedCall) -> Choice | None:
        """Returns the choice in the shipped config file; None if the call's bucket has a winner, which comes first."""
        file = self._config_file
        if file is None or self._in_bucket(call) is not None:
            return None
        match = file.find(call.parts, allowed=lambda config: self._allows(call, config, file.name))
        return None if match is None else Choice(self._configuration(match.config), "config file", match.match)

    def _winner(self, call: MissedCall, key: str) -> Configuration | None:
        winner = self.environment.winners.get(key)
        if winner is None or winner.config is None or not self._allows(call, winner.config, f"the stored {key[:12]}"):
            return None
        return self._configuration(winner.config)

    def _allows(self, call: MissedCall, config: Mapping[str, Value], where: str) -> bool:
        """Returns whether a stored or imported configuration may be launched. A name that the space has not is said
        once."""
        problem = self.declared.problem(config)
        if problem is not None:
            warn_once(f"{where}: {problem}; this configuration is not used")
        return problem is None and call.allows(config)

    def _configuration(self, config: Mapping[str, Value]) -> Configuration:
        """Returns the configuration in the order of the space's knobs."""
        return Configuration.of({name: config[name] for name in self.declared.space.knobs})

    def _without_search(self, call: MissedCall, mode: Mode) -> Choice | None:
        """Chooses without a search, in mode ``stored`` and while a CUDA graph is captured. Returns None if a search is
        allowed. The winner of the call's bucket is launched although it was not checked on this shape."""
        if mode is not Mode.STORED and not self.environment.capturing(call.stream):
            return None
        bucket = self._in_bucket(call)
        choice = None if bucket is None else Choice(bucket, "bucket", "not checked on this shape")
        if mode is not Mode.STORED:  # not kept: the next call outside the capture is tuned
            return choice or self._shipped(call, "a CUDA graph is being captured")
        if choice is None and not self._warned_missing:
            from tilewright.runtime.store.evidence import shapes_of

            self._warned_missing = True
            arrays = ", ".join(f"{name} {shapes_of(part)}" for name, part in call.arrays.items())
            why, fix = "TILEWRIGHT_TUNING=stored never searches", "run once with TILEWRIGHT_TUNING=now"
            if modes.restricted():
                why, fix = "searches run only in their scope", "run once inside `with tilewright.tuning():`"
            warn(
                f"nothing is stored for {self.declared.name} on {call.board} with {arrays}: its shipped configuration "
                f"runs ({why}); fix: {fix}, or `tilewright tuned import` a file that another machine exported"
            )
        return self._keep(call, mode, choice or self._shipped(call, "nothing is stored"))

    def _searched(self, call: MissedCall, mode: Mode) -> Choice:
        if self.declared.grid is None:
            call.grid(call.space.shipped)  # the user hears of a grid that cannot be found before a search
        if mode is Mode.NOW:
            return self._keep(call, mode, self._locked_search(call))
        shipped = self._keep(call, mode, self._shipped(call, "it is being tuned in the background"))
        copied = call.copied()

        def search() -> None:
            choice = self._locked_search(copied)
            if choice.tuned:
                self._keep(copied, mode, choice)

        in_background(f"tuning {self.declared.name}", search)
        return shipped

    def _locked_search(self, call: MissedCall) -> Choice:
        """Searches in one process. Other processes wait, and then launch the winner that the search stored. If the
        call's bucket has a winner, only that winner and the shipped configuration are raced at first."""
        with self.environment.search_lock(call.bucket_key or call.key, wait=True) as acquired:
            known = self._in_store(call) or self._in_config_file(call)
            if known is not None:
                return known
            if not acquired:
                warn(f"another process has been tuning {self.declared.name} for long; its shipped configuration runs")
                return self._shipped(call, "another process is tuning it")
            if (bucket := self._in_bucket(call)) is not None:
                choice = self._search(call, (call.space.shipped, bucket))
                if choice.config == bucket:
                    return replace(choice, why="the bucket's winner, checked on this shape")
            return self._search(call, call.configurations)

    def _search(self, call: MissedCall, configs: Sequence[Configuration]) -> Choice:
        """Searches ``configs`` and stores the winner. Raises the errors of `search`."""
        from tilewright.runtime.store.evidence import launches_of, winner_of

        declared, trials = self.declared, self.trials(call, configs)
        self._warn_of_undeclared_outputs(call, trials[0])
        result = self.environment.search(trials, stream=call.stream, shipped=0, launch_mode=declared.launch)
        if (endless := self._searches.after(declared.name, call.arguments)) is not None:
            warn(endless)
        best, trial = configs[result.best], trials[result.best]
        lost = len(configs) < len(call.configurations) and result.best == 0 and best != configs[1]
        if lost:  # the bucket's winner is slower on this shape: a search of all configurations follows
            return Choice(best, "tuned")
        launches = None
        try:
            launches = launches_of(trials, result)
        except Exception as error:
            warn(f"the launches of {declared.name} cannot be stored ({in_one_line(error)})")
        winner = winner_of(
            result, key=call.key, kernel=declared.name, parts=call.parts,
            labels=[outcome.label for outcome in result.outcomes], config=lambda index: dict(configs[index]),
            launches=launches, origin="wrapper",
        )  # fmt: skip
        stored = self.environment.winners.put(winner)
        if call.bucket_parts is not None and call.bucket_key is not None:
            self.environment.winners.put(replace(winner, key=call.bucket_key, parts=call.bucket_parts))
        if not isinstance(trial, Failed):  # its kernel object has the compiled code
            self._kernels.setdefault(self._hints(best), trial.kernel)
        config = stored.config if stored.config is not None and call.allows(stored.config) else best
        return Choice(self._configuration(config), "tuned", result.note)

    def trials(self, call: MissedCall, configs: Sequence[Configuration]) -> list[Trial | FailedTrial]:
        from tilewright.runtime.search.cutile_trials import trials

        launched, declared = call.call, self.declared
        return trials(
            configs, call.grid, declared.kernel, lambda config: declared.kernel_arguments(launched, config),
            declared.hints, late_grids=declared.grid is None,
        )  # fmt: skip

    def _warn_of_undeclared_outputs(self, call: MissedCall, shipped: Trial | FailedTrial) -> None:
        """Warns once about each array that the kernel writes but ``outputs`` does not name. If a name is missing, a
        call in place has the same key as a call on separate arrays."""
        if self._checked_outputs or isinstance(shipped, Failed) or not self.declared.names_outputs:
            return
        self._checked_outputs = True
        from tilewright.runtime.search.building import written_by

        try:
            written = written_by(shipped, f"sm_{call.arch}")
        except Exception:  # the code cannot be read; the search then compares all arrays
            return
        outputs = self.declared.outputs
        for name in sorted((written & {*self.declared.parameters}) - {*outputs}):
            warn(f"{self.declared.name} writes '{name}', which is not declared; fix: outputs={(*outputs, name)!r}")

    def _kernel(self, config: Configuration) -> KernelObject:
        """Returns the kernel with the hints applied. Equal hints share one object, which has its own JIT cache."""
        key = self._hints(config)
        if key not in self._kernels:
            kernel = self.declared.kernel
            self._kernels.setdefault(key, kernel.replace_hints(**dict(key)) if key else kernel)
        return self._kernels[key]

    def _hints(self, config: Configuration) -> tuple[tuple[str, Hashable], ...]:
        return tuple(sorted(self.declared.hints(config).items()))
