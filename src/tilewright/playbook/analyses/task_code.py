"""Changes the code around a kernel: the task's launch and its grid, the space, and the kernel's parameters.

A new constant of a kernel needs a parameter, an argument in the launch and a knob in the space. So kernel, launch and
task must be in one file; otherwise `NotApplicable` names the missing part. The axes of the grid and their product get
names. So the launch can pass them to the kernel, and the patch is easy to read.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import libcst as cst

from tilewright.errors import TilewrightError
from tilewright.languages import language_of
from tilewright.playbook.analyses.dataflow import names_assigned, parameters
from tilewright.playbook.base import KernelFacts, NotApplicable, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import SPACED, Changes, Source, argument, dotted, elements, keyword, literal, number
from tilewright.task.task import Launch

NEAR = (1, -1, 2, 4, 8, 16, 32, 64, 128, 256)
"""What is added to an extent, to learn whether the task serves extents that are no multiples of 2, 4, 8 and so on, up
to the usual tile sizes."""
Listed = TypeVar("Listed", cst.Param, cst.BaseElement, cst.BaseDictElement)


@dataclass(frozen=True)
class LaunchCode:
    """The launch function of a task file, and the parts of the call ``tw.Launch(kernel, grid, args)`` in it."""

    function: cst.FunctionDef | cst.Lambda
    call: cst.Call
    kernel: str
    grid: cst.BaseExpression
    args: cst.BaseExpression


def space_of(source: Source) -> cst.Call:
    """Returns the only ``tw.Space(...)`` of the file. Raises `NotApplicable` if the file has none or several."""
    return only_call(source, "Space")


def launch_of(source: Source) -> LaunchCode:
    """Returns the code of the task's launch.

    Raises `NotApplicable` if the launch is not in this file, or does not contain exactly one ``tw.Launch(...)``.
    """
    named = argument(only_call(source, "Task"), "launch", 3)
    function = named if isinstance(named, cst.Lambda) else source.functions.get(dotted(named) if named else "")
    if function is None:
        raise NotApplicable(f"{source.name}: the launch of the task is not a function of this file")
    call = only_call(source, "Launch", function)
    kernel, grid, args = (argument(call, name, place) for place, name in enumerate(("kernel", "grid", "args")))
    name = dotted(kernel).rpartition(".")[2] if kernel is not None else ""  # ``module.kernel`` in a captured task
    if not name or grid is None or args is None:
        raise NotApplicable(f"{source.name}: the launch does not name its kernel, grid and args")
    return LaunchCode(function, call, name, grid, args)


def only_call(source: Source, name: str, inside: cst.CSTNode | None = None) -> cst.Call:
    calls = source.calls_named(name, inside)
    if len(calls) != 1:
        place = "" if inside is None else " in the launch"
        raise NotApplicable(f"{source.name}: {len(calls)} {name}(...) calls{place}; there must be exactly one")
    return calls[0]


def launched_here(source: Source) -> str:
    """Returns the name of the kernel that this file launches; "" if its launch is not understood."""
    launch = unless_refused(launch_of, source)
    return "" if launch is None else launch.kernel


def own_kernel(facts: KernelFacts, source: Source) -> str:
    """Returns the name of the kernel that the task launches if kernel and launch are in ``source``; otherwise ""."""
    kernel = launched_here(source)
    return kernel if kernel in source.kernels and kernel == facts.kernel else ""


def with_knob(
    source: Source, name: str, values: Sequence[Value], shipped: Value, *, hint: bool = False, only_on: str = ""
) -> Source:
    """Returns the source with the knob ``name`` in its space. ``shipped`` is its value in the shipped configuration.

    ``values`` are added to the values that the space lists for the knob. If there are none, the list does not change.
    ``only_on``: the architecture that ships the value; the others keep theirs, and leave a new hint to the compiler.
    """
    space = space_of(source)
    lists = "hints" if hint else "constants"
    given, own = argument(space, lists), argument(space, "shipped")
    for what, node in ((lists, given), ("shipped", own)):
        if not isinstance(node, cst.Dict | None):
            raise NotApplicable(f"{what}= of the space is not written as a literal dictionary")
    if not isinstance(own, cst.Dict):
        raise NotApplicable(f"{source.name}: the space ships no literal configuration")
    if not only_on:
        new = _with_keyword(space, "shipped", with_entry(own, name, shipped))
    else:
        new = space if entry_of(own, name) else _with_keyword(space, "shipped", with_entry(own, name, None))
        new = _with_keyword(new, "shipped_for", _for_one(source, space, only_on, {name: shipped}))
    if values:
        given = given if isinstance(given, cst.Dict) else cst.Dict(elements=())
        known = entry_of(given, name)
        listed = [*([] if known is None else _values(known)), *values, shipped]
        new = _with_keyword(new, lists, with_entry(given, name, tuple(dict.fromkeys(listed))))
    return source.changed({space: new})


def _for_one(source: Source, space: cst.Call, arch: str, changes: Mapping[str, Value]) -> cst.Dict:
    """Returns the space's ``shipped_for`` with other values for one architecture."""
    table = argument(space, "shipped_for") or cst.Dict(elements=())
    row = entry_of(table, arch) or cst.Dict(elements=()) if isinstance(table, cst.Dict) else None
    if not isinstance(table, cst.Dict) or not isinstance(row, cst.Dict):
        raise NotApplicable(f"{source.name}: shipped_for= of the space is not written as a literal dictionary")
    for name, value in changes.items():
        row = with_entry(row, name, value)
    return with_expression(table, arch, row)


