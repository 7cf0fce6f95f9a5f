"""The winner is launched with hints that the search never set.

Other hints are other machine code: registers, shared memory and spills change (rms_norm on sm_90: 255 registers by
default, 64 at occupancy 4). What is launched was then never timed against anything.

Fix: set the same hints in hints_fn as in the launch, or leave them to the kernel's decorator.

Sources: TileGym 1.5.1: ops/cutile/attention.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.source.cutile import HintedKernel, SearchSite, given_hints, hinted, kernels_of, keys_of, searches
from tilewright.source.source_file import SourceFile, text


class HintsNeverTimed(Rule):
    code = "TW103"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            timed = given_hints(file, search.hints_fn)
            if timed is None or search.kernel is None:
                continue
            for made in _made_after(file, search, text(search.kernel)):
                never = [name for name in _hints(file, made) - timed if not _decorated(file, search, name, made)]
                if never:
                    message = f"{' and '.join(sorted(never))} set here, in no trial of the search before"
                    yield self.at(file, made.call, message)


def _made_after(file: SourceFile, search: SearchSite, kernel: str) -> Iterator[HintedKernel]:
    """Kernel objects made of the searched kernel after its last search, where that search ran."""
    start, owner, outside = search.call.lineno, file.owner(search.call), _arms(file, search.call)
    later = [other.call.lineno for other in searches(file) if other.kernel is not None and text(other.kernel) == kernel]
    for made in hinted(file):
        line = made.call.lineno
        if line <= (search.call.end_lineno or 0) or file.owner(made.call) is not owner or made.kernel is None:
            continue
        latest = not any(start < other < line for other in later)
        if text(made.kernel) == kernel and latest and _arms(file, made.call) <= outside:
            yield made


def _hints(file: SourceFile, made: HintedKernel) -> set[str]:
    if made.hints is not None:
        return {name for name, value in made.hints.items() if text(value) != "None"}
    keys = ({word.arg} if word.arg else keys_of(file, word.value) or set() for word in made.call.keywords)
    return set[str]().union(*keys)


def _decorated(file: SourceFile, search: SearchSite, name: str, made: HintedKernel) -> bool:
    """Whether the kernel's decorator already sets the very value, so that all trials had it."""
    value = (made.hints or {}).get(name)
    hints = [kernel.hints.get(name) for kernel in kernels_of(file, search.kernel)]
    return bool(hints) and all(value is not None and hint is not None and text(hint) == text(value) for hint in hints)


def _arms(file: SourceFile, node: ast.AST) -> set[tuple[ast.AST, bool]]:
    """The arms of conditions that ``node`` stands in."""
    return {
        (parent, child in parent.body)
        for parent, child in file.above(node)
        if isinstance(parent, ast.If) and child is not parent.test
    }


RULE = HintsNeverTimed()
