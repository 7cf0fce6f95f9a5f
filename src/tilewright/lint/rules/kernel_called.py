"""A kernel is called like a function.

In cuda-tile 1.7 a kernel can only be launched; calling one raises TypeError, on the host and in another kernel. Helpers
of a kernel stay undecorated.

Fix: launch it with ct.launch, or take the decorator off the helper.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import in_tile_code
from tilewright.source.cutile import kernels
from tilewright.source.source_file import SourceFile


class KernelCalled(Rule):
    code = "TW303"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        decorated = {kernel.node for kernel in kernels(file) if kernel.node.decorator_list}
        for call in file.every(ast.Call):
            if isinstance(call.func, ast.Name) and file.value(call.func) in decorated:
                fix = "take its decorator off" if in_tile_code(file, call) else "launch it with ct.launch"
                yield self.at(file, call, f"{call.func.id} is a kernel and cannot be called: {fix}")


RULE = KernelCalled()
