"""TW303: a kernel called like a function (rule 8)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.tile_code import in_tile_code
from tilewright.source.cutile import kernels
from tilewright.source.source_file import SourceFile


class KernelCalled:
    about = About(
        code="TW303",
        name="kernel-called",
        level="error",
        title="a kernel is called like a function",
        why="A kernel can only be launched; calling one raises TypeError, on the host and in another "
        "kernel. Helpers of a kernel stay undecorated (rule 8).",
        fix="launch it with ct.launch, or take the decorator off the helper",
        sources=("rule 8",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        found = {kernel.node for kernel in kernels(file) if kernel.node.decorator_list}
        for call in file.every(ast.Call):
            if isinstance(call.func, ast.Name) and file.value(call.func) in found:
                fix = "take its decorator off" if in_tile_code(file, call) else "launch it with ct.launch"
                yield self.about.at(file, call, f"{call.func.id} is a kernel and cannot be called: {fix}")


RULE = KernelCalled()
