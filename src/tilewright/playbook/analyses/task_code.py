"""Changes the task around a kernel: its launch, its knobs and the kernel's parameters.

A kernel that gains a constant needs a parameter, an argument at its launch and a knob in the space. That works where
kernel, launch and task stand in one file. Elsewhere `NotApplicable` says what is missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import parameters
from tilewright.playbook.base import NotApplicable
from tilewright.records import Value
from tilewright.source.syntax import Changes, Source, argument, dotted, elements, keyword, literal


@dataclass(frozen=True)
class LaunchCode:
    """The launch of a task file."""

    function: cst.FunctionDef | cst.Lambda
    call: cst.Call
    """``tw.Launch(kernel, grid, args)``."""
    kernel: str
    grid: cst.BaseExpression
    args: cst.BaseExpression

    @property
    def parameters(self) -> list[str]:
        return parameters(self.function)


def task_of(source: Source) -> cst.Call:
    """The one ``tw.Task(...)`` of the file. Raises `NotApplicable`."""
    return _only(source, "Task")


def space_of(source: Source) -> cst.Call:
    """The one ``tw.Space(...)`` of the file. Raises `NotApplicable`."""
    return _only(source, "Space")


def launch_of(source: Source) -> LaunchCode:
    """The function that the task names as its launch, and the ``tw.Launch(...)`` in it.

    Raises `NotApplicable` where the launch is not in this file, or is not one call.
    """
    named = argument(task_of(source), "launch", 3)
    function: cst.FunctionDef | cst.Lambda
    if isinstance(named, cst.Lambda):
        function = named
    elif isinstance(named, cst.Name) and named.value in source.functions:
        function = source.functions[named.value]
    else:
        raise NotApplicable(f"{source.name}: the launch of the task is no function of this file")
    calls = [one for one in source.every(cst.Call, function) if dotted(one.func).split(".")[-1] == "Launch"]
    if len(calls) != 1:
        raise NotApplicable(f"{source.name}: {len(calls)} Launch(...) calls in the launch; one is understood")
    kernel, grid, args = (argument(calls[0], name, place) for place, name in enumerate(("kernel", "grid", "args")))
    if not isinstance(kernel, cst.Name) or grid is None or args is None:
        raise NotApplicable(f"{source.name}: the launch does not name its kernel, grid and args")
    return LaunchCode(function, calls[0], kernel.value, grid, args)


def with_knob(source: Source, name: str, values: Sequence[Value], shipped: Value, *, hint: bool = False) -> Source:
    """The space with one more knob (or with more values of one it has), shipped at ``shipped``."""
    space = space_of(source)
    lists = "hints" if hint else "constants"
    given, own = (_dictionary(argument(space, lists), lists), _dictionary(argument(space, "shipped"), "shipped"))
    if own is None:
        raise NotApplicable(f"{source.name}: the space ships no literal configuration")
    known = _entry(given, name) if given is not None else None
    listed = _values(known) if known is not None else []
    listed = list(dict.fromkeys([*listed, *values, shipped]))
    changed = with_entry(given or cst.Dict(elements=()), name, tuple(listed))
    new = _set(space, "shipped", with_entry(own, name, shipped))
    return source.changed({space: _set(new, lists, changed)})


def with_shipped(source: Source, name: str, value: Value) -> Source:
    """The space shipping another value of a knob that it has."""
    own = _dictionary(argument(space_of(source), "shipped"), "shipped")
    if own is None or _entry(own, name) is None:
        raise NotApplicable(f"{source.name}: the space ships no literal value of '{name}'")
    return source.changed({own: with_entry(own, name, value)})


def with_kernel_constant(source: Source, kernel: str, name: str) -> Source:
    """A kernel with one more constant at its end, passed from the configuration."""
    annotation = f"{source.tile_module}.Constant[int]"
    return with_kernel_argument(with_launch_parameter(source, "config"), kernel, name, f"config.{name}", annotation)


def with_kernel_argument(
    source: Source, kernel: str, name: str, expression: str, annotation: str | None = None
) -> Source:
    """A kernel with one more parameter at its end, given ``expression`` at the launch."""
    launch = launch_of(source)
    if launch.kernel != kernel:
        raise NotApplicable(f"{source.name}: the launch starts {launch.kernel}, not {kernel}")
    function = source.functions[kernel]
    if name in parameters(function):
        raise NotApplicable(f"{source.name}: '{name}' is taken in {kernel}")
    params = function.params
    if params.star_kwarg is not None or params.kwonly_params or isinstance(params.star_arg, cst.Param):
        raise NotApplicable(f"{source.name}: {kernel} does not list its parameters one by one")
    hint = None if annotation is None else cst.Annotation(cst.parse_expression(annotation))
    last = cst.Param(cst.Name(name), annotation=hint)
    listed = [one.with_changes(comma=_comma(one.comma)) for one in params.params]
    args = _appended(source, launch, cst.parse_expression(expression))
    return source.changed({params: params.with_changes(params=[*listed, last]), launch.args: args})


def with_launch_parameter(source: Source, name: str) -> Source:
    """The launch also taking ``name``, e.g. ``hardware``: Tilewright passes what its parameters name."""
    launch = launch_of(source)
    if name in launch.parameters:
        return source
    params = launch.function.params
    listed = [one.with_changes(comma=_comma(one.comma)) for one in params.params]
    return source.changed({params: params.with_changes(params=[*listed, cst.Param(cst.Name(name))])})


def with_grid(source: Source, expression: str) -> Source:
    """The launch with another grid."""
    return source.changed({launch_of(source).grid: cst.parse_expression(expression)})


def inserted(statement: str, line: cst.SimpleStatementLine) -> Changes:
    """A change that puts a statement in front of a line. It takes over the comments and blank lines above that line."""
    new = cst.parse_statement(statement).with_changes(leading_lines=line.leading_lines)
    return {line: cst.FlattenSentinel([new, line.with_changes(leading_lines=())])}


def fresh_name(source: Source, name: str) -> str:
    """``name``, or with a number behind it where the file has such a name."""
    return numbered(name, {one.value for one in source.every(cst.Name)})


def numbered(name: str, taken: Collection[str]) -> str:
    """``name``, or with a number behind it where it is taken."""
    others = (f"{name}_{number}" for number in itertools.count(2))
    return name if name not in taken else next(other for other in others if other not in taken)


def constants_of(source: Source, kernel: str) -> list[str]:
    """Names of a kernel's parameters that are annotated as constants."""
    return [
        one.name.value
        for one in source.functions[kernel].params.params
        if one.annotation is not None and "Constant" in source.code(one.annotation.annotation)
    ]


