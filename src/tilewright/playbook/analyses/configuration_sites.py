"""Finds where the shipped configuration stands in a source, and writes other values there.

It understands these forms:

- the ``shipped={...}`` of the file's ``tw.Space(...)``, which then also lists new values;
- elsewhere a call or dictionary of literals with the shipped values, such as ``SimpleNamespace(TILE_M=128)`` in a
  library's list of configurations; where loops yield them, the new configuration is yielded before the loops;
- assignments of literals to the names of knobs, in upper or lower case: ``TILE_N = 128``;
- the decorator of the launched kernel, for hints: ``@ct.kernel(occupancy=2)``.

Several literals may have the same values while only one is in effect. Each is a place of its own; loading the changed
file shows which one was. One change may touch two forms: a hint that a literal does not name goes to the decorator, and
one that a ``replace_hints(...)`` call fixes goes to that call. A library often lists its configurations by
architecture: a condition around a literal that asks only for ``get_device_capability()`` is evaluated, so that the list
of another architecture is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.languages import language_of
from tilewright.languages.cutile.private import decorated_hints
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.dataflow import pairs_of
from tilewright.playbook.base import KernelFacts, NotApplicable, Site
from tilewright.records import Configuration, Value
from tilewright.source.syntax import Source, argument, dotted, keywords, literal, with_argument
from tilewright.source.values import Known, Unread, value_of_text
from tilewright.space.knobs import HINTS

LIKELY = (1.0, 0.6, 0.4)
"""Promise of the first, second and third literal that may be the one in effect."""
OTHER_HINTS = 0.5
"""Promise of a literal with other hints than the launched ones: they are set elsewhere, or the literal is not used."""
_CAPABILITY = re.compile(r"[\w.]*\bget_device_capability\([^()]*\)")


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
    if spaces := source.calls_named("Space"):
        shipped = pairs(argument(spaces[0], "shipped"))
        if len(spaces) != 1 or shipped is None:
            return ()
        constants = tuple(name for name in facts.task.space.constants if name in shipped)
        return (ConfigurationSite(kernel, *source.place(spaces[0]), "space", constants),)
    found = sorted(_literals(source, facts), key=lambda one: (-len(one.constants), -one.same))
    found = found or list(_assignments(source, facts))
    if not found and (decorator := _decorator(source, kernel)) is not None:
        return (ConfigurationSite(kernel, *source.place(decorator), f"decorator of {kernel}", ()),)
    return tuple(_place(source, one, kernel, promise) for one, promise in zip(found, LIKELY, strict=False))


def written(source: Source, site: Site, changes: Mapping[str, Value]) -> str:
    """The text with other values at the place where ``site`` begins. Raises `NotApplicable`."""
    kinds = (cst.For, cst.Assign, cst.Decorator, cst.Call, cst.Dict)
    nodes = (node for kind in kinds for node in source.every(kind))
    node = site.node(source, nodes, "no configuration stands here")
    if node in source.calls_named("Space"):
        return _written_in_space(source, changes)
    elsewhere = {name for hints in _fixing(source, site.kernel).values() for name in hints}
    fixed = [name for name in changes if name in HINTS and name in elsewhere]
    left = {name: changes[name] for name in changes if name not in fixed}
    if isinstance(node, (cst.For, cst.Assign, cst.Call, cst.Dict)):
        source, left = _written_at(source, node, left)
    for name in fixed:
        calls = [call for call, hints in _fixing(source, site.kernel).items() if name in hints]
        source = source.changed({call: with_argument(call, name, repr(changes[name])) for call in calls})
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


def _place(source: Source, found: _Literal, kernel: str, promise: float) -> ConfigurationSite:
    code = " ".join(source.code(found.node).split())
    if isinstance(found.node, cst.For):
        code = f"the list of {source.function_of(found.node) or source.name}"
    return ConfigurationSite(
        kernel, *source.place(found.node), code, found.constants, promise * found.promise, found.fixed
    )


def _decorator(source: Source, kernel: str) -> cst.Decorator | None:
    function = source.functions.get(kernel)
    return None if function is None else source.kernel_decorator(function)


def _written_in_space(source: Source, changes: Mapping[str, Value]) -> str:
    """The text with ``changes`` as the space's shipped values; new values and hints are listed too."""
    space = task_code.space_of(source)
    listed = pairs(argument(space, "constants")) or {}
    shipped = pairs(argument(space, "shipped")) or {}
    for name, value in changes.items():
        hint = name in HINTS and name not in listed
        if name not in shipped and not hint:
            raise NotApplicable(f"{source.name}: the space has no knob '{name}'")
        known = _known(source, name, hint)
        listed_already = name in shipped and (known is None or value in known)
        values = () if listed_already else (value,) if name in shipped else (None, value)
        source = task_code.with_knob(source, name, values, value, hint=hint)
    return source.text


