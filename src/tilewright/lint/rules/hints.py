"""Rules about hints: the launched kernel should have hints that the search has tried."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tilewright.lint.guards import on_every_call
from tilewright.lint.rule import LintFinding, Rule
from tilewright.printable import plural
from tilewright.records import MachineCode, Value
from tilewright.source import cutile
from tilewright.source.source_file import Named, SourceFile

if TYPE_CHECKING:
    from tilewright.task.task import Task


class HintsNotApplied(Rule):
    """The search ignores hints that its configurations set.

    Configurations that differ only in such a hint give the same kernel, which is timed several times. The choice
    between them is noise, and the kernel is then launched with a hint that was never timed. In fmha of TileGym 1.5.1
    three of the four Blackwell configurations are the same kernel.
    Fix: pass hints_fn, for example `lambda cfg: {"num_ctas": cfg.num_ctas, "occupancy": cfg.occupancy}`.
    Sources: TileGym 1.5.1: ops/cutile/attention.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in cutile.searches(file):
            if not cutile.kernels_of(file, search.kernel) and file.function(search.kernel) is not None:
                continue  # the kernel is a function of the configuration and may set its hints
            applied = cutile.given_hints(file, search.hints_fn)
            if applied is None:
                continue
            applied |= cutile.hints_of_kernel(file, search.kernel)
            records = cutile.configurations(file, search.space)
            carried = {name for record in records for name, value in record.items() if ast.unparse(value) != "None"}
            if left := [name for name in cutile.HINTS if name in carried - applied]:
                how = "there is no hints_fn" if search.hints_fn is None else "hints_fn leaves it out"
                message = f"the configurations set {' and '.join(left)}, which the search ignores: {how}"
                yield self.at(file, search.call, message)


class HintsNeverTimed(Rule):
    """The winner is launched with hints that the search never set.

    With other hints the machine code differs: registers, shared memory and spills change (rms_norm on sm_90: 255
    registers by default, 64 at occupancy 4). So the kernel that is launched was never timed.
    Fix: set the same hints in hints_fn as in the launch, or leave them to the kernel's decorator.
    Sources: TileGym 1.5.1: ops/cutile/attention.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in cutile.searches(file):
            timed = cutile.given_hints(file, search.hints_fn)
            if timed is None or search.kernel is None:
                continue
            for made in _made_after(file, search, ast.unparse(search.kernel)):
                never = [name for name in _hints(file, made) - timed if not _in_decorator(file, search, name, made)]
                if never:
                    message = f"this sets {' and '.join(sorted(never))}, which no trial of the search before set"
                    yield self.at(file, made.call, message)


def _made_after(file: SourceFile, search: cutile.SearchSite, kernel: str) -> Iterator[cutile.HintedKernel]:
    """Yields the kernel objects that are made from the searched kernel after its last search.

    Leaves out objects that are made under a condition, unless the search is under the same condition.
    """
    start, owner, outside = search.call.lineno, file.owner(search.call), _arms(file, search.call)
    same = (
        other for other in cutile.searches(file) if other.kernel is not None and ast.unparse(other.kernel) == kernel
    )
    later = [other.call.lineno for other in same]
    for made in cutile.hinted(file):
        line = made.call.lineno
        if line <= (search.call.end_lineno or 0) or file.owner(made.call) is not owner or made.kernel is None:
            continue
        latest = not any(start < other < line for other in later)
        if ast.unparse(made.kernel) == kernel and latest and _arms(file, made.call) <= outside:
            yield made


class HintsNotLaunched(Rule):
    """The search varies hints, and the kernel is then launched without them.

    The winner was timed with its hints. The launch of the kernel itself uses those of its decorator, so other machine
    code runs than was chosen (rms_norm on sm_90: 255 registers by default, 64 at occupancy 4).
    Fix: launch `kernel.replace_hints(…)` with the winner's hints, made once and stored with the configuration.
    Sources: cuda-tile 1.7: cuda.tile.tune.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for search in cutile.searches(file):
            timed, owner = cutile.given_hints(file, search.hints_fn), file.owner(search.call)
            if not timed or owner is None or search.kernel is None or any(_makes(file, owner)):
                continue
            for launch in cutile.launches(file):
                same = launch.kernel is not None and ast.unparse(launch.kernel) == ast.unparse(search.kernel)
                after = launch.call.lineno > search.call.lineno and file.owner(launch.call) is owner
                if same and after and _arms(file, launch.call) <= _arms(file, search.call):
                    message = f"this launches {ast.unparse(search.kernel)} without {' and '.join(sorted(timed))}"
                    yield self.at(file, launch.call, f"{message}, which the search in line {search.call.lineno} varies")


