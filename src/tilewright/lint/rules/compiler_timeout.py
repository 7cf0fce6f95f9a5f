"""TW108: a compiler timeout around a search (W6)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile, text


class CompilerTimeout:
    about = About(
        code="TW108",
        name="compiler-timeout",
        level="warning",
        title="candidates that compile slowly are dropped without a word",
        why="A candidate that runs out of time is one of the failures, which nobody reads: the choice then "
        "depends on how busy the machine is (W6). A matmul tile that spills takes 1 to 4 s alone on a core, "
        "and one took 33 s.",
        fix="compile ahead in parallel with a budget for each candidate, or look at result.failures and say "
        "what is gone",
        sources=("W6", "X-07"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for search in searches(file):
            if self._read(file, search.call):
                continue
            for parent, _ in file.above(search.call):
                if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    break
                for item in parent.items if isinstance(parent, ast.With) else ():
                    call = item.context_expr
                    if isinstance(call, ast.Call) and file.dotted(call.func) == "cuda.tile.compiler_timeout":
                        seconds = text(call.args[0]) if call.args else "…"
                        yield self.about.at(
                            file, call,
                            f"candidates of the search in line {search.call.lineno} that need more than {seconds} s to "
                            "compile are dropped, and its failures are not read",
                        )  # fmt: skip

    def _read(self, file: SourceFile, call: ast.Call) -> bool:
        """Whether the function reads the failures of a search."""
        owner = file.owner(call)
        return owner is not None and any(one.attr == "failures" for one in file.every(ast.Attribute, owner))


RULE = CompilerTimeout()
