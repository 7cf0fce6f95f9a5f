"""Triton kernels in a user's program, which Triton itself launches.

The code is that of `Triton`, through PTX. The cubins go into Triton's own disk cache, where `triton.compile` finds them
at the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.errors import MachineError
from tilewright.hardware.architectures import architecture
from tilewright.languages.base import Hints, Lowered
from tilewright.languages.triton import ptx
from tilewright.languages.triton.front_end import private_parts, ttir_of
from tilewright.languages.triton.kernels import jit_function
from tilewright.languages.triton.triton import Triton
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch

if TYPE_CHECKING:
    from tilewright.languages.triton.private import CacheEntry


MOST_SECONDS = 120.0
"""Processor time of one compilation. Triton has no limit, and a program may rely on a configuration that takes long."""


class LiveTriton(Triton):
    """Implements `languages.base.Language` for a program that launches through Triton."""

    def __init__(self) -> None:
        self._entries: dict[str, CacheEntry] = {}

    def begin(self) -> None:
        """Starts what takes long: the compiler's process, and the hash of Triton's own files. Returns at once. Raises
        MachineError if Triton launches on other GPUs than NVIDIA's, RuntimeError without a GPU."""
        private = private_parts()
        private.begin_hashing()
        ptx.begin()
        if (backend := private.driver_backend()) != "cuda":  # this makes the driver, which takes long in Triton 3.6
            raise MachineError(f"Triton's driver here is for {backend}, not for NVIDIA's GPUs")

    def lower(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        private = private_parts()
        made = ttir_of(launch, hints, config, arch)
        lowered = made if isinstance(made, Failed) else ptx.lowered(made, config, arch)
        if isinstance(made, Failed) or isinstance(lowered, Failed):
            return lowered
        entry = private.CacheEntry.of(jit_function(launch.kernel), made.bound, architecture(arch).number)
        self._entries[entry.hash] = entry
        return replace(lowered, cache_key=entry.hash)

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        return self.found(lowered) or ptx.assembled(lowered, max(seconds, MOST_SECONDS), keep=True)

    def remember(self, built: Sequence[Built]) -> int:
        new = [each for each in built if each.cache_key in self._entries and each.files]
        for each in new:
            entry = self._entries[str(each.cache_key)]
            if not entry.files():
                entry.store(each.files)
        return len(new)

    def found(self, lowered: Lowered) -> Built | None:
        entry = self._entries.get(lowered.cache_key or "")
        files = {} if entry is None else entry.files()
        if not {"cubin", "json"} <= files.keys():
            return None
        return ptx.built_of(lowered, files, seconds=0.0)


LIVE = LiveTriton()
