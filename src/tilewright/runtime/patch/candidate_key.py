"""The key of a search as `exhaustive_search` gets it: all that its functions yield for each candidate, in order.

The functions of a search may be closures over anything. So the key holds what came out of them, and no source of
theirs: grid, arguments and hints of every candidate. It holds no contents of arrays and no value of a float.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.records import Failed
from tilewright.runtime.arrays import facts_of, is_array
from tilewright.runtime.environment import device_of
from tilewright.runtime.key import array_part, flag_part, source_of, toolkit
from tilewright.runtime.search.trials import Trial

FORMAT = 1
"""Counts up when the meaning of a part changes: a stored winner of another format is never met."""


@dataclass
class SharedDescriptions:
    """Descriptions that several candidates share, each kept once: the arrays and the kernels' sources."""

    arrays: list[dict[str, Any]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    device: int | None = None
    """The GPU of the first array that says so."""
    _kept: list[Any] = field(default_factory=list)
    _places: dict[int, tuple[int, int]] = field(default_factory=dict)
    _kernels: dict[int, int] = field(default_factory=dict)

    def candidate(self, one: Trial | Failed) -> dict[str, Any]:
        """The work of one candidate. A failed one keeps its place; why it failed may hold an address."""
        if isinstance(one, Failed):
            return {"failed": one.stage}
        storages: list[int] = []
        return {
            "kernel": self._kernel(one.kernel),
            "grid": list(one.grid),
            "arguments": [self._argument(value, storages) for value in one.arguments()],
            "hints": {name: str(value) for name, value in sorted(one.hints.items())},
        }

    def _kernel(self, kernel: Any) -> int:
        function = getattr(kernel, "_pyfunc", kernel)
        if id(function) not in self._kernels:
            source = source_of(kernel)
            if source not in self.sources:
                self.sources.append(source)
            self._kept.append(function)
            self._kernels[id(function)] = self.sources.index(source)
        return self._kernels[id(function)]

    def _argument(self, value: Any, storages: list[int]) -> Any:
        if is_array(value):
            place, address = self._array(value)
            if address not in storages:
                storages.append(address)
            return f"array {place}, storage {storages.index(address)}"
        if isinstance(value, (list, tuple)):
            return [self._argument(one, storages) for one in value]
        return flag_part(value)

    def _array(self, array: Any) -> tuple[int, int]:
        """Its place among the descriptions and its address; asked once for each object."""
        if id(array) not in self._places:
            part, facts = array_part(array), facts_of(array)
            assert facts is not None
            if part not in self.arrays:
                self.arrays.append(part)
            self._kept.append(array)  # its id stays its own
            if self.device is None:
                self.device = device_of(array)
            self._places[id(array)] = self.arrays.index(part), facts.address
        return self._places[id(array)]


def identity(candidate: Mapping[str, Any]) -> Hashable:
    """Equal for candidates that launch the very same work."""
    return repr(sorted(candidate.items()))


def parts_of(
    labels: Sequence[str],
    candidates: Sequence[Mapping[str, Any]],
    described: SharedDescriptions,
    flush_l2: bool,
    board: Callable[[int], str],
) -> dict[str, Any]:
    """The parts of the key by name; `key.digest` makes the key of them."""
    return {
        "format": FORMAT,
        "search": "exhaustive_search",
        "board": board(_current_device() if described.device is None else described.device),
        "toolkit": toolkit(),
        "flush_l2": flush_l2,
        "sources": described.sources,
        "arrays": described.arrays,
        "candidates": [{"label": label, **candidate} for label, candidate in zip(labels, candidates, strict=True)],
    }


def _current_device() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0
