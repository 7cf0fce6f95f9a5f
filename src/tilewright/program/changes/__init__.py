"""The changes of a user's program that specialists propose, one in each file. `base.py` defines the protocol."""

from __future__ import annotations

import re
from collections import Counter

from tilewright.errors import RequestError, UnknownChoice
from tilewright.plugins import plugins
from tilewright.program.changes.base import ProgramChange


def program_changes() -> tuple[ProgramChange, ...]:
    """Returns all changes, sorted by their attribute ``order``.

    These are the changes in this folder and in installed packages (entry points in
    ``tilewright.program.changes``).

    Raises RequestError for an entry point that is no change, and if two have the same name.
    """
    found = list(plugins("tilewright.program.changes", "CHANGE"))
    if strangers := [each for each in found if not isinstance(each, ProgramChange)]:
        kind = type(strangers[0]).__name__
        raise RequestError(f"an entry point of tilewright.program.changes names a {kind}; uninstall its package")
    for name, count in Counter(each.name for each in found).items():
        if count > 1:
            raise RequestError(f"two changes of programs are called '{name}'; uninstall one of their packages")
    return tuple(sorted(found, key=lambda each: (each.order, each.name)))


def change_of(name: str) -> ProgramChange:
    """Returns the change with this name. Raises UnknownChoice."""
    for each in program_changes():
        if each.name == name:
            return each
    raise UnknownChoice("change", name, (each.name for each in program_changes()))


def changes_for(text: str) -> tuple[ProgramChange, ...]:
    """Returns the changes that a recommendation asks for, sorted by their attribute ``order``.

    text: the recommendation, such as ``Enable FlashAttention``.
    """
    plain = " ".join(re.findall(r"[a-z0-9_.()=]+", text.lower().replace("-", " ")))
    return tuple(each for each in program_changes() if any(_says(plain, words) for words in each.words))


def changes_answering(kind: str) -> tuple[ProgramChange, ...]:
    """Returns the changes that help against a kind of profile finding, sorted by their attribute ``order``.

    kind: the kind of the finding, such as ``host-sync``.
    """
    return tuple(each for each in program_changes() if kind in each.findings)


def _says(plain: str, words: str) -> bool:
    """Returns whether a string contains all parts of an entry. For example, ``pin* memory`` has two parts."""
    parts = (re.escape(part.rstrip("*")) + (r"\w*" if part.endswith("*") else r"s?") for part in words.split())
    return all(re.search(rf"(?<!\w){part}(?!\w)", plain) for part in parts)
