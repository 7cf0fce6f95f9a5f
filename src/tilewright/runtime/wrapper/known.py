"""What a tuned function launches for the calls that it knows: one `KnownCalls` for each pattern of arguments and mode.

It has a dictionary from the key of a call to what is `Known` of such calls. The calls of a program repeat, so each
known call also remembers the one that came after it. The hot path first compares a call with that one, in one step
for all its tensors (`tensor_guards`), and needs the dictionary only if the guess was wrong.
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
"""Of one `KnownCalls`; the oldest is forgotten. The store keeps them all."""
MOST_CHECKS = 16
"""Checks that are made for one key. A call that alternates between grad modes, say, would make one each time."""

Key: TypeAlias = tuple[Hashable, ...]
Entry: TypeAlias = tuple[Any, ...]
"""(grid, kernel, *constants); or (a function of the stream and the arguments, None, …)."""
Facts: TypeAlias = tuple[Any, ...]
"""(check, *items of the key, *entry), as `signature` unpacks them."""


@dataclass(frozen=True)
class Choice:
    """A configuration, and where it is from."""

    config: Configuration
    origin: Literal["shipped", "stored", "bucket", "config file", "tuned"]
    why: str = ""

    @property
    def tuned(self) -> bool:
        """Whether it stays until the process ends, in each mode that tunes. Others are launched until there is one."""
        return self.origin in ("stored", "config file", "tuned")


def _never(*_: LiveArray) -> bool:
    return False


class Known:
    """One key. ``facts``: how to recognise a call with it, and what to launch then."""

    __slots__ = ("checks", "choice", "entry", "facts", "next")

    def __init__(self, choice: Choice | None, entry: Entry, facts: Facts) -> None:
        self.choice, self.entry, self.facts = choice, entry, facts
        self.checks = 0
        self.next = self
        """The call that followed the last call with this key."""


class KnownCalls:
    """The known calls of one pattern of arguments in one mode.

    items: how many items of a call are compared beside its tensors. constants: how many an entry has.
    """

    __slots__ = ("_lock", "_unknown", "calls", "last")

    def __init__(self, items: int, constants: int) -> None:
        self._lock = threading.Lock()
        self._unknown = (_never, *[None] * (items + 2 + constants))
        self.calls: dict[Key, Known] = {}
        self.last = Known(None, (), self._unknown)
        """The last call."""

    def keep(self, key: Key, choice: Choice | None, entry: Entry) -> None:
        """From now on calls with this key launch ``entry``, also a call that another thread compares now."""
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
        """The entry of a key; KeyError if it is not known. If ``usual``, the hot path learns to recognise such a call
        without its key."""
        known, last = self.calls[key], self.last
        # An expected call that comes here was not recognised: its check is for other tensors.
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
