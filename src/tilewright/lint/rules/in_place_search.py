"""TW101: a search whose trials run on their own output (A-41, Part 7 check 7)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.findings import About, Finding
from tilewright.lint.tile_code import accesses
from tilewright.source.cutile import KernelSource, SearchCall, kernels_of, launches, searches
from tilewright.source.source_file import Function, SourceFile, names, own, parameters, returned

FRESH = {"clone", "copy", "empty", "empty_like", "zeros", "zeros_like", "new_empty", "new_zeros", "full"}
RESETS = {"zero_", "fill_", "copy_"}


class InPlaceSearch:
    about = About(
        code="TW101",
        name="in-place-search",
        level="error",
        title="every trial of the search runs on what the trial before it wrote",
        why="A search launches the kernel hundreds of times. Where it reads an array that it also writes, "
        "all but the first launch see another input: the result is wrong, and so may be the time (A-41). A "
        "clone in args_fn is outside the timed region and costs about 4 µs of wall time a sample (X-08).",
        fix="in args_fn pass a scratch buffer or `tensor.clone()`; let only the final launch work in place",
        sources=("A-41", "A-12", "X-08"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for search in searches(file):
            function = file.function(search.args_fn)
            kernels = kernels_of(file, search.kernel)
            if function is None or len(kernels) != 1:
                continue
            for given in returned(function):
                value = file.value(given)  # args = (…); lambda cfg: args
                if isinstance(value, ast.Tuple) and not any(isinstance(one, ast.Starred) for one in value.elts):
                    yield from self._corrupted(file, search, function, kernels[0], value.elts)

    def _corrupted(
        self, file: SourceFile, search: SearchCall, function: Function, kernel: KernelSource, passed: list[ast.expr]
    ) -> Iterator[Finding]:
        done = accesses(file, kernel.node)
        named = [one.arg for one in parameters(kernel.node)]
        by_name = dict(zip(named, passed, strict=False))
        both = done.both(file)
        for name, value in by_name.items():
            if not isinstance(value, ast.Name) or _reset(file, function, value) or _scratch(file, search, value):
                continue
            if name in both:
                yield self.about.at(
                    file, value,
                    f"the search passes {value.id} itself for {name}, which {kernel.name} reads and writes",
                )  # fmt: skip
            elif name in done.written:
                twin = next(
                    (other for other, same in by_name.items() if _same(same, value) and other in done.read), None
                )
                if twin is not None:
                    yield self.about.at(
                        file, value,
                        f"the search passes {value.id} as {twin}, which {kernel.name} reads, and as {name}, which it "
                        "writes",
                    )  # fmt: skip


def _same(one: ast.expr, other: ast.Name) -> bool:
    return isinstance(one, ast.Name) and one.id == other.id and one is not other


def _reset(file: SourceFile, function: Function, value: ast.Name) -> bool:
    """Made anew, or emptied, for every trial."""
    if isinstance(function, ast.Lambda):
        return False
    for call in file.every(ast.Call, function):
        method = call.func
        if isinstance(method, ast.Attribute) and method.attr in RESETS and value.id in names(method.value):
            return True
    return any(one.id == value.id and isinstance(one.ctx, ast.Store) for one in own(function, ast.Name))


def _scratch(file: SourceFile, search: SearchCall, value: ast.Name) -> bool:
    """Made in the function that searches, and used there for nothing else: what becomes of it does not matter."""
    owner = file.owner(search.call)
    bindings = file.bindings(value.id, value)
    made = [one.value for one in bindings if isinstance(one.value, ast.Call)]
    if owner is None or len(made) != len(bindings) or not made:
        return False
    if not all(isinstance(one.func, ast.Attribute) and one.func.attr in FRESH for one in made):
        return False
    kept = [launch.arguments for launch in launches(file) if file.owner(launch.call) is owner]
    kept += list(returned(owner))
    return not any(one is not None and value.id in names(one) for one in kept)


RULE = InPlaceSearch()
