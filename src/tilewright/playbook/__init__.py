"""The playbook: the changes that `tilewright optimize` tries, one file for each. `base.py` defines the protocol."""

from __future__ import annotations

from collections import Counter

from tilewright.errors import RequestError
from tilewright.playbook.base import Entry
from tilewright.plugins import plugins


def catalogue() -> tuple[Entry, ...]:
    """Returns all entries, sorted by their ``order``: entries in the folder `entries`, and installed plug-ins.

    A plug-in is an entry point of the group ``tilewright.playbook``. `optimize/choosing.py` decides which entry is
    tried first. Raises RequestError for an installed entry that cannot be used.
    """
    entries = list(plugins("tilewright.playbook.entries", "ENTRY", group="tilewright.playbook"))
    if strangers := [entry for entry in entries if not isinstance(entry, Entry)]:
        raise RequestError(
            f"an entry point of tilewright.playbook names a {type(strangers[0]).__name__}, not a playbook entry; "
            "repair or uninstall the package that brings it"
        )
    for name, count in sorted(Counter(entry.about.id for entry in entries).items()):
        if count > 1:
            raise RequestError(f"two playbook entries are called '{name}'; uninstall one of their packages")
    return tuple(sorted(entries, key=lambda entry: (entry.about.order, entry.about.id)))
