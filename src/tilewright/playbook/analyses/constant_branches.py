"""Finds the branches of a kernel that a launch never takes, because constants of the kernel decide them.

Generic kernels choose between forms by flags: ``if TRANSPOSED: … else: …``. An analysis of one launch needs only the
branches that are compiled. A change that holds only for these branches names the constants in its value:
``… with TRANSPOSED=True``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read
from tilewright.playbook.analyses.iterations import decided
from tilewright.playbook.analyses.task_code import passed_constants
from tilewright.playbook.base import KernelFacts
from tilewright.records import Value
from tilewright.source.syntax import Function, Replacement, Source

WITH = " with "
"""Stands in the value of a change before the constants."""
_CONSTANT = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True)
class DecidedBranch:
    """An ``if`` whose test constants decide. ``taken``: whether its body is compiled."""

    node: cst.If
    taken: bool

    @property
    def dead(self) -> cst.CSTNode | None:
        """The block that is not compiled."""
        return self.node.orelse if self.taken else self.node.body

    def condition(self, source: Source) -> str:
        """Returns the test, as it must be for the compiled block."""
        test = source.code(self.node.test)
        if not isinstance(self.node.test, cst.Name):
            test = f"({test})"
        return test if self.taken else f"not {test}"


def decided_branches(source: Source, function: Function, constants: Mapping[str, Value]) -> list[DecidedBranch]:
    """Returns the branches that ``constants``, the values of constant parameters, decide, in the order of the text.

    Their tests name nothing else, so that they can be evaluated anywhere in the function.
    """
    changed = names_assigned(function.body)
    known = {name: value for name, value in constants.items() if name not in changed}
    alone = [node for node in source.every(cst.If, function) if names_read(node.test) <= {*known, "True", "False"}]
    tests = ((node, decided(source.code(node.test), known)) for node in alone)
    return [DecidedBranch(node, taken) for node, taken in tests if taken is not None]


def is_conditional(source: Source, node: cst.CSTNode) -> bool:
    """Returns whether a branch may leave a node out."""
    return any(isinstance(above, (cst.If, cst.IfExp)) for above in source.parents(node))


def is_live(source: Source, node: cst.CSTNode, branches: list[DecidedBranch]) -> bool:
    """Returns whether a node is compiled."""
    above = set(source.parents(node))
    return not any(branch.dead in above for branch in branches)


def compiled_only(source: Source, branches: list[DecidedBranch]) -> Source:
    """Returns the source without the blocks that are not compiled."""
    changes: dict[cst.CSTNode, Callable[[cst.CSTNode], Replacement | cst.RemovalSentinel]] = {}
    for branch in branches:
        inner = isinstance(source.parent(branch.node), cst.If)  # ``elif``
        changes[branch.node] = partial(_compiled, branch.taken, inner)
    return source.changed(changes)  # type: ignore[arg-type]


def _compiled(taken: bool, inner: bool, node: cst.CSTNode) -> Replacement | cst.RemovalSentinel:
    """Returns what is left of a decided branch. ``inner``: whether it is the ``elif`` of another."""
    assert isinstance(node, cst.If)
    left: cst.Else | cst.If | None = cst.Else(node.body) if taken else node.orelse
    if inner:
        return cst.RemoveFromParent() if left is None else left
    if isinstance(left, cst.Else):
        return cst.FlattenSentinel(list(_statements(left.body)))
    return cst.FlattenSentinel([]) if left is None else left


def _statements(block: cst.BaseSuite) -> Iterator[cst.BaseStatement]:
    for statement in block.body:
        yield statement if isinstance(statement, cst.BaseStatement) else cst.SimpleStatementLine([statement])


def equal_constants(source: Source, facts: KernelFacts) -> dict[str, Value]:
    """Returns the constant parameters of the kernel that are equal in all launches. The kernel is in ``source``."""
    every = passed_constants(source, facts).items()
    return {name: values[0] for name, values in every if all(value == values[0] for value in values)}


def deciding_constants(source: Source, kernel: str, facts: KernelFacts) -> str:
    """Returns the end of a change's value: the constants of all launches that decide branches; "" if none do."""
    constants = equal_constants(source, facts)
    branches = decided_branches(source, source.functions[kernel], constants)
    named = [name for branch in branches for name in names_read(branch.node.test)]
    return f"{WITH}{written_constants(constants, named)}" if named else ""


def written_constants(constants: Mapping[str, Value], names: Iterable[str]) -> str:
    """Returns the constants as the value of a change names them: ``A=4 B=True``. `read_constants` reads them."""
    chosen = set(names)
    return " ".join(f"{name}={value}" for name, value in constants.items() if name in chosen)


def read_constants(text: str) -> dict[str, Value]:
    """Returns the constants that the value of a change names; empty if it names none."""
    return {name: _read(value) for name, value in _CONSTANT.findall(text)}


def _read(text: str) -> Value:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
