"""The search space is no list.

exhaustive_search of cuda-tile 1.7 asks for its length and walks it several times: a generator raises TypeError, and of
a dictionary it takes the keys for configurations. A set has no order that lasts.

Fix: pass `list(…)` of the configurations.

Sources: cuda-tile 1.7: cuda.tile.tune.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile, own

ITERATORS = {"map", "filter", "zip", "iter", "itertools.product", "itertools.chain"}


class SpaceIsNoList(Rule):
    code = "TW104"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            for value in file.values(search.space):
                if wrong := _wrong(file, value):
                    yield self.at(file, search.space or search.call, f"the search space is {wrong}")


def _wrong(file: SourceFile, value: ast.AST) -> str:
    called = file.dotted(value.func) if isinstance(value, ast.Call) else ""
    if isinstance(value, ast.GeneratorExp):
        return "a generator expression, which has no length"
    if isinstance(value, (ast.Dict, ast.DictComp)) or called == "dict":
        return "a dictionary: its keys are taken for configurations"
    if isinstance(value, (ast.Set, ast.SetComp)):
        return "a set, whose order changes from one process to the next"
    if called in ITERATORS:
        return f"the iterator that {called} returns, which has no length"
    function = file.function(value.func) if isinstance(value, ast.Call) else None
    if isinstance(function, ast.FunctionDef) and [*own(function, ast.Yield), *own(function, ast.YieldFrom)]:
        return f"the generator that {function.name} returns, which has no length"
    return ""


RULE = SpaceIsNoList()
