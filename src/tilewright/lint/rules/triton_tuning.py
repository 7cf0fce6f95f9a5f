"""Rules about tuning Triton kernels: what each trial changes, and the names in keys and configurations."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.lint.rule import LintFinding, Rule
from tilewright.lint.triton_code import updates
from tilewright.lint.triton_keys import missing_constants
from tilewright.source.source_file import SourceFile, argument, elements, keywords, parameters, returned
from tilewright.source.triton import TritonKernel, Tuner, kernels, launches
from tilewright.source.values import called_name

FEW = 4
"""A search of fewer configurations takes less than half a second, and chooses little."""
LISTS = {"key": 1, "reset_to_zero": 3, "restore_value": 4}
"""The arguments of ``triton.autotune`` that are lists of parameters, each with its position."""
PRUNING = {"perf_model", "top_k", "early_config_prune"}
RESTORING = {"zero_", "copy_", "fill_", "clone"}
IGNORED = ("num_warps", "maxnreg")
"""Options that neither Triton's back end for Tile IR nor the route ``tileir`` of Tilewright uses."""


def tuned(file: SourceFile) -> Iterator[tuple[TritonKernel, Tuner]]:
    for kernel in kernels(file).values():
        if kernel.tuner is not None:
            yield kernel, kernel.tuner


class UpdateNotRestored(Rule):
    """Each trial of the tuner updates data that the previous trial updated.

    triton.autotune 3.9 launches a configuration many times, in 25 ms of warm-up and 100 ms of timing. If a kernel adds
    to its output, or overwrites its input, the result is wrong after the call that tunes.
    Fix: name the parameter in restore_value. If its data starts as zeros, reset_to_zero works, too.
    Sources: Triton 3.9: runtime/autotuner.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel, tuner in tuned(file):
            restored = [tuner.names(file, LISTS[name], name) for name in ("reset_to_zero", "restore_value")]
            if not tuner.takes_trials or None in restored or _is_hooked(file, tuner):
                continue
            saved = set[str]().union(*(names for names in restored if names))
            for name, place in updates(file, kernel).items():
                if name not in saved:
                    how = f"line {place.lineno} updates {name} in place, on every trial of the tuner"
                    message = f"{how}; add restore_value=['{name}']"
                    yield self.at(file, tuner.call, message)


def _is_hooked(file: SourceFile, tuner: Tuner) -> bool:
    """Returns whether hooks, which run before each launch, may restore the data. Configurations of another file may
    have hooks."""
    if tuner.configurations is None:
        return True
    if {"pre_hook", "post_hook", "do_bench"} & keywords(tuner.call).keys() or len(tuner.call.args) > 5:
        return True
    if "pre_hook" not in tuner.fields:
        return False
    hooks = [keywords(call)["pre_hook"] for call in file.every(ast.Call) if "pre_hook" in keywords(call)]
    bodies = [file.function(hook) for hook in hooks]
    calls = (call for body in bodies if body is not None for call in file.every(ast.Call, body))
    return None in bodies or any(called_name(call) in RESTORING for call in calls)


class TunerKey(Rule):
    """The tuner's key leaves out constants on which the kernel's code depends.

    Triton 3.9 compiles another kernel for each value of a constant. But all these kernels get the configuration that
    was tuned for the first value with this key. That configuration was never timed with the other values, and it may
    not fit into shared memory. Triton adds the dtype of each tensor to the key, and whether an optional tensor is
    there, but no other argument. Constants count that size a tile or a loop and are seen to vary, and flags of which
    the file passes both values.
    Fix: name the constants in key.
    Sources: Triton 3.9: runtime/autotuner.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel, tuner in tuned(file):
            key = tuner.names(file, LISTS["key"], "key") if tuner.takes_trials and tuner.configurations else None
            sizes, flags = missing_constants(file, kernel, set(key)) if key is not None else ([], [])
            if (sizes or flags) and not _are_few(tuner):
                kinds = ((sizes, "sizes of tiles or loops"), (flags, "selecting other loops or loads"))
                what = " and ".join(f"{_listed(names)} ({why})" for names, why in kinds if names)
                message = f"the key of {kernel.node.name} leaves out {what}: calls that differ in "
                message += f"{'it' if len(sizes + flags) == 1 else 'them'} run {_shared(tuner)}; add to key"
                yield self.at(file, argument(tuner.call, LISTS["key"], "key") or tuner.call, message)


def _are_few(tuner: Tuner) -> bool:
    """Returns whether a wrong choice costs little, because the tuner chooses between two or three configurations."""
    listed = tuner.configurations
    return listed is not None and not listed.unread and listed.most < FEW


def _shared(tuner: Tuner) -> str:
    listed = tuner.configurations
    count = listed.most if listed and not listed.unread and not listed.notes else 0
    return (
        f"the one of {count} configurations that was timed for the first call" if count else "what the first call chose"
    )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


