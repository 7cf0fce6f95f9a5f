"""Rules about what Triton's tuner times, and how often."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.lengths import NAMED_LENGTH, ROUNDED, length_in
from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.rules.triton_tuning import FEW, LISTS, tuned
from tilewright.lint.triton_code import arrays
from tilewright.source.source_file import (
    SourceFile,
    argument,
    assignments,
    elements,
    keywords,
    own,
    parameters,
    returned,
)
from tilewright.source.triton import OPTIONS, TritonKernel, TritonLaunch, Tuner, launches, launches_of, operation
from tilewright.source.values import called_name

SECONDS = 0.125
"""The time that Triton 3.9 takes for one configuration: 25 ms of warm-up and 100 ms of timing."""
OTHER_TIMES = {"warmup", "rep", "use_cuda_graph", "do_bench"}
"""The arguments of ``triton.autotune`` that change this time."""
DEFAULTS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}
"""The options of ``triton.Config`` in Triton 3.9."""


class TunerKeyTooExact(Rule):
    """The tuner's key has a value that differs from call to call.

    Each new value starts a search, which times every configuration for 125 ms in Triton 3.9, while the caller waits. A
    kernel with 20 configurations stops a server or a training step for 2.5 s at each new number of tokens. The fastest
    configuration hardly differs between lengths that are close to one another.
    Fix: pass a rounded length to the kernel, such as `triton.next_power_of_2(n)`, and name this parameter in key.
    Sources: Triton 3.9: runtime/autotuner.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel, tuner in tuned(file):
            is_wanted = tuner.takes_trials and not _is_benchmark(file)
            named = tuner.names(file, LISTS["key"], "key") if is_wanted else None
            sites = launches_of(file, kernel)
            declared = {one.arg for one in parameters(kernel.node)}
            for name, node in (named or {}).items():
                cost = _cost(kernel, tuner, name) if name in declared and not _is_rounded(tuner, name) else ""
                if cost and (what := _differing(file, kernel, name, sites)):
                    yield self.at(file, node, f"the key of {kernel.node.name} has {what} {cost}")


def _is_benchmark(file: SourceFile) -> bool:
    """Returns whether a file times its kernels for chosen sizes, and wants the fastest configuration of each."""
    return any(name.endswith("perf_report") for name in file.calls)


def _is_rounded(tuner: Tuner, name: str) -> bool:
    """Returns whether the package's own tuner has a further list with the name, as `nearest_power_of_two=["M"]`."""
    others = [keyword.value for keyword in tuner.call.keywords if keyword.arg not in LISTS]
    listed = [item for value in others for item in elements(value) if isinstance(item, ast.Constant)]
    return any(item.value == name for item in listed)


def _differing(file: SourceFile, kernel: TritonKernel, name: str, sites: list[TritonLaunch]) -> str:
    """Returns the value of a key that differs between calls, in words; "" if the text shows none."""
    if name in arrays(file, kernel):
        return f"the tensor {name}, and Triton compares tensors by identity: each new tensor"
    passed = [site.passed[name] for site in sites if name in site.passed]
    if ROUNDED.search(name) or any(isinstance(value, ast.Constant) for value in passed):
        return ""
    found = [length_in(file, value) for value in passed]
    if (found and all(found)) or (not passed and NAMED_LENGTH.search(name)):
        written = f" ({found[0]})" if found and found[0] != name else ""
        return f"the exact length {name}{written}: each new length"
    return ""


def _cost(kernel: TritonKernel, tuner: Tuner, name: str) -> str:
    """Returns what a search does and how long it takes, in words; "" for fewer than `FEW` configurations, or if the
    text does not show them."""
    done = "compiles and times" if name in kernel.constants else "times"
    listed = tuner.configurations
    if listed is None or listed.most < FEW:
        return ""
    if listed.unread:
        return f"{done} every configuration again"
    some, given = "up to " if listed.notes else "", keywords(tuner.call)
    takes = "" if OTHER_TIMES & given.keys() else f", for {some}{listed.most * SECONDS:.1f} s"
    return f"{done} {some}{listed.most} configurations again{takes}"


