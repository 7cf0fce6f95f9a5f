"""The switch that disables tuning is read after the cache.

It is ignored where the cache holds a tuned entry, and what is taken while it is set is stored as if it had been tuned,
and stays when it is lifted. One file of TileGym 1.5.1 does so.

Fix: read the switch before the cache and store nothing while it is set, or make it part of the key.

Sources: TileGym 1.5.1: ops/cutile/fused_neighborhood_attention.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.caches import tuning_caches
from tilewright.lint.guards import on_a_miss
from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.switches import switches
from tilewright.source.source_file import Named, SourceFile


class SwitchAfterCache(Rule):
    code = "TW205"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for switch in switches(file):
            test, owner = on_a_miss(file, switch), file.owner(switch)
            if test is None or owner is None or isinstance(test, Named):
                continue
            for cache in tuning_caches(file):
                if any(file.owner(write.place) is owner for write in cache.writes):
                    message = f"read only where {cache.name} misses, so a stored entry wins over it"
                    yield self.at(file, switch, message)
                    break


RULE = SwitchAfterCache()
