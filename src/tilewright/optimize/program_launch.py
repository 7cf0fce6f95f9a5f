"""Changes the launch in the program's own code, after the loop has changed the launch of a captured task.

    kept launch → the program's ct.launch → its recorded call, made again → the same launch? → commit

A captured task has the file, the line and the call with which the program made the launch. The changed text of the
program is accepted if this call, with the changed files, makes exactly the kept launch: kernel, grid, arguments and
hints. Otherwise the patch does not change the program's launch, and the report says what its caller must launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.inspect.work import count
from tilewright.languages import language_of
from tilewright.ledger import codec
from tilewright.optimize.attempting import Variant
from tilewright.optimize.versions.workspace import Workspace
from tilewright.playbook.analyses.host_launch import TaskLaunch, launch_number, with_hints, with_launch
from tilewright.playbook.analyses.searched_launch import search_of, with_searched_launch
from tilewright.playbook.analyses.task_code import launch_of
from tilewright.playbook.base import KernelFacts, NotApplicable, unless_refused
from tilewright.records import Value
from tilewright.runtime.capture.described import Argument, DescribedLaunch
from tilewright.runtime.capture.drafted_launch import launch_place
from tilewright.runtime.capture.program_call import ProgramCall, ProgramLine
from tilewright.runtime.capture.reference import Captured
from tilewright.runtime.capture.replaying import Replayed, WantedLaunch, no_tensors, replayed
from tilewright.source.syntax import Source
from tilewright.task.loading import file_of
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec

Texts = Mapping[Path, str]


def in_program(task: Task, workspace: Workspace, incumbent: Variant, n: int) -> list[str]:
    """Commits the launch of ``incumbent``, the last kept version, in the program's code, as attempt ``n``.

    task: the untouched task. Returns lines for the report; none if the task was not captured, or if its launch is as
    before.
    """
    captured = getattr(task.reference, "__self__", None)
    old, new = workspace.texts(workspace.base_commit), incumbent.texts
    if not isinstance(captured, Captured) or (file := file_of(task)) not in new:
        return []
    before = TaskLaunch(Source(file.name, old[file]), task.space.shipped)
    after = TaskLaunch(Source(file.name, new[file]), incumbent.task.space.shipped)
    try:
        if before.is_equal(after):
            return []
        call = _call_of(captured)
        program = _Program(incumbent, task, call, _place_of(call, new))
        texts, is_searched = program.changed(old, new, before, after)
    except (NotApplicable, TilewrightError) as error:
        return [
            f"the patch does not change the program's launch: {error}; "
            f"with the changed kernel, the program must launch {_words(after, incumbent)}"
        ]
    message = f"The launch in {program.place}\n\nThe recorded call makes exactly the kept launch.\n"
    workspace.keep(workspace.write_and_commit(n, texts, message))
    chosen = ", if its search chooses the kept configuration" * is_searched
    made = f"{program.call.qualname} makes exactly the kept launch{chosen}"
    return [f"the launch in {program.place} is changed, too: {made}"]


def _call_of(captured: Captured) -> ProgramCall:
    if captured.call is None:
        raise NotApplicable("the task does not say where the program made the launch")
    try:
        return codec.from_json(ProgramCall, dict(captured.call), defaults=True).on_this_machine()
    except ValueError as error:
        raise NotApplicable(f"call= of the captured kernel cannot be read: {error}") from error


def _place_of(call: ProgramCall, editable: Texts) -> ProgramLine:
    """Returns the place of the program's ``ct.launch``. Raises `NotApplicable` if it cannot be changed."""
    place = launch_place(call)
    if place is None:
        changed = "; fix: if the file has changed since, capture the program again"
        why = changed if Path(call.places[0].file).is_file() else ", because its file is gone"
        raise NotApplicable(f"no ct.launch(...) is found at {' or '.join(map(str, call.places))}{why}")
    if Path(place.file) not in editable:
        fix = "load the file by tilewright.editable in the task file, and name it in edit="
        raise NotApplicable(f"{place} is not in an editable file; fix: {fix}")
    return place


