"""No switch turns the search off.

CI wants the same kernel every time, and a profiler sees every trial. Of the 40 files of TileGym 1.5.1 that search, 16
ask for no switch of any kind.

Fix: ask for the switch before the cache, and launch the shipped configuration while it is set.

Sources: TileGym 1.5.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.switches import switches
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile


class NoSwitch(Rule):
    code = "TW206"
    level = "note"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        calls = [search.call for search in searches(file)]
        if calls and not switches(file):
            lines = ", ".join(str(call.lineno) for call in calls[1:])
            more = f" (nor before those in {lines})" if lines else ""
            yield self.at(file, calls[0], f"nothing in this file asks whether tuning is off before this search{more}")


RULE = NoSwitch()
