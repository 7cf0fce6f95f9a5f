"""TW401: None or a string among the arguments of a launch (rules 5 and 16)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import launches, searches
from tilewright.source.source_file import SourceFile, returned


class NotAnArgument:
    about = About(
        code="TW401",
        name="not-an-argument",
        level="error",
        title="a launch cannot take this argument",
        why="A launch takes arrays, lists of arrays and numbers. None and strings raise TypeError there "
        "(rules 5 and 16, still true of cuda-tile 1.7).",
        fix="pass a tensor of one element and a constant that says whether it counts; a number instead of a string",
        sources=("rule 5", "rule 16"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        passed = [launch.arguments for launch in launches(file)]
        for search in searches(file):
            function = file.function(search.args_fn)
            passed += returned(function) if function is not None else ()
        seen = set()
        for one in passed:
            for value in file.values(one) if one is not None else ():
                for element in value.elts if isinstance(value, (ast.Tuple, ast.List)) else ():
                    wrong = _wrong(element)
                    if wrong is not None and wrong not in seen:
                        seen.add(wrong)
                        what = "None" if wrong.value is None else f"the string {wrong.value!r}"
                        yield self.about.at(file, wrong, f"{what} is passed to a kernel")


def _wrong(node: ast.expr) -> ast.Constant | None:
    if isinstance(node, ast.IfExp):
        return _wrong(node.body) or _wrong(node.orelse)
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
        return node
    return None


RULE = NotAnArgument()
