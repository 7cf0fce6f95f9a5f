"""TW201: a tuning cache whose key leaves out what the choice depends on (W3, X-21, X-22)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.caches import Cache, Covered, Part, Store, assigned_inside, key_parts, local_names, tuning_caches
from tilewright.lint.findings import About, Finding, Level
from tilewright.lint.layouts import strides_vary
from tilewright.lint.tile_code import annotation
from tilewright.source.cutile import kernels_of
from tilewright.source.source_file import SourceFile, parameters, returned


class CacheKey:
    about = About(
        code="TW201",
        name="cache-key",
        level="warning",
        title="the key of a tuning cache leaves out what the choice depends on",
        why="What is stored for one call then serves another that wants other code: strides and alignment "
        "decide about TMA and vector width, sizes about tiles, constants about everything (W3). Rounding to "
        "a power of two merges shapes up to twice apart, and divisible with ragged ones (X-22). A cache "
        "that outlives its process also needs GPU model and toolkit: `cuda:0` names neither (X-21).",
        fix="put every size, constant and dtype of the launch into the key, with strides and address % 16 "
        "of each tensor",
        sources=("W3", "X-21", "X-22", "A-15"),
    )

    def findings(self, file: SourceFile) -> Iterator[Finding]:
        for cache in tuning_caches(file):
            missing: list[str] = []
            rounded: list[str] = []
            vary = any(strides_vary(file, store.search) for store in cache.stores)
            layout = {"strides", "alignment"} if vary else {"alignment"}
            for store in cache.stores:
                parts = key_parts(file, store.key)
                if parts is None:
                    break
                covered = Covered(file, parts)
                missing += self._missing(file, cache, store, covered)
                rounded += self._rounded(file, parts)
                layout -= {"strides"} if covered.mentions("stride", "layout") else set()
                layout -= {"alignment"} if covered.mentions("align", "data_ptr") else set()
            else:
                yield from self._found(file, cache, missing, rounded, sorted(layout, reverse=True))

    def _found(
        self, file: SourceFile, cache: Cache, missing: list[str], rounded: list[str], layout: list[str]
    ) -> Iterator[Finding]:
        left = [one for one in dict.fromkeys(missing) if "stride" not in one.lower()]
        lies = [f"the tensors' {' and '.join(layout)}"] if layout else []
        told = [f"leaves out {', '.join((*left, *lies))}"] if left or lies else []
        if rounded:
            told.append(f"rounds {', '.join(dict.fromkeys(rounded))} to a power of two")
        if told:
            place = _key_place(file, cache.stores[0])
            level: Level = "warning" if left or rounded else "note"
            yield self.about.at(file, place, f"the key of {cache.name} {' and '.join(told)}", level)

    def _missing(self, file: SourceFile, cache: Cache, store: Store, covered: Covered) -> list[str]:
        search = store.search
        found = []
        if not covered.mentions("dtype"):
            found.append("dtypes")
        if not covered.mentions("device", "capability"):
            found.append("the device")
        if file.owner(search.call) is not file.owner(store.place):
            return found  # names of another function
        grid = file.function(search.grid_fn)
        if grid is not None:
            for value in returned(grid):
                found += covered.missing(value, local_names(grid) | assigned_inside(grid))
        found += self._missing_constants(file, store, covered)
        return found

    def _missing_constants(self, file: SourceFile, store: Store, covered: Covered) -> list[str]:
        """Names behind the arguments that the kernel declares constant."""
        function, kernels = file.function(store.search.args_fn), kernels_of(file, store.search.kernel)
        if function is None or len(kernels) != 1:
            return []
        found = []
        declared = parameters(kernels[0].node)
        for value in returned(function):
            if not isinstance(value, ast.Tuple) or any(isinstance(one, ast.Starred) for one in value.elts):
                continue
            for parameter, passed in zip(declared, value.elts, strict=False):
                if annotation(file, parameter) == "constant":
                    found += covered.missing(passed, local_names(function) | assigned_inside(function))
        return found

    def _rounded(self, file: SourceFile, parts: tuple[Part, ...]) -> list[str]:
        found = []
        for part in parts:
            for call in (one for one in ast.walk(part.node) if isinstance(one, ast.Call)):
                name = file.dotted(call.func).rpartition(".")[2].lower()
                if ("pow" in name and "2" in name) or name == "bit_length":
                    found += [ast.unparse(one) for one in call.args]
        return found


def _key_place(file: SourceFile, store: Store) -> ast.AST:
    """Where the key is written: the tuple that its name stands for, else the place that stores."""
    if isinstance(store.key, ast.Name):
        for binding in file.bindings(store.key.id, store.key):
            if binding.value is not None:
                return binding.place
    return store.place


RULE = CacheKey()
