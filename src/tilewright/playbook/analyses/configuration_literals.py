"""Finds literals that hold a configuration: in calls, dictionaries, loops around a ``yield`` and assignments.

A library often lists its configurations by architecture. A condition around a literal that asks only for
``get_device_capability()`` is evaluated, so that the list of another architecture is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.playbook.analyses.dataflow import pairs_of
from tilewright.playbook.analyses.task_code import with_entry
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.records import Configuration, Value
from tilewright.source.syntax import Source, dotted, literal, with_argument
from tilewright.source.values import Known, Unread, value_of_text
from tilewright.space.knobs import HINTS

OTHER_HINTS = 0.5
"""Promise of a literal with other hints than the launched ones: they are set elsewhere, or the literal is not used."""

_CAPABILITY = re.compile(r"[\w.]*\bget_device_capability\([^()]*\)")


@dataclass(frozen=True)
class ConfigurationLiteral:
    """One literal that holds the shipped constants."""

    node: cst.Call | cst.Dict | cst.For | cst.Assign
    constants: tuple[str, ...]
    same: int
    """How many knobs have the shipped value there."""
    promise: float
    fixed: Configuration = Configuration(())  # noqa: RUF009  (frozen)
    """The values of knobs that loops run over, which a change must also write."""


def literals(source: Source, facts: KernelFacts) -> Iterator[ConfigurationLiteral]:
    """Calls and dictionaries that name the shipped values, in the order of the text."""
    elsewhere = _fixed_hints(source)
    nodes: list[cst.Call | cst.Dict] = [*source.every(cst.Call), *source.every(cst.Dict)]
    for node in nodes:
        if isinstance(source.parent(node), cst.Decorator) or fixes_hints(node):
            continue
        loops = _loops(source, node)
        said = {name: value for name, value in (pairs(node) or {}).items() if name not in elsewhere}
        found = _matched(node, said, {name: values for name, (_, values) in loops.items()}, facts)
        if found is not None and _on_board(source, node, facts):
            outermost = min((loop for loop, _ in loops.values()), key=source.place, default=None)
            yield replace(found, node=outermost) if found.fixed and outermost is not None else found


def assignments(source: Source, facts: KernelFacts) -> Iterator[ConfigurationLiteral]:
    """``TILE_N = 128`` of the module, and in functions where one block assigns all constants of the space."""
    shipped = facts.task.space.shipped
    names = {name.lower(): name for name in facts.task.space.constants}
    for node in source.every(cst.Assign):
        beside = [part for one in _beside(source, node) for part in assigned(one)]
        given = {names[target.lower()]: value for target, value in beside if target.lower() in names}
        same = [name for name, value in given.items() if literal(value) == shipped[name]]
        own = [names.get(target.lower()) for target, _ in assigned(node)]
        wanted = len(names) if source.function_of(node) else 1
        first = len(same) >= wanted and own[:1] == same[:1] != []
        if first and _on_board(source, node, facts):
            yield ConfigurationLiteral(node, tuple(same), len(same), 1.0)


def written_in_literal(
    source: Source, node: cst.Call | cst.Dict, changes: Mapping[str, Value]
) -> tuple[Source, dict[str, Value]]:
    """The source with what a call or dictionary names changed there, and what it does not name."""
    known = pairs(node) or {}
    mine = {name: value for name, value in changes.items() if name in known and not isinstance(known[name], Unread)}
    left = {name: value for name, value in changes.items() if name not in mine}
    return source.changed({node: _with_values(node, mine)}), left


def written_before_loops(
    source: Source, loop: cst.For, changes: Mapping[str, Value]
) -> tuple[Source, dict[str, Value]]:
    """The source with a configuration yielded before the loops that yield all others."""
    for call in source.every(cst.Call, loop):
        variables = {
            name.value: arg.keyword.value
            for arg in call.args
            if arg.keyword is not None and isinstance(name := arg.value, cst.Name)
        }
        if isinstance(source.parent(call), cst.Yield) and variables and set(variables.values()) <= set(changes):
            named = {arg.keyword.value for arg in call.args if arg.keyword is not None}
            mine = {name: value for name, value in changes.items() if name in named}
            new = cst.SimpleStatementLine([cst.Expr(cst.Yield(_with_values(call, mine)))])
            left = {name: value for name, value in changes.items() if name not in mine}
            new = new.with_changes(leading_lines=loop.leading_lines)
            rest = loop.with_changes(leading_lines=())
            return source.changed({loop: cst.FlattenSentinel([new, rest])}), left
    raise NotApplicable(f"{source.name}: a configuration beside these loops must name all that they run over")


def written_in_assignments(
    source: Source, node: cst.Assign, changes: Mapping[str, Value]
) -> tuple[Source, dict[str, Value]]:
    """The source with ``TILE_M = 128`` and its neighbours in the same block of statements changed."""
    left, swaps = dict(changes), dict[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]]()
    for name in changes:
        for target, old in (part for one in (node, *_beside(source, node)) for part in assigned(one)):
            if target.lower() == name.lower() and not isinstance(literal(old), Unread):
                swaps[old] = cst.parse_expression(repr(left.pop(name)))
                break
    return source.changed(swaps), left


# Pieces -------------------------------------------------------------------------------------------


def last_name(call: cst.Call) -> str:
    return dotted(call.func).split(".")[-1]


def fixes_hints(node: cst.CSTNode) -> bool:
    """Whether a call is ``kernel.replace_hints(occupancy=2)``, or of a function whose name ends with that."""
    return isinstance(node, cst.Call) and last_name(node).endswith("replace_hints")


def pairs(node: cst.CSTNode | None) -> dict[str, Known] | None:
    """Keyword or key → literal value (or `Unread`) of a call or dictionary; None of anything else."""
    if isinstance(node, cst.Call):
        return {arg.keyword.value: literal(arg.value) for arg in node.args if arg.keyword is not None}
    if isinstance(node, cst.Dict):
        elements = [one for one in node.elements if isinstance(one, cst.DictElement)]
        keys = [literal(one.key) for one in elements]
        return {key: literal(one.value) for key, one in zip(keys, elements, strict=True) if isinstance(key, str)}
    return None


def assigned(node: cst.Assign) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Name and value of each part of ``a = 1`` and of ``a, b = 1, 2``."""
    for target, value in pairs_of(node) if len(node.targets) == 1 else ():
        if isinstance(target, cst.Name) and value is not None:
            yield target.value, value


