"""Adds a configuration to the list that a program searches."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import libcst as cst

from tilewright.playbook.analyses.configuration_sites import (
    ConfigurationSite,
    literals_in,
    with_values,
    written_before_loops,
)
from tilewright.records import Value
from tilewright.source.syntax import Source

IN_NO_LIST = "no list of literals has the captured configuration; fix: if the list has changed, capture it again"


def added(source: Source, place: ConfigurationSite, changes: Mapping[str, Value], new: Collection[str] = ()) -> str:
    """Returns the text with one more configuration in the list, after the one at ``place``, with other values; as it is
    if the list has it. Raises `NotApplicable` if the one at ``place`` is not an element of a list, or not yielded.

    new: the fields that the others do not have.
    """
    site, kinds = place.site("", ()), (cst.For, cst.Call, cst.Dict)
    node = site.node(source, (node for kind in kinds for node in source.every(kind)), IN_NO_LIST)
    if isinstance(node, cst.For):
        return written_before_loops(source, node, {**place.fixed, **changes})[0].text
    assert isinstance(node, (cst.Call, cst.Dict)), "the other kinds"
    if missing := changes.keys() - (literals_in(node) or {}).keys() - set(new if isinstance(node, cst.Call) else ()):
        raise site.refused(source, f"the configuration here has no {', '.join(sorted(missing))}")
    one_more, above = with_values(node, changes), source.parent(node)
    line = next((each for each in source.parents(node) if isinstance(each, cst.SimpleStatementLine)), None)
    holder = line if isinstance(above, cst.Yield) else above
    beside = source.parent(holder).children if holder else ()  # type: ignore[union-attr]
    listed = [each for other in beside if type(other) is type(holder) for each in source.every(type(node), other)]
    if any(literals_in(each) == literals_in(one_more) for each in listed):
        return source.text
    if isinstance(above, cst.Element):
        return source.replaced({above: cst.FlattenSentinel([above, above.with_changes(value=one_more)])})
    if isinstance(above, cst.Yield) and line is not None and len(line.body) == 1:
        added_line = cst.parse_statement(f"yield {source.code(one_more)}")
        return source.replaced({line: cst.FlattenSentinel([line, added_line])})
    raise site.refused(source, IN_NO_LIST)
