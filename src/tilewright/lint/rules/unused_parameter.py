"""A kernel does not use a parameter.

cuda-tile 1.7 packs and passes it at every launch; as a constant it also makes a kernel for each value. No error: the
rule is one of style, and off unless selected.

Fix: take it out of the signature and the launches.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import kernels
from tilewright.source.source_file import SourceFile, parameters


class UnusedParameter(Rule):
    code = "TW311"
    level = "note"
    by_default = False

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel in kernels(file):
            used = {name.id for statement in kernel.node.body for name in file.every(ast.Name, statement)}
            for parameter in parameters(kernel.node):
                if parameter.arg not in used and not parameter.arg.startswith("_"):
                    yield self.at(file, parameter, f"{kernel.name} does not use {parameter.arg}")


RULE = UnusedParameter()
