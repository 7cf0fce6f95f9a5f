"""Collects the lines of a trace behind the numbers. Each number cites events, whose text is quoted from the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.profile.json_stream import CHUNK, EventPlace, opened

LONGEST_QUOTE = 2000
"""The most bytes of an event that are quoted."""


@dataclass(frozen=True)
class RawLine:
    """The text of an event in the trace file, put on one line. ``source``: file, line and column."""

    source: str
    text: str


class Sources:
    """Collects the cited events of one trace."""

    def __init__(self, path: Path):
        self.path = path
        self._cited: dict[EventPlace, str] = {}

    def cite(self, *places: EventPlace) -> tuple[str, ...]:
        """Returns the places of these events, such as ``trace.json:4711:3``, without duplicates."""
        for place in places:
            self._cited.setdefault(place, f"{self.path.name}:{place.line}:{place.column}")
        return tuple(dict.fromkeys(self._cited[place] for place in places))

    def lines(self) -> tuple[RawLine, ...]:
        """Reads the text of all cited events, in one pass over the file."""
        found, at = [], 0
        with opened(self.path) as (_, file):
            for place in sorted(self._cited, key=lambda place: place.offset):
                while at < place.offset:
                    at += len(file.read(min(CHUNK, place.offset - at)))
                text = file.read(place.length)
                at += len(text)
                quoted = " ".join(text[:LONGEST_QUOTE].decode("utf-8", "replace").split())
                found.append(RawLine(self._cited[place], quoted + " …" * (len(text) > LONGEST_QUOTE)))
        return tuple(found)
