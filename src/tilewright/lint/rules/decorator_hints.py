"""The decorator fixes a hint that is searched.

In cuda-tile 1.7 a path that forgets replace_hints launches with the decorator's value and says nothing: what runs has
another value of the hint than the search picked.

Fix: leave the decorator bare, and let the search's winner or an explicit fallback set the hint.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import configurations, given_hints, kernels_of, searches
from tilewright.source.source_file import SourceFile, text


class DecoratorHints(Rule):
    code = "TW106"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        seen = set()
        for search in searches(file):
            applied = given_hints(file, search.hints_fn) or set()
            fields = set[str]().union(*configurations(file, search.space))
            if fields and _depends(file, search.hints_fn):
                applied &= fields
            for kernel in kernels_of(file, search.kernel):
                fixed = [name for name in kernel.hints if name in applied]
                if fixed and kernel.node not in seen:
                    seen.add(kernel.node)
                    values = " and ".join(f"{name}={text(kernel.hints[name])}" for name in fixed)
                    yield self.at(
                        file, kernel.hints[fixed[0]],
                        f"{kernel.name} is decorated with {values}, which the search in line "
                        f"{search.call.lineno} varies",
                    )  # fmt: skip


def _depends(file: SourceFile, hints_fn: ast.expr | None) -> bool:
    """Whether the function sets a hint only where the configuration has it."""
    function = file.function(hints_fn)
    if function is None:
        return True
    bodies = [function, *filter(None, (file.function(call.func) for call in file.every(ast.Call, function)))]
    return any(isinstance(node, (ast.If, ast.IfExp)) for body in bodies for node in ast.walk(body))


RULE = DecoratorHints()
