"""The rules, one a file. A new rule is a file with a `RULE`, listed here."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from tilewright.errors import UnknownChoice
from tilewright.lint.findings import About, Rule
from tilewright.lint.rules import (
    autotune_launch,
    cache_key,
    compiler_timeout,
    current_device,
    dead_switch,
    decorator_hints,
    device_op_on_host,
    element_index,
    fp8_division,
    grid_shape,
    hints_dropped,
    hints_never_timed,
    hints_not_applied,
    hints_on_hot_path,
    hopper_list,
    in_place_search,
    kernel_called,
    large_product,
    missing_padding,
    no_such_method,
    no_such_name,
    no_such_result,
    no_switch,
    not_an_argument,
    process_only,
    runtime_shape,
    search_on_hot_path,
    space_no_list,
    switch_after_cache,
    swizzle,
    tile_shape,
    unused_parameter,
)

_FILES = (
    in_place_search, hints_not_applied, hints_never_timed, space_no_list, no_such_result, decorator_hints,
    hints_dropped, compiler_timeout, hopper_list, large_product, cache_key, process_only, hints_on_hot_path,
    search_on_hot_path, switch_after_cache, no_switch, dead_switch, current_device, no_such_method, no_such_name,
    kernel_called, device_op_on_host, swizzle, missing_padding, tile_shape, fp8_division, element_index, runtime_shape,
    unused_parameter, not_an_argument, grid_shape, autotune_launch,
)  # fmt: skip

RULES: tuple[Rule, ...] = tuple(file.RULE for file in _FILES)

CANNOT_READ = About(
    code="TW001",
    name="cannot-be-read",
    level="error",
    title="the file is not valid Python, or its expressions are nested too deep",
    why="Nothing in it can be looked at.",
    fix="mend the line, or leave the file out of the paths",
    sources=(),
)
NO_OP_HINT = About(
    code="TW501",
    name="no-op-hint",
    level="warning",
    title="a searched hint changes no machine code",
    why="Configurations that differ in it alone are one and the same program: the search times it several "
    "times and picks noise. Occupancy 16 and 32 never differed from 8, and 1 never from automatic, in 24 "
    "cells (X-09).",
    fix="take the hint, or the values that repeat, out of the space",
    sources=("X-09",),
)

ABOUT = MappingProxyType({one.code: one for one in (CANNOT_READ, *(rule.about for rule in RULES), NO_OP_HINT)})
"""Everything that may be found, by code."""


def codes(words: Iterable[str]) -> set[str]:
    """The codes that words name: codes, names, or the ids that rules stand for (`A-47`, `W1`).

    Raises UnknownChoice, which lists the codes.
    """
    found: set[str] = set()
    for word in words:
        wanted = word.strip().lower()
        named = {
            about.code
            for about in ABOUT.values()
            if wanted in {about.code.lower(), about.name, *(source.lower() for source in about.sources)}
        }
        if not named:
            raise UnknownChoice("rule", word.strip(), (f"{one.code} {one.name}" for one in ABOUT.values()))
        found |= named
    return found
