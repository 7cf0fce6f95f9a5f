"""Loads a row once, where a block reads it more than once.

If the block reads the row in chunks, the loops over the chunks disappear: the tile becomes as wide as the row, so that
each loop would run once. A load that an earlier statement has made is not made again. The row stays in registers, so
the entry is for rows that fit.

If the loads are in branches that constants of the launch decide, the kernel gets a branch for these constants and for
rows that are one chunk; other launches of the kernel compile what they did.

If the task's launch passes one array for two parameters, loads through both are the same, too: decoding with latent
attention passes its keys as values. The kernel is then wrong for a launch that passes two arrays. It cannot test that,
so the value of the change and a comment in the kernel name the condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.chunk_loops import Chunked, chunked, longest_row, once, with_own_names
from tilewright.playbook.analyses.constant_branches import (
    compiled_only,
    decided_branches,
    deciding_constants,
    read_constants,
)
from tilewright.playbook.analyses.constants import constant_parameters
from tilewright.playbook.analyses.guarded import in_branch
from tilewright.playbook.analyses.loaded_elements import loaded_pairs, one_array
from tilewright.playbook.analyses.repeated import without_repeated
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    refusal,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Changes, Source, number

WHOLE_ROW, LOADED_ONCE = "whole row", "loaded once"


class OnePass(Entry):
    about = EntryDescription(
        id="one_pass",
        name="one pass over a row",
        what="one tile for the whole row in place of loops over its chunks; each element is loaded once, also if one "
        "array is two parameters",
        when="a block reads its row more than once, and the row fits into registers (32768 elements)",
        when_not="longer rows; rows that are read only once; rows that are loaded again to save registers; "
        "a kernel that gets one array for two parameters here, but two arrays in another launch",
        priority={"memory": 1, "balanced": 2, "compute": 5},
        eases=("traffic", "issue slots", "bytes in flight", "tile size"),
        together=("tile_sizes", *HINTS_OF_TILES),
        order=192,
        effect=Effect.assumed(1.0, 1.6),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        if not (kernel := task_code.own_kernel(facts, source)):
            return []
        found = unless_refused(chunked, source, kernel, 2)
        if found is None:
            return self._loads(source, kernel)
        longest = longest_row(found, source, kernel, facts)
        what = f"{len(found.loops)} loops over {found.length} in chunks of {found.tile}"
        why = f"rows of up to {longest:,} elements"
        values = dict.fromkeys((WHOLE_ROW, WHOLE_ROW + deciding_constants(source, kernel, facts)))
        sites = (Site.at(source, source.kernels[kernel], what, (each,), why=why) for each in values)
        return [each for each in sites if self.applies(source, each)][:1] if 0 < longest <= FIT_IN_REGISTERS else []

    def _loads(self, source: Source, kernel: str) -> list[Site]:
        """Returns the site of loads that are made again, if there are any."""
        same = one_array(source, kernel)
        pairs = loaded_pairs(source, kernel, same)
        plain, more = (without_repeated(source, kernel, each)[1] for each in ({}, same))
        values = (_if_one_array(pairs),) * (more > plain) + (LOADED_ONCE,) * (plain > 0)
        what = f"loads that are made {more + 1} times"
        if more > plain:
            what += f" if each launch passes one array as {', as '.join(map(' and '.join, pairs))}"
        return [Site.at(source, source.kernels[kernel], what, values)] if values else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        if (kernel := facts.kernel) not in source.kernels:
            return ""
        found = unless_refused(chunked, source, kernel, 2)
        longest = 0 if found is None else longest_row(found, source, kernel, facts)
        if longest > FIT_IN_REGISTERS:
            return f"rows of {longest:,} elements do not fit into registers"
        return refusal(_with_whole_row, source, kernel)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        same = dict[str, str]()
        if constants := read_constants(str(value)):
            new = compiled_once(source, kernel, constants)
            return in_branch(new, source, kernel, conditions_of(source, kernel, constants)).text
        if value == WHOLE_ROW:
            source = _with_whole_row(source, kernel)
        elif value != LOADED_ONCE:
            same = one_array(source, kernel)
            alike = _if_one_array(loaded_pairs(source, kernel, same))
            if not alike or value != alike:
                known = ", ".join(filter(None, (WHOLE_ROW, LOADED_ONCE, alike)))
                raise NotApplicable(f"'{value}' is no value of this entry; known: {known}")
        changed, removed = without_repeated(source, kernel, same)
        if not removed:
            raise NotApplicable(f"{kernel} loads no element of its row twice")
        return changed.text


def _if_one_array(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns the value that names the parameters for which the launch passes one array; "" if there are none."""
    named = [f"{name} is {first}" for first, name in pairs]
    return f"{LOADED_ONCE} if {' and '.join(named)}" if named else ""


def compiled_once(source: Source, kernel: str, constants: Mapping[str, Value]) -> Source:
    """Returns the source whose kernel has only what the launch compiles with these constants, and reads a row once."""
    function = source.kernels[kernel]
    found = chunked(source, kernel, 2)
    if not {found.length, found.tile} <= constant_parameters(source, function):
        raise NotApplicable(f"{found.length} of {kernel} is no constant: both forms would be compiled")
    branches = decided_branches(source, function, constants)
    plain, removed = without_repeated(_with_whole_row(compiled_only(source, branches), kernel), kernel)
    if not removed:
        raise NotApplicable(f"{kernel} loads no element of its row twice")
    return plain


def conditions_of(source: Source, kernel: str, constants: Mapping[str, Value]) -> list[str]:
    """Returns the tests of launches for which `compiled_once` holds: the constants have these values, and a chunk is a
    row."""
    found = chunked(source, kernel, 2)
    branches = decided_branches(source, source.kernels[kernel], constants)
    return [f"{found.tile} >= {found.length} > 0", *(each.condition(source) for each in branches)]


def _with_whole_row(source: Source, kernel: str) -> Source:
    """Returns the source with a tile for the whole row, and the statements of each loop once."""
    source = with_own_names(source, kernel, chunked(source, kernel, 2).loops)
    found = chunked(source, kernel, 2)
    given = task_code.argument_of(source, kernel, found.tile)
    if given is None:
        raise NotApplicable(f"{source.name}: the launch does not list what it passes for {found.tile}")
    changes: Changes = {loop: cst.FlattenSentinel(once(loop)) for loop in found.loops}
    tile, whole = source.code(given), _in_launch(source, kernel, found)
    padded = f"1 << ({whole} - 1).bit_length()"
    if tile not in (whole, padded):  # else a chunk is the whole row already
        others = source.every(type(given), task_code.launch_of(source).function)
        if [source.code(each) for each in others].count(tile) > 1 and number(given) is None:
            raise NotApplicable(f"{source.name}: the launch uses {tile} for more than the size of a chunk")
        changes = {**changes, given: cst.parse_expression(f"max({tile}, {padded})")}
    return source.changed(changes)


def _in_launch(source: Source, kernel: str, found: Chunked) -> str:
    """Returns the length of the row as an expression of the launch. Raises `NotApplicable` if it is not known there."""
    if found.length.isdigit():
        return found.length
    name, dot, rest = found.length.partition(".")
    passed = task_code.argument_of(source, kernel, name)
    if passed is None:
        raise NotApplicable(f"{source.name}: the launch does not know {found.length}")
    return f"{source.code(passed)}{dot}{rest}"


ENTRY = OnePass()
