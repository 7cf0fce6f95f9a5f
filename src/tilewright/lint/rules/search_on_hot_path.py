"""TW204: a search on every call (Part 7 check 8, A-21)."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.guards import on_every_call
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile


class SearchOnHotPath:
    about = About(
        code="TW204",
        name="search-on-hot-path",
        level="error",
        title="the search runs on every call",
        why="A search launches each candidate up to a thousand times, with a flushed L2 before each: tens "
        "of milliseconds to seconds where one launch is meant. exhaustive_search remembers nothing itself "
        "(A-32).",
        fix="ask a cache first, search only where it misses, and store configuration and kernel together",
        sources=("A-21", "A-15", "A-32"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for search in searches(file):
            if on_every_call(file, search.call):
                owner = file.owner(search.call)
                assert owner is not None
                yield self.about.at(file, search.call, f"no cache is asked before {owner.name} searches")


RULE = SearchOnHotPath()
