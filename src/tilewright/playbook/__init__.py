"""The playbook: what the loop tries, one file an entry. `base.py` says what an entry is."""

from __future__ import annotations

from itertools import pairwise

from tilewright.errors import RequestError
from tilewright.playbook.base import Entry
from tilewright.plugins import plugins


def catalogue() -> tuple[Entry, ...]:
    """All entries by their ``order``: the folder `entries`, and the entry points ``tilewright.playbook``.

    Which one is tried first is decided by `optimize/choosing.py`. Raises RequestError for an installed entry that
    cannot be used.
    """
    found = list(plugins("tilewright.playbook.entries", "ENTRY", group="tilewright.playbook"))
    if strangers := [entry for entry in found if not isinstance(entry, Entry)]:
        raise RequestError(
            f"an entry point of tilewright.playbook names a {type(strangers[0]).__name__}, not a playbook entry; "
            "repair or uninstall the package that brings it"
        )
    found.sort(key=lambda entry: (entry.about.order, entry.about.id))
    for before, after in pairwise(sorted(entry.about.id for entry in found)):
        if before == after:
            raise RequestError(
                f"two playbook entries are called '{after}'; uninstall the package that brings one of them"
            )
    return tuple(found)
