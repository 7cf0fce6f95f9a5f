"""Changes the task around a kernel: its launch and the grid of it, its knobs and the kernel's parameters.

A kernel that gains a constant needs a parameter, an argument at its launch and a knob in the space. That works where
kernel, launch and task stand in one file. Elsewhere `NotApplicable` says what is missing. The axes of a grid and their
product get names, so that the kernel can be passed them, and the patch reads as a person would have written it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst

from tilewright.languages import language_of
from tilewright.playbook.analyses.dataflow import names_assigned, parameters
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.records import Value
from tilewright.source.syntax import SPACED, Changes, Source, argument, dotted, elements, keyword, literal, number

Listed = TypeVar("Listed", cst.Param, cst.BaseElement, cst.BaseDictElement)


@dataclass(frozen=True)
class LaunchCode:
    """The launch of a task file."""

    function: cst.FunctionDef | cst.Lambda
    call: cst.Call
    """``tw.Launch(kernel, grid, args)``."""
    kernel: str
    grid: cst.BaseExpression
    args: cst.BaseExpression


def space_of(source: Source) -> cst.Call:
    """The one ``tw.Space(...)`` of the file. Raises `NotApplicable`."""
    return _only(source, "Space")


def launch_of(source: Source) -> LaunchCode:
    """The function that the task names as its launch, and the ``tw.Launch(...)`` in it.

    Raises `NotApplicable` where the launch is not in this file, or is not one call.
    """
    named = argument(_only(source, "Task"), "launch", 3)
    function: cst.FunctionDef | cst.Lambda
    if isinstance(named, cst.Lambda):
        function = named
    elif isinstance(named, cst.Name) and named.value in source.functions:
        function = source.functions[named.value]
    else:
        raise NotApplicable(f"{source.name}: the launch of the task is no function of this file")
    calls = source.calls_named("Launch", function)
    if len(calls) != 1:
        raise NotApplicable(f"{source.name}: {len(calls)} Launch(...) calls in the launch; one is understood")
    kernel, grid, args = (argument(calls[0], name, place) for place, name in enumerate(("kernel", "grid", "args")))
    if not isinstance(kernel, cst.Name) or grid is None or args is None:
        raise NotApplicable(f"{source.name}: the launch does not name its kernel, grid and args")
    return LaunchCode(function, calls[0], kernel.value, grid, args)


def with_knob(source: Source, name: str, values: Sequence[Value], shipped: Value, *, hint: bool = False) -> Source:
    """The space with one more knob, or with more values of one it has, shipped at ``shipped``.

    Without ``values`` the list of the knob stays as it is.
    """
    space = space_of(source)
    lists = "hints" if hint else "constants"
    given, own = argument(space, lists), argument(space, "shipped")
    for what, node in ((lists, given), ("shipped", own)):
        if not isinstance(node, cst.Dict | None):
            raise NotApplicable(f"{what}= of the space is not written as a literal dictionary")
    if not isinstance(own, cst.Dict):
        raise NotApplicable(f"{source.name}: the space ships no literal configuration")
    new = _set(space, "shipped", with_entry(own, name, shipped))
    if values:
        given = given if isinstance(given, cst.Dict) else cst.Dict(elements=())
        known = entry_of(given, name)
        listed = [*([] if known is None else _values(known)), *values, shipped]
        new = _set(new, lists, with_entry(given, name, tuple(dict.fromkeys(listed))))
    return source.changed({space: new})


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
    args: cst.BaseExpression = launch.args
    value = cst.parse_expression(expression)
    if isinstance(args, (cst.Tuple, cst.List)) and args.elements:
        args = args.with_changes(elements=[*_with_commas(args.elements), cst.Element(value)])
    else:
        args = cst.parse_expression(f"(*{source.code(args)}, {source.code(value)})")
    return source.changed({params: params.with_changes(params=[*_with_commas(params.params), last]), launch.args: args})


def with_launch_parameter(source: Source, name: str) -> Source:
    """The launch also taking ``name``, e.g. ``hardware``: Tilewright passes what its parameters name."""
    launch = launch_of(source)
    if name in parameters(launch.function):
        return source
    params = launch.function.params
    listed = [*_with_commas(params.params), cst.Param(cst.Name(name))]
    return source.changed({params: params.with_changes(params=listed)})


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


def argument_of(source: Source, kernel: str, parameter: str) -> cst.BaseExpression | None:
    """The launch's expression for one parameter of the kernel; None where it cannot be told."""
    launch = launch_of(source)
    names = parameters(source.functions[kernel])
    values = _assigned(source, launch, launch.args)
    given = elements(values[0] if len(values) == 1 else launch.args)
    if launch.kernel != kernel or given is None or parameter not in names or len(given) != len(names):
        return None
    return given[names.index(parameter)]


