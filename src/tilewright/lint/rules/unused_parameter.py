"""TW311: parameters that a kernel does not use (rule 18: style). Off unless selected."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import kernels
from tilewright.source.source_file import SourceFile, parameters


class UnusedParameter:
    about = About(
        code="TW311",
        name="unused-parameter",
        level="note",
        title="a kernel does not use a parameter",
        why="It is packed and passed at every launch; as a constant it also makes a kernel for each value. "
        "No error: the rule is one of style (rule 18).",
        fix="take it out of the signature and the launches",
        sources=("rule 18",),
        by_default=False,
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for kernel in kernels(file):
            used = {one.id for statement in kernel.node.body for one in file.every(ast.Name, statement)}
            for parameter in parameters(kernel.node):
                if parameter.arg not in used and not parameter.arg.startswith("_"):
                    yield self.about.at(file, parameter, f"{kernel.name} does not use {parameter.arg}")


RULE = UnusedParameter()
