"""Follows the maximum and the sums of an online softmax out of its loops, through helpers, to their quotient.

A quotient of two sums is the same for any maximum. Nothing else may read a sum, and nothing may read the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.chunk_loops import assigned_value
from tilewright.playbook.analyses.constants import is_constant
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, parameters, reaching
from tilewright.playbook.analyses.helper_calls import HelperCall, calls_of
from tilewright.playbook.analyses.masked_tiles import filled_with
from tilewright.playbook.analyses.online_loops import OnlineLoop, reads_of
from tilewright.playbook.analyses.tile_shapes import FILLED, new_axes, tile_call, with_new_axes
from tilewright.playbook.base import NotApplicable, refused_at
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted, elements


def refuse_other_reads(source: Source, function: Function, loops: Sequence[OnlineLoop], condition: str) -> None:
    """Raises `NotApplicable` if anything but a quotient of two sums depends on the maximum of ``loops``, all such loops
    of a function; or if ``condition`` may not be the same in all of its calls."""
    first = loops[0]
    names = {(each.update.old, each.sums) for each in loops}
    if len(names) != 1:
        raise NotApplicable(f"the loops of {function.name.value} do not carry the same sums")
    for name in sorted({own for each in loops for own in each.own}):
        for read in reads_of(source, name, function):
            if not any(each.loop in source.parents(read) for each in loops):
                raise refused_at(source, read, f"{name} is read outside of the loop")
    uses = {use for each in loops for use in each.uses}
    assigned = {line for each in loops for line in each.assigned}
    _State(source, function, first.update.old, first.sums, uses, assigned).check(condition)


@dataclass(frozen=True, eq=False)
class _State:
    """The maximum ``most`` and the ``sums`` in one function. uses: the places that may read them. assigned: the
    statements that compute them."""

    source: Source
    function: Function
    most: str
    sums: frozenset[str]
    uses: Collection[cst.CSTNode]
    assigned: Collection[cst.CSTNode]

    def check(self, condition: str = "True") -> None:
        passed = {self.most, *self.sums} & set(parameters(self.function))
        returned = self._returned() if passed else None
        starts = [line for line in self._lines(self.most) if line not in self.assigned]
        for line in starts:
            if not self._is_start(line):
                raise self._refused(line, f"{self.most} does not start at -inf")
        if not starts and not passed:
            raise self._refused(self.function, f"{self.most} has no start")
        for name in (self.most, *sorted(self.sums)):
            self._check_name(name, starts, returned)
        if returned is not None:
            self._check_calls(returned, condition)

    def _lines(self, name: str) -> list[Line]:
        lines = [each for each in self.source.every(Line, self.function) if names_assigned(each)[name]]
        if len(lines) != names_assigned(self.function)[name]:
            raise self._refused(self.function, f"{name} is assigned in another way")
        return lines

    def _is_start(self, line: Line) -> bool:
        value = assigned_value(line)
        is_float = isinstance(value, cst.Call) and self._is_float(value)
        return is_float and tile_call(self.source, value) == "full" and filled_with(self.source, value) == -math.inf  # type: ignore[arg-type]

    def _is_float(self, call: cst.Call) -> bool:
        """Returns whether a call makes a tile of one float32."""
        made = dict.fromkeys(FILLED, 1) | {"full": 2}
        dtype = argument(call, "dtype", made.get(tile_call(self.source, call), -1))
        known = tile_call(self.source, call) != "full" or filled_with(self.source, call) is not None
        return known and dtype is not None and self.source.tile_name(dotted(dtype)) == "float32"

    def _check_name(self, name: str, starts: Sequence[Line], returned: cst.Return | None) -> None:
        others = [line for line in self._lines(name) if line not in self.assigned and line not in starts]
        quotients = [line for line in others if not self._starts_sum(line, starts)]
        for read in reads_of(self.source, name, self.function):
            found = reaching(self.source, name, read)
            after = found is not None and any(found.node in each.body for each in quotients)
            above = self.source.parent(read)
            is_shape = isinstance(above, cst.Attribute) and above.attr.value in ("shape", "dtype", "ndim")
            is_returned = returned is not None and returned in self.source.parents(read)
            if not (after or is_shape or is_returned or read in self.uses or self._is_quotient(read, name)):
                raise self._refused(read, f"{name} is read for more than a quotient of two sums")
        for line in quotients:
            self._check_quotient(name, line)

    def _starts_sum(self, line: Line, starts: Sequence[Line]) -> bool:
        """Returns whether a sum starts here, where the maximum does, too: then the first factor is 0."""
        value, block = assigned_value(line), self.source.parent(line)
        if not isinstance(value, cst.Call) or not self._is_float(value) or not isinstance(block, cst.IndentedBlock):
            return False
        for start in starts:
            if start in block.body:
                first, last = sorted((block.body.index(start), block.body.index(line)))
                if all(isinstance(each, Line) and each not in self.assigned for each in block.body[first:last]):
                    return True
        return False

    def _is_quotient(self, read: Expression, name: str) -> bool:
        """Returns whether a read of a sum is a side of a quotient of two sums."""
        above = self.source.parent(with_new_axes(self.source, read))
        call = self.source.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Divide):
            sides = [above.left, above.right]
        elif isinstance(call, cst.Call) and tile_call(self.source, call) == "truediv":
            sides = [arg.value for arg in call.args[:2]]
        else:
            return False
        names = [self._sum_of(side) for side in sides]
        return name != self.most and len(set(names)) == 2 and "" not in names

    def _sum_of(self, node: Expression) -> str:
        """Returns the name of the sum that an expression is; "" if it is none, or may be a quotient."""
        while isinstance(node, cst.Subscript) and new_axes(node) is not None:
            node = node.value
        if not isinstance(node, cst.Name) or node.value not in self.sums:
            return ""
        found = reaching(self.source, node.value, node)
        lines = [each for each in self._lines(node.value) if found is not None and found.node in each.body]
        return "" if lines and lines[0] not in self.assigned else node.value

    def _check_quotient(self, name: str, line: Line) -> None:
        """Refuses a statement that gives a sum another value which an iteration may read."""
        place = self.source.place(line)
        around = [each for each in self.source.parents(line) if isinstance(each, (cst.For, cst.While))]
        last = max(self.source.place(each) for each in self.assigned)
        again = any(loop in self.source.parents(each) for loop in around for each in self.assigned)
        if place < last or again:
            raise self._refused(line, f"{name} gets another value")

    def _returned(self) -> cst.Return:
        """Returns the only statement that returns the maximum and the sums of a helper."""
        found = self.source.every(cst.Return, self.function)
        names = [dotted(each) for each in elements(found[0].value) or ()] if len(found) == 1 else []
        line = self.source.parent(found[0]) if found else None
        if any(names.count(each) != 1 for each in (self.most, *self.sums)) or (
            not isinstance(self.function.body, cst.IndentedBlock) or line is not self.function.body.body[-1]
        ):
            raise self._refused(self.function, "it does not return the maximum and all sums, once, at its end")
        return found[0]

    def _check_calls(self, returned: cst.Return, condition: str) -> None:
        calls, names = calls_of(self.source, self.function), names_read(cst.parse_expression(condition))
        if not calls:
            raise self._refused(self.function, "not all its calls are known")
        for caller in {id(call.caller): call.caller for call in calls}.values():
            mine = [call for call in calls if call.caller is caller]
            given = {tuple(self._passed(call, name, condition) for name in sorted(names)) for call in mine}
            if caller.name.value not in self.source.kernels or len(given) != 1:
                raise self._refused(caller, f"its calls of {self.function.name.value} pass different constants")
            self._caller(mine, returned).check()

    def _passed(self, call: HelperCall, name: str, condition: str) -> str:
        """Returns the text of an argument that is the same for all calls with this text: a constant, or a tile of which
        only the dtype counts."""
        if (given := call.given.get(name)) is None:
            return ""
        only_dtype = f"{name}.dtype in" in condition and names_assigned(call.caller)[dotted(given)] < 2
        if not only_dtype and not is_constant(self.source, call.caller, given):
            raise self._refused(given, f"{self.source.code(given)} is no constant")
        return self.source.code(given)

    def _caller(self, calls: Sequence[HelperCall], returned: cst.Return) -> _State:
        """Returns the state in a function that calls this helper, and only in statements that assign it again."""
        order = [dotted(each) for each in elements(returned.value) or ()]
        uses, lines, passed = set[cst.CSTNode](), set[cst.CSTNode](), set[tuple[str, frozenset[str]]]()
        for call in calls:
            given = {name: call.given.get(name) for name in (self.most, *self.sums)}
            nodes = {name: node for name, node in given.items() if isinstance(node, cst.Name)}
            if len(nodes) != len(given):
                raise self._refused(self.function, "not all its sums are passed by name")
            written = self.source.parent(self.source.parent(nodes[self.most]) or returned)
            assign = self.source.parent(written) if written is not None else None
            targets = elements(assign.targets[0].target) if isinstance(assign, cst.Assign) else None
            got = dict(zip(order, map(dotted, targets or ()), strict=False))
            if len(targets or ()) != len(order) or any(got[name] != node.value for name, node in nodes.items()):
                raise self._refused(call.caller, f"it does not assign all that {self.function.name.value} returns")
            uses |= set(nodes.values())
            lines.add(self.source.parent(assign) or returned)  # type: ignore[arg-type]
            passed.add((nodes[self.most].value, frozenset(nodes[name].value for name in self.sums)))
        (most, sums), *others = passed
        if others or len({most, *sums}) != 1 + len(self.sums):
            raise self._refused(calls[0].caller, "its calls pass different sums")
        return _State(self.source, calls[0].caller, most, sums, uses, lines)

    def _refused(self, node: cst.CSTNode, reason: str) -> NotApplicable:
        if isinstance(node, cst.FunctionDef):
            return NotApplicable(f"{node.name.value}: {reason}")
        return refused_at(self.source, node, reason)
