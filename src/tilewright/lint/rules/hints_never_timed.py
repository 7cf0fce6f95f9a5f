"""TW103: the winner is launched with hints that no trial had (W1)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.source.cutile import HintedKernel, SearchCall, given_hints, hinted, kernels_of, keys_of, searches
from tilewright.source.source_file import SourceFile, text


class HintsNeverTimed:
    about = About(
        code="TW103",
        name="hints-never-timed",
        level="warning",
        title="the winner is launched with hints that the search never set",
        why="Other hints are other machine code: registers, shared memory and spills change (rms_norm on "
        "sm_90: 255 registers by default, 64 at occupancy 4). What is launched was then never timed against "
        "anything (W1).",
        fix="set the same hints in hints_fn as in the launch, or leave them to the kernel's decorator",
        sources=("W1",),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for search in searches(file):
            timed = given_hints(file, search.hints_fn)
            if timed is None or search.kernel is None:
                continue
            for one in self._launched(file, search):
                hints = self._hints(file, one)
                never = sorted(name for name in hints - timed if not self._decorated(file, search, name, one))
                if never:
                    yield self.about.at(
                        file, one.call, f"{' and '.join(never)} set here, in no trial of the search before"
                    )

    def _launched(self, file: SourceFile, search: SearchCall) -> Iterator[HintedKernel]:
        """Kernel objects made of the searched kernel after the search, where the search ran."""
        assert search.kernel is not None
        owner, kernel = file.owner(search.call), text(search.kernel)
        outside = _arms(file, search.call)
        for one in hinted(file):
            if one.call.lineno <= (search.call.end_lineno or 0) or file.owner(one.call) is not owner:
                continue
            if one.kernel is not None and text(one.kernel) == kernel and _arms(file, one.call) <= outside:
                later = [
                    other for other in searches(file)
                    if search.call.lineno < other.call.lineno < one.call.lineno
                    and other.kernel is not None and text(other.kernel) == kernel
                ]  # fmt: skip
                if not later:
                    yield one

    def _hints(self, file: SourceFile, one: HintedKernel) -> set[str]:
        if one.hints is not None:
            return {name for name, value in one.hints.items() if text(value) != "None"}
        found: set[str] = set()
        for word in one.call.keywords:
            keys = {word.arg} if word.arg is not None else keys_of(file, word.value)
            found |= {key for key in keys or () if key is not None}
        return found

    def _decorated(self, file: SourceFile, search: SearchCall, name: str, one: HintedKernel) -> bool:
        """Whether the kernel's decorator already sets the very value, so that all trials had it."""
        value = (one.hints or {}).get(name)
        kernels = kernels_of(file, search.kernel)
        return bool(kernels) and all(
            value is not None and name in kernel.hints and text(kernel.hints[name]) == text(value) for kernel in kernels
        )


def _arms(file: SourceFile, node: ast.AST) -> set[tuple[ast.AST, bool]]:
    """The arms of conditions that ``node`` stands in."""
    return {
        (parent, child in parent.body)
        for parent, child in file.above(node)
        if isinstance(parent, ast.If) and child is not parent.test
    }


RULE = HintsNeverTimed()