def extent_of(source: Source, kernel: str, array: str, axis: int) -> str | None:
    """The extent that the task declares for an axis of what the launch passes as ``array``: a dimension or a number.

    None where it is no literal, and for a tensor that is not declared in this file.
    """
    given = argument_of(source, kernel, array)
    tensors = argument(_only(source, "Task"), "tensors", 1) if given is not None else None
    declared = entry_of(tensors, dotted(given)) if given is not None and isinstance(tensors, cst.Dict) else None
    listed = elements(argument(declared, "shape", 0)) if isinstance(declared, cst.Call) else None
    if listed is None or axis >= len(listed):
        return None
    extent = listed[axis]
    return str(extent.evaluated_value) if isinstance(extent, cst.Integer) else _text(extent)


def _only(source: Source, name: str) -> cst.Call:
    calls = source.calls_named(name)
    if len(calls) != 1:
        raise NotApplicable(f"{source.name}: {len(calls)} {name}(...) calls; one is understood")
    return calls[0]


def _assigned(source: Source, launch: LaunchCode, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The values that a launch assigns to the name ``node``; the node itself if it is no local variable."""
    if not isinstance(node, cst.Name) or isinstance(launch.function, cst.Lambda):
        return [node]
    return [
        one.value
        for one in source.every(cst.Assign, launch.function)
        if any(dotted(target.target) == node.value for target in one.targets)
    ]


def _with_commas(listed: Iterable[Listed]) -> list[Listed]:
    """What stands in a list that goes on: each with a comma and a space behind it."""
    return [one.with_changes(comma=_comma(one.comma)) for one in listed]


def _comma(comma: object) -> cst.Comma:
    """The comma an element has, or a plain one for what was the last; with a space after it."""
    return comma if isinstance(comma, cst.Comma) and not comma.whitespace_after.empty else SPACED


def entry_of(node: cst.Dict, name: str) -> cst.BaseExpression | None:
    """The value of one key of a literal dictionary."""
    pairs = (one for one in node.elements if isinstance(one, cst.DictElement))
    return next((one.value for one in pairs if _text(one.key) == name), None)


def with_entry(node: cst.Dict, name: str, value: object) -> cst.Dict:
    """A literal dictionary with a value for one key, at its end where the key is new."""
    new = cst.parse_expression(repr(value))
    if entry_of(node, name) is None:
        last = cst.DictElement(cst.SimpleString(f'"{name}"'), new)
        return node.with_changes(elements=[*_with_commas(node.elements), last])
    mine = [one for one in node.elements if isinstance(one, cst.DictElement) and _text(one.key) == name]
    return node.with_changes(elements=[one.with_changes(value=new) if one in mine else one for one in node.elements])


def _set(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """The call with a keyword argument; a new one goes before ``shipped``, as people write it."""
    args = list(call.args)
    places = {arg.keyword.value: place for place, arg in enumerate(args) if arg.keyword is not None}
    if name in places:
        args[places[name]] = args[places[name]].with_changes(value=value)
        return call.with_changes(args=args)
    place = places.get("shipped", len(args))
    # The new argument's comma carries the line break that stood before it, so that the layout goes on.
    comma = args[place - 1].comma if place else SPACED
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


# The grid of the launch ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """The axes of a launch in ``source``, as host expressions that are short enough to repeat."""

    source: Source
    axes: tuple[str, ...]
    items: str
    """Their product."""


def flat_grid(source: Source) -> Grid:
    """The launch with its number of items at hand; a local variable holds what is longer than a name.

    Raises `NotApplicable` where the number of axes cannot be read from the text.
    """
    launch = launch_of(source)
    written = _axes(source, launch)
    in_function = isinstance(launch.function, cst.FunctionDef)
    if isinstance(launch.grid, cst.Name):
        axes = tuple(f"{launch.grid.value}[{place}]" for place in range(len(written)))
    elif in_function and len(written) > 1 and not all(_is_short(one) for one in written):
        source, name = _with_local(source, "grid", source.code(launch.grid))
        axes = tuple(f"{name}[{place}]" for place in range(len(written)))
    else:
        axes = tuple(source.code(one) if _is_short(one) else f"({source.code(one)})" for one in written)
    counted = [axis for axis, one in zip(axes, written, strict=True) if number(one) != 1] or axes[:1]
    items = " * ".join(counted)
    if in_function and not items.isidentifier():
        alone = items.removeprefix("(").removesuffix(")") if len(counted) == 1 else items
        source, items = _with_local(source, "items", alone)
    axes = tuple("1" if number(one) == 1 else axis for axis, one in zip(axes, written, strict=True))
    return Grid(source, axes if len(counted) > 1 else tuple(items if a in counted else a for a in axes), items)


def launched_here(source: Source) -> str:
    """The name of the kernel that this file launches; "" where its launch is not understood."""
    try:
        return launch_of(source).kernel
    except NotApplicable:
        return ""


def starts(facts: KernelFacts, source: Source) -> str:
    """The kernel of ``source`` that its launch starts; "" where the task launches another kernel."""
    kernel = launched_here(source)
    if kernel not in source.kernels:
        return ""
    launched = facts.launch(facts.workloads[0]).kernel
    return kernel if language_of(launched).kernel_name(launched) == kernel else ""


def fresh_in(source: Source, function: str, name: str) -> str:
    """``name``, or with a number behind it where the function or the file's top level has such a name."""
    bound = {*source.functions, *(one.value for one in source.every(cst.Name, source.functions[function]))}
    for one in source.module.body:
        if isinstance(one, cst.ClassDef):
            bound.add(one.name.value)
        elif not isinstance(one, cst.FunctionDef):
            bound |= set(names_assigned(one))
            for alias in source.every(cst.ImportAlias, one):
                bound.add(dotted(alias.asname.name if alias.asname is not None else alias.name).split(".")[0])
    return numbered(name, bound)


def _axes(source: Source, launch: LaunchCode) -> list[cst.BaseExpression]:
    values = _assigned(source, launch, launch.grid)
    if len(values) != 1:
        name = source.code(launch.grid)
        raise NotApplicable(f"{source.name}: '{name}' is assigned {len(values)} times in the launch")
    axes = elements(values[0])
    if not axes:
        raise NotApplicable(f"{source.name}: the grid is not written as a tuple of its axes")
    return axes


def _is_short(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Name, cst.Integer))


def _with_local(source: Source, name: str, expression: str) -> tuple[Source, str]:
    """The launch function with a variable set just before the launch."""
    name = fresh_name(source, name)
    source = before_launch(source, f"{name} = {expression}")
    if name == "grid":  # the launch takes the variable instead of what it holds
        source = with_grid(source, name)
    return source, name


def before_launch(source: Source, statement: str) -> Source:
    """The launch function with a statement just before the launch."""
    lines = (one for one in source.parents(launch_of(source).call) if isinstance(one, cst.SimpleStatementLine))
    return source.changed(inserted(statement, next(lines)))
