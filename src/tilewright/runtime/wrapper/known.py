"""What a tuned function launches for the calls that it knows: one `KnownCalls` for each pattern of arguments and mode.

A place has one dictionary from the key of a call to what is `Known` of such calls. The calls of a program repeat,
so each known one also remembers which came after it: the hot path first compares a call with that one, in one step
for all its tensors (`tensor_guards`), and needs the dictionary only where it guessed wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tilewright.runtime.wrapper import tensor_guards

MOST_KEYS = 4096
"""Of one place; the oldest is forgotten. The store keeps them all."""
MOST_CHECKS = 16
"""Made for one key: a call that alternates between grad modes, say, would make one each time."""

Entry = tuple[Any, ...]
"""(grid, kernel, *constants); or (a function of the stream and the arguments, None, …)."""


def _never(*_: Any) -> bool:
    return False


class Known:
    """One key. ``facts``: how to recognise a call of it, and then what to launch, as `signature` unpacks them."""

    __slots__ = ("checks", "choice", "entry", "facts", "next")

    def __init__(self, choice: Any, entry: Entry, facts: tuple[Any, ...]) -> None:
        self.choice, self.entry, self.facts = choice, entry, facts
        self.checks = 0
        self.next = self
        """What the call after one of this key was, when last looked up."""


class KnownCalls:
    """The known calls of one pattern of arguments in one mode.

    items: how many facts of a call are compared beside its tensors. constants: how many an entry has.
    """

    __slots__ = ("_lock", "_unknown", "calls", "last")

    def __init__(self, items: int, constants: int) -> None:
        self._lock = threading.Lock()
        self._unknown = (_never, *[None] * (items + 2 + constants))
        self.calls: dict[Any, Known] = {}
        self.last = Known(None, (), self._unknown)
        """What the last call was."""

    def keep(self, key: Any, choice: Any, entry: Entry) -> None:
        """From now on calls of this key launch ``entry``, also where a call is being compared at this moment."""
        with self._lock:
            known = self.calls.get(key)
            if known is not None:
                known.choice, known.entry, known.facts = choice, entry, self._unknown
                return
            if len(self.calls) >= MOST_KEYS:
                oldest = self.calls.pop(next(iter(self.calls)))
                oldest.facts, oldest.checks = self._unknown, MOST_CHECKS
            self.calls[key] = Known(choice, entry, self._unknown)

    def looked_up(self, key: Any, tensors: Sequence[Any], items: Sequence[Any], usual: bool) -> Entry:
        """The entry of a key that was not guessed. KeyError where it is not known. Learns to guess it, if ``usual``:
        the hot path compares no call that is not."""
        known, last = self.calls[key], self.last
        # An expected call that comes here was taken for another: its tensors are like these no more.
        unlearnt = known.facts is self._unknown or known is last.next
        last.next = self.last = known
        if unlearnt and usual and known.checks < MOST_CHECKS:
            self._learn(known, tensors, items)
        return known.entry

    def _learn(self, known: Known, tensors: Sequence[Any], items: Sequence[Any]) -> None:
        check = tensor_guards.like(tensors)
        with self._lock:
            known.checks += 1
            if check is not None and known.checks <= MOST_CHECKS:
                known.facts = (check, *items, *known.entry)
