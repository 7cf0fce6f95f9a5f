"""The key of a tuning cache leaves out what the choice depends on.

What is stored for one call then serves another that wants other code: strides and alignment decide about TMA and vector
width, sizes about tiles, constants about everything. Rounding to a power of two merges shapes up to twice apart, and
divisible with ragged ones. A cache that outlives its process also needs GPU model and toolkit: `cuda:0` names neither.

Fix: put every size, constant and dtype of the launch into the key, with strides and address % 16 of each tensor.

Sources: TileGym 1.5.1: ops/cutile/softmax.py; ops/cutile/matmul.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.caches import CacheWrite, CoveredByKey, bound_inside, key_parts, tuning_caches
from tilewright.lint.layouts import strides_vary
from tilewright.lint.rule import Level, LintFinding, Rule
from tilewright.lint.tile_code import annotation
from tilewright.source.cutile import kernels_of
from tilewright.source.source_file import SourceFile, parameters, returned


class CacheKey(Rule):
    code = "TW201"
    level = "warning"

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for cache in tuning_caches(file):
            missing: list[str] = []
            rounded: list[str] = []
            layout = ["strides"] if any(strides_vary(file, write.search) for write in cache.writes) else []
            layout += ["alignment"]
            for write in cache.writes:
                parts = key_parts(file, write.key)
                if parts is None:
                    break
                covered = CoveredByKey(file, parts)
                missing += _missing(file, write, covered)
                rounded += _rounded(file, parts)
                settled = {"strides"} if covered.mentions("stride", "layout") else set()
                settled |= {"alignment"} if covered.mentions("align", "data_ptr") else set()
                layout = [part for part in layout if part not in settled]
            else:
                left = [name for name in dict.fromkeys(missing) if "stride" not in name.lower()]
                lies = [f"the tensors' {' and '.join(layout)}"] if layout else []
                told = [f"leaves out {', '.join((*left, *lies))}"] if left or lies else []
                if rounded:
                    told.append(f"rounds {', '.join(dict.fromkeys(rounded))} to a power of two")
                if told:
                    level: Level = "warning" if left or rounded else "note"
                    place = _key_place(file, cache.writes[0])
                    yield self.at(file, place, f"the key of {cache.name} {' and '.join(told)}", level)


def _missing(file: SourceFile, write: CacheWrite, covered: CoveredByKey) -> list[str]:
    """What the choice depends on and the key does not cover, by name."""
    search = write.search
    missing = [] if covered.mentions("dtype") else ["dtypes"]
    missing += [] if covered.mentions("device", "capability") else ["the device"]
    if file.owner(search.call) is not file.owner(write.place):
        return missing  # names of another function
    grid = file.function(search.grid_fn)
    for value in returned(grid):
        missing += covered.missing(value, bound_inside(grid))
    function, kernels = file.function(search.args_fn), kernels_of(file, search.kernel)
    for value in returned(function) if len(kernels) == 1 else ():
        if isinstance(value, ast.Tuple) and not any(isinstance(element, ast.Starred) for element in value.elts):
            for parameter, passed in zip(parameters(kernels[0].node), value.elts, strict=False):
                if annotation(file, parameter) == "constant":
                    missing += covered.missing(passed, bound_inside(function))
    return missing


def _rounded(file: SourceFile, parts: list[ast.AST]) -> list[str]:
    """What the key rounds to a power of two."""
    rounded = []
    for call in (call for part in parts for call in file.every(ast.Call, part)):
        name = file.dotted(call.func).rpartition(".")[2].lower()
        if ("pow" in name and "2" in name) or name == "bit_length":
            rounded += [ast.unparse(given) for given in call.args]
    return rounded


def _key_place(file: SourceFile, write: CacheWrite) -> ast.AST:
    """Where the key is written: the tuple that its name stands for, else the place that stores."""
    if isinstance(write.key, ast.Name):
        for binding in file.bindings(write.key.id, write.key):
            if binding.value is not None:
                return binding.place
    return write.place


RULE = CacheKey()
