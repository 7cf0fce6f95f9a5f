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
from tilewright.runtime.wrapper.torch_compile import outside_graphs

MOST_KEYS = 4096
"""The most keys of one `KnownCalls`. Further keys replace those that were not used for longest. The store keeps all
winners."""
MOST_CHECKS = 16
"""The most checks made for one key. Calls that alternate between grad modes would otherwise make a check each time."""
WRONG = 8
"""After so many wrong guesses in a row, the hot path stops guessing for `QUIET` calls."""
QUIET = 256
FOLLOWED = 64
"""The most calls in turns whose keys are kept although they are only guessed."""

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

    __slots__ = ("checks", "choice", "entry", "facts", "key", "next")

    def __init__(self, key: Key, choice: Choice | None, entry: Entry, facts: Facts) -> None:
        self.key, self.choice, self.entry, self.facts = key, choice, entry, facts
        self.checks, self.next = 0, self


class _Calls(dict[Key, Known]):
    """The known calls by key. ``older``: keys that were not used since this dictionary was made. They are looked up
    only if the key is not here, and then move here. So a hit costs nothing for keeping the keys that are used."""

    def __init__(self, older: dict[Key, Known]) -> None:
        super().__init__()
        self.older = older

    def __missing__(self, key: Key) -> Known:
        known = self[key] = self.older[key]
        return known


class KnownCalls:
    """The cached calls with one pattern of arguments in one tuning mode. A hit takes no lock.

    last: the `Known` of the last call.
    wrong: how many guesses in a row were wrong. quiet: how many of the next calls are not guessed.
    items: how many items of the key are compared beside the tensors.
    constants: how many constants an entry has.
    """

    __slots__ = ("_idle", "_lock", "_unknown", "calls", "last", "quiet", "wrong")

    def __init__(self, items: int, constants: int) -> None:
        self._lock = threading.Lock()
        # `"".format` takes any arguments and returns an empty string, which is false: the cheapest check that fails
        self._unknown: Facts = ("".format, *[None] * (items + 2 + constants))
        self.calls = _Calls({})
        self.last = self._idle = Known((), None, (), self._unknown)
        self.wrong = self.quiet = 0

    def get(self, key: Key) -> Known | None:
        return self.calls.get(key) or self.calls.older.get(key)

    def keep(self, key: Key, choice: Choice | None, entry: Entry) -> None:
        """Makes all later calls with this key launch ``entry``.

        Forgets what the hot path has learnt about this key, because that contains the earlier entry.
        """
        with self._lock:
            known = self.get(key)
            if known is not None:
                known.choice, known.entry, known.facts = choice, entry, self._unknown
            elif len(self.calls) >= MOST_KEYS // 2:
                self._drop_older()
            self.calls[key] = known or Known(key, choice, entry, self._unknown)

    def _drop_older(self) -> None:
        """Forgets the older keys, and makes all others older. A guess must not launch what was forgotten."""
        calls, dropped, guessed = self.calls, self.calls.older, self.last
        for _ in range(FOLLOWED):  # a right guess looks nothing up, so its key may be among the older ones
            if guessed.key in dropped:
                calls[guessed.key] = guessed
            guessed = guessed.next
        calls.older = {}
        self.calls = _Calls(calls)
        for key, known in dropped.items():
            if key not in calls:
                known.entry, known.facts = (), self._unknown

    def looked_up(self, key: Key, tensors: Sequence[LiveArray], items: Sequence[CallValue], usual: bool) -> Entry:
        """Returns the entry of a key after a wrong guess. Raises KeyError if the key is not known.

        usual: whether all arrays are aligned. Then the hot path learns to recognise such calls without their key.
        """
        known, last = self.calls[key], self.last
        # If this is the expected call, its check has failed, so it needs a check for the present tensors.
        unlearnt = known.facts is self._unknown or known is last.next
        if last is not self._idle:
            last.next = known
        self.last = known
        if unlearnt and usual and known.checks < MOST_CHECKS:
            outside_graphs(self.learn, known, tensors, items)
        elif (wrong := self.wrong + 1) < WRONG:
            self.wrong = wrong
        else:
            self.last, self.wrong, self.quiet = self._idle, 0, QUIET
        return known.entry

    def learn(self, known: Known, tensors: Sequence[LiveArray], items: Sequence[CallValue]) -> None:
        """Makes the hot path recognise such calls without their key."""
        check, entry = tensor_guards.like(tensors), known.entry
        known.checks += 1
        if check is not None:
            known.facts = (check, *items, *entry)
            if known.entry is not entry:  # `keep` has replaced it meanwhile, in another thread
                known.facts = self._unknown