def _makes(file: SourceFile, owner: Named) -> Iterator[ast.AST]:
    """Yields what may give the launched kernel its hints: kernel objects that are made in a function or that it calls,
    and assignments to names of kernels."""
    yield from (made.call for made in cutile.hinted(file) if file.owner(made.call) is owner)
    for call in file.every(ast.Call, owner):
        called = file.function(call.func)
        if called is not None and any(made.call in set(ast.walk(called)) for made in cutile.hinted(file)):
            yield call


def _hints(file: SourceFile, made: cutile.HintedKernel) -> set[str]:
    if made.hints is not None:
        return {name for name, value in made.hints.items() if ast.unparse(value) != "None"}
    keys = ({word.arg} if word.arg else cutile.keys_of(file, word.value) or set() for word in made.call.keywords)
    return set[str]().union(*keys)


def _in_decorator(file: SourceFile, search: cutile.SearchSite, name: str, made: cutile.HintedKernel) -> bool:
    """Returns whether the kernel's decorator sets the hint ``name`` to the same value, so that all trials had this
    hint."""
    value = (made.hints or {}).get(name)
    hints = [kernel.hints.get(name) for kernel in cutile.kernels_of(file, search.kernel)]
    return bool(hints) and value is not None and all(hint and ast.dump(hint) == ast.dump(value) for hint in hints)


def _arms(file: SourceFile, node: ast.AST) -> set[tuple[ast.AST, bool]]:
    """Returns the ``if`` statements around ``node``. For each: True if ``node`` is in its body, False for its ``else``
    branch."""
    above = file.above(node)
    return {(if_, child in if_.body) for if_, child in above if isinstance(if_, ast.If) and child is not if_.test}


class DecoratorHints(Rule):
    """The decorator sets a hint that the search varies.

    In cuda-tile 1.7 a code path without replace_hints silently launches with the decorator's value, not the winner's.
    Fix: remove the hint from the decorator; let the search's winner or an explicit fallback set the hint.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        seen = set()
        for search in cutile.searches(file):
            applied = cutile.given_hints(file, search.hints_fn) or set()
            fields = set[str]().union(*cutile.configurations(file, search.space))
            if fields and _depends(file, search.hints_fn):
                applied &= fields
            for kernel in cutile.kernels_of(file, search.kernel):
                fixed = [name for name in kernel.hints if name in applied]
                if fixed and kernel.node not in seen:
                    seen.add(kernel.node)
                    values = " and ".join(f"{name}={ast.unparse(kernel.hints[name])}" for name in fixed)
                    varied = f"which the search in line {search.call.lineno} varies"
                    message = f"{kernel.name} is decorated with {values}, {varied}"
                    yield self.at(file, kernel.hints[fixed[0]], message)


def _depends(file: SourceFile, hints_fn: ast.expr | None) -> bool:
    """Returns whether ``hints_fn`` or a function that it calls contains a condition, so that a hint may be missing.
    Also True if ``hints_fn`` is not a function of the file."""
    function = file.function(hints_fn)
    if function is None:
        return True
    bodies = [function, *filter(None, (file.function(call.func) for call in file.every(ast.Call, function)))]
    return any(isinstance(node, (ast.If, ast.IfExp)) for body in bodies for node in ast.walk(body))


class HintsDropped(Rule):
    """Making a kernel again from its function drops the hints of its decorator.

    `ct.kernel(k._pyfunc, …)` starts from the defaults of cuda-tile 1.7, so opt_level, num_worker_warps and all other
    hints of the decorator are lost. replace_hints keeps them. `_pyfunc` is also a private attribute.
    Fix: write `k.replace_hints(…)`.
    Sources: cuda-tile 1.7.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for made in cutile.hinted(file):
            given = made.call.args[0] if made.call.args else None
            if made.keeps or not isinstance(given, ast.Attribute) or given.attr != "_pyfunc":
                continue
            before = {name for kernel in cutile.kernels_of(file, made.kernel) for name in kernel.hints}
            if lost := sorted(before - set(made.hints or ())):
                message = f"this drops {' and '.join(lost)}, which the kernel's decorator sets"
                yield self.at(file, made.call, message, "warning")
            else:
                message = "this makes the kernel again, and will drop every hint that its decorator may get later"
                yield self.at(file, made.call, message)


