"""Finds where the shipped configuration stands in a source, and writes other values there.

It understands these forms:

- the ``shipped={...}`` of the file's ``tw.Space(...)``, which then also lists new values;
- elsewhere a call or dictionary of literals with the shipped values, such as ``SimpleNamespace(TILE_M=128)`` in a
  library's list of configurations; where loops yield them, the new configuration is yielded before the loops;
- assignments of literals to the names of knobs, in upper or lower case: ``TILE_N = 128``;
- the decorator of the launched kernel, for hints: ``@ct.kernel(occupancy=2)``.

Several literals may have the same values while only one is in effect. Each is a place of its own; loading the changed
file shows which one was. One change may touch two forms: a hint that a literal does not name goes to the decorator, and
one that a ``replace_hints(...)`` call fixes goes to that call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from tilewright.languages import language_of
from tilewright.languages.cutile.private import decorated_hints
from tilewright.playbook.analyses import configuration_literals as written_as
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.configuration_literals import ConfigurationLiteral, fixes_hints, last_name, pairs
from tilewright.playbook.base import KernelFacts, NotApplicable, Site
from tilewright.records import Configuration, Value
from tilewright.source.syntax import Changes, Source, argument, with_argument
from tilewright.source.values import Unread
from tilewright.space.knobs import HINTS

LIKELY = (1.0, 0.6, 0.4)
"""Promise of the first, second and third literal that may be the one in effect."""


@dataclass(frozen=True)
class ConfigurationSite:
    """One place where the configuration can be changed; ``site`` of an entry begins here."""

    kernel: str
    line: int
    column: int
    what: str
    constants: tuple[str, ...]
    """The knobs passed to the kernel that can be changed here; hints can be changed at every place."""
    promise: float = 1.0
    fixed: Configuration = Configuration(())  # noqa: RUF009  (frozen)
    """Values that a change must also write."""

    def site(self, what: str, values: tuple[Value, ...], promise: float = 1.0, why: str = "") -> Site:
        """A site of an entry at this place."""
        return Site(self.kernel, self.line, self.column, what, values, promise * self.promise, why)

    def value(self, changes: Mapping[str, Value]) -> str:
        """Changes as the text that a site's value is: ``TILE_M=64,occupancy=2``."""
        return str(Configuration.of({**self.fixed, **changes}))


def places(source: Source, facts: KernelFacts) -> tuple[ConfigurationSite, ...]:
    """Where the incumbent's configuration stands in ``source``, the likeliest first; may be empty."""
    kernel = launched_kernel(facts)
    if spaces := [call for call in source.every(cst.Call) if last_name(call) == "Space"]:
        return _in_space(source, spaces, facts, kernel)
    found = sorted(written_as.literals(source, facts), key=lambda one: (-len(one.constants), -one.same))
    found = found or list(written_as.assignments(source, facts))
    if found:
        return tuple(_place(source, one, kernel, promise) for one, promise in zip(found, LIKELY, strict=False))
    decorator = _decorator(source, kernel)
    if decorator is None:
        return ()
    line, column = source.place(decorator)
    return (ConfigurationSite(kernel, line, column, f"decorator of {kernel}", ()),)


def written(source: Source, site: Site, changes: Mapping[str, Value]) -> str:
    """The text with other values at the place where ``site`` begins. Raises `NotApplicable`."""
    node = _node(source, site)
    if isinstance(node, cst.Call) and last_name(node) == "Space":
        return _written_in_space(source, changes)
    fixed = [name for name in changes if name in HINTS and _fixing(source, site.kernel, name)]
    source, left = _written_at(source, node, {name: changes[name] for name in changes if name not in fixed})
    for name in fixed:
        calls = _fixing(source, site.kernel, name)
        renewed: Changes = {call: with_argument(call, name, repr(changes[name])) for call in calls}
        source = source.changed(renewed)
    if others := [name for name in left if name not in HINTS]:
        raise NotApplicable(f"{source.name}:{site.line}: no literal value of {', '.join(others)} stands here")
    return _with_decorator(source, site.kernel, left) if left else source.text


def launched_kernel(facts: KernelFacts) -> str:
    """The name of the kernel function that the task launches."""
    kernel = facts.launch(facts.workloads[0]).kernel
    return language_of(kernel).kernel_name(kernel)


