"""TW104: a generator, dictionary or set as search space (A-45, X-18)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import searches
from tilewright.source.source_file import SourceFile, own


class SpaceIsNoList:
    about = About(
        code="TW104",
        name="space-is-no-list",
        level="error",
        title="the search space is no list",
        why="exhaustive_search asks for its length and walks it several times: a generator raises "
        "TypeError, and of a dictionary it takes the keys for configurations (A-45, X-18). A set has no "
        "order that lasts.",
        fix="pass `list(…)` of the configurations",
        sources=("A-45", "X-18"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for search in searches(file):
            for value in file.values(search.space) if search.space is not None else ():
                what = self._wrong(file, value)
                if what is not None:
                    yield self.about.at(file, search.space or search.call, f"the search space is {what}")

    def _wrong(self, file: SourceFile, value: ast.AST) -> str | None:
        if isinstance(value, ast.GeneratorExp):
            return "a generator expression, which has no length"
        if isinstance(value, (ast.Dict, ast.DictComp)):
            return "a dictionary: its keys are taken for configurations"
        if isinstance(value, (ast.Set, ast.SetComp)):
            return "a set, whose order changes from one process to the next"
        if isinstance(value, ast.Call):
            name = file.dotted(value.func)
            if name in {"map", "filter", "zip", "iter", "itertools.product", "itertools.chain"}:
                return f"the iterator that {name} returns, which has no length"
            if name == "dict":
                return "a dictionary: its keys are taken for configurations"
            function = file.function(value.func)
            if isinstance(function, ast.FunctionDef) and any(
                True for kind in (ast.Yield, ast.YieldFrom) for _ in own(function, kind)
            ):
                return f"the generator that {function.name} returns, which has no length"
        return None


RULE = SpaceIsNoList()
