"""Specialists, one in each file. A specialist answers the performance questions of one domain."""

from __future__ import annotations

from tilewright.errors import RequestError, UnknownChoice
from tilewright.plugins import plugins
from tilewright.specialists.base import Specialist


def specialists() -> tuple[Specialist, ...]:
    """Returns the specialists of this folder and of the entry points ``tilewright.specialists``, by their ``order``.

    Raises RequestError for an entry point that is no specialist, and if two have the same name.
    """
    found: dict[str, Specialist] = {}
    for each in plugins("tilewright.specialists", "SPECIALIST"):
        if not isinstance(each, Specialist) or each.name in found:
            what = f"a second '{each.name}'" if isinstance(each, Specialist) else f"a {type(each).__name__}"
            raise RequestError(f"an entry point of tilewright.specialists names {what}; uninstall its package")
        found[each.name] = each
    return tuple(sorted(found.values(), key=lambda each: (each.order, each.name)))


def specialist_of(name: str) -> Specialist:
    """Returns the specialist with this name or alias. Raises UnknownChoice."""
    for each in specialists():
        if name == each.name or name in each.aliases:
            return each
    raise UnknownChoice("specialist", name, (each.name for each in specialists()))
