"""Passes the block's id to the functions that a kernel calls, if they read it themselves.

    def _tile(rows):                               def _tile(block, rows):
        number = ct.bid(0)                →            number = block
        return number // rows                          return number // rows

    _tile(rows)                in the kernel:      _tile(ct.bid(0), rows)

Then only the kernel reads its block's id, and an entry can replace it there.
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.block_loop import grid_calls
from tilewright.playbook.analyses.helper_calls import calls_of, may_be_imported
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Function, Replacement, Source, dotted


def with_passed_ids(source: Source, kernel: str) -> Source:
    """Returns the source in which no function that ``kernel`` calls reads a block's id or a number of blocks.

    Raises `NotApplicable` if not all calls of such a function are known.
    """
    # callees first: a helper that calls them then reads their ids, and gets these as arguments, too
    for name in sorted(source.called_by([kernel]) - {kernel}, key=lambda name: (len(source.called_by([name])), name)):
        if grid_calls(source, name):
            source = _passed(source, source.functions[name], kernel)
    return source


def _passed(source: Source, helper: Function, kernel: str) -> Source:
    """Returns the source in which a helper gets what it reads as its first arguments."""
    name = helper.name.value
    _refuse_other_calls(source, helper, kernel)
    reads = grid_calls(source, name)
    given = dict[str, str]()
    for text in map(source.code, reads):
        given.setdefault(text, fresh_in(source, name, "block", given.values()))
    listed = "posonly_params" if helper.params.posonly_params else "params"
    params = [*(cst.Param(cst.Name(each)) for each in given.values()), *getattr(helper.params, listed)]
    changes: dict[cst.CSTNode, Replacement] = {read: cst.Name(given[source.code(read)]) for read in reads}
    source = source.changed({**changes, helper.params: helper.params.with_changes(**{listed: params})})
    args = [cst.Arg(cst.parse_expression(text)) for text in given]

    def longer(call: cst.CSTNode) -> cst.CSTNode:  # a call may be an argument of another
        assert isinstance(call, cst.Call)
        return call.with_changes(args=[*args, *call.args])

    return source.changed({call: longer for call in source.every(cst.Call) if dotted(call.func) == name})


def _refuse_other_calls(source: Source, helper: Function, kernel: str) -> None:
    """Raises `NotApplicable` if anything but ``kernel`` may call a helper: it would change, too."""
    name = helper.name.value
    others = [other for other in source.kernels if other != kernel and name in source.called_by([other])]
    if others or not calls_of(source, helper) or may_be_imported(source, helper):
        why = f"{others[0]} calls it, too" if others else "not all its calls are known"
        raise NotApplicable(
            f"{name}, which {kernel} calls, reads the block's id or the number of blocks itself, and {why}"
        )
