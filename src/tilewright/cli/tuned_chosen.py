"""Chooses stored results for `tilewright tuned …`: by the beginning of a key, or by what `prune` removes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, TypeVar

from tilewright.errors import RequestError, UnknownChoice

if TYPE_CHECKING:
    from tilewright.runtime.store.winners import Unreadable, Winner

Entry = TypeVar("Entry", bound="Winner | Unreadable")


def criteria_of(
    older_than: float | None, toolkit_not_current: bool, missing_source: bool
) -> list[Callable[[Winner], bool]]:
    """Returns one predicate for each given option. Only entries that meet all predicates are removed."""
    from tilewright.runtime.store import evidence

    criteria: list[Callable[[Winner], bool]] = []
    if older_than is not None:
        from tilewright.ledger.file import text_of, utc_now

        try:
            before = text_of(utc_now() - timedelta(days=older_than))
        except OverflowError:
            raise RequestError(f"--older-than {older_than:g} days is before all dates") from None
        criteria.append(lambda winner: winner.created < before)
    if toolkit_not_current:
        from tilewright.runtime.key import toolkit

        current = toolkit()
        criteria.append(lambda winner: evidence.toolkit(winner) != current)
    if missing_source:
        from tilewright.runtime.store.verifying import source_problem

        criteria.append(lambda winner: bool(source_problem(winner)))
    return criteria


def with_key(winners: Sequence[Entry], key: str) -> Entry:
    """Returns the entry whose key begins with ``key``.

    Raises RequestError with the nearest keys if there is no such entry, or several.
    """
    matches = [winner for winner in winners if winner.key.startswith(key.lower())]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(winner.key[:12] for winner in matches)
        raise RequestError(f"'{key}' is the beginning of {len(matches)} keys; give more characters: {shown}")
    likeness = SequenceMatcher(None, "", key.lower())

    def unlike(winner: Entry) -> float:
        likeness.set_seq1(winner.key[: len(key)])
        return -likeness.ratio()

    nearest = sorted(winners, key=unlike)
    raise UnknownChoice("key", key, (f"{winner.key[:12]} ({winner.kernel})" for winner in nearest[:3]))
