"""TW105: attributes that a tuning result never had (X-18)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
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


class NoSuchResult:
    about = About(
        code="TW105",
        name="no-such-result-attribute",
        level="error",
        title="a tuning result has no such attribute",
        why="A TuningResult has best, successes and failures; a Measurement has config, mean_us, "
        "num_samples and error_margin_us. Documents name others that never existed (X-18): AttributeError, "
        "after minutes of search.",
        fix="read result.best.config and result.best.mean_us",
        sources=("X-18", "A-31"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for node in file.every(ast.Attribute):
            if not isinstance(node.ctx, ast.Load) or node.attr.startswith("_"):
                continue
            values = file.values(node.value)
            results = [one for one in values if isinstance(one, ast.Call) and file.dotted(one.func) in SEARCHES]
            if results and len(results) == len(values) and node.attr not in HAS:
                instead = f"; read {INSTEAD[node.attr]}" if node.attr in INSTEAD else ""
                yield self.about.at(file, node, f"the result of a search has no {node.attr}{instead}")


RULE = NoSuchResult()
