"""TW403: the deprecated autotune_launch (A-35)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import OLD_SEARCH
from tilewright.source.source_file import SourceFile


class AutotuneLaunch:
    about = About(
        code="TW403",
        name="autotune-launch",
        level="error",
        title="autotune_launch is deprecated",
        why="cuda.tile_experimental.autotune_launch is gone from cuda-tile: what imports it fails on an "
        "up-to-date installation (A-35).",
        fix="search with cuda.tile.tune.exhaustive_search, keep the winner, launch with ct.launch",
        sources=("A-35",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for call in file.every(ast.Call):
            dotted = file.dotted(call.func)
            if dotted in OLD_SEARCH or dotted.startswith("cuda.tile_experimental."):
                yield self.about.at(file, call, "autotune_launch is deprecated and no longer shipped")


RULE = AutotuneLaunch()
