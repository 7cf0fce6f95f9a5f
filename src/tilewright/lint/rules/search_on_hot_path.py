"""The search runs on every call.

A search launches each candidate up to 1000 times, with a flushed L2 before each: tens of milliseconds to seconds where
one launch is meant. exhaustive_search remembers nothing itself.

Fix: ask a cache first, search only where it misses, and store configuration and kernel together.

Sources: cuda-tile 1.7: cuda.tile.tune.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.guards import on_every_call
from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile


class SearchOnHotPath(Rule):
    code = "TW204"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            owner = file.owner(search.call)
            if owner is not None and on_every_call(file, search.call):
                yield self.at(file, search.call, f"no cache is asked before {owner.name} searches")


RULE = SearchOnHotPath()
