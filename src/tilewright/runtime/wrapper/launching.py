"""How a configuration of a tuned kernel is launched: its kernel object, its entry in the hot path, one launch."""

from __future__ import annotations

from collections.abc import Hashable

from tilewright.records import Configuration
from tilewright.runtime.arrays import KernelObject
from tilewright.runtime.environment import Environment
from tilewright.runtime.wrapper.declared import Declared
from tilewright.runtime.wrapper.known import Entry
from tilewright.runtime.wrapper.missed_call import MissedCall


class Launcher:
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
