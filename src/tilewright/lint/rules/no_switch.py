"""TW206: searches that nothing can switch off (A-16)."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.switches import switches
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile


class NoSwitch:
    about = About(
        code="TW206",
        name="no-switch",
        level="note",
        title="no switch turns the search off",
        why="CI wants the same kernel every time, and a profiler sees every trial (A-16, A-44). Of the 40 "
        "files of TileGym 1.5.1 that search, 16 ask for no switch of any kind.",
        fix="ask for the switch before the cache, and launch the shipped configuration while it is set",
        sources=("A-16", "A-44"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        found = searches(file)
        if found and not switches(file):
            others = (
                f" (nor before those in {', '.join(str(one.call.lineno) for one in found[1:])})" if found[1:] else ""
            )
            yield self.about.at(
                file, found[0].call, f"nothing in this file asks whether tuning is off before this search{others}"
            )


RULE = NoSwitch()
