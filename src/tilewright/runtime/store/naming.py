"""The names of the kernels of a store. Kernels of one name in several modules are several kernels.

The module of a stored launch tells them apart. A kernel is called by the shortest ending of its full name that no
other kernel of the store has: ``softmax``, or ``attention.softmax`` beside ``loss.softmax``. A user may give any
ending that belongs to one kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.errors import RequestError, UnknownChoice
from tilewright.runtime.store import evidence
from tilewright.runtime.store.winners import Winner

UNKNOWN = "unknown"
"""The module of imported winners whose config file names none, if several modules have a kernel of that name."""


class Kernels:
    """The kernels of a store, each with its winners."""

    def __init__(self, winners: Iterable[Winner]) -> None:
        self.winners = tuple(winners)
        modules: dict[str, set[str]] = {}
        for winner in self.winners:
            modules.setdefault(winner.kernel, set()).add(evidence.module(winner))
        self._by_key = {one.key: _full_name(one, modules[one.kernel] - {""}) for one in self.winners}
        self._full_names = tuple(dict.fromkeys(self._by_key.values()))
        self._called = {self._by_key[one.key]: self._shortest(one) for one in self.winners}

    def __iter__(self) -> Iterator[str]:
        """The short names of the kernels."""
        return iter(self._called.values())

    def called(self, winner: Winner) -> str:
        return self._called[self._by_key[winner.key]]

    def of(self, name: str | None) -> tuple[Winner, ...]:
        """The winners of one kernel; without a name, of all. The errors name the choices."""
        if name is None:
            return self.winners
        fitting = self._fitting(name)
        if not fitting:
            raise UnknownChoice("kernel", name, self)
        if len(fitting) > 1:
            names = ", ".join(self._called[full] for full in fitting)
            raise RequestError(f"'{name}' is the name of {len(fitting)} kernels; give one of: {names}")
        return tuple(winner for winner in self.winners if self._by_key[winner.key] == fitting[0])

    def _fitting(self, name: str) -> list[str]:
        if name in self._full_names:
            return [name]
        return [full for full in self._full_names if full.endswith(f".{name}")]

    def _shortest(self, winner: Winner) -> str:
        full = self._by_key[winner.key]
        before = full[: -len(winner.kernel)].split(".")
        for place in reversed(range(len(before))):
            ending = ".".join(before[place:]) + winner.kernel
            if self._fitting(ending) == [full]:
                return ending
        return full


def _full_name(winner: Winner, modules: set[str]) -> str:
    """``modules``: those with a kernel of this name. If there is only one, imported winners belong to it."""
    module = evidence.module(winner)
    if not module and modules:
        module = next(iter(modules)) if len(modules) == 1 else UNKNOWN
    return f"{module}.{winner.kernel}" if module else winner.kernel
