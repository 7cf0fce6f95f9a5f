"""Removes statements that compute the same value as an earlier one: loads, conversions and index arithmetic.

Two expressions are the same if their texts are equal and each name in them has the same value in both places. Loads are
the same only if the kernel never writes their array. An ``if`` whose branches only assign is one value for each name.
Two tile loads are also the same if only the places of axes of extent 1 differ: then the second is a reshaped first one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read
from tilewright.playbook.analyses.loaded_elements import LoadedElements
from tilewright.playbook.analyses.removing import without_lines
from tilewright.playbook.analyses.renaming import renamed
from tilewright.source.syntax import Line, Source

Numbers = Mapping[str, int]


def without_repeated(source: Source, kernel: str, one_array: Mapping[str, str] | None = None) -> tuple[Source, int]:
    """Returns the source without repeated statements in the blocks of ``kernel``, and the number of loads removed.

    Only statements of one block are compared: of the kernel's body, or of a loop's. ``one_array`` maps parameters of
    the kernel to an earlier parameter for which each launch passes the same array.
    """
    function, loads = source.functions[kernel], 0
    blocks = [function.body, *(loop.body for loop in source.every(cst.For, function))]
    for place in range(len(blocks)):
        function = source.functions[kernel]
        block = [function.body, *(loop.body for loop in source.every(cst.For, function))][place]
        assert isinstance(block, cst.IndentedBlock)
        effects = Effects(source, function)
        found = _Block(source, effects, LoadedElements(source, function, effects, one_array or {}))
        for statement in block.body:
            found.follow(statement)
        source, loads = _changed(source, kernel, found), loads + found.loads
    return source, loads


@dataclass
class _Block:
    """Follows the statements of a block, one after the other."""

    source: Source
    effects: Effects
    elements: LoadedElements
    values: dict[str, int] = field(default_factory=dict)
    """Name → a number that stands for its present value. Names without one are parameters and names outside."""
    known: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """Statement in terms of values → the names that first got its values, and the numbers of the values."""
    gone: list[cst.BaseStatement] = field(default_factory=list)
    changes: dict[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]] = field(default_factory=dict)
    loads: int = 0
    _fresh: Iterator[int] = field(default_factory=itertools.count)

    def follow(self, statement: cst.BaseStatement) -> None:
        match statement:
            case Line(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=target))], value=value)]) if (
                self.effects.is_pure(value)
            ):
                self._value(statement, (target,), self._text(value), value)
            case cst.If() if (targets := self._assigned_alone(statement)) and self.effects.is_pure(statement):
                self._value(statement, targets, self._text(statement, targets), None)
            case _:
                self.values |= {name: next(self._fresh) for name in names_assigned(statement)}
                self.elements.forget(names_assigned(statement))

    def _value(
        self, statement: cst.BaseStatement, targets: tuple[str, ...], key: str, value: cst.BaseExpression | None
    ) -> None:
        """Notes the values of the names that a statement assigns. ``value``: of a plain assignment."""
        before = self.known.get(key)
        if before is None or any(self.values.get(name) != number for name, number in before):
            self._follow_elements(statement, targets, value)
            self.values |= {target: next(self._fresh) for target in targets}
            self.known[key] = tuple((target, self.values[target]) for target in targets)
            return
        self.elements.forget(targets)
        loads = any(self.effects.is_load(call) for call in self.source.every(cst.Call, statement))
        pairs = [(target, name) for target, (name, _) in zip(targets, before, strict=True) if target != name]
        if not pairs:
            self.gone.append(statement)
        elif loads and value is not None:
            self.changes[value] = cst.Name(pairs[0][1])
        elif loads:
            lines = [cst.parse_statement(f"{target} = {name}") for target, name in pairs]
            lines[0] = lines[0].with_changes(leading_lines=getattr(statement, "leading_lines", ()))
            self.changes[statement] = cst.FlattenSentinel(lines)
        self.values |= {target: number for target, (_, number) in zip(targets, before, strict=True)}
        self.loads += loads

    def _follow_elements(
        self, statement: cst.BaseStatement, targets: tuple[str, ...], value: cst.BaseExpression | None
    ) -> None:
        if value is None or not isinstance(statement, Line):
            self.elements.forget(targets)
        elif (changed := self.elements.assigned(targets[0], value, statement, self._text)) is not None:
            self.changes[statement] = changed
            self.loads += 1

    def _assigned_alone(self, branches: cst.If) -> tuple[str, ...]:
        """Returns the names that all branches assign, if they do nothing else; none if a branch reads a name that it
        assigns later, or if the branches assign different names."""
        if "#" in self._text(branches):  # a comment in a branch would be lost
            return ()
        found: list[tuple[str, ...]] = []
        part: cst.If | cst.Else | None = branches
        while part is not None:
            names: list[str] = []
            for line in part.body.body:
                match line:
                    case Line(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value)]):
                        if names_read(value) & set(names_assigned(branches)) - set(names):
                            return ()
                        names += [name] if name not in names else []
                    case _:
                        return ()
            found.append(tuple(names))
            part = part.orelse if isinstance(part, cst.If) else None
        return found[0] if len(found) > 1 and all(names == found[0] for names in found) else ()

    def _text(self, node: cst.CSTNode, targets: tuple[str, ...] = ()) -> str:
        """Returns the text of a node with the numbers of values in place of names, and without comments."""
        values = {name: f"value_{number}_" for name, number in self.values.items()}
        own = {name: f"target_{place}_" for place, name in enumerate(targets)}
        if isinstance(node, cst.If):
            node = node.with_changes(leading_lines=())
        return self.source.code(renamed(node, {**values, **own}))


def _changed(source: Source, kernel: str, found: _Block) -> Source:
    """Returns the source without the statements that are gone, and with the changed ones."""
    if not found.gone and not found.changes:
        return source
    gone = [statement.with_changes() for statement in found.gone]  # copies, to find them again in the changed body

    def without_gone(body: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(body, cst.BaseSuite)
        return without_lines(body, gone)

    copies = dict[cst.CSTNode, cst.CSTNode](zip(found.gone, gone, strict=True))
    return source.changed({**found.changes, **copies, source.functions[kernel].body: without_gone})