def _known(source: Source, name: str, hint: bool) -> tuple[Value, ...] | None:
    """The values that the space lists for a knob; None where they are not literals."""
    lists = pairs(argument(task_code.space_of(source), "hints" if hint else "constants")) or {}
    listed = lists.get(name, ())
    known = listed if isinstance(listed, (tuple, list)) else (Unread(name),)
    values = tuple(value for value in known if value is None or isinstance(value, (int, float, str)))
    return values if len(values) == len(known) else None


def _written_at(
    source: Source, node: cst.For | cst.Assign | cst.Call | cst.Dict, changes: Mapping[str, Value]
) -> tuple[Source, dict[str, Value]]:
    """The source with what the literal at a place names changed there, and what it does not name."""
    if isinstance(node, cst.For):
        return _written_before_loops(source, node, changes)
    if isinstance(node, cst.Assign):
        return _written_in_assignments(source, node, changes)
    known = pairs(node) or {}
    mine = {name: value for name, value in changes.items() if name in known and not isinstance(known[name], Unread)}
    left = {name: value for name, value in changes.items() if name not in mine}
    return source.changed({node: _with_values(node, mine)}), left


def _fixing(source: Source, kernel: str = "") -> dict[cst.Call, set[str]]:
    """The ``replace_hints`` calls (of a kernel), and the hints to which they give a literal value."""
    calls = [call for call in source.every(cst.Call) if _fixes_hints(call) and kernel in source.code(call)]
    return {
        call: {name for name, value in keywords(call).items() if not isinstance(literal(value), Unread)}
        for call in calls
    }


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


# Literals that hold a configuration ---------------------------------------------------------------


@dataclass(frozen=True)
class _Literal:
    """One literal that holds the shipped constants."""

    node: cst.Call | cst.Dict | cst.For | cst.Assign
    constants: tuple[str, ...]
    same: int
    """How many knobs have the shipped value there."""
    promise: float
    fixed: Configuration = Configuration(())  # noqa: RUF009  (frozen)
    """The values of knobs that loops run over, which a change must also write."""


def _literals(source: Source, facts: KernelFacts) -> Iterator[_Literal]:
    """Calls and dictionaries that name the shipped values, in the order of the text.

    What they say of hints that some ``replace_hints`` fixes has no effect.
    """
    elsewhere = {name for hints in _fixing(source).values() for name in hints}
    nodes: list[cst.Call | cst.Dict] = [*source.every(cst.Call), *source.every(cst.Dict)]
    for node in nodes:
        if isinstance(source.parent(node), cst.Decorator) or _fixes_hints(node):
            continue
        loops = _loops(source, node)
        said = {name: value for name, value in (pairs(node) or {}).items() if name not in elsewhere}
        found = _matched(node, said, {name: values for name, (_, values) in loops.items()}, facts)
        if found is not None and _on_board(source, node, facts):
            outermost = min((loop for loop, _ in loops.values()), key=source.place, default=None)
            yield replace(found, node=outermost) if found.fixed and outermost is not None else found


def _assignments(source: Source, facts: KernelFacts) -> Iterator[_Literal]:
    """``TILE_N = 128`` of the module, and in functions where one block assigns all constants of the space."""
    shipped = facts.task.space.shipped
    names = {name.lower(): name for name in facts.task.space.constants}
    for node in source.every(cst.Assign):
        beside = [part for one in _beside(source, node) for part in _assigned(one)]
        given = {names[target.lower()]: value for target, value in beside if target.lower() in names}
        same = [name for name, value in given.items() if literal(value) == shipped[name]]
        own = [names.get(target.lower()) for target, _ in _assigned(node)]
        wanted = len(names) if source.function_of(node) else 1
        first = len(same) >= wanted and own[:1] == same[:1] != []
        if first and _on_board(source, node, facts):
            yield _Literal(node, tuple(same), len(same), 1.0)


