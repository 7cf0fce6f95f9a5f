"""TW102: the configurations carry hints that the search does not set (W1)."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import (
    HINTS,
    SearchCall,
    configurations,
    given_hints,
    hints_of_kernel,
    kernels_of,
    searches,
)
from tilewright.source.source_file import SourceFile, text


class HintsNotApplied:
    about = About(
        code="TW102",
        name="hints-not-applied",
        level="error",
        title="the configurations carry hints that no trial is launched with",
        why="Configurations that differ only in such a hint are the same kernel, timed several times: the "
        "choice between them is noise, and the one that is taken is then launched as it was never timed. In "
        "TileGym's fmha three of the four Blackwell configurations are one and the same kernel (W1).",
        fix='pass hints_fn, for example `lambda cfg: {"num_ctas": cfg.num_ctas, "occupancy": cfg.occupancy}`',
        sources=("W1", "A-15"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for search in searches(file):
            if not kernels_of(file, search.kernel) and file.function(search.kernel) is not None:
                continue  # the kernel is a function of the configuration and may set its hints
            applied = given_hints(file, search.hints_fn)
            if applied is None:
                continue
            applied |= hints_of_kernel(file, search.kernel)
            carried = self._carried(file, search)
            left = [name for name in HINTS if name in carried and name not in applied]
            if left:
                how = "there is no hints_fn" if search.hints_fn is None else "hints_fn leaves it out"
                yield self.about.at(
                    file, search.call, f"the configurations set {' and '.join(left)}, which the search ignores: {how}"
                )

    def _carried(self, file: SourceFile, search: SearchCall) -> set[str]:
        """Hints that some configuration gives a value."""
        records = configurations(file, search.space)
        return {name for one in records for name in HINTS if name in one and text(one[name]) != "None"}


RULE = HintsNotApplied()
