"""Memory pooling: recognized, but never applied, because torch's caching allocator already pools GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import ReadModule


class MemoryPooling(ProgramChange):
    name = "memory_pooling"
    about = "takes buffers from a pool instead of allocating them each time"
    words = ("memory pool*", "buffer pool*", "pooled buffer", "caching allocator", "allocator pool*")
    never = (
        "mechanism already present",
        "torch's caching allocator already gives freed blocks of GPU memory to later tensors without a call of the "
        "driver",
    )

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        return iter(())

    def present(self, module: ReadModule) -> str:
        for name, origin in module.file.imports.items():
            if origin.split(".")[0] == "torch":
                return f"{module.path.name} imports {origin} as {name}; its default allocator is the caching allocator"
        return ""


CHANGE = MemoryPooling()
