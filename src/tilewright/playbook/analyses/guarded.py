"""Puts a changed body and the old one into the two branches of an ``if``, for changes that do not hold for each launch.

Tests of constants, and of strides of 1, cost nothing: the compiler (13.4) knows both, and keeps one of the branches. It
keeps both for a test of an extent, unless `static_shapes` makes that a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.source.syntax import Source


def in_branch(new: Source, old: Source, name: str, conditions: Sequence[str]) -> Source:
    """Returns ``new`` with a function that computes as that of ``old`` does, unless all conditions are true."""
    if not conditions:
        return new
    function, changed = old.functions[name], new.functions[name]
    start = 1 if function.get_docstring() is not None else 0
    inside, before = (cst.ensure_type(each.body, cst.IndentedBlock) for each in (changed, function))
    branch = cst.If(
        cst.parse_expression(" and ".join(dict.fromkeys(conditions))),
        inside.with_changes(body=inside.body[start:], footer=()),
        cst.Else(before.with_changes(body=before.body[start:], footer=())),
    )
    return new.changed({inside: before.with_changes(body=[*before.body[:start], branch])})
