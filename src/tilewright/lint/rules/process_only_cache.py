"""Every process tunes again.

A dictionary at the top of a module dies with its process: each worker, rank and restart repeats the search, at the same
time as the others on the same GPU; and it grows with every shape. The caches of TileGym 1.5.1 are of this kind.

Fix: keep winners in a store on disk, such as `tilewright run` and the tilewright wrapper use.

Sources: TileGym 1.5.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.caches import tuning_caches
from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.source_file import SourceFile


class ProcessOnlyCache(Rule):
    code = "TW202"
    level = "note"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        caches = tuning_caches(file)
        if caches:
            names, verb = ", ".join(cache.name for cache in caches), "lives" if len(caches) == 1 else "live"
            yield self.at(file, caches[0].made, f"{names} {verb} in this process only, and without a limit")


RULE = ProcessOnlyCache()
