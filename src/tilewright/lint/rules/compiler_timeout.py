"""Candidates that compile slowly are dropped without a word.

A candidate that runs out of time is one of the failures, which nobody reads: the choice then depends on how busy the
machine is. A matmul tile that spills takes 1 to 4 s alone on a core, and one took 33 s.

Fix: compile ahead in parallel with a budget for each candidate, or look at result.failures and say what is gone.

Sources: TileGym 1.5.1: 12 files of ops/cutile.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import searches
from tilewright.source.source_file import Named, SourceFile, text


class CompilerTimeout(Rule):
    code = "TW108"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            owner = file.owner(search.call)
            if owner is not None and any(node.attr == "failures" for node in file.every(ast.Attribute, owner)):
                continue
            for call in _contexts(file, search.call):
                if file.dotted(call.func) == "cuda.tile.compiler_timeout":
                    seconds = text(call.args[0]) if call.args else "…"
                    yield self.at(
                        file, call,
                        f"candidates of the search in line {search.call.lineno} that need more than {seconds} s to "
                        "compile are dropped, and its failures are not read",
                    )  # fmt: skip


def _contexts(file: SourceFile, node: ast.AST) -> Iterator[ast.Call]:
    """The calls of the ``with`` statements around a node, inside its function."""
    for parent, _ in file.above(node):
        if isinstance(parent, Named):
            break
        for item in parent.items if isinstance(parent, ast.With) else ():
            if isinstance(item.context_expr, ast.Call):
                yield item.context_expr


RULE = CompilerTimeout()