class RepeatedConfiguration(Rule):
    """A configuration is listed twice.

    The tuner compiles and times it twice, 125 ms for each key in Triton 3.9, and the choice between the two is noise.
    Often the second one was meant to have another value, so that the intended configuration is never tried.
    Fix: remove it, or correct the value that should differ.
    Sources: Triton 3.9: runtime/autotuner.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel, tuner in tuned(file):
            listed = tuner.configurations if _is_one_list(file, argument(tuner.call, 0, "configs")) else None
            if listed is None or listed.notes or listed.unread:
                continue
            seen: dict[str, int] = {}
            repeats = []
            for written in listed.configurations:
                text = str(sorted((DEFAULTS | dict(written.fields)).items(), key=str))
                if text in seen:
                    repeats.append((seen[text], written.line))
                seen.setdefault(text, written.line)
            if repeats:
                count, (first, second) = len(repeats), repeats[0]
                where = f"line {second} repeats line {first}" if first != second else f"those of line {first}"
                message = f"{count} of {len(listed.configurations)} configurations of {kernel.node.name} repeat another"
                yield self.at(file, tuner.call, f"{message}: {where}")


def _is_one_list(file: SourceFile, configs: ast.expr | None) -> bool:
    """Returns whether all configurations of a tuner stand in one list. Two lists may be two branches of a program."""
    value = file.value(configs)
    if isinstance(value, ast.Call):
        results = returned(file.function(value.func))
        value = file.value(results[0]) if len(results) == 1 else None
    return isinstance(value, (ast.List, ast.ListComp))


class GridWithoutTile(Rule):
    """The grid does not follow the tile that the tuner chooses.

    A program computes one tile, but the number of programs is that of another tile. If the grid counts tiles of 128 and
    the tuner takes a tile of 64, half of the data is not computed. The tuner prefers this tile, as it has less work.
    Fix: compute the grid from the tile: `lambda meta: (triton.cdiv(n, meta["BLOCK"]),)`.
    Sources: Triton 3.9: runtime/autotuner.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for site in launches(file) if any(tuned(file)) else ():
            tuner = site.kernel.tuner
            if tuner is None or not tuner.takes_trials:
                continue
            grid = file.value(site.call.func.slice) if isinstance(site.call.func, ast.Subscript) else None
            for name in sorted(tuner.fields - set(OPTIONS)):
                axis = _axis_of(file, site.kernel, name)
                extents = elements(grid)
                divided = _divided_by(file, extents[axis]) if axis is not None and axis < len(extents) else 0
                small = sorted(tile for tile in _values(tuner, name) if tile < divided)
                if small:
                    lost = f"with {name}={small[0]}, {100 - 100 * small[0] // divided} % of the data are not computed"
                    message = f"the grid of {site.kernel.node.name} counts tiles of {divided}, but {name} is tuned"
                    yield self.at(file, site.call, f"{message}: {lost}")


def _divided_by(file: SourceFile, extent: ast.expr) -> int:
    """Returns the tile by which ``triton.cdiv(n, 128)`` divides; 0 for any other extent."""
    call = file.value(extent)
    tile = file.value(call.args[1]) if isinstance(call, ast.Call) and len(call.args) == 2 else None
    is_count = isinstance(call, ast.Call) and called_name(call) in {"cdiv", "ceil_div"}
    return tile.value if is_count and isinstance(tile, ast.Constant) and isinstance(tile.value, int) else 0


def _values(tuner: Tuner, name: str) -> set[int]:
    listed = tuner.configurations.configurations if tuner.configurations else ()
    values = (value for one in listed for field, value in one.fields if field == name)
    return {value for value in values if isinstance(value, int)}


def _axis_of(file: SourceFile, kernel: TritonKernel, name: str) -> int | None:
    """Returns the axis of the grid along which each program takes one tile of ``name`` elements; None if a loop may
    take more tiles."""
    if any(operation(file, call) == "num_programs" for call in own(kernel.node, ast.Call)):
        return None
    axes: dict[str, int] = {}
    for target, value in assignments(own(kernel.node, ast.Assign)):
        if (axis := _axis(file, value)) is not None:
            axes[target] = axis
    for product in own(kernel.node, ast.BinOp):
        for one, other in ((product.left, product.right), (product.right, product.left)):
            if isinstance(product.op, ast.Mult) and isinstance(other, ast.Name) and other.id == name:
                axis = axes.get(one.id) if isinstance(one, ast.Name) else _axis(file, one)
                if axis is not None and not any(isinstance(up, ast.For) for up, _ in file.within(product)):
                    return axis
    return None


def _axis(file: SourceFile, node: ast.expr) -> int | None:
    axis = argument(node, 0, "axis") if isinstance(node, ast.Call) and operation(file, node) == "program_id" else None
    return axis.value if isinstance(axis, ast.Constant) and isinstance(axis.value, int) else None


RULES = (TunerKeyTooExact("TW610", "warning"), RepeatedConfiguration("TW611", "warning"), GridWithoutTile("TW612"))
