"""Writes the changed launch of a captured task into the program's own code, at its call of ``ct.launch``.

    task before and after → what changed: grid, arguments, hints → the same in the program's names → the program's text

The launch of a task is written in dimensions and knobs. The program computes with its own variables. Both launches were
equal before the change. So an axis of the task's old grid is the same axis of the program's grid, and the tensors and
numbers of the task's arguments are the program's arguments at the same places. Anything else is refused.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from tilewright.playbook.analyses.configuration_sites import written
from tilewright.playbook.analyses.dataflow import assignments, names_assigned, reaching
from tilewright.playbook.analyses.expressions import fitting
from tilewright.playbook.analyses.short_lines import on_one_line, with_short_lines
from tilewright.playbook.analyses.task_code import LaunchCode, inserted, launch_of
from tilewright.playbook.base import NotApplicable, Site
from tilewright.records import Value
from tilewright.source.cutile import SEARCHES
from tilewright.source.syntax import Expression, Function, Replacement, Source, dotted, elements, number
from tilewright.space import knobs

Shape = Sequence[str | int]


@dataclass(frozen=True)
class TaskLaunch:
    """The launch in the text of a task file, and the configuration that it ships."""

    source: Source
    shipped: Mapping[str, Value]

    @property
    def code(self) -> LaunchCode:
        return launch_of(self.source)

    @property
    def args(self) -> list[Expression]:
        listed = elements(self.code.args)
        if listed is None:
            raise NotApplicable(f"{self.source.name}: the arguments of the launch are not written as a tuple")
        return listed

    @property
    def grid(self) -> list[Expression]:
        return elements(self.code.grid) or []

    def text(self, node: Expression, without: Container[str] = ()) -> str:
        """Returns the text of an expression with the values of its knobs. Equal texts have equal values.

        without: knobs whose values are left out.
        """
        knobs_in = (name for name in _knobs_in(self.source, node) if name not in without)
        given = {name: f"{name}={self.shipped.get(name)!r}" for name in knobs_in}
        return " ".join((self.source.code(node), *given.values()))

    def is_equal(self, other: TaskLaunch) -> bool:
        """Returns whether both texts launch the same grid, arguments and hints."""
        mine, theirs = (
            [each.hints, each.text(each.code.grid), [each.text(arg) for arg in each.args]] for each in (self, other)
        )
        return mine == theirs

    @property
    def hints(self) -> dict[str, Value]:
        return {name: value for name, value in self.shipped.items() if name in knobs.hints()}


def launch_number(source: Source, line: int) -> int:
    """Returns the number of the ``ct.launch`` on ``line`` among these calls of the file.

    Raises `NotApplicable` if there is none.
    """
    for place, call in enumerate(launch_calls(source)):
        first = source.place(call)[0]
        if first <= line <= first + source.code(call).count("\n"):
            return place
    raise NotApplicable(f"{source.name}:{line} has no ct.launch(...)")


def with_launch(source: Source, place: int, before: TaskLaunch, after: TaskLaunch, tensors: Mapping[str, Shape]) -> str:
    """Returns the program's text with the launch ``after`` in place of the launch ``before``.

    source: the program's file; its kernel may be changed already.
    place: the number of the call among the ``ct.launch`` calls of the file.
    tensors: the declared shape of each tensor of the task.
    Raises `NotApplicable` with the reason if the launch cannot be written there.
    """
    kernel = after.code.kernel
    host = HostLaunch(source, launch_calls(source)[place], before, tensors)
    host.refuse_other_kernel(kernel)
    refuse_other_launches(source, [host.call], before, after)
    statements = host.statements(after)
    if statements:
        host.refuse_part_of_statement()
    changed = source.changed(host.changes(after))
    for statement in statements:
        call = launch_calls(changed)[place]
        changed = changed.changed(inserted(statement, _line_of(changed, call)))
    return with_short_lines(source.text, changed.text)


def refuse_other_launches(source: Source, known: Collection[cst.Call], before: TaskLaunch, after: TaskLaunch) -> None:
    """Raises `NotApplicable` if the kernel gets more arguments, and anything in the file but ``known`` launches it."""
    kernel = after.code.kernel
    calls = (call for call in source.every(cst.Call) if call not in known and _is_launch(source, call))
    others = [call for call in calls if any(dotted(arg.value).rpartition(".")[2] == kernel for arg in call.args)]
    if others and len(after.args) != len(before.args):
        raise NotApplicable(f"{source.name}:{source.place(others[0])[0]} launches {kernel}, too, with fewer arguments")


def with_hints(source: Source, before: TaskLaunch, after: TaskLaunch, searched: Container[str] = ()) -> str:
    """Returns the text of the file that defines the kernel, with the hints of the launch ``after``.

    The hints are set in the kernel's decorator, or where a ``replace_hints`` sets them.
    searched: hints that a search of the program sets, so they stay as they are.
    """
    changed = {name: value for name, value in after.hints.items() if before.hints.get(name) != value}
    hints = {name: value for name, value in changed.items() if name not in searched}
    decorator = source.kernel_decorator(source.kernels[after.code.kernel])
    if not hints or decorator is None:
        return source.text
    text = written(source, Site(after.code.kernel, *source.place(decorator), "hints", ()), hints)
    return with_short_lines(source.text, text)


@dataclass
class HostLaunch:
    """A ``ct.launch`` call of the program, and the translation of the task's expressions into the program's."""

    source: Source
    call: cst.Call
    before: TaskLaunch
    tensors: Mapping[str, Shape]
    _names: dict[str, str] = field(default_factory=dict)
    """The names of the launch function's variables, and their names in the program."""

    def __post_init__(self) -> None:
        self.grid, self.kernel, self.args = self.parts()
        around = [node for node in self.source.parents(self.call) if isinstance(node, (cst.FunctionDef, cst.Lambda))]
        if not around:
            raise NotApplicable(f"{self.where} is in no function")
        functions = (node for node in around if isinstance(node, cst.FunctionDef))
        self.function: Function | cst.Module = next(functions, self.source.module)  # a lambda assigns no variables

    def parts(self) -> Sequence[Expression]:
        """Returns the grid, the kernel and the arguments of the call."""
        given = [arg.value for arg in self.call.args if arg.keyword is None and not arg.star]
        if len(given) != 4:
            raise NotApplicable(f"{self.where} does not pass stream, grid, kernel and arguments one by one")
        return given[1:]

    @property
    def where(self) -> str:
        return f"{self.source.name}:{self.source.place(self.call)[0]}"

    def refuse_other_kernel(self, kernel: str) -> None:
        """Raises `NotApplicable` if the call may launch other kernels, too: they do not take the changed arguments."""
        name = dotted(self.kernel).rpartition(".")[2]
        value = self._assigned(self.source.module, name)
        alias = isinstance(value, cst.Call) and dotted(value.func) == f"{kernel}.replace_hints"
        if name != kernel and not alias:
            raise NotApplicable(f"{self.where} launches what '{self.source.code(self.kernel)}' holds, not {kernel}")

    def refuse_part_of_statement(self) -> None:
        """Raises `NotApplicable` unless the call is a statement of its own line, which other statements can precede."""
        above = self.source.parent(self.call)
        line = None if above is None else self.source.parent(above)
        if not isinstance(above, (cst.Expr, cst.Assign, cst.Return)) or not isinstance(line, cst.SimpleStatementLine):
            line = None
        if line is None or len(line.body) != 1:
            raise NotApplicable(f"{self.where} is a part of another statement; fix: write ct.launch on its own line")

    def statements(self, after: TaskLaunch) -> list[str]:
        """Returns the assignments before the changed launch, in the program's names."""
        taken, found = {name.value for name in self.source.every(cst.Name, self.function)}, []
        for name, given in self.assigned_in(after):
            value = self.translated(after, given)
            self._names[name] = name if name not in taken else f"launch_{name}"
            found.append(f"{self._names[name]} = {value}")
        return found

    def assigned_in(self, after: TaskLaunch) -> list[tuple[str, Expression]]:
        """Returns the names that the task's launch function assigns, with their values."""
        function, found = after.code.function, []
        for statement in () if isinstance(function, cst.Lambda) else function.body.body:
            match statement:
                case cst.SimpleStatementLine(
                    body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(name))], value=given)]
                ):
                    found.append((name, given))
                case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString()) | cst.Return()]):
                    pass
                case _:
                    raise NotApplicable(f"{after.source.name}: the launch does more than assign variables")
        return found

    def text_of(self, launch: TaskLaunch, node: Expression) -> str:
        """Returns a text of an expression of the task. Expressions with equal texts have equal values here."""
        return launch.text(node)

    def changes(self, after: TaskLaunch) -> dict[cst.CSTNode, Replacement]:
        """Returns the changes to the call's arguments and to its grid."""
        changes = self.arguments(after)
        new, old = ([self.text_of(each, axis) for axis in each.grid] for each in (after, self.before))
        if new != old or not after.grid:
            changes[self.grid] = cst.parse_expression(self.translated(after, after.code.grid))
        return changes

    def arguments(self, after: TaskLaunch) -> dict[cst.CSTNode, Replacement]:
        """Returns the changes to the call's arguments: other values at known places, and new arguments at the end."""
        old, new = self.before.args, after.args
        if len(new) < len(old):
            raise NotApplicable(f"{after.source.name}: the launch passes fewer arguments than before")
        mine = elements(self.args)
        changed = {
            place: cst.parse_expression(self.translated(after, now))
            for place, (was, now) in enumerate(zip(old, new, strict=False))
            if self.text_of(self.before, was) != self.text_of(after, now)
        }
        known: dict[cst.CSTNode, Replacement] = {self._argument(mine, place): value for place, value in changed.items()}
        added = [self.translated(after, each) for each in new[len(old) :]]
        if not added:
            return known
        if mine is None:
            return {self.args: cst.parse_expression(f"(*{self.source.code(self.args)}, {', '.join(added)})")}
        listed = [
            element.with_changes(value=known.get(element.value, element.value), comma=cst.MaybeSentinel.DEFAULT)
            for element in self.args.elements  # type: ignore[attr-defined]
        ]
        return {self.args: self.args.with_changes(elements=[*listed, *(_element(text) for text in added)])}

    def _argument(self, mine: Sequence[Expression] | None, place: int) -> Expression:
        if mine is None or len(mine) != len(self.before.args):
            raise NotApplicable(f"{self.where}: the arguments of the launch are not written as a tuple")
        return mine[place]

    # Expressions ---------------------------------------------------------------------------------------

    def translated(self, after: TaskLaunch, node: Expression) -> str:
        """Returns an expression of the changed launch in the program's names."""
        source, changes = after.source, dict[cst.CSTNode, cst.CSTNode]()
        for part in source.every(cst.BaseExpression, node):  # type: ignore[type-abstract]
            above = source.parent(part)
            is_only_a_name = part in (getattr(above, "attr", None), getattr(above, "keyword", None))
            if is_only_a_name or any(outer in changes for outer in source.parents(part)):
                continue
            if (text := self._text(after, part)) is not None:
                changes[part] = fitting(source, part, text)
        translated = node.visit(_Replaced(changes))
        assert isinstance(translated, cst.CSTNode)
        return on_one_line(source.code(translated))  # its line breaks have the indentation of the task

    def _text(self, after: TaskLaunch, node: Expression) -> str | None:
        """Returns the program's text for an expression of the task; None if its parts are to be translated."""
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
            owner, name = node.value.value, node.attr.value
            if owner == "config":
                return repr(after.shipped[name])
            if owner == "hardware":
                return self._hardware(name)
        match node:
            case cst.Call(func=cst.Attribute(attr=cst.Name("scratch")), args=[_, shape, dtype]):
                kind, device = after.source.code(dtype.value).strip("\"'"), self._torch_device() or "None"
                return f"torch.zeros({self.translated(after, shape.value)}, dtype=torch.{kind}, device={device})"
            # ``num_ctas`` is often unset: (config.num_ctas or 1)
            case cst.BooleanOperation(left=cst.Attribute(value=cst.Name("config"), attr=cst.Name(name)), right=right):
                if isinstance(node.operator, cst.Or) and number(right) is not None:
                    return repr(after.shipped[name] or number(right))
            case cst.BinaryOperation(operator=cst.FloorDivide()) if self.translated(after, node.right) in ("1", "(1)"):
                return self.translated(after, node.left)
        axes = {self.before.source.code(axis): place for place, axis in enumerate(self.before.grid)}
        if (place := axes.get(after.source.code(node))) is not None and number(node) is None:
            return self._axis(place)
        if not isinstance(node, cst.Name):
            return None
        if node.value in self._names:
            return self._names[node.value]
        if node.value in self.tensors:
            return self._tensor(node.value)
        if hasattr(builtins, node.value):
            return node.value
        return self._dimension(node.value)

    def _axis(self, place: int) -> str:
        written_out = elements(self.grid)
        if written_out is not None and place < len(written_out):
            return self.source.code(written_out[place])
        if written_out is not None:
            raise NotApplicable(f"{self.where}: the grid '{self.source.code(self.grid)}' has no axis {place}")
        given = reaching(self.source, self.grid.value, self.call) if isinstance(self.grid, cst.Name) else None
        if given is None or elements(given.value) is None:
            raise NotApplicable(f"{self.where}: the grid '{self.source.code(self.grid)}' is not written as a tuple")
        return f"{self.source.code(self.grid)}[{place}]"

    def _dimension(self, name: str) -> str:
        """Returns the program's text for a dimension: a number that it passes, or the extent of a tensor."""
        for place, node in enumerate(self.before.args):
            if dotted(node) != name or elements(self.args) is None:
                continue
            mine = self._argument(elements(self.args), place)
            if isinstance(mine, (cst.Name, cst.Attribute)):
                return self.source.code(mine)
        for tensor, shape in self.tensors.items():
            if name in shape and any(dotted(node) == tensor for node in self.before.args):
                return f"{self._tensor(tensor)}.shape[{list(shape).index(name)}]"
        raise NotApplicable(f"{self.where}: nothing there has the extent {name}")

    def _tensor(self, name: str) -> str:
        for place, node in enumerate(self.before.args):
            if dotted(node) == name and isinstance(mine := self._argument(elements(self.args), place), cst.Name):
                return mine.value
        raise NotApplicable(f"{self.where}: the tensor {name} is no variable there")

    def _hardware(self, name: str) -> str:
        if name != "sms":
            raise NotApplicable(f"{self.where}: the program has no text for hardware.{name}")
        return f"torch.cuda.get_device_properties({self._torch_device()}).multi_processor_count"

    def _torch_device(self) -> str:
        """Returns the device of the tensors, as the program's text for torch."""
        if self.source.origin("torch").rstrip(".") != "torch" or not self._binds("torch"):
            raise NotApplicable(f"{self.source.name} does not import torch, which knows the device and its memory")
        array = next((name for name in self.tensors if any(dotted(node) == name for node in self.before.args)), None)
        return f"{self._tensor(array)}.device" if array is not None else ""

    def _binds(self, name: str) -> bool:
        aliases = (alias for alias in self.source.every(cst.ImportAlias))
        return any(dotted(alias.asname.name if alias.asname else alias.name) == name for alias in aliases)

    def _assigned(self, inside: Function | cst.Module, name: str) -> Expression | None:
        """Returns the value of a name that is assigned once in a function or in the file; None otherwise."""
        if names_assigned(inside)[name] != 1:
            return None
        return next((value for _, target, value in assignments(self.source, inside) if target == name), None)


class _Replaced(cst.CSTTransformer):
    def __init__(self, changes: Mapping[cst.CSTNode, cst.CSTNode]) -> None:
        super().__init__()
        self.changes = {id(node): new for node, new in changes.items()}

    def on_visit(self, node: cst.CSTNode) -> bool:
        return id(node) not in self.changes

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        return self.changes.get(id(original_node), updated_node)


def _knobs_in(source: Source, node: Expression) -> list[str]:
    return [each.attr.value for each in source.every(cst.Attribute, node) if dotted(each.value) == "config"]


def launch_calls(source: Source) -> list[cst.Call]:
    """Returns the ``ct.launch`` calls of a file."""
    return [call for call in source.every(cst.Call) if source.tile_name(dotted(call.func)) == "launch"]


def _is_launch(source: Source, call: cst.Call) -> bool:
    name = dotted(call.func)
    return source.tile_name(name) == "launch" or source.origin(name) in SEARCHES


def _line_of(source: Source, call: cst.Call) -> cst.SimpleStatementLine:
    return next(above for above in source.parents(call) if isinstance(above, cst.SimpleStatementLine))


def _element(text: str) -> cst.Element:
    return cst.Element(cst.parse_expression(text))