class HintsOnHotPath(Rule):
    """A new kernel object is made on every call.

    Each new kernel object has an empty cache and is compiled again at its launch, in 16 to 39 ms instead of 0.04 ms.
    Fix: make the kernel object once, at the top of the file or on a cache miss, and store it with the configuration.
    Sources: TileGym 1.5.1: suites/liger/cutile/grpo_loss.py.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        for made in cutile.hinted(file):
            parent = file.parent(made.call)
            targets = parent.targets if isinstance(parent, ast.Assign) else ()
            is_kept = any(isinstance(target, ast.Attribute) for target in targets)  # as long as the object exists
            is_kept = is_kept or "cache" in file.dotted(made.call.func).lower()
            if not is_kept and (owner := _launching_function(file, made.call)):
                what = "replace_hints" if made.keeps else "ct.kernel"
                yield self.at(file, made.call, f"{what} runs on every call of {owner}{_condition(file, made.call)}")
        for kernel in cutile.kernels(file):
            for decorator in kernel.node.decorator_list[:1]:
                if owner := _launching_function(file, decorator):
                    yield self.at(file, decorator, f"the kernel {kernel.name} is made on every call of {owner}")


def _launching_function(file: SourceFile, node: ast.AST) -> str:
    """Returns the name of the function around ``node`` if ``node`` runs on every call of the function; otherwise "".

    The function, or a caller of it in this file, must also launch a kernel. If the function only makes kernels, another
    file may cache the kernels.
    """
    owner = file.owner(node)
    return owner.name if owner is not None and _launches(file, owner) and on_every_call(file, node) else ""


def _launches(file: SourceFile, owner: Named | None, seen: frozenset[ast.AST] = frozenset()) -> bool:
    if owner is None or owner in seen:
        return False
    callers = (file.owner(call) for call in file.calls_of(owner)[0])
    around = (parent for launch in cutile.launches(file) for parent, _ in file.above(launch.call))
    launches_itself = any(parent is owner for parent in around)
    return launches_itself or any(_launches(file, caller, seen | {owner}) for caller in callers)


def _condition(file: SourceFile, node: ast.AST) -> str:
    """Returns the innermost condition around ``node``, as text for the message; "" if there is none."""
    arms = (parent for parent, child in file.within(node) if isinstance(parent, ast.If) and child in parent.body)
    return next((f" where {test}" for arm in arms if len(test := ast.unparse(arm.test)) < 60), "")


CENTRES = 3
"""The number of configurations in which each hint is varied: the shipped one, and others from the space."""


class NoOpHint(Rule):
    """A searched hint changes no machine code.

    Configurations that differ only in this hint are the same program. The search times this program several times, and
    noise decides. In 24 pairs of kernel and architecture, occupancy 16 and 32 always gave the code of 8, and occupancy
    1 the code of automatic. The rule needs --compile: it varies each hint alone in a few configurations of the first
    workload.
    Fix: remove the hint, or the values that give equal machine code, from the space.
    Sources: tileiras 13.4.
    """

    def findings(self, file: SourceFile) -> Iterator[LintFinding]:
        return iter(())  # only compiling shows the mistake

    def compiled_findings(self, file: SourceFile, arch: str) -> Iterator[LintFinding]:
        """Yields findings for the tasks in the file. Does not catch the errors of loading and compiling."""
        from tilewright.languages import keep_torch_out
        from tilewright.task.loading import load_task

        for node in file.tree.body:
            if (
                isinstance(node, ast.Assign)
                and node.value in cutile.tasks(file)
                and isinstance(node.targets[0], ast.Name)
            ):
                keep_torch_out()
                yield from self._of_task(file, load_task(f"{file.path}:{node.targets[0].id}"), arch)

    def _of_task(self, file: SourceFile, task: Task, arch: str) -> Iterator[LintFinding]:
        from tilewright.compile.compile import Unit, compile_all
        from tilewright.hardware.architectures import default_board

        board, workload = default_board(arch), task.selected(None)[0]
        every = task.space.configurations(int(arch.removeprefix("sm_")), workload.dims)
        centres = tuple(dict.fromkeys((every[0], *every[:: max(1, len(every) // CENTRES)])))[:CENTRES]
        for hint in task.space.hints:
            values = task.space.known_values(hint)
            rows = [tuple(centre.replace(**{hint: value}) for value in values) for centre in centres]
            distinct = dict.fromkeys(configuration for row in rows for configuration in row)
            units = [Unit(workload, configuration, board) for configuration in distinct]
            codes = ((row.unit.configuration, row.code) for row in compile_all(task, units))
            hashes = {configuration: code.code_hash for configuration, code in codes if isinstance(code, MachineCode)}
            repeats = _repeats(values, [[hashes.get(configuration) for configuration in row] for row in rows])
            if repeats:
                around = plural(len(rows), "configuration")
                message = f"task {task.name}: {hint} {repeats}, around {around} of workload {workload.name} on {arch}"
                yield self.at(file, _first_mention(file, hint), message)


def _repeats(values: Sequence[Value], rows: Sequence[Sequence[str | None]]) -> str:
    """Returns a string with the values of a hint that give equal code. Returns "" if all differ, or if too few
    compiled.

    rows: one for each configuration in which the hint is varied. A row has the hash of the code of each value, or None
    if the value does not compile. Two values differ if their hashes differ in some row.
    """
    whole = [row for row in rows if None not in row]
    if not whole or len(values) < 2:
        return ""
    if all(len(set(row)) == 1 for row in whole):
        return "changes no machine code at all"
    repeats = []
    for index, value in enumerate(values):
        same = (before for before in range(index) if all(row[index] == row[before] for row in whole))
        if (first := next(same, None)) is not None:
            pair = ("automatic" if same_code is None else str(same_code) for same_code in (value, values[first]))
            repeats.append(" is the same code as ".join(pair))
    return "; ".join(repeats)


def _first_mention(file: SourceFile, hint: str) -> ast.AST:
    for node in file.nodes:
        if isinstance(node, ast.Constant) and node.value == hint:
            return node
        if isinstance(node, ast.keyword) and node.arg == hint:
            return node.value
    return file.tree


RULES = (
    HintsNotApplied("TW102"),
    HintsNeverTimed("TW103", "warning"),
    DecoratorHints("TW106", "warning"),
    HintsDropped("TW107", "note"),
    HintsOnHotPath("TW203"),
    HintsNotLaunched("TW111", "warning"),
    NoOpHint("TW501", "warning"),
)