def argument_of(source: Source, kernel: str, parameter: str) -> cst.BaseExpression | None:
    """The launch's expression for one parameter of the kernel; None where it cannot be told."""
    launch = launch_of(source)
    names = parameters(source.functions[kernel])
    given = elements(_literal_args(source, launch))
    if launch.kernel != kernel or given is None or parameter not in names or len(given) != len(names):
        return None
    return given[names.index(parameter)]


def shape_of(source: Source, tensor: str) -> list[str | None] | None:
    """The shape that the task declares for a tensor, as it is written; None for an entry that is no literal, and for
    a tensor that is not declared in this file."""
    tensors = argument(task_of(source), "tensors", 1)
    declared = _entry(tensors, tensor) if isinstance(tensors, cst.Dict) else None
    listed = elements(argument(declared, "shape", 0)) if isinstance(declared, cst.Call) else None
    if listed is None:
        return None
    return [str(one.evaluated_value) if isinstance(one, cst.Integer) else _text(one) for one in listed]


# Pieces -------------------------------------------------------------------------------------------


def _only(source: Source, name: str) -> cst.Call:
    calls = [one for one in source.every(cst.Call) if dotted(one.func).split(".")[-1] == name]
    if len(calls) != 1:
        raise NotApplicable(f"{source.name}: {len(calls)} {name}(...) calls; one is understood")
    return calls[0]


def _literal_args(source: Source, launch: LaunchCode) -> cst.BaseExpression:
    """The args of a launch; where they are a name, what that is assigned in the launch."""
    if not isinstance(launch.args, cst.Name) or isinstance(launch.function, cst.Lambda):
        return launch.args
    assigned = [
        one.value
        for one in source.every(cst.Assign, launch.function)
        if len(one.targets) == 1 and dotted(one.targets[0].target) == launch.args.value
    ]
    return assigned[0] if len(assigned) == 1 else launch.args


def _appended(source: Source, launch: LaunchCode, value: cst.BaseExpression) -> cst.BaseExpression:
    """The args with one more at their end."""
    args = launch.args
    if isinstance(args, (cst.Tuple, cst.List)) and args.elements:
        listed = [one.with_changes(comma=_comma(one.comma)) for one in args.elements]
        return args.with_changes(elements=[*listed, cst.Element(value)])
    return cst.parse_expression(f"(*{source.code(args)}, {cst.Module([]).code_for_node(value)})")


def _comma(comma: object) -> cst.Comma:
    """The comma an element has, or a plain one for what was the last; with a space after it."""
    if isinstance(comma, cst.Comma) and not _is_empty(comma.whitespace_after):
        return comma
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _is_empty(space: object) -> bool:
    return isinstance(space, cst.SimpleWhitespace) and not space.value


def _dictionary(node: cst.BaseExpression | None, what: str) -> cst.Dict | None:
    if node is None:
        return None
    if not isinstance(node, cst.Dict):
        raise NotApplicable(f"{what}= of the space is not written as a literal dictionary")
    return node


def _entry(node: cst.Dict, name: str) -> cst.BaseExpression | None:
    for one in node.elements:
        if isinstance(one, cst.DictElement) and _text(one.key) == name:
            return one.value
    return None


def with_entry(node: cst.Dict, name: str, value: object) -> cst.Dict:
    """A literal dictionary with a value for one key, at its end where the key is new."""
    new = cst.parse_expression(repr(value))
    if _entry(node, name) is None:
        listed = [one.with_changes(comma=_comma(one.comma)) for one in node.elements]
        return node.with_changes(elements=[*listed, cst.DictElement(cst.SimpleString(f'"{name}"'), new)])
    mine = [isinstance(one, cst.DictElement) and _text(one.key) == name for one in node.elements]
    listed = [one.with_changes(value=new) if own else one for one, own in zip(node.elements, mine, strict=True)]
    return node.with_changes(elements=listed)


def _set(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """The call with a keyword argument; a new one goes before ``shipped``, as people write it."""
    args = list(call.args)
    for index, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value == name:
            args[index] = arg.with_changes(value=value)
            return call.with_changes(args=args)
    place = next(
        (i for i, arg in enumerate(args) if arg.keyword is not None and arg.keyword.value == "shipped"), len(args)
    )
    # The new argument's comma carries the line break that stood before it, so that the layout goes on.
    comma = args[place - 1].comma if place else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    args.insert(place, keyword(name, value).with_changes(comma=_comma(comma)))
    return call.with_changes(args=args)


def _values(node: cst.BaseExpression) -> list[Value]:
    listed = elements(node)
    if listed is None:
        raise NotApplicable("a knob's values are not written as a literal list")
    found = [value for value in map(literal, listed) if value is None or isinstance(value, (int, float, str))]
    if len(found) < len(listed):
        raise NotApplicable("a knob's value is not written as a literal")
    return found


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None