def entry_of(node: cst.Dict, name: str) -> cst.BaseExpression | None:
    """Returns the value of the key ``name`` in a literal dictionary; None without the key."""
    pairs = (element for element in node.elements if isinstance(element, cst.DictElement))
    return next((pair.value for pair in pairs if text_in(pair.key) == name), None)


def with_entry(node: cst.Dict, name: str, value: object) -> cst.Dict:
    """Returns a literal dictionary with ``value`` for the key ``name``. A new key is added at the end."""
    return with_expression(node, name, cst.parse_expression(repr(value)))


def with_expression(node: cst.Dict, name: str, new: cst.BaseExpression) -> cst.Dict:
    """As `with_entry`, for a value that is an expression."""
    if entry_of(node, name) is None:
        last = cst.DictElement(cst.SimpleString(f'"{name}"'), new)
        return node.with_changes(elements=[*_with_commas(node.elements), last])
    changed = [
        element.with_changes(value=new)
        if isinstance(element, cst.DictElement) and text_in(element.key) == name
        else element
        for element in node.elements
    ]
    return node.with_changes(elements=changed)


def _with_keyword(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """Sets a keyword argument. A new argument goes before ``shipped``, which people write last."""
    args = list(call.args)
    places = {arg.keyword.value: place for place, arg in enumerate(args) if arg.keyword is not None}
    if name in places:
        args[places[name]] = args[places[name]].with_changes(value=value)
        return call.with_changes(args=args)
    place = places.get("shipped", len(args))
    # The new argument ends with a copy of the comma before it. A line break after that comma is copied, too.
    comma = args[place - 1].comma if place else SPACED
    args.insert(place, keyword(name, value).with_changes(comma=_comma(comma)))
    return call.with_changes(args=args)


def _values(node: cst.BaseExpression) -> list[Value]:
    listed = elements(node)
    if listed is None:
        raise NotApplicable("a knob's values are not written as a literal list")
    values = [value for value in map(literal, listed) if value is None or isinstance(value, (int, float, str))]
    if len(values) < len(listed):
        raise NotApplicable("a knob's value is not written as a literal")
    return values


def text_in(node: cst.BaseExpression) -> str | None:
    """Returns the string that a literal is; None for any other expression."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def _with_commas(listed: Iterable[Listed]) -> list[Listed]:
    """Puts a comma and a space after each element of a list, so that another element can follow."""
    return [element.with_changes(comma=_comma(element.comma)) for element in listed]


def _comma(comma: object) -> cst.Comma:
    """Returns the comma after an element. If there is none, or no space after it, returns a comma and a space."""
    return comma if isinstance(comma, cst.Comma) and not comma.whitespace_after.empty else SPACED


# The kernel's parameters and the launch -----------------------------------------------------------


def with_kernel_constant(source: Source, kernel: str, name: str) -> Source:
    """Returns the source in which ``name`` is a new constant: the kernel's last parameter, for which the launch passes
    ``config.<name>``."""
    annotation = f"{source.tile_module}.Constant[int]"
    return with_kernel_argument(with_launch_parameter(source, "config"), kernel, name, f"config.{name}", annotation)


def with_kernel_argument(source: Source, kernel: str, name: str, expression: str, annotation: str = "") -> Source:
    """Returns the source with a new last parameter of the kernel, for which the launch passes ``expression``."""
    launch = launch_of(source)
    if launch.kernel != kernel:
        raise NotApplicable(f"{source.name}: the launch starts {launch.kernel}, not {kernel}")
    function = source.functions[kernel]
    if name in parameters(function):
        raise NotApplicable(f"{source.name}: {kernel} already has a parameter '{name}'")
    params = function.params
    if params.star_kwarg is not None or params.kwonly_params or isinstance(params.star_arg, cst.Param):
        raise NotApplicable(f"{source.name}: {kernel} does not list its parameters one by one")
    hint = cst.Annotation(cst.parse_expression(annotation)) if annotation else None
    end = params.params[-1].whitespace_after_param if params.params else cst.SimpleWhitespace("")
    last = cst.Param(cst.Name(name), annotation=hint, whitespace_after_param=end)  # a line break before the bracket
    args = launch.args
    if isinstance(args, (cst.Tuple, cst.List)) and args.elements:
        args = args.with_changes(elements=[*_with_commas(args.elements), cst.Element(cst.parse_expression(expression))])
    else:
        args = cst.parse_expression(f"(*{source.code(args)}, {expression})")
    before = _with_commas(params.params)
    before[-1:] = [each.with_changes(whitespace_after_param=cst.SimpleWhitespace("")) for each in before[-1:]]
    return source.changed({params: params.with_changes(params=[*before, last]), launch.args: args})


def with_launch_parameter(source: Source, name: str) -> Source:
    """Returns the source with the parameter ``name`` added to the launch function; Tilewright passes it by its name."""
    launch = launch_of(source)
    if name in parameters(launch.function):
        return source
    params = launch.function.params
    listed = [*_with_commas(params.params), cst.Param(cst.Name(name))]
    return source.changed({params: params.with_changes(params=listed)})


def with_grid(source: Source, expression: str) -> Source:
    """Returns the source with ``expression`` as the launch's grid."""
    return source.changed({launch_of(source).grid: cst.parse_expression(expression)})


def before_launch(source: Source, statement: str) -> Source:
    """Returns the source with a statement just before the launch."""
    lines = (above for above in source.parents(launch_of(source).call) if isinstance(above, cst.SimpleStatementLine))
    return source.changed(inserted(statement, next(lines)))


def inserted(statement: str, line: cst.SimpleStatementLine) -> Changes:
    """Returns the change that inserts a statement between ``line`` and the comments above ``line``."""
    new = cst.parse_statement(statement).with_changes(leading_lines=line.leading_lines)
    return {line: cst.FlattenSentinel([new, line.with_changes(leading_lines=())])}


def argument_of(source: Source, kernel: str, parameter: str) -> cst.BaseExpression | None:
    """Returns the expression that the launch passes for a parameter of the kernel; None if unknown."""
    launch = launch_of(source)
    names = parameters(source.functions[kernel])
    values = _assigned(source, launch, launch.args)
    given = elements(values[0] if len(values) == 1 else launch.args)
    if launch.kernel != kernel or given is None or parameter not in names or len(given) != len(names):
        return None
    return given[names.index(parameter)]


def served_launches(facts: KernelFacts) -> Iterator[Launch]:
    """Yields launches for several shapes, with array specifications in place of arrays.

    The shapes are the shapes of all workloads, and those that the task serves of the shapes that differ in one
    dimension, or in all dimensions of one extent: by a number in `NEAR`, or half as long. The launches of the workloads
    also have each other value of each single constant.
    """
    task = facts.task
    shipped, constants = task.space.shipped, task.space.constants
    others = [shipped.replace(**{name: value}) for name, values in constants.items() for value in values]
    for workload in facts.workloads:
        whole = {name: extent for name, extent in workload.dims.items() if type(extent) is int}
        equal = [[name for name in whole if whole[name] == extent] for extent in dict.fromkeys(whole.values())]
        apart = [[name] for name in whole]
        together = [names for names in equal if len(names) > 1]  # a task may serve only shapes in which they are equal
        changes = (
            dict.fromkeys(names, extent) for names in (*apart, *together)
            for extent in (*(whole[names[0]] + by for by in NEAR), whole[names[0]] // 2) if extent > 0
        )  # fmt: skip
        for changed in ({}, *changes):
            dims = {**workload.dims, **changed}
            if not task.promises(dims):
                continue
            for config in dict.fromkeys((shipped, *(() if changed else others))):
                with suppress(TilewrightError):
                    if config == shipped or task.space.allows(config, facts.sm, dims) is None:
                        yield task.launched(config, dims, task.arrays(dims), facts.board)


def passed(source: Source, launch: Launch) -> dict[str, Any]:
    """Returns the arguments of a launch by the names of its kernel's parameters. The kernel is in ``source``."""
    kernel = language_of(launch.kernel).kernel_name(launch.kernel)
    return dict(zip(parameters(source.functions[kernel]), launch.args, strict=False))


def passed_constants(source: Source, facts: KernelFacts) -> dict[str, list[Any]]:
    """Returns what each launch passes for each constant parameter of the kernel, which is in ``source``."""
    kernel, launched = facts.launches[0].kernel, [passed(source, launch) for launch in facts.launches]
    named = zip(parameters(source.kernels[facts.kernel]), language_of(kernel).constant_parameters(kernel), strict=True)
    return {name: [values.get(name) for values in launched] for name, constant in named if constant}


def _assigned(source: Source, launch: LaunchCode, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Returns the values that a launch assigns to ``node``, none if one is not known. If ``node`` is not a name,
    returns ``node`` itself."""
    if not isinstance(node, cst.Name) or isinstance(launch.function, cst.Lambda):
        return [node]
    values = [
        assign.value
        for assign in source.every(cst.Assign, launch.function)
        if any(dotted(target.target) == node.value for target in assign.targets)
    ]
    return values if len(values) == names_assigned(launch.function.body)[node.value] else []


def fresh_name(source: Source, name: str) -> str:
    """Returns ``name``, with a number at its end if the file already uses that name."""
    return numbered(name, {node.value for node in source.every(cst.Name)})


def fresh_in(source: Source, function: str, name: str, taken: Collection[str] = ()) -> str:
    """Returns ``name``, with a number at its end if the function or the file's top level already uses that name, or if
    it is ``taken``."""
    used = {node.value for node in source.every(cst.Name, source.functions[function])}
    return numbered(name, {*taken, *used, *visible_at_top(source)})


def visible_at_top(source: Source) -> set[str]:
    """Returns the names that the top level of the file binds, and the builtin ones."""
    bound = {*source.functions, *dir(builtins)}
    for statement in source.module.body:
        if isinstance(statement, cst.ClassDef):
            bound.add(statement.name.value)
        elif not isinstance(statement, cst.FunctionDef):
            bound |= set(names_assigned(statement))
            for alias in source.every(cst.ImportAlias, statement):
                bound.add(dotted(alias.asname.name if alias.asname is not None else alias.name).split(".")[0])
    return bound


def numbered(name: str, taken: Collection[str]) -> str:
    """Returns ``name``, with a number at its end if it is ``taken``."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(each for each in names if each not in taken)


@dataclass(frozen=True)
class Grid:
    """The extents of the grid's ``axes`` and their product ``items``, as short expressions valid in ``source``."""

    source: Source
    axes: tuple[str, ...]
    items: str


def grid_axes(source: Source) -> tuple[list[cst.BaseExpression], str]:
    """Returns the axes of the launch's grid as they are written, and the name of the grid's variable; "" without one.

    Raises `NotApplicable` if the number of axes cannot be read from the text.
    """
    launch = launch_of(source)
    values = _assigned(source, launch, launch.grid)
    if len(values) != 1:
        name = source.code(launch.grid)
        raise NotApplicable(f"{source.name}: '{name}' is assigned {len(values)} times in the launch")
    written = elements(values[0])
    if not written:
        raise NotApplicable(f"{source.name}: the grid is not written as a tuple of its axes")
    return written, launch.grid.value if isinstance(launch.grid, cst.Name) else ""


def flat_grid(source: Source) -> Grid:
    """Returns the launch's grid as short expressions. Longer ones are first assigned to local variables of the launch.

    Raises `NotApplicable` if the number of axes cannot be read from the text.
    """
    launch, (written, named) = launch_of(source), grid_axes(source)
    short = [isinstance(axis, (cst.Name, cst.Integer)) for axis in written]
    in_function = isinstance(launch.function, cst.FunctionDef)
    if not named and in_function and len(written) > 1 and not all(short):
        named = fresh_name(source, "grid")
        source = before_launch(source, f"{named} = {source.code(launch.grid)}")
    texts = [
        f"{named}[{place}]" if named else source.code(axis) if short[place] else f"({source.code(axis)})"
        for place, axis in enumerate(written)
    ]
    counted = [text for text, axis in zip(texts, written, strict=True) if number(axis) != 1] or texts[:1]
    items = " * ".join(counted)
    if in_function and not items.isidentifier():
        alone = items.removeprefix("(").removesuffix(")") if len(counted) == 1 else items
        items = fresh_name(source, "items")
        source = before_launch(source, f"{items} = {alone}")
    axes = ["1" if number(axis) == 1 else text for text, axis in zip(texts, written, strict=True)]
    if len(counted) == 1:
        axes = [items if axis in counted else axis for axis in axes]
    return Grid(source, tuple(axes), items)
