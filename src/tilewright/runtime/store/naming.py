"""Which kernel is meant: kernels of one name in several modules are several kernels.

What tells them apart is the module of the launch that was stored. A kernel is called by the shortest ending of its
full name that no other kernel of the store has: ``softmax``, or ``attention.softmax`` beside ``loss.softmax``. Any
ending that is one kernel's alone may be given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.errors import RequestError, UnknownChoice
from tilewright.runtime.store import evidence
from tilewright.runtime.store.winners import Winner

UNKNOWN = "unknown"
"""The module of imported winners whose config file names none, where several modules have a kernel of that name."""


class Kernels:
    """The kernels of a store, each with its winners."""

    def __init__(self, winners: Iterable[Winner]) -> None:
        self.winners = tuple(winners)
        modules: dict[str, set[str]] = {}
        for one in self.winners:
            modules.setdefault(one.kernel, set()).add(evidence.module(one))
        self._by_key = {one.key: _full_name(one, modules[one.kernel] - {""}) for one in self.winners}
        self._full_names = tuple(dict.fromkeys(self._by_key.values()))
        self._called = {self._by_key[one.key]: self._shortest(one) for one in self.winners}

    def __iter__(self) -> Iterator[str]:
        """What the kernels are called."""
        return iter(self._called.values())

    def called(self, winner: Winner) -> str:
        return self._called[self._by_key[winner.key]]

    def of(self, name: str | None) -> tuple[Winner, ...]:
        """The winners of one kernel; of all without a name. The errors name the choices."""
        if name is None:
            return self.winners
        fitting = self._fitting(name)
        if not fitting:
            raise UnknownChoice("kernel", name, self)
        if len(fitting) > 1:
            names = ", ".join(self._called[one] for one in fitting)
            raise RequestError(f"'{name}' is the name of {len(fitting)} kernels; give one of: {names}")
        return tuple(one for one in self.winners if self._by_key[one.key] == fitting[0])

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
    """``modules``: those that are known to have a kernel of this name. If it is one, an imported winner is its."""
    module = evidence.module(winner)
    if not module and modules:
        module = next(iter(modules)) if len(modules) == 1 else UNKNOWN
    return f"{module}.{winner.kernel}" if module else winner.kernel