def _written_before_loops(
    source: Source, loop: cst.For, changes: Mapping[str, Value]
) -> tuple[Source, dict[str, Value]]:
    """The source with a configuration yielded before the loops that yield all others."""
    for call in source.every(cst.Call, loop):
        given = keywords(call)
        variables = {name for name, value in given.items() if isinstance(value, cst.Name)}
        if isinstance(source.parent(call), cst.Yield) and variables and variables <= set(changes):
            mine = {name: value for name, value in changes.items() if name in given}
            new = cst.SimpleStatementLine([cst.Expr(cst.Yield(_with_values(call, mine)))], loop.leading_lines)
            left = {name: value for name, value in changes.items() if name not in mine}
            return source.changed({loop: cst.FlattenSentinel([new, loop.with_changes(leading_lines=())])}), left
    raise NotApplicable(f"{source.name}: a configuration beside these loops must name all that they run over")


def _written_in_assignments(
    source: Source, node: cst.Assign, changes: Mapping[str, Value]
) -> tuple[Source, dict[str, Value]]:
    """The source with ``TILE_M = 128`` and its neighbours in the same block of statements changed."""
    left, swaps = dict(changes), dict[cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]]()
    for name in changes:
        for target, old in (part for one in (node, *_beside(source, node)) for part in _assigned(one)):
            if target.lower() == name.lower() and not isinstance(literal(old), Unread):
                swaps[old] = cst.parse_expression(repr(left.pop(name)))
                break
    return source.changed(swaps), left


def _fixes_hints(node: cst.CSTNode) -> bool:
    """Whether a call is ``kernel.replace_hints(occupancy=2)``, or of a function whose name ends with that."""
    return isinstance(node, cst.Call) and dotted(node.func).split(".")[-1].endswith("replace_hints")


def pairs(node: cst.CSTNode | None) -> dict[str, Known] | None:
    """Keyword or key → literal value (or `Unread`) of a call or dictionary; None of anything else."""
    if isinstance(node, cst.Call):
        return {name: literal(value) for name, value in keywords(node).items()}
    if isinstance(node, cst.Dict):
        elements = [one for one in node.elements if isinstance(one, cst.DictElement)]
        keys = [literal(one.key) for one in elements]
        return {key: literal(one.value) for key, one in zip(keys, elements, strict=True) if isinstance(key, str)}
    return None


def _assigned(node: cst.Assign) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Name and value of each part of ``a = 1`` and of ``a, b = 1, 2``."""
    for target, value in pairs_of(node) if len(node.targets) == 1 else ():
        if isinstance(target, cst.Name) and value is not None:
            yield target.value, value


def _matched(
    node: cst.Call | cst.Dict, said: Mapping[str, Known], loops: Mapping[str, tuple[Known, ...]], facts: KernelFacts
) -> _Literal | None:
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
    others = len(known) < len(said) and set(constants) != set(space.constants)
    if not same or others or not set(constants) <= set(same) or (not constants and len(same) < len(said)):
        return None
    values = {name: space.shipped[name] if name in same else run[name][0] for name in run}
    fixed = Configuration.of(values)  # type: ignore[arg-type]
    return _Literal(node, constants, len(same), 1.0 if len(same) == len(known) else OTHER_HINTS, fixed)


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
    given = {name: dotted(value) for name, value in keywords(node).items()}
    return {name: around[variable] for name, variable in given.items() if variable in around}


def _beside(source: Source, node: cst.Assign) -> list[cst.Assign]:
    """The assignments in the same block of statements."""
    _, block, *_ = source.parents(node)
    return [one for line in block.children for one in line.children if isinstance(one, cst.Assign)]


def _on_board(source: Source, node: cst.CSTNode, facts: KernelFacts) -> bool:
    """False where a condition on the device's capability excludes this board."""
    below = node
    capability: Known = [*divmod(facts.sm, 10)]
    names = {
        target: capability
        for one in source.every(cst.Assign)
        for target, value in _assigned(one)
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
        if isinstance(node, cst.Call):
            node = with_argument(node, name, repr(value))
        else:
            node = task_code.with_entry(node, name, value)
    return node
