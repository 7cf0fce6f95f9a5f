"""A kernel made anew from its function drops the hints that are not named.

`ct.kernel(k._pyfunc, …)` starts from the defaults of cuda-tile 1.7, so opt_level, num_worker_warps and whatever else
the decorator says is lost; replace_hints keeps it. It also reaches for a private attribute.

Fix: write `k.replace_hints(…)`.

Sources: cuda-tile 1.7.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import hinted, kernels_of
from tilewright.source.source_file import SourceFile


class HintsDropped(Rule):
    code = "TW107"
    level = "note"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for made in hinted(file):
            given = made.call.args[0] if made.call.args else None
            if made.keeps or not isinstance(given, ast.Attribute) or given.attr != "_pyfunc":
                continue
            before = {name for kernel in kernels_of(file, made.kernel) for name in kernel.hints}
            if lost := sorted(before - set(made.hints or ())):
                message = f"this drops {' and '.join(lost)}, which the kernel's decorator sets"
                yield self.at(file, made.call, message, "warning")
            else:
                message = "this makes the kernel anew, without any hint that its decorator may be given"
                yield self.at(file, made.call, message)


RULE = HintsDropped()
