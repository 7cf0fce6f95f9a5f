"""TW107: `ct.kernel(k._pyfunc, …)` where `k.replace_hints(…)` is meant (X-19)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import hinted, kernels_of
from tilewright.source.source_file import SourceFile


class HintsDropped:
    about = About(
        code="TW107",
        name="hints-dropped",
        level="note",
        title="a kernel made anew from its function drops the hints that are not named",
        why="`ct.kernel(k._pyfunc, …)` starts from the defaults, so opt_level, num_worker_warps and "
        "whatever else the decorator says is lost; replace_hints keeps it (X-19, A-33). It also reaches for "
        "a private attribute.",
        fix="write `k.replace_hints(…)`",
        sources=("X-19", "A-33"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for one in hinted(file):
            given = one.call.args[0] if one.call.args else None
            if one.keeps or not isinstance(given, ast.Attribute) or given.attr != "_pyfunc":
                continue
            lost = sorted(
                {
                    name
                    for kernel in kernels_of(file, one.kernel)
                    for name in kernel.hints
                    if name not in (one.hints or {})
                }
            )
            if lost:
                message = f"this drops {' and '.join(lost)}, which the kernel's decorator sets"
                yield self.about.at(file, one.call, message, "warning")
            else:
                message = "this makes the kernel anew, without any hint that its decorator may be given"
                yield self.about.at(file, one.call, message)


RULE = HintsDropped()
