"""autotune_launch is deprecated.

cuda.tile_experimental.autotune_launch is gone from cuda-tile 1.7: what imports it fails on an up-to-date installation.

Fix: search with cuda.tile.tune.exhaustive_search, keep the winner, launch with ct.launch.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.source_file import SourceFile


class AutotuneLaunch(Rule):
    code = "TW403"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for call in file.every(ast.Call):
            if file.dotted(call.func).startswith("cuda.tile_experimental."):
                yield self.at(file, call, "autotune_launch is deprecated and no longer shipped")


RULE = AutotuneLaunch()
