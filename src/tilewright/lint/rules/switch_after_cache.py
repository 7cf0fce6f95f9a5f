"""TW205: the switch that disables tuning is read only where the cache misses (A-16, X-19)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.caches import tuning_caches
from tilewright.lint.findings import About, Finding
from tilewright.lint.guards import on_a_miss
from tilewright.lint.switches import switches
from tilewright.source.source_file import SourceFile


class SwitchAfterCache:
    about = About(
        code="TW205",
        name="switch-after-cache",
        level="warning",
        title="the switch that disables tuning is read after the cache",
        why="It is ignored where the cache holds a tuned entry, and what is taken while it is set is stored "
        "as if it had been tuned, and stays when it is lifted. Template T5 has this defect (X-19); A-16 "
        "asks for the switch first.",
        fix="read the switch before the cache and store nothing while it is set, or make it part of the key",
        sources=("A-16", "X-19"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for switch in switches(file):
            test = on_a_miss(file, switch)
            owner = file.owner(switch)
            if test is None or owner is None or isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for cache in tuning_caches(file):
                if any(file.owner(store.place) is owner for store in cache.stores):
                    yield self.about.at(
                        file, switch, f"read only where {cache.name} misses, so a stored entry wins over it"
                    )
                    break


RULE = SwitchAfterCache()
