"""Every trial of the search runs on what the trial before it wrote.

A search launches the kernel hundreds of times. Where it reads an array that it also writes, all but the first launch
see another input: the result is wrong, and so may be the time. A clone in args_fn is outside the timed region and costs
about 4 µs of wall time a sample.

Fix: in args_fn pass a scratch buffer or `tensor.clone()`; let only the final launch work in place.

Sources: cuda-tile 1.7: cuda.tile.tune.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.tile_code import accesses
from tilewright.source.cutile import KernelSource, SearchSite, kernels_of, launches, searches
from tilewright.source.source_file import Function, SourceFile, elements, names, own, parameters, returned

FRESH = {"clone", "copy", "empty", "empty_like", "zeros", "zeros_like", "new_empty", "new_zeros", "full"}
RESETS = {"zero_", "fill_", "copy_"}


class InPlaceSearch(Rule):
    code = "TW101"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in searches(file):
            function = file.function(search.args_fn)
            kernels = kernels_of(file, search.kernel)
            for given in returned(function) if function is not None and len(kernels) == 1 else ():
                passed = elements(file.value(given))  # args = (…); lambda cfg: args
                if function is not None and not any(isinstance(element, ast.Starred) for element in passed):
                    yield from self._corrupted(file, search, function, kernels[0], passed)

    def _corrupted(
        self, file: SourceFile, search: SearchSite, function: Function, kernel: KernelSource, passed: list[ast.expr]
    ) -> Iterator[LintFinding]:
        done = accesses(file, kernel.node)
        by_name = dict(zip((parameter.arg for parameter in parameters(kernel.node)), passed, strict=False))
        both = done.both(file)
        for name, value in by_name.items():
            if not isinstance(value, ast.Name) or _reset(file, function, value) or _scratch(file, search, value):
                continue
            if name in both:
                message = f"the search passes {value.id} itself for {name}, which {kernel.name} reads and writes"
                yield self.at(file, value, message)
            elif name in done.written:
                same = (other for other, twin in by_name.items() if _same(twin, value) and other in done.read)
                if (twin := next(same, None)) is not None:
                    yield self.at(
                        file, value,
                        f"the search passes {value.id} as {twin}, which {kernel.name} reads, and as {name}, which it "
                        "writes",
                    )  # fmt: skip


def _same(passed: ast.expr, other: ast.Name) -> bool:
    return isinstance(passed, ast.Name) and passed.id == other.id and passed is not other


def _reset(file: SourceFile, function: Function, value: ast.Name) -> bool:
    """Made anew, or emptied, for every trial."""
    if isinstance(function, ast.Lambda):
        return False
    for call in file.every(ast.Call, function):
        method = call.func
        if isinstance(method, ast.Attribute) and method.attr in RESETS and value.id in names(method.value):
            return True
    return any(name.id == value.id and isinstance(name.ctx, ast.Store) for name in own(function, ast.Name))


def _scratch(file: SourceFile, search: SearchSite, value: ast.Name) -> bool:
    """Made in the function that searches, and used there for nothing else: what becomes of it does not matter."""
    owner = file.owner(search.call)
    made = [binding.value for binding in file.bindings(value.id, value)]
    if owner is None or not made:
        return False
    for call in made:
        method = call.func if isinstance(call, ast.Call) else None
        if not isinstance(method, ast.Attribute) or method.attr not in FRESH:
            return False
    kept = [launch.arguments for launch in launches(file) if file.owner(launch.call) is owner]
    return not any(used is not None and value.id in names(used) for used in (*kept, *returned(owner)))


RULE = InPlaceSearch()
