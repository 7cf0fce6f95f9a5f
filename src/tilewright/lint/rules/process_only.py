"""TW202: winners that no other process knows, in a cache that never shrinks (W4)."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.caches import tuning_caches
from tilewright.lint.findings import About, Finding
from tilewright.source.source_file import SourceFile


class ProcessOnly:
    about = About(
        code="TW202",
        name="process-only-cache",
        level="note",
        title="every process tunes again",
        why="A dictionary at the top of a module dies with its process: each worker, rank and restart "
        "repeats the search, at the same time as the others on the same GPU; and it grows with every shape "
        "(W4).",
        fix="keep winners in a store on disk, such as `tilewright run` and the tilewright wrapper use",
        sources=("W4",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        found = tuning_caches(file)
        if found:
            named = ", ".join(cache.name for cache in found)
            verb = "lives" if len(found) == 1 else "live"
            yield self.about.at(file, found[0].made, f"{named} {verb} in this process only, and without a limit")


RULE = ProcessOnly()
