"""The cache of calls of a tuned function: one `KnownCalls` for each pattern of arguments and tuning mode.

`KnownCalls` has a dictionary from the key of a call to `Known`: how to recognise such a call, and what to launch. The
calls of a program repeat, so each `Known` also remembers the call that followed it. The hot path guesses that the same
call follows again, and checks this in one step for all tensors (`tensor_guards`). Only after a wrong guess does it use
the dictionary.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tilewright.records import Configuration
from tilewright.runtime.arrays import CallValue, LiveArray
from tilewright.runtime.wrapper import tensor_guards

MOST_KEYS = 4096
"""The most keys of one `KnownCalls`. A further key replaces the oldest one. The store keeps all winners."""
MOST_CHECKS = 16
"""The most checks made for one key. Calls that alternate between grad modes would otherwise make a check each time."""

Key: TypeAlias = tuple[Hashable, ...]
Entry: TypeAlias = tuple[Any, ...]
"""The launch: a tuple (grid, kernel, *constants). Or (function, None, …), with a function of the stream and the
arguments."""
Facts: TypeAlias = tuple[Any, ...]
"""A tuple of a `Known`: (check, *items of the key, *entry). The hot path of `signature` unpacks this tuple."""


@dataclass(frozen=True)
class Choice:
    """A configuration and its origin."""

    config: Configuration
    origin: Literal["shipped", "stored", "bucket", "config file", "tuned"]
    why: str = ""

    @property
    def tuned(self) -> bool:
        """Whether the choice is final in all modes that tune. Any other choice is launched until a final one exists."""
        return self.origin in ("stored", "config file", "tuned")


class Known:
    """The calls with one key. ``next``: the `Known` of the call that followed the last of these calls."""

    __slots__ = ("checks", "choice", "entry", "facts", "next")

    def __init__(self, choice: Choice | None, entry: Entry, facts: Facts) -> None:
        self.choice, self.entry, self.facts, self.checks, self.next = choice, entry, facts, 0, self


class KnownCalls:
    """The cached calls with one pattern of arguments in one tuning mode. ``last``: the `Known` of the last call.
    ``items``: how many items of the key are compared beside the tensors. ``constants``: how many constants an entry
    has.
    """

    __slots__ = ("_lock", "_unknown", "calls", "last")

    def __init__(self, items: int, constants: int) -> None:
        self._lock = threading.Lock()
        self._unknown = (lambda *tensors: False, *[None] * (items + 2 + constants))
        self.calls: dict[Key, Known] = {}
        self.last = Known(None, (), self._unknown)

    def keep(self, key: Key, choice: Choice | None, entry: Entry) -> None:
        """Makes all later calls with this key launch ``entry``.

        Forgets what the hot path has learnt about this key, because that contains the earlier entry.
        """
        with self._lock:
            known = self.calls.get(key)
            if known is not None:
                known.choice, known.entry, known.facts = choice, entry, self._unknown
                return
            if len(self.calls) >= MOST_KEYS:
                oldest = self.calls.pop(next(iter(self.calls)))
                oldest.facts, oldest.checks = self._unknown, MOST_CHECKS
            self.calls[key] = Known(choice, entry, self._unknown)

    def looked_up(self, key: Key, tensors: Sequence[LiveArray], items: Sequence[CallValue], usual: bool) -> Entry:
        """Returns the entry of a key. Raises KeyError if the key is not known.

        usual: whether all arrays are aligned. Then the hot path learns to recognise such calls without their key.
        """
        known, last = self.calls[key], self.last
        # If this is the expected call, its check has failed, so it needs a check for the present tensors.
        unlearnt = known.facts is self._unknown or known is last.next
        last.next = self.last = known
        if unlearnt and usual and known.checks < MOST_CHECKS:
            self._learn(known, tensors, items)
        return known.entry

    def _learn(self, known: Known, tensors: Sequence[LiveArray], items: Sequence[CallValue]) -> None:
        check = tensor_guards.like(tensors)
        with self._lock:
            known.checks += 1
            if check is not None and known.checks <= MOST_CHECKS:
                known.facts = (check, *items, *known.entry)