def current(facts: KernelFacts) -> Configuration:
    """The incumbent's configuration with all compiler hints; the decorator gives those that the space lacks."""
    shipped = facts.task.space.shipped
    carried = decorated_hints(facts.launch(facts.workloads[0]).kernel, facts.board.arch)
    others = {name: carried.get(name) for name in HINTS if name not in shipped and name != "opt_level"}
    return Configuration.of({**shipped, **others})


# Finding ------------------------------------------------------------------------------------------


def _in_space(source: Source, spaces: list[cst.Call], facts: KernelFacts, kernel: str) -> tuple[ConfigurationSite, ...]:
    shipped = pairs(argument(spaces[0], "shipped"))
    if len(spaces) != 1 or shipped is None:
        return ()
    line, column = source.place(spaces[0])
    constants = tuple(name for name in facts.task.space.constants if name in shipped)
    return (ConfigurationSite(kernel, line, column, "space", constants),)


def _place(source: Source, found: ConfigurationLiteral, kernel: str, promise: float) -> ConfigurationSite:
    line, column = source.place(found.node)
    code = " ".join(source.code(found.node).split())
    if isinstance(found.node, cst.For):
        code = f"the list of {source.function_of(found.node) or source.name}"
    return ConfigurationSite(kernel, line, column, code, found.constants, promise * found.promise, found.fixed)


def _decorator(source: Source, kernel: str) -> cst.Decorator | None:
    function = source.functions.get(kernel)
    return None if function is None else source.kernel_decorator(function)


# Writing ------------------------------------------------------------------------------------------


def _node(source: Source, site: Site) -> cst.CSTNode:
    for kind in (cst.For, cst.Assign, cst.Decorator, cst.Call, cst.Dict):
        try:
            return source.at(kind, site.line, site.column)
        except KeyError:
            continue
    raise NotApplicable(f"{source.name}:{site.line}: no configuration stands here")


def _written_in_space(source: Source, changes: Mapping[str, Value]) -> str:
    """The knobs of the space with other shipped values; a value or a hint that is new is listed too."""
    space = task_code.space_of(source)
    listed = pairs(argument(space, "constants")) or {}
    shipped = pairs(argument(space, "shipped")) or {}
    for name, value in changes.items():
        hint = name in HINTS and name not in listed
        if name not in shipped and not hint:
            raise NotApplicable(f"{source.name}: the space has no knob '{name}'")
        known = _known(source, name, hint)
        if name in shipped and (known is None or value in known):
            source = task_code.with_shipped(source, name, value)
        else:
            before = () if name in shipped else (None,)
            source = task_code.with_knob(source, name, (*before, value), value, hint=hint)
    return source.text


def _known(source: Source, name: str, hint: bool) -> tuple[Value, ...] | None:
    """The values that the space lists for a knob; None where they are not literals."""
    lists = pairs(argument(task_code.space_of(source), "hints" if hint else "constants")) or {}
    listed = lists.get(name, ())
    if not isinstance(listed, (tuple, list)):
        return None
    values = tuple(value for value in listed if value is None or isinstance(value, (int, float, str)))
    return values if len(values) == len(listed) else None


def _written_at(source: Source, node: cst.CSTNode, changes: Mapping[str, Value]) -> tuple[Source, dict[str, Value]]:
    """The source with what the literal at a place names changed there, and what it does not name."""
    if isinstance(node, cst.For):
        return written_as.written_before_loops(source, node, changes)
    if isinstance(node, cst.Assign):
        return written_as.written_in_assignments(source, node, changes)
    if isinstance(node, (cst.Call, cst.Dict)):
        return written_as.written_in_literal(source, node, changes)
    return source, dict(changes)


def _fixing(source: Source, kernel: str, name: str) -> list[cst.Call]:
    """The ``replace_hints`` calls of this kernel that give the hint a literal value."""
    return [
        call
        for call in source.every(cst.Call)
        if fixes_hints(call)
        and kernel in source.code(call)
        and not isinstance((pairs(call) or {}).get(name, Unread(name)), Unread)
    ]


def _with_decorator(source: Source, kernel: str, hints: Mapping[str, Value]) -> str:
    """The decorator of the kernel with other hints; None takes one away."""
    decorator = _decorator(source, kernel)
    if decorator is None:
        raise NotApplicable(f"{source.name}: the kernel {kernel} is not in this file")
    called = decorator.decorator
    call = called if isinstance(called, cst.Call) else cst.Call(called)
    for name, value in hints.items():
        call = with_argument(call, name, None if value is None else repr(value))
    new = call if call.args else call.func
    return source.replaced({decorator: decorator.with_changes(decorator=new)})
