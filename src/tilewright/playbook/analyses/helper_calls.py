"""Follows arguments into a helper: finds all its calls, and writes what a caller passes in the helper's own names.

_inner(rows, m, TILE)                  in the kernel, with rows = m * TILE + ct.arange(TILE)
def _inner(rows, block, SIZE): …       here, m is ``block`` and TILE is ``SIZE``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from tilewright.playbook.analyses.dataflow import dependent, names_assigned, names_read, parameters, reaching
from tilewright.playbook.analyses.edited_files import BETWEEN
from tilewright.playbook.analyses.expressions import bare, text_of
from tilewright.playbook.analyses.task_code import launched_here
from tilewright.playbook.analyses.tile_shapes import Shape, Shapes
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, number


@dataclass(frozen=True, eq=False)
class HelperCall:
    """A call of a helper. ``given``: the argument of each parameter, or its default if that is a number."""

    source: Source = field(repr=False)
    caller: Function
    helper: Function
    given: Mapping[str, Expression]

    def name_of(self, node: Expression) -> str | None:
        """Returns a text that has in the helper the value that ``node``, a scalar, has in the caller. None if there is
        none."""
        for name, given in self._kept():
            if self._is_same(bare(node), bare(given), node, given):
                return name
        at_top = all(self._definition(name, node) is self.source.module for name in names_read(node))
        return text_of(self.source, node) if at_top and self._is_visible(node) else None

    def renamed(self, text: str) -> str | None:
        """As `name_of`, for a text that `name_of` wrote in the caller, which is a helper, too: one of its parameters,
        or what is the same everywhere."""
        if text in parameters(self.caller):
            return next((name for name, given in self._kept() if dotted(given) == text), None)
        return text if self._is_visible(cst.parse_expression(text)) else None

    def _kept(self) -> Iterator[tuple[str, Expression]]:
        """Yields the parameters that the helper never assigns, with their arguments."""
        changed = names_assigned(self.helper)
        return ((name, given) for name, given in self.given.items() if name not in changed)

    def _is_visible(self, node: Expression) -> bool:
        """Returns whether the helper has no names of its own that ``node`` reads."""
        return not names_read(node) & {*names_assigned(self.helper), *parameters(self.helper)}

    def shape_of(self, parameter: str) -> Shape | None:
        """Returns the shape of an argument, with extents in the helper's names; None if it is not known."""
        given = self.given.get(parameter)
        shape = None if given is None else shapes_in(self.source, self.caller).of(given)
        sizes = [self._size(size) for size in shape or ()]
        return None if shape is None or None in sizes else tuple(filter(None, sizes))

    def _size(self, size: str) -> str | None:
        if size.isdigit():
            return size
        once = (names_assigned(self.caller)[size] + (size in parameters(self.caller))) == 1
        names = (name for name, given in self.given.items() if dotted(given) == size)
        return next(names, None) if once else None

    def _is_same(self, node: Expression, given: Expression, at: cst.CSTNode, other: cst.CSTNode) -> bool:
        if self.source.code(node) != self.source.code(given):
            return False
        pairs = ((self._definition(name, at), self._definition(name, other)) for name in names_read(node))
        return all(first is not None and first is second for first, second in pairs)

    def _definition(self, name: str, at: cst.CSTNode) -> cst.CSTNode | None:
        found = reaching(self.source, name, at)
        return None if found is None else found.node


@lru_cache(maxsize=256)
def calls_of(source: Source, helper: Function) -> tuple[HelperCall, ...]:
    """Returns all calls of a helper in its file. Empty if it may be called in another way: by itself, as a value, from
    code that no kernel reaches, with arguments that are not written one by one."""
    name, params = helper.name.value, helper.params
    plain = not isinstance(params.star_arg, cst.Param) and params.star_kwarg is None
    wrapped = any(source.tile_name(dotted(each.decorator)) != "function" for each in helper.decorators)
    named = any(each.raw_value == name for each in source.every(cst.SimpleString))
    if name in source.kernels or not plain or wrapped or named:
        return ()
    found = list[HelperCall]()
    for use in source.every(cst.Name):
        if use.value != name or source.parent(use) is helper:
            continue
        made = _called(source, helper, use)
        if made is None:
            return ()
        found.append(made)
    return tuple(found)


def _called(source: Source, helper: Function, use: cst.Name) -> HelperCall | None:
    """Returns the call in which a helper's name is used; None for any other use."""
    call, name = source.parent(use), helper.name.value
    around = next((above for above in source.parents(use) if isinstance(above, (cst.FunctionDef, cst.Lambda))), None)
    caller = source.tile_code.get(source.function_of(use))
    known = isinstance(call, cst.Call) and call.func is use and not any(arg.star for arg in call.args)
    if not known or caller is None or around is not caller or name in parameters(caller):
        return None
    if name in names_assigned(caller) or caller.name.value in source.called_by([name]):
        return None
    assert isinstance(call, cst.Call)
    positional = [*helper.params.posonly_params, *helper.params.params]
    given = dict[str, Expression]()
    for place, param in enumerate([*positional, *helper.params.kwonly_params]):
        passed = argument(call, param.name.value, place if place < len(positional) else None)
        value = passed or (param.default if number(param.default) is not None else None)
        given |= {param.name.value: value} if value is not None else {}
    return HelperCall(source, caller, helper, given)


@lru_cache(maxsize=256)
def shapes_in(source: Source, function: Function) -> Shapes:
    """Returns the shapes in a function. A helper's parameters have the shapes that its calls pass."""
    return Shapes(source, function, given=_passed_shapes(source, function))


def is_scalar(source: Source, function: Function, node: Expression) -> bool:
    """Returns whether an expression is known to be a scalar. A helper's parameter is one if all its calls pass one."""
    return shapes_in(source, function).of(node) == () and not names_read(node) & _may_be_tiles(source, function)


@lru_cache(maxsize=256)
def _may_be_tiles(source: Source, function: Function) -> set[str]:
    """Returns a helper's parameters that are not known to be scalars, and what depends on them; a kernel has none."""
    if function.name.value in source.kernels:
        return set()
    shapes = _passed_shapes(source, function)
    return dependent(source, function, (name for name in parameters(function) if shapes.get(name) != ()))


@lru_cache(maxsize=256)
def _passed_shapes(source: Source, function: Function) -> Mapping[str, Shape | None]:
    """Returns the shapes of a helper's parameters, None where calls do not agree; empty if its calls are not known."""
    passed = calls_of(source, function)
    shapes = {name: {call.shape_of(name) for call in passed} for name in parameters(function)} if passed else {}
    return {name: next(iter(every)) if len(every) == 1 else None for name, every in shapes.items()}


@lru_cache(maxsize=256)
def extents_in(source: Source, function: Function) -> frozenset[str]:
    """Returns the names of the extents of all ranges in a function, also of those that its callers make: positive
    numbers."""
    ranges = source.calls("arange", inside=function)
    own = {dotted(call.args[0].value) for call in ranges if call.args} - {""}
    passed = calls_of(source, function)
    for name in set(parameters(function)) - set(names_assigned(function)) if passed else ():
        given = ((call, dotted(call.given.get(name, call.helper.name))) for call in passed)
        if all(
            text in extents_in(source, call.caller) and not names_assigned(call.caller)[text] for call, text in given
        ):
            own.add(name)
    return frozenset(own)


def may_be_imported(source: Source, helper: Function) -> bool:
    """Returns whether other files may call a helper: the name of one in a library's file begins without ``_``."""
    is_task_file = BETWEEN not in source.text and launched_here(source) != ""
    return not helper.name.value.startswith("_") and not is_task_file