@dataclass(frozen=True)
class _Program:
    """The program's call, and the incumbent whose launch it should make."""

    incumbent: Variant
    task: Task
    call: ProgramCall
    place: ProgramLine

    def changed(self, old: Texts, new: Texts, before: TaskLaunch, after: TaskLaunch) -> tuple[dict[Path, str], bool]:
        """Returns all texts with the changed launch, and whether its configuration is searched. Raises `NotApplicable`
        if the launch is not found, or if the call does not make the kept launch."""
        file = Path(self.place.file)
        number = launch_number(Source(file.name, old[file]), self.place.line)
        shapes = {name: tensor.shape for name, tensor in self.task.tensors.items()}
        source, searched = Source(file.name, new[file]), set[str]()
        search = search_of(source, number, after.code.kernel)
        if search is None:
            text = with_launch(source, number, before, after, shapes)
        else:
            text, searched = with_searched_launch(source, search, number, before, after, shapes, self._facts)
        texts = {**new, file: text}
        for path in texts:
            source = Source(path.name, texts[path])
            if path != file_of(self.task) and after.code.kernel in source.kernels:
                texts[path] = with_hints(source, before, after, searched)
        self._refuse_other(self.task, old, "as it was, ")
        self._refuse_other(self.incumbent.task, texts, "with the patch, ")
        return texts, search is not None

    @property
    def _facts(self) -> KernelFacts:
        """The facts of the untouched task, without bounds and machine code."""
        board, workloads = self.incumbent.board, tuple(self.task.selected(None))
        return KernelFacts(self.task, board, workloads, {}, {}, lambda workload: count(self.task, workload, board))

    def _refuse_other(self, task: Task, texts: Texts, how: str) -> None:
        """Raises `NotApplicable` if the call does not make the launch of ``task``."""
        board, [workload] = self.incumbent.board, self.task.selected(None)
        launch = task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), board)
        expected = _Expected.of(launch, task.space.shipped, board.arch)
        own = {path: text for path, text in texts.items() if path != task.file}
        made = replayed(self.call, own, board, WantedLaunch(no_tensors(expected.args), expected.hints))
        if (difference := expected.difference(made)) is not None:
            raise NotApplicable(f"{how}{self.call.qualname or self.place.function} {difference}")


@dataclass(frozen=True)
class _Expected:
    """A launch that the program's call must make."""

    kernel: str
    grid: tuple[int, ...]
    args: tuple[object, ...]
    hints: Mapping[str, Value]

    @classmethod
    def of(cls, launch: Launch, shipped: Mapping[str, Value], arch: str) -> _Expected:
        language = language_of(launch.kernel)
        names = {hint.name for hint in language.hints}
        given = {name: value for name, value in shipped.items() if name in names}
        hints = {**language.decorated_hints(launch.kernel, arch), **given}
        args = tuple(_plain(value) for value in launch.args)
        return cls(language.kernel_name(launch.kernel), _three(launch.grid), args, _set(hints))

    def difference(self, made: Replayed) -> str | None:
        """Returns how the launches of a call differ from the expected one; None if one of them is equal."""
        own = [launch for launch in made.launches if launch.kernel == self.kernel]
        if not own:
            others = f"launches {', '.join(sorted({each.kernel for each in made.launches}))}, not {self.kernel}"
            return others if made.launches else f"makes no launch: {made.problem or 'it ended before'}"
        differences = [self._from(launch) for launch in own]
        return None if "" in differences else differences[0]

    def _from(self, launch: DescribedLaunch) -> str:
        if _three(launch.grid) != self.grid:
            return f"launches {self.kernel} with the grid {_three(launch.grid)} instead of {self.grid}"
        if len(launch.arguments) != len(self.args):
            return f"passes {len(launch.arguments)} arguments to {self.kernel} instead of {len(self.args)}"
        for argument, expected in zip(launch.arguments, self.args, strict=True):
            if (passed := _passed(argument)) != expected:
                return f"passes {argument.name} = {passed} to {self.kernel} instead of {expected}"
        if _set(launch.hints) != self.hints:
            return f"launches {self.kernel} with the hints {_set(launch.hints)} instead of {self.hints}"
        return ""


def _plain(value: object) -> object:
    """Returns an argument of a task's launch in a form that `_passed` has, too: without names and addresses."""
    if isinstance(value, ArraySpec):
        return value.dtype, value.shape, value.strides
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _passed(argument: Argument) -> object:
    if argument.kind == "array":
        return _plain(argument.spec)
    return [_passed(item) for item in argument.items] if argument.kind in ("list", "tuple") else argument.value


def _three(grid: Iterable[int]) -> tuple[int, ...]:
    return (*grid, 1, 1, 1)[:3]


def _set(hints: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the hints that are set. An optimisation level of 3 is the default."""
    given = {name: value for name, value in sorted(hints.items()) if value is not None}
    return {name: value for name, value in given.items() if (name, value) != ("opt_level", 3)}


def _words(after: TaskLaunch, incumbent: Variant) -> str:
    """Says what must be launched, with the captured shape as an example."""
    here = next(iter(incumbent.grids.values()))
    config = ", ".join(f"{name}={value}" for name, value in after.shipped.items() if value is not None) or "no hint"
    code = unless_refused(launch_of, after.source)
    if code is None:
        return f"as the launch in {after.source.name} (here over {here}), with {config}"
    grid, args = (" ".join(after.source.code(node).split()) for node in (code.grid, code.args))
    return f"{code.kernel} over {grid} (here {here}) on {args}, with {config}"
