"""A tuning result has no such attribute.

A TuningResult of cuda-tile 1.7 has best, successes and failures; a Measurement has config, mean_us, num_samples and
error_margin_us. Documents name others that never existed: AttributeError, after minutes of search.

Fix: read result.best.config and result.best.mean_us.

Sources: cuda-tile 1.7: cuda.tile.tune.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import SEARCHES
from tilewright.source.source_file import SourceFile

INSTEAD = {
    "best_config": "best.config",
    "best_time_us": "best.mean_us",
    "time_ms": "best.mean_us, in µs",
    "best_time": "best.mean_us",
    "timings": "successes",
    "results": "successes",
}
HAS = {"best", "successes", "failures", "summary"}


class NoSuchResultAttribute(Rule):
    code = "TW105"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for node in file.every(ast.Attribute):
            if not isinstance(node.ctx, ast.Load) or node.attr.startswith("_") or node.attr in HAS:
                continue
            values = file.values(node.value)
            if values and all(isinstance(call, ast.Call) and file.dotted(call.func) in SEARCHES for call in values):
                instead = f"; read {INSTEAD[node.attr]}" if node.attr in INSTEAD else ""
                yield self.at(file, node, f"the result of a search has no {node.attr}{instead}")


RULE = NoSuchResultAttribute()