class IgnoredOnTileIr(Rule):
    """The configurations set an option that Tile IR does not have.

    On the Tile IR route (ENABLE_TILE=1, or the hint route="tileir" of a task) the compiler chooses warps and registers.
    Configurations that differ only in num_warps or maxnreg are the same kernel, which is timed several times.
    Fix: remove the option; tune occupancy, num_ctas and num_stages instead.
    Sources: Triton-to-tile-IR: third_party/tileir/backend/compiler.py; Tilewright: docs/lint.md.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        kernels_tuned = list(tuned(file))
        for kernel, tuner in kernels_tuned if kernels_tuned and _enables_tile_ir(file) else ():
            listed = tuner.configurations.configurations if tuner.configurations else ()
            rows = [dict(one.fields) for one in listed]
            if ignored := [name for name in IGNORED if any(name in row for row in rows)]:
                others = {str([pair for pair in row.items() if pair[0] not in IGNORED]) for row in rows}
                repeated = len(rows) - len(others)
                repeats = f"; {repeated} of {len(rows)} configurations repeat another" if repeated else ""
                message = f"Tile IR ignores {_listed(ignored)} of {kernel.node.name}: remove it{repeats}"
                yield self.at(file, tuner.call, message, "warning" if repeated else "note")
        for space in file.every(ast.Call):
            hints = _entries(file, keywords(space).get("hints")) if called_name(space) == "Space" else {}
            routes = {ast.unparse(route) for route in elements(hints.get("route"))}
            for name in IGNORED:
                if routes == {"'tileir'"} and len(elements(hints.get(name))) > 1:
                    message = f"the route tileir ignores {name}: its values give one kernel; remove it from the hints"
                    yield self.at(file, hints[name], message)


def _entries(file: SourceFile, node: ast.expr | None) -> dict[str, ast.expr]:
    """Returns the entries of a literal dictionary whose keys are strings."""
    given = file.value(node)
    pairs = zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ()
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def _enables_tile_ir(file: SourceFile) -> bool:
    """Returns whether the file sets ENABLE_TILE=1 for Triton's back end."""
    for node in file.every(ast.Assign):
        if any(ast.unparse(target) == "os.environ['ENABLE_TILE']" for target in node.targets):
            return ast.unparse(node.value) == "'1'"
    calls = (call for call in file.every(ast.Call) if called_name(call) in {"setdefault", "putenv", "setenv"})
    return any([ast.unparse(value) for value in call.args[:2]] == ["'ENABLE_TILE'", "'1'"] for call in calls)


class PruningNotApplied(Rule):
    """The tuner cannot use an entry of prune_configs_by.

    Triton 3.9 reads perf_model, top_k and early_config_prune. It ignores every other key, and ignores top_k without
    perf_model. It raises AutotunerError if early_config_prune returns nothing, and TypeError for a top_k that is
    neither an integer nor a fraction up to 1.0.
    Fix: under the key early_config_prune, give a function that returns the configurations to keep.
    Sources: Triton 3.9: runtime/autotuner.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for _, tuner in tuned(file):
            given = argument(tuner.call, 2, "prune_configs_by")
            entries = _entries(file, given)
            for name, value in entries.items():
                if name not in PRUNING:
                    yield self.at(file, value, f"the tuner ignores {name!r}; it reads {_listed(sorted(PRUNING))}")
            top = entries.get("top_k")
            if top is not None and "perf_model" not in entries:
                yield self.at(file, top, "the tuner ignores top_k without perf_model; add perf_model")
            elif isinstance(top, ast.Constant) and isinstance(top.value, float) and top.value > 1:
                yield self.at(
                    file, top, f"top_k={top.value} raises TypeError; write an integer, or a fraction up to 1.0"
                )
            pruned = file.function(entries.get("early_config_prune"))
            if pruned is not None and all(ast.unparse(value) == "None" for value in returned(pruned)):
                message = "early_config_prune returns no configurations, which raises AutotunerError; return a list"
                yield self.at(file, entries["early_config_prune"], message)


class NoSuchParameter(Rule):
    """The tuner names a parameter that the kernel does not have.

    For an unknown name in key, reset_to_zero or restore_value, Triton 3.9 raises ValueError. Triton 3.6 silently drops
    the name from the key. For an unknown field of a configuration, the launch raises KeyError.
    Fix: write the name as in the kernel's signature.
    Sources: Triton 3.9: runtime/autotuner.py; runtime/jit.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for kernel, tuner in tuned(file):
            declared = {one.arg for one in parameters(kernel.node)}
            for where, position in LISTS.items():
                for name, node in (tuner.names(file, position, where) or {}).items():
                    if name not in declared:
                        yield self.at(file, node, f"{where} names {name}, but {kernel.node.name} has no such parameter")
            for name in sorted(tuner.fields - declared) if kernel.node.args.kwarg is None else ():
                if name.isupper():  # upper-case names may be options of a back end
                    message = f"the configurations set {name}, but {kernel.node.name} has no such parameter"
                    yield self.at(file, argument(tuner.call, 0, "configs") or tuner.call, message)


class TunedArgumentPassed(Rule):
    """A launch passes an argument that the tuner sets.

    Triton 3.9 raises ValueError: Conflicting meta-parameters. With a single configuration, and for options such as
    num_warps, it raises TypeError.
    Fix: remove the argument from the launch, or the field from the configurations.
    Sources: Triton 3.9: runtime/autotuner.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for launch in launches(file) if any(tuned(file)) else ():
            fields = launch.kernel.tuner.fields if launch.kernel.tuner else set()
            for name in sorted(fields & launch.passed.keys()):
                yield self.at(
                    file, launch.passed[name], f"the launch passes {name}, which the configurations set; remove it"
                )


RULES = (
    UpdateNotRestored("TW601"),
    TunerKey("TW602", "warning"),
    IgnoredOnTileIr("TW603", "warning"),
    PruningNotApplied("TW604"),
    NoSuchParameter("TW605"),
    TunedArgumentPassed("TW606"),
)
