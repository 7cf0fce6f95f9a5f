"""A large product of value lists is compiled one by one.

exhaustive_search compiles its candidates one after the other: 54 matmul configurations take 39 s on one core, and a
single bad one 33 s. The old rule of at most 30 configurations is outdated: what counts is time; only products of more
than 64 are named.

Fix: drop what cannot win before the search, or compile ahead in parallel with a budget for each candidate.

Sources: cuda-tile 1.7: cuda.tile.tune.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import searches
from tilewright.source.source_file import Function, SourceFile, elements

MOST = 64


class LargeProduct(Rule):
    code = "TW110"
    level = "note"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            function = _generator(file, search.space)
            for node in file.every(ast.Yield, function) if function is not None else ():
                loops = [parent.iter for parent, _ in file.above(node) if isinstance(parent, ast.For)]
                sizes = [len(elements(loop)) for loop in loops if isinstance(loop, (ast.Tuple, ast.List))]
                if math.prod(sizes) > MOST:
                    product = " × ".join(map(str, reversed(sizes)))
                    yield self.at(file, node, f"{product} = {math.prod(sizes)} configurations for one search")


def _generator(file: SourceFile, space: ast.expr | None) -> Function | None:
    value = file.value(space)
    if isinstance(value, ast.Call) and file.dotted(value.func) in {"list", "tuple"} and value.args:
        value = file.value(value.args[0])
    return file.function(value.func) if isinstance(value, ast.Call) else None


RULE = LargeProduct()
