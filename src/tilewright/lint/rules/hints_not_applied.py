"""The configurations carry hints that no trial is launched with.

Configurations that differ only in such a hint are the same kernel, timed several times: the choice between them is
noise, and the one that is taken is then launched as it was never timed. In fmha of TileGym 1.5.1 three of the four
Blackwell configurations are one and the same kernel.

Fix: pass hints_fn, for example `lambda cfg: {"num_ctas": cfg.num_ctas, "occupancy": cfg.occupancy}`.

Sources: TileGym 1.5.1: ops/cutile/attention.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import HINTS, configurations, given_hints, hints_of_kernel, kernels_of, searches
from tilewright.source.source_file import SourceFile, text


class HintsNotApplied(Rule):
    code = "TW102"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            if not kernels_of(file, search.kernel) and file.function(search.kernel) is not None:
                continue  # the kernel is a function of the configuration and may set its hints
            applied = given_hints(file, search.hints_fn)
            if applied is None:
                continue
            applied |= hints_of_kernel(file, search.kernel)
            records = configurations(file, search.space)
            carried = {name for record in records for name, value in record.items() if text(value) != "None"}
            if left := [name for name in HINTS if name in carried - applied]:
                how = "there is no hints_fn" if search.hints_fn is None else "hints_fn leaves it out"
                message = f"the configurations set {' and '.join(left)}, which the search ignores: {how}"
                yield self.at(file, search.call, message)


RULE = HintsNotApplied()