def _fixed_hints(source: Source) -> set[str]:
    """Hints that some ``replace_hints`` fixes. Their values in a list of configurations have no effect."""
    calls = [pairs(call) or {} for call in source.every(cst.Call) if fixes_hints(call)]
    return {name for said in calls for name, value in said.items() if not isinstance(value, Unread)}


def _matched(
    node: cst.Call | cst.Dict, said: Mapping[str, Known], loops: Mapping[str, tuple[Known, ...]], facts: KernelFacts
) -> ConfigurationLiteral | None:
    """The literal, if its constants are the shipped ones. A loop's variable counts if one of its values is shipped."""
    space = facts.task.space
    known = [name for name in said if name in space.knobs]
    run = {name: loops[name] for name in known if name in loops}
    if any(isinstance(said[name], Unread) and name not in run for name in known):
        return None
    constants = tuple(name for name in known if name in space.constants)
    same = [
        name for name in known if any(_same(name, one, space.shipped[name]) for one in run.get(name, (said[name],)))
    ]
    if not same or any(name not in same for name in constants):
        return None
    if len(known) < len(said) and set(constants) != set(space.constants):
        return None
    if not constants and len(same) < len(said):
        return None
    fixed = Configuration.of({name: space.shipped[name] if name in same else _first(run[name]) for name in run})
    return ConfigurationLiteral(node, constants, len(same), 1.0 if len(same) == len(known) else OTHER_HINTS, fixed)


def _first(values: tuple[Known, ...]) -> Value:
    value = values[0]
    assert value is None or isinstance(value, (int, float, str))
    return value


def _same(name: str, said: Known, shipped: Value) -> bool:
    """Whether a literal has the shipped value; 1 is what the compiler chooses for these two hints."""
    if name in ("occupancy", "num_ctas") and name in HINTS and said in (None, 1) and shipped in (None, 1):
        return True
    return type(said) is type(shipped) and said == shipped


def _loops(source: Source, node: cst.CSTNode) -> dict[str, tuple[cst.For, tuple[Known, ...]]]:
    """Keyword of a yielded call → the loop over literals that its value runs through."""
    if not isinstance(node, cst.Call) or not isinstance(source.parent(node), cst.Yield):
        return {}
    around = {}
    for loop in (one for one in source.parents(node) if isinstance(one, cst.For)):
        values = literal(loop.iter)
        if isinstance(loop.target, cst.Name) and isinstance(values, (list, tuple)) and values:
            around[loop.target.value] = (loop, tuple(values))
    return {
        arg.keyword.value: around[arg.value.value]
        for arg in node.args
        if arg.keyword is not None and isinstance(arg.value, cst.Name) and arg.value.value in around
    }


def _beside(source: Source, node: cst.Assign) -> list[cst.Assign]:
    """The assignments in the same block of statements."""
    statement = source.parent(node)
    block = source.parent(statement) if statement is not None else None
    lines = block.children if block is not None else ()
    return [one for line in lines for one in line.children if isinstance(one, cst.Assign)]


def _on_board(source: Source, node: cst.CSTNode, facts: KernelFacts) -> bool:
    """False where a condition on the device's capability excludes this board."""
    below = node
    capability: Known = [*divmod(facts.sm, 10)]
    names = {
        target: capability
        for one in source.every(cst.Assign)
        for target, value in assigned(one)
        if _CAPABILITY.fullmatch(source.code(value))
    }
    for above in source.parents(node):
        if isinstance(above, cst.If) and below is not above.test:
            holds = value_of_text(_CAPABILITY.sub(str(capability), source.code(above.test)), names)
            if not isinstance(holds, Unread) and bool(holds) != (below is above.body):
                return False
        below = above
    return True


def _with_values(node: cst.Call | cst.Dict, values: Mapping[str, Value]) -> cst.Call | cst.Dict:
    for name, value in values.items():
        node = with_argument(node, name, repr(value)) if isinstance(node, cst.Call) else with_entry(node, name, value)
    return node
