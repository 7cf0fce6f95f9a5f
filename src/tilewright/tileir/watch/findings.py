"""Collects the findings of the sanitizer: one for each kind of mistake, place in the source and tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.tileir.read.tree import Location

OUT_OF_BOUNDS = "out of bounds"
UNINITIALISED = "uninitialised"
PADDING = "undefined padding"
RACE = "race"
ALIAS = "alias"
MISALIGNED = "misaligned"
ASSUMPTION = "assumption"
ASSERTION = "assertion"
DEADLOCK = "deadlock"

KINDS = (OUT_OF_BOUNDS, UNINITIALISED, PADDING, RACE, ALIAS, MISALIGNED, ASSUMPTION, ASSERTION, DEADLOCK)


@dataclass(frozen=True)
class Finding:
    """A mistake of the kernel.

    index: the index of the first wrong element of ``tensor``.
    count: the number of times that the mistake occurred, over all blocks.
    """

    kind: str
    message: str
    location: Location | None = None
    block: tuple[int, int, int] | None = None
    tensor: str | None = None
    index: tuple[int, ...] | None = None
    count: int = 1

    def __str__(self) -> str:
        where = [str(part) for part in (self.location, self.block and f"block {self.block}") if part]
        place = f" [{', '.join(where)}]" if where else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}: {self.message}{place}{times}"


class Findings:
    """Findings in the order of their first occurrence. Findings with equal kind, location and tensor are merged."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, Location | None, str | None], Finding] = {}

    def add(self, finding: Finding) -> None:
        assert finding.kind in KINDS, f"'{finding.kind}' is no kind of finding"
        key = (finding.kind, finding.location, finding.tensor)
        first = self._all.get(key)
        self._all[key] = replace(first, count=first.count + finding.count) if first else finding

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)


def block_of(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns the coordinates (x, y, z) of the block with the linear number x + X·(y + Y·z)."""
    x, y, _ = grid
    return number % x, number // x % y, number // (x * y)
