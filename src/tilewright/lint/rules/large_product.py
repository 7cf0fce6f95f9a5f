"""TW110: a product of value lists as search space (A-42 as it is true today, X-07)."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile

MOST = 64


class LargeProduct:
    about = About(
        code="TW110",
        name="large-product",
        level="note",
        title="a large product of value lists is compiled one by one",
        why="exhaustive_search compiles its candidates one after the other: 54 matmul configurations take 39 s on one "
        "core, and a single bad one 33 s. The old rule of 30 configurations is outdated (X-07): what counts is time; "
        f"only products of more than {MOST} are named.",
        fix="drop what cannot win before the search, or compile ahead in parallel with a budget for each candidate",
        sources=("A-42", "X-07"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for search in searches(file):
            function = self._generator(file, search.space)
            if function is None:
                continue
            for one in file.every(ast.Yield, function):
                sizes = [
                    len(parent.iter.elts)
                    for parent, _ in file.above(one)
                    if isinstance(parent, ast.For) and isinstance(parent.iter, (ast.Tuple, ast.List))
                ]
                if math.prod(sizes) > MOST:
                    yield self.about.at(
                        file, one,
                        f"{' × '.join(map(str, reversed(sizes)))} = {math.prod(sizes)} configurations for one search",
                    )  # fmt: skip

    def _generator(self, file: SourceFile, space: ast.expr | None) -> ast.AST | None:
        value = file.value(space) if space is not None else None
        if isinstance(value, ast.Call) and file.dotted(value.func) in {"list", "tuple"} and value.args:
            value = file.value(value.args[0])
        return file.function(value.func) if isinstance(value, ast.Call) else None


RULE = LargeProduct()
