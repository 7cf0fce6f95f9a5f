"""The search for a call's configuration, the winner that is stored, and the launch of a configuration."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.errors import in_one_line
from tilewright.records import Configuration, Failed
from tilewright.runtime.arrays import KernelObject
from tilewright.runtime.environment import Environment, warn
from tilewright.runtime.wrapper.declared import Declared
from tilewright.runtime.wrapper.known import Choice, Entry
from tilewright.runtime.wrapper.missed_call import MissedCall

if TYPE_CHECKING:
    from tilewright.runtime.search.searching import SearchResult
    from tilewright.runtime.search.trials import Trial
    from tilewright.runtime.store.winners import Winner


class CallLauncher:
    """The launches of one tuned kernel."""

    def __init__(self, declared: Declared, environment: Environment):
        self._declared, self._environment = declared, environment
        self._kernels: dict[tuple[tuple[str, Hashable], ...], KernelObject] = {}

    def entry(self, call: MissedCall, config: Configuration) -> Entry:
        """What the hot path launches for calls like this one."""
        return self._declared.entry(call.call, config, self._kernel(config), self._environment.launching())

    def launch(self, call: MissedCall, config: Configuration) -> None:
        """This one call, on its own arrays."""
        declared = self._declared
        arguments = declared.kernel_arguments(call.call, config)
        self._environment.launching()(call.stream, declared.grid(call.call, config), self._kernel(config), arguments)

    def keep_kernel(self, config: Configuration, kernel: KernelObject) -> None:
        """The kernel object that a search made for ``config``, which is compiled already."""
        self._kernels.setdefault(self._hints(config), kernel)

    def _kernel(self, config: Configuration) -> KernelObject:
        """With the hints applied; equal hints share one object, because each object has a JIT cache of its own."""
        key = self._hints(config)
        if key not in self._kernels:
            kernel = self._declared.kernel
            self._kernels.setdefault(key, kernel.replace_hints(**dict(key)) if key else kernel)
        return self._kernels[key]

    def _hints(self, config: Configuration) -> tuple[tuple[str, Hashable], ...]:
        return tuple(sorted(self._declared.hints(config).items()))


class Searches:
    """For one tuned kernel."""

    def __init__(self, declared: Declared, environment: Environment, launcher: CallLauncher):
        self._declared, self._environment, self._launcher = declared, environment, launcher
        self._checked_outputs = False

    def winner(self, call: MissedCall, in_bucket: Configuration | None) -> Choice:
        """Searches, and stores the winner. Raises whatever a search raises.

        in_bucket: the winner of the call's bucket, which is first raced against the shipped configuration alone.
        """
        if in_bucket is not None:
            choice = self._searched(call, (self._declared.space.shipped, in_bucket))
            if choice.config == in_bucket:
                return replace(choice, why="the bucket's winner, checked on this shape")
        return self._searched(call, call.configurations)

    def _searched(self, call: MissedCall, configs: Sequence[Configuration]) -> Choice:
        trials = self.trials(call, configs)
        self._say_undeclared_outputs(call, trials[0])
        result = self._environment.search(trials, stream=call.stream, shipped=0, launch_mode=self._declared.launch)
        best, kernel = configs[result.best], trials[result.best]
        lost = len(configs) < len(call.configurations) and result.best == 0 and best != configs[1]
        if lost:  # the bucket's winner is slower here: a search of all follows, and its winner is stored
            return Choice(best, "tuned")
        winner = self._winner(call, configs, trials, result)
        stored = self._environment.winners.put(winner)
        if call.bucket_parts is not None and call.bucket_key is not None:
            self._environment.winners.put(replace(winner, key=call.bucket_key, parts=call.bucket_parts))
        if not isinstance(kernel, Failed):
            self._launcher.keep_kernel(best, kernel.kernel)
        config = stored.config if stored.config is not None and call.allows(stored.config) else best
        return Choice(
            Configuration.of({name: config[name] for name in self._declared.space.knobs}), "tuned", result.note
        )

    def trials(self, call: MissedCall, configs: Sequence[Configuration]) -> list[Trial | Failed]:
        from tilewright.runtime.search.trials import trials

        declared = self._declared
        return trials(
            list(configs),
            lambda config: declared.grid(call.call, config),
            declared.kernel,
            lambda config: declared.kernel_arguments(call.call, config),
            declared.hints,
        )

    def _say_undeclared_outputs(self, call: MissedCall, shipped: Trial | Failed) -> None:
        """Says once which arrays the kernel writes and the author did not declare. Calls in place on them would have
        the same key as calls on separate arrays."""
        if self._checked_outputs or isinstance(shipped, Failed):
            return
        self._checked_outputs = True
        from tilewright.runtime.search.building import written_by

        try:
            written = written_by(shipped, f"sm_{call.arch}")
        except Exception:  # the code cannot be read: the search compares all arrays
            return
        outputs = self._declared.outputs
        for name in sorted((written & {*self._declared.parameters}) - {*outputs}):
            warn(f"{self._declared.name} writes '{name}', which is not declared; fix: outputs={(*outputs, name)!r}")

    def _winner(
        self, call: MissedCall, configs: Sequence[Configuration], trials: Sequence[Trial | Failed], result: SearchResult
    ) -> Winner:
        from tilewright.runtime.store.recording import launches_of, winner_of

        try:
            launches = launches_of(trials, result)
        except Exception as error:
            warn(f"the launches of {self._declared.name} cannot be written down ({in_one_line(error)})")
            launches = None
        return winner_of(
            result,
            key=call.key,
            kernel=self._declared.name,
            parts=call.parts,
            labels=[outcome.label for outcome in result.outcomes],
            config=lambda index: dict(configs[index]),
            launches=launches,
            origin="wrapper",
        )
